"""The Lightning callbacks of a run; training/assemble.py creates them and sets their order."""
