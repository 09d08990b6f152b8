"""Whether a model was trained on a text, however its files are stored: by a hash of the text of each file."""

import hashlib
import io
import unicodedata
from collections.abc import Iterable, Sequence
from functools import partial
from typing import IO

from data.decoding import CHUNK, Corpus
from data.splits import Part
from gpt.model_file import TextRead

MAX_HASHES = 1000  # of a text, the lowest ones: each is 20 characters of a model file's metadata


def text_hash(file: IO[bytes], encoding: str) -> str:
    """Return a hash of a file's text that does not depend on line ends, byte order marks and the form of accents."""
    sha256 = hashlib.sha256()
    text = io.TextIOWrapper(file, encoding, errors="replace")  # reads each line end as LF
    rest = ""
    for chunk in iter(partial(text.read, CHUNK), ""):
        rest += chunk
        # NFC composes neither a space nor a newline with what precedes it, so the parts before and
        # after one can be normalised apart.
        # From 1 on, because `rest` may begin with the last border.
        border = max(rest.rfind(" ", 1), rest.rfind("\n", 1))
        if border < 0:  # a text without spaces, such as DNA
            border = len(rest)
        sha256.update(_canonical(rest[:border]))
        rest = rest[border:]
    sha256.update(_canonical(rest))
    text.detach()  # the caller closes the file
    return sha256.hexdigest()[:16]


def _canonical(text: str) -> bytes:
    if not text.isascii():
        text = unicodedata.normalize("NFC", text.replace("\ufeff", ""))
    return text.encode()


def file_hashes(corpus: Corpus, parts_of: Sequence[Sequence[Part]] | None) -> dict[str, list[str]]:
    """Return the hashes of the files of which parts are trained on (`train`) or held out (`held_out`).

    `parts_of` has the parts of each file, or is None if each document of a file is in a split of
    its own.
    """
    hashes: dict[str, set[str]] = {"train": set(), "held_out": set()}
    for number, source in enumerate(corpus.files):
        with source.open() as file:
            digest = text_hash(file, corpus.encoding or "utf-8")
        if source.split:
            splits = {source.split}
        elif parts_of is None:
            splits = {"train", "validation"}
        else:
            splits = {split for split, begin, end in parts_of[number] if begin < end}
        if "train" in splits:
            hashes["train"].add(digest)
        if splits - {"train"}:
            hashes["held_out"].add(digest)
    return {where: sorted(those)[:MAX_HASHES] for where, those in hashes.items()}


def was_read(texts: Iterable[TextRead], sha256: str, files: Iterable[str]) -> bool:
    """Return whether a model that was trained on `texts` has read the text `sha256` or one of the `files`, by hash."""
    files = set(files)
    return any(
        text["sha256"] == sha256 or not files.isdisjoint(text.get("files", [])) for text in texts
    )
