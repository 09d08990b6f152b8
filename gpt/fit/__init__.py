"""Fitting the model with Lightning."""
