"""Taking a model elsewhere: a module for each format, with one function that writes it."""
