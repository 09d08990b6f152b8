"""From text files to training batches: find and decode files, split and encode the text, compute each step's batch."""
