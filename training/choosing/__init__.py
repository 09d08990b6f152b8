"""What a run chooses for itself: a value for every `auto`."""
