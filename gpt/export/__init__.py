"""Taking a model elsewhere."""
