"""Divide the documents of a corpus into the three splits."""

import hashlib
from collections.abc import Mapping, Sized

from data.config import DataConfig
from data.corpus import Corpus, DataError

SPLITS = ("train", "validation", "test")
BY_FILE = 40  # with at least this many documents, none is divided: each belongs to one split
Part = tuple[str, int, int]  # a part of a document: split, begin, end


def check_lengths(arrays: Mapping[str, Sized], config: DataConfig, context: int, corpus: Corpus) -> None:
    """Raise `DataError` if train or validation holds no window, or if a test split that is wanted has no two tokens."""
    unit = "characters" if corpus.encoding else "bytes"
    whole = sum(len(tokens) for tokens in arrays.values())
    if whole <= context:
        raise DataError(
            f"{corpus.name}: {whole:,} {unit} are too few: one window of model.context={context} "
            f"needs {context + 1:,} in train and in validation; lower model.context or name a longer text"
        )
    for split, share in zip(SPLITS, config.split, strict=True):
        length = len(arrays[split])
        # Windows of the test split may be shorter than `context`, since it is only evaluated: two tokens are enough.
        needed = context + 1 if split != "test" else 2 if share > 0 else 0
        if length < needed:
            way = f"lower model.context={context} or " if split != "test" else ""
            raise DataError(
                f"{corpus.name}: {split} holds {length:,} of {whole:,} {unit} but needs at least {needed:,}; "
                f"{way}give it a larger share than {share:g} with data.split="
            )


def split_by_file(sizes: Mapping[str, int], shares: list[float]) -> dict[str, str]:
    """Assign each document, by name, to one split. The result depends on names and sizes alone.

    Documents, in the order of a hash of their names, fill validation up to its share of the tokens, then test. The rest
    is train. A document that is more than twice as long as what is missing from a split goes to a later one.
    """
    left = sorted(sizes, key=lambda name: hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest())
    whole = sum(sizes.values())
    placed = {}
    for split, share in zip(SPLITS[1:], shares[1:], strict=True):
        room = share * whole
        for name in left:
            if 0 < sizes[name] <= 2 * room:
                placed[name] = split
                room -= sizes[name]
        left = [name for name in left if name not in placed]
    return placed | dict.fromkeys(left, "train")


def split_within(size: int, shares: list[float]) -> tuple[int, int]:
    """Return where validation and test begin in a document of `size` tokens."""
    # 1e-6 corrects products such as 0.29 * 100 = 28.999999999999996.
    first = int(size * shares[0] + 1e-6)
    return first, size if shares[2] == 0 else int(size * (shares[0] + shares[1]) + 1e-6)


def split_documents(corpus: Corpus, sizes: list[int], shares: list[float]) -> list[list[Part]]:
    """Divide documents of `sizes` tokens into parts; return the parts of each document."""
    if len(sizes) >= BY_FILE:
        names = [document.name for document in corpus.documents]
        placed = split_by_file(dict(zip(names, sizes, strict=True)), shares)
        return [[(placed[name], 0, size)] for name, size in zip(names, sizes, strict=True)]
    borders = [(0, *split_within(size, shares), size) for size in sizes]
    return [list(zip(SPLITS, border[:-1], border[1:], strict=True)) for border in borders]
