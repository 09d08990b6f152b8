"""Write a model in other formats: `to_<format>.py` has the function for each format."""
