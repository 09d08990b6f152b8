"""Choose a value for each setting of a run that is `auto`."""
