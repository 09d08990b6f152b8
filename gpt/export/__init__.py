"""Write a model in other formats: `write(model, meta, path)` in `to_FORMAT.py`; `meta` is the file's description."""
