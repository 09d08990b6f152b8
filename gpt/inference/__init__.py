"""Generate text: decoder, sampling rules, many texts at once."""
