"""Write a model in other formats, each by a function in `to_<format>.py`.

A function whose file another library can run returns `parity.largest_difference` of the file's logits.
"""
