"""Split a text into training, validation and test: by position, by file, or documents by a hash of their content."""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from data.find import Corpus

SPLITS = ("train", "validation", "test")
ORDER = ("validation", "test", "train")  # splits of documents by increasing hash
BY_FILE = 40  # with at least this many files, none is divided: each belongs to one split
Part = tuple[str, int, int]  # a slice of a file, in tokens: split, begin, end


def split_files(
    corpus: Corpus, sizes: Sequence[int], shares: Sequence[float], hashes: Sequence[str]
) -> tuple[list[list[Part]], list[str]]:
    """Decide how a text is split, and return for each file its slices in tokens, and lines about the files.

    Files with the same text, by `hashes`, share a split or are divided at the same positions.
    """
    if corpus.files[0].split:  # `data.validation` is set, so each file was given for one split
        parts = [
            [(source.split, 0, size)] for source, size in zip(corpus.files, sizes, strict=True)
        ]
        num_train = sum(source.split == "train" for source in corpus.files)
        trained = set(hashes[:num_train])  # the files for training come first
        held_out = hashes[num_train:]
        copies = sum(digest in trained for digest in held_out)
        what = f"{copies:,} of {len(held_out):,} files for validation and test"
        note = f"{what} are copies of training files: their text is not held out"
        return parts, [note] if copies else []
    num_files = len(sizes)
    if num_files < BY_FILE:
        parts = [split_by_position(size, shares) for size in sizes]
        percent = "/".join(f"{100 * share:g}" for share in shares)
        how = f"each divided {percent} into training, validation and test"
    else:
        names = [source.name for source in corpus.files]
        alike = {} if corpus.python else dict(zip(names, hashes, strict=True))
        size_of = dict(zip(names, sizes, strict=True))
        split_of = split_by_file(size_of, shares, alike)
        parts = [[(split_of[name], 0, size)] for name, size in size_of.items()]
        how = "each whole in one split"
    if num_files == 1 or corpus.python:
        return parts, []
    notes = [f"{num_files:,} files, {how}"]
    full = [digest for digest, size in zip(hashes, sizes, strict=True) if size]
    copies = len(full) - len(set(full))
    if copies:
        notes.append(
            f"{copies:,} of {num_files:,} files are copies of others; copies share a split"
        )
    return parts, notes


def is_by_file(corpus: Corpus) -> bool:
    """Return whether each file of a corpus belongs to one split, and those with the same text to the same."""
    # The split of the standard library, by names alone, is that of the published losses.
    return len(corpus.files) >= BY_FILE and not corpus.files[0].split and not corpus.python


def split_by_position(size: int, shares: Sequence[float]) -> list[Part]:
    # 1e-6 corrects products such as 0.29 * 100 = 28.999999999999996.
    validation = int(size * shares[0] + 1e-6)
    test = int(size * (shares[0] + shares[1]) + 1e-6) if shares[2] else size
    return [("train", 0, validation), ("validation", validation, test), ("test", test, size)]


def split_by_file(
    sizes: Mapping[str, int], shares: Sequence[float], alike: Mapping[str, str]
) -> dict[str, str]:
    """Assign each file of a text as a whole to one split, and return a dict from each file's name to its split.

    Files are visited in the order of a hash of their names. They fill validation up to its share
    of the tokens, and then test. The remaining files are training. A file is skipped if it is more
    than twice as long as what is missing from the split that is being filled. Files with the same
    value in `alike`, by name, are one file here.
    """
    groups: dict[str, list[str]] = {}
    for name in sorted(
        sizes, key=lambda name: hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
    ):
        groups.setdefault(alike.get(name, name), []).append(name)
    split_of = dict.fromkeys(sizes, "train")
    for split, share in zip(SPLITS[1:], shares[1:], strict=True):
        room = share * sum(sizes.values())  # tokens that are missing from this split
        for group in groups.values():
            size = sum(sizes[name] for name in group)
            is_free = split_of[group[0]] == "train"  # and not in validation
            if is_free and 0 < size <= 2 * room:
                split_of |= dict.fromkeys(group, split)
                room -= size
    return split_of


def split_documents(
    ends: np.ndarray, is_new: np.ndarray, shares: Sequence[float]
) -> dict[str, slice]:
    """Return which documents, in the order of their hashes, are validation, test and training.

    `ends`, (documents,), are the sizes of each document and all before it together, and `is_new`,
    (documents,) bool, says whether each differs from the one before it: copies stay together, on
    the side of a border on which the middle of their text is. Each split with a share above 0 has
    at least one document.
    """
    firsts = np.flatnonzero(is_new)  # (distinct documents,), the first of each group of copies
    _, validation, test = shares

    def border(share: float, least: int, most: int) -> int:
        """Return the index of the group at the border after a share of the text."""
        target = share * ends[-1]
        document = min(int(np.searchsorted(ends, target)), len(ends) - 1)
        group = int(np.searchsorted(firsts, document, "right")) - 1  # contains the border
        begin = firsts[group]
        end = firsts[group + 1] if group + 1 < len(firsts) else len(ends)
        before = ends[begin - 1] if begin else 0
        middle = (before + ends[end - 1]) / 2
        return min(max(group + int(middle <= target), least), most)

    last = len(firsts) - 1
    test_group = border(validation, 1, last - 1 if test else last)
    train_group = border(validation + test, test_group + 1, last) if test else test_group
    begins = [0, int(firsts[test_group]), int(firsts[train_group]), len(ends)]
    return {split: slice(*begins[i : i + 2]) for i, split in enumerate(ORDER)}
