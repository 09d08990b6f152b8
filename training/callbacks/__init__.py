"""The Lightning callbacks of a run; training/assemble.py sets their order."""
