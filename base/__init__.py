"""Errors, options, files, processes: standard library, tqdm and filelock only."""
