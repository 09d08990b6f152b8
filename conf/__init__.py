"""The configuration: its schema, what may be typed, Hydra."""
