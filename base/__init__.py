"""Errors, options, files and processes. This package imports only the standard library, tqdm and filelock."""
