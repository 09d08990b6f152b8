"""What every other folder may use: files that are never half written. Imports nothing of the project."""
