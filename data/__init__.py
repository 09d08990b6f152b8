"""From text files to training batches: find and decode the files, split and encode the text, compute batch k."""
