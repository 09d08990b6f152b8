"""The model and everything done with one, in pure torch."""
