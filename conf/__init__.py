"""The configuration of a run: its schema, the YAML presets and the command line, composed by Hydra."""
