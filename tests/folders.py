"""Folders that text can be read from."""


def make(folder, documents):
    """Write files into a folder, which they and theirs need not have."""
    for name, content in documents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder
