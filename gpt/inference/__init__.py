"""Generate text with a trained model: the decoder, the sampling of tokens, and many texts at once."""
