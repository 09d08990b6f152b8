"""Documents one at a time, in plain Python: what a document is, its hash, its split and its place there."""

MASK = 2**64 - 1


def content_hash(document: str | bytes) -> int:
    """A polynomial of the characters or bytes, mixed by the last steps of SplitMix64."""
    points = (
        list(document)
        if isinstance(document, bytes)
        else [ord(character) for character in document]
    )
    mixed, power = len(points) * 0x9E3779B97F4A7C15, 1
    for point in points:
        mixed, power = mixed + point * power, power * 0xD1342543DE82EF95 & MASK
    mixed &= MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & MASK
    return mixed ^ mixed >> 31


def documents_of(text: str, kind: str, whitespace: str | None = None) -> list[str]:
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
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if line.strip(whitespace):
            paragraphs[-1].append(line)
        else:
            paragraphs.append([])
    return ["\n".join(paragraph).removesuffix("\r") for paragraph in paragraphs if paragraph]


def divided(
    documents: list[str], shares: list[float], end: str, utf8: bool = False
) -> dict[str, list[str]]:
    """The documents of each split in their order; `utf8` hashes and measures bytes."""

    def size(document: str) -> int:
        return len((document + end).encode()) if utf8 else len(document + end)

    total = sum(map(size, documents))
    splits: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    done = 0
    for document in sorted(
        set(documents), key=lambda each: content_hash(each.encode() if utf8 else each)
    ):
        copies = [document] * documents.count(document)
        weight = len(copies) * size(document)
        middle, done = done + weight / 2, done + weight
        if middle <= shares[1] * total or not splits["validation"]:
            split = "validation"
        elif shares[2] and (middle <= (shares[1] + shares[2]) * total or not splits["test"]):
            split = "test"
        else:
            split = "train"
        splits[split] += copies
    return splits
