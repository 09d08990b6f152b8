"""Documents one at a time, in plain Python: what a document is, its hash, its split and its place there."""

import hashlib


def content_hash(document):
    same = document.encode().replace(b"\r\n", b"\n").removeprefix(b"\xef\xbb\xbf")
    digest = hashlib.blake2b(same, digest_size=8).digest()
    return int.from_bytes(digest, "little")


def documents_of(text, kind, whitespace=None):
    """All documents of a file, blank ones too; `kind` is line, paragraph, file or else a separator."""
    if kind == "file":
        return [text]
    if kind not in ("line", "paragraph"):
        parts = text.split(kind)
        return [
            part.strip("\r\n" if whitespace else "\n")
            for part in (parts if parts[-1] else parts[:-1])
        ]
    lines = text.split("\n")
    lines = lines if lines[-1] else lines[:-1]
    if kind == "line":
        return [line.removesuffix("\r") for line in lines]
    paragraphs = [[]]
    for line in lines:
        if line.strip(whitespace):
            paragraphs[-1].append(line)
        else:
            paragraphs.append([])
    return ["\n".join(paragraph).removesuffix("\r") for paragraph in paragraphs if paragraph]


def divided(documents, shares, end):
    """The documents of each split in their order, by their sizes in bytes of UTF-8."""

    def size(document):
        return len((document + end).encode())

    total = sum(map(size, documents))
    splits = {"train": [], "validation": [], "test": []}
    done = 0
    groups = {}
    for document in documents:
        groups.setdefault(content_hash(document), []).append(document)
    distinct = sorted(groups)
    for place, number in enumerate(distinct):
        copies = groups[number]
        weight = sum(map(size, copies))
        middle, done = done + weight / 2, done + weight
        left = len(distinct) - place  # with this one
        fits = middle <= shares[1] * total and left > (2 if shares[2] else 1)
        if fits or not splits["validation"]:
            split = "validation"
        elif shares[2] and (
            (middle <= (shares[1] + shares[2]) * total and left > 1) or not splits["test"]
        ):
            split = "test"
        else:
            split = "train"
        splits[split] += copies
    return splits
