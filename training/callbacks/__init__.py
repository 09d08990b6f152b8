"""The Lightning callbacks of a run, which training/assemble.py creates and puts in order."""
