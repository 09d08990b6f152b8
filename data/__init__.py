"""Read a text, encode it and make batches of its tokens."""
