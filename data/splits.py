"""Decide where the splits fall in a text that is not divided into documents."""

import hashlib
import re
from collections.abc import Mapping, Sequence, Sized

from base.errors import InputError, printable
from data.config import DataConfig
from data.decoding import Corpus, SourceFile

SPLITS = ("train", "validation", "test")
BY_FILE = 40  # with at least this many files, none is divided: each belongs to one split
EMPTY = hashlib.sha256().hexdigest()  # hash of an empty file
# In the name of a file, the split that it belongs to.
ROLE = re.compile(r"(?:^|[/._-])(train|valid|validation|val|dev|test)(?=[/._-]|$)", re.IGNORECASE)
Part = tuple[str, int, int]  # a slice of a file, in tokens: split, begin, end


def check_lengths(
    arrays: Mapping[str, Sized], config: DataConfig, context: int, corpus: Corpus
) -> None:
    """Raise an `InputError` if train or validation is shorter than one window, or test is shorter than two tokens."""
    if config.overfit is not None and sum(map(len, arrays.values())) > context:
        return  # each split is then the beginning of the whole text
    # Windows of the test split may be shorter than `context`, since it is only evaluated: two
    # tokens are enough.
    has_test = config.test is not None
    if config.validation is None:  # each split is a part of data.path
        has_test = config.split[2] > 0
    least_test = 2 if has_test else 0
    least = {"train": context + 1, "validation": context + 1, "test": least_test}
    for split, tokens in arrays.items():
        if len(tokens) >= least[split]:
            continue
        key = "path" if split == "train" else split
        name = getattr(config, key) if config.validation else corpus.name
        unit = "characters" if corpus.encoding else "bytes"
        needs = f"at least {least[split]:,}"
        if split != "test":
            needs += f" for model.context={context}"
        way = "name a longer text"
        largest = min(len(arrays["train"]), len(arrays["validation"])) - 1
        if 0 < largest < context:
            way = f"set model.context={largest} or {way}"
        reason = f"{printable(name)}: {split} holds {len(tokens):,} {unit} but needs {needs}"
        # files that were left out may be why
        raise InputError(reason, advice="; ".join([way, *corpus.notes]))


def split_by_file(
    sizes: Mapping[str, int], shares: list[float], alike: Mapping[str, str]
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


def split_within(size: int, shares: list[float]) -> tuple[int, int]:
    """Return where validation and where test begin in a file of `size` tokens."""
    # 1e-6 corrects products such as 0.29 * 100 = 28.999999999999996.
    validation = int(size * shares[0] + 1e-6)
    test = int(size * (shares[0] + shares[1]) + 1e-6)
    if not shares[2]:
        test = size
    return validation, test


def split_files(
    corpus: Corpus, sizes: list[int], shares: list[float], digests: list[str]
) -> list[list[Part]]:
    """Decide how a text is split, and return for each file a list of its slices (split, begin, end), in tokens.

    Equal files share a split or are divided at the same positions.
    """
    files = list(zip(corpus.files, sizes, strict=True))
    if corpus.files[0].split:  # `data.validation` is set, so each file was given for one split
        return [[(source.split, 0, size)] for source, size in files]

    if len(files) < BY_FILE:  # each file is divided
        parts_of: list[list[Part]] = []
        for _, size in files:
            validation_begin, test_begin = split_within(size, shares)
            parts_of.append(
                [
                    ("train", 0, validation_begin),
                    ("validation", validation_begin, test_begin),
                    ("test", test_begin, size),
                ]
            )
        return parts_of

    names = [source.name for source in corpus.files]
    alike: dict[str, str] = {}  # the hash of each file, which equal files share
    if not corpus.python:  # its split, by names alone, is that of the published losses
        alike = dict(zip(names, digests, strict=True))
    split_of = split_by_file(dict(zip(names, sizes, strict=True)), shares, alike)
    return [[(split_of[source.name], 0, size)] for source, size in files]


def describe_files(
    corpus: Corpus, digests: Sequence[str], shares: Sequence[float]
) -> tuple[str, ...]:
    """Say how a text of several files is split, and how many of them are copies of others."""
    num_files = len(digests)
    if num_files == 1 or corpus.python:
        return ()
    if corpus.files[0].split:
        num_train = sum(source.split == "train" for source in corpus.files)
        trained = set(digests[:num_train])  # the files for training come first
        held_out = digests[num_train:]
        copies = sum(digest in trained for digest in held_out)
        if not copies:
            return ()
        what = f"{copies:,} of {len(held_out):,} files for validation and test"
        return (f"{what} are copies of training files: their text is not held out",)
    how = "each whole in one split"
    if num_files < BY_FILE:
        parts = "/".join(f"{100 * share:g}" for share in shares)
        how = f"each divided {parts} into training, validation and test"
    summary = f"{num_files:,} files, {how}"
    full = [digest for digest in digests if digest != EMPTY]
    copies = len(full) - len(set(full))
    if not copies:
        return (summary,)
    return (
        summary,
        f"{copies:,} of {num_files:,} files are copies of others; copies share a split",
    )


def about_roles(files: list[SourceFile]) -> list[str]:
    """Return a line if the names of all files say which split each belongs to, such as train.txt and test.txt."""
    roles = [ROLE.search(source.name) for source in files]
    kinds = {role[1].lower() for role in roles if role}
    if not all(roles) or "train" not in kinds or len(kinds) == 1:
        return []
    names = ", ".join(printable(source.name) for source in files[:3])
    keys = "data.validation="
    if len(kinds) > 2:
        keys += " and data.test="
    return [f"{names} are joined and split anew: use {keys} to keep the published splits"]
