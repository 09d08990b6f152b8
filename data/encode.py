"""Encode a text once, into a folder of the cache that is there whole or not at all: tokens and meta.json."""

import hashlib
import json
import mmap
import shutil
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from base.errors import InputError, nearest
from base.progress import Progress, count
from data.cache import make_once
from data.config import DOCUMENT_ENDS, END
from data.divide import DocumentRule, documents
from data.find import Corpus, without_binary
from data.ngrams import MOST_LINES, are_sorted, losses_of_passages
from data.read import SourceFile, Tick, WrongEncoding
from data.seen import MAX_HASHES, FileHash
from data.split import ORDER, SPLITS, is_by_file, split_documents, split_files
from gpt.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer, UnknownCharacter

# Parts of the fingerprint: increment them when the same text would be encoded or split differently,
# because checkpoints compare fingerprints, and model files splits.
FORMAT = 2
SPLIT_FORMAT = 1
DOCUMENT_SPLIT_FORMAT = 2
BATCH = 2**12  # documents that are read or encoded at once


class Encoder:
    """Encodes a corpus into a folder: the files of the three splits, and what `meta.json` says about them."""

    def __init__(self, corpus: Corpus, extra_chars: str, folder: Path, progress: Progress) -> None:
        self.corpus = corpus
        self.extra_chars = extra_chars
        self.folder = folder
        self.progress = progress
        self.seen = np.zeros(0x110000, bool)  # whether each code point occurs
        self.known = b""  # the code points below 256 that occur, for `translate`
        self.hashes: list[tuple[str, str]] = []  # of each file: of its bytes, of its text
        self.characters = dict.fromkeys(SPLITS, 0)  # by split

    def read(self, source: SourceFile, read: Callable[..., Iterable[Any]]) -> Iterator[Any]:
        """Yield what `read` yields, a function that reads `source`, and hash the file meanwhile."""
        file_hash = FileHash(self.corpus.encoding)

        def tick(chunk: bytes, text: str | None) -> None:
            file_hash.update(chunk, text)
            self.progress.update(len(chunk))

        yield from read(source, tick)
        self.hashes.append(file_hash.finish())

    def scan(self, text: str) -> None:
        """Add the characters of a part of the text to those that occur."""
        if text.isascii():
            new = text.encode("ascii").translate(None, self.known)  # mostly empty
            if new:
                self.seen[np.frombuffer(new, np.uint8)] = True
                self.known = bytes(np.flatnonzero(self.seen[:256]).tolist())
            return
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        # Mostly nothing is new, and reading is far faster than writing.
        if not self.seen.take(points, mode="clip").all():
            self.seen[points] = True

    def tokenizer(self, end: str) -> Tokenizer:
        """Return the tokenizer, whose vocabulary has the characters that occur, the end mark and the extra ones."""
        name = self.corpus.name
        characters = "".join(map(chr, np.flatnonzero(self.seen)))
        if end == END and END in characters:
            way = "remove it, or set neither data.documents nor data.field"
            raise InputError(f"{name}: contains U+0003, the end mark of documents; {way}")
        if len(characters) < 2:
            what = f"holds {count(len(characters), 'distinct character')}"
            raise InputError(f"{name}: {what}: there is nothing to learn")
        if self.corpus.encoding is None:
            return ByteTokenizer()
        try:
            return CharTokenizer(characters + end + self.extra_chars)
        except ValueError as error:
            raise InputError(f"{name}: {error}") from None

    def pack(self, text: str, tokenizer: Tokenizer) -> np.ndarray:
        if self.corpus.encoding is None:  # each character is a byte
            return np.frombuffer(text.encode("latin-1"), np.uint8)
        return tokenizer.pack(text)

    def write(self, pieces: Iterable[tuple[str, np.ndarray]], tokenizer: Tokenizer) -> None:
        """Write pairs (split, tokens) into the files of the splits."""
        with ExitStack() as stack:
            files = {
                split: stack.enter_context(open(self.folder / f"{split}.bin", "wb"))
                for split in SPLITS
            }
            for split, tokens in pieces:
                files[split].write(tokens.data)
                self.characters[split] += len(tokens)
                # 10xxxxxx continues a character and is not counted
                if isinstance(tokenizer, ByteTokenizer):
                    self.characters[split] -= int(np.count_nonzero((tokens & 0xC0) == 0x80))


def encode(
    corpus: Corpus, rule: DocumentRule | None, shares: list[float], extra_chars: str, folder: Path
) -> None:
    """Encode a corpus into `folder`, unless another process has just done it."""
    stamps = corpus.stamps()
    size = sum(size for size, _ in stamps)  # bytes on disk, before decompression
    changed = InputError(f"{corpus.name}: was changed while it was being read; start again")

    def make(unfinished: Path, progress: Progress) -> None:
        for other in folder.parent.glob(f"{folder.name.partition('-')[0]}-*"):
            shutil.rmtree(other)  # of an earlier state of the same files
        unfinished.mkdir()
        texts = without_binary(corpus, bool(rule and rule.kind == "row"))
        encoder = Encoder(texts, extra_chars, unfinished, progress)
        if rule:
            meta = encode_documents(encoder, rule, shares)
        else:
            meta = encode_files(encoder, shares)
        meta["notes"] = [*texts.notes[len(corpus.notes) :], *meta["notes"]]
        if corpus.stamps() != stamps:
            raise changed
        (unfinished / "meta.json").write_text(json.dumps(meta), encoding="ascii")

    passes = 1 if rule else 2
    try:
        make_once(folder, make, "encoding", passes * size, is_whole)
    except UnknownCharacter:  # the file has a character that it did not have in the first pass
        raise changed from None
    except WrongEncoding as error:
        if len(corpus.files) == 1:
            raise
        way = f"iconv -f ENCODING -t {corpus.encoding} FILE"
        raise InputError(
            f"{error}; if the other files are right, convert this one: {way}"
        ) from None


def is_whole(folder: Path) -> bool:
    """Return whether nothing, such as a program that clears caches, has removed a file from the folder of a text."""
    return all(
        (folder / name).exists() for name in ("meta.json", *(f"{split}.bin" for split in SPLITS))
    )


def encode_files(encoder: Encoder, shares: list[float]) -> dict[str, Any]:
    """Encode a text that is not divided into documents, and return its meta.json."""
    corpus = encoder.corpus
    sizes = []  # of each file, in tokens
    for source in corpus.files:
        size = 0
        for chunk in encoder.read(source, corpus.read):
            encoder.scan(chunk)
            size += len(chunk)
        sizes.append(size)
    texts = [text for _, text in encoder.hashes]
    parts_of, notes = split_files(corpus, sizes, shares, texts)
    files = zip(corpus.files, sizes, strict=True)
    splits = [source.split for source, size in files if size]
    is_joined = len(splits) > len(set(splits))
    tokenizer = encoder.tokenizer("\n" if is_joined else "")

    def pieces() -> Iterator[tuple[str, np.ndarray]]:
        begun = set()  # splits
        for source, parts in zip(corpus.files, parts_of, strict=True):
            position = 0  # of the chunk in the file, in tokens
            for chunk in corpus.read(source, lambda raw, _: encoder.progress.update(len(raw))):
                tokens = encoder.pack(chunk, tokenizer)
                for split, begin, end in parts:
                    piece = tokens[max(begin - position, 0) : max(end - position, 0)]
                    if not len(piece):
                        continue
                    # the first piece of a part follows the part of another file
                    if position <= begin and split in begun:
                        yield split, tokenizer.pack("\n")
                    begun.add(split)
                    yield split, piece
                position += len(tokens)

    encoder.write(pieces(), tokenizer)
    splits_of = [{split for split, begin, end in parts if begin < end} for parts in parts_of]
    settings: list[Any] = [SPLIT_FORMAT]
    # Whole files with the same text but other bytes, such as line ends, share a split.
    num_different = len({raw for raw, _ in encoder.hashes})
    if is_by_file(corpus) and len(set(texts)) < num_different:
        settings.append("text")
    return _meta(encoder, tokenizer, shares, settings, splits_of) | {"notes": notes}


def encode_documents(encoder: Encoder, rule: DocumentRule, shares: list[float]) -> dict[str, Any]:
    """Encode a list of documents, shuffled and split by a hash of each, and return its meta.json.

    The documents are read once, into a temporary file. Memory, beyond fixed buffers and pages of
    mapped files: at most 60 bytes per document.
    """
    corpus = encoder.corpus
    codec = "utf-8" if corpus.encoding else "latin-1"
    end = rule.end.encode()
    hashes = array("Q")  # grows in place, unlike an array of NumPy
    ends = array("q", [0])  # 0, then where each document ends in the file
    split_begins: dict[str, int] = {}  # index of the first document of each split of its own
    blank = 0

    def read(source: SourceFile, tick: Tick) -> Iterator[str]:
        with source.open() as file:
            for _, document in documents(file, source.label, rule, corpus.encoding, tick):
                yield document

    with TemporaryFile(dir=encoder.folder) as stored:
        for source in corpus.files:
            split_begins.setdefault(source.split, len(hashes))
            read_documents = encoder.read(source, read)
            while batch := list(islice(read_documents, BATCH)):
                full = [document for document in batch if document and not document.isspace()]
                blank += len(batch) - len(full)
                encoder.scan("".join(full))
                for document in full:
                    raw = document.encode(codec)
                    # copies share a split, whatever their line ends are
                    same = raw.replace(b"\r\n", b"\n").removeprefix(b"\xef\xbb\xbf")
                    hashes.frombytes(hashlib.blake2b(same, digest_size=8).digest())
                    ends.append(ends[-1] + len(raw) + len(end))
                    stored.write(raw + end)
        stored.flush()
        tokenizer = encoder.tokenizer(rule.end)
        offsets = np.frombuffer(ends, np.int64)
        parts, stats = _shuffle(
            np.frombuffer(hashes, np.uint64), offsets, split_begins, shares, rule, corpus.name
        )
        contents = mmap.mmap(stored.fileno(), 0, access=mmap.ACCESS_READ)

        def pieces() -> Iterator[tuple[str, np.ndarray]]:
            for split, order in parts.items():
                for first in range(0, len(order), BATCH):
                    batch = order[first : first + BATCH]
                    bounds = zip(offsets[batch].tolist(), offsets[batch + 1].tolist(), strict=True)
                    raws = [contents[begin:stop] for begin, stop in bounds]
                    yield split, encoder.pack(b"".join(raws).decode(codec), tokenizer)

        encoder.write(pieces(), tokenizer)
    splits_of = [
        {source.split} if source.split else {"train", "validation"} for source in corpus.files
    ]
    settings = [DOCUMENT_SPLIT_FORMAT, {rule.kind: rule.name}]
    return _meta(encoder, tokenizer, shares, settings, splits_of) | {
        "documents": stats | {"blank": blank},
        "notes": [],
    }


def _shuffle(
    hashes: np.ndarray,
    offsets: np.ndarray,
    split_begins: dict[str, int],
    shares: list[float],
    rule: DocumentRule,
    name: str,
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the indices of the documents of each split in the order of their hashes, and their statistics.

    `hashes` are (documents,), and `offsets`, (documents + 1,), where the documents begin and end.
    `split_begins` has the first document of each split of its own. The `rule` and the `name` of
    the text are for errors.
    """
    parts = dict[str, np.ndarray]()
    repeated = 0
    stops = [*list(split_begins.values())[1:], len(hashes)]
    for (split, begin), stop in zip(split_begins.items(), stops, strict=True):
        order = hashes[begin:stop].argsort(kind="stable")
        order += begin
        in_order = hashes[order]
        is_new = np.ones(len(order), bool)
        np.not_equal(in_order[1:], in_order[:-1], out=is_new[1:])
        del in_order  # because dividing needs the memory
        distinct = int(np.count_nonzero(is_new))
        _check_distinct(name, rule, split, len(order), distinct)
        repeated += len(order) - distinct
        if split:
            parts[split] = order
        else:
            ends = np.diff(offsets)[order]  # their sizes
            np.cumsum(ends, out=ends)
            for own, place in split_documents(ends, is_new, shares).items():
                parts[own] = order[place]
    own_splits = [split for split in split_begins if split not in ("", "train")]
    trained = hashes[parts["train"]]
    copied = sum(int(np.isin(hashes[parts[split]], trained).sum()) for split in own_splits)
    counts = {split: len(parts.get(split, ())) for split in ORDER}
    return parts, {"counts": counts, "repeated": repeated, "copied": copied}


def _check_distinct(
    name: str, rule: DocumentRule, split: str, documents: int, distinct: int
) -> None:
    """Raise an `InputError` if a text, or a split with files of its own, has too few documents."""
    least = 1 if split else 3
    if distinct >= least:
        return
    key = "data.field" if rule.kind == "row" else "data.documents"
    value = repr(rule.name)[1:-1] or rule.kind  # a line break as \n
    found = f"{count(documents, 'document')}, {distinct:,} different"
    way = f"at least {least} different ones are needed"
    if rule.kind == "part":  # a misspelled kind counts as a separator
        way += rf" (\n is a line break, \t a tab, \\ a backslash){nearest(value, DOCUMENT_ENDS)}"
    if rule.kind == "file" and not split:
        way += "; leave data.documents out to divide each file, or set data.validation=NAME"
    whose = f"{name} ({split})" if split else name
    raise InputError(f"{whose}: has {found} with {key}={value}; {way}")


def _meta(
    encoder: Encoder,
    tokenizer: Tokenizer,
    shares: list[float],
    split_settings: list[Any],
    splits_of: list[set[str]],
) -> dict[str, Any]:
    """Return what meta.json says of an encoded text.

    `split_settings` are the number of the way to split and more of what it depends on, and
    `splits_of` are the splits in which each file has a part.
    """
    corpus = encoder.corpus
    number, *more = split_settings
    digests = [raw for raw, _ in encoder.hashes]
    total = hashlib.sha256()
    for source, digest in zip(corpus.files, digests, strict=True):
        # a renamed single file is the same text
        name = source.name if len(corpus.files) > 1 else ""
        total.update(f"{name!r} {digest}\n".encode())
    settings = [
        number,
        total.hexdigest(),
        corpus.encoding,
        corpus.python,
        list(map(float, shares)),
        *more,
    ]
    if corpus.files[0].split:
        settings += [[source.split for source in corpus.files]]
    held_out = set[str]()  # hashes of files
    trained = set[str]()
    for (_, text), splits in zip(encoder.hashes, splits_of, strict=True):
        if "train" in splits:
            trained.add(text)
        if splits - {"train"}:
            held_out.add(text)
    sha256 = digests[0] if len(digests) == 1 else total.hexdigest()
    split = hashlib.sha256(json.dumps(settings).encode()).hexdigest()
    made_from = json.dumps([FORMAT, *settings, encoder.extra_chars])
    train = open_tokens(encoder.folder / "train.bin", tokenizer)
    validation = open_tokens(encoder.folder / "validation.bin", tokenizer)
    is_list = number == DOCUMENT_SPLIT_FORMAT
    return {
        "vocabulary": tokenizer.vocabulary,
        "text": {
            "characters": encoder.characters,
            "sha256": sha256,
            "fingerprint": hashlib.sha256(made_from.encode()).hexdigest(),
            "held_out": sorted(held_out)[:MAX_HASHES],
            "texts": [{"sha256": sha256, "split": split, "files": sorted(trained)[:MAX_HASHES]}],
        },
        "losses": losses_of_passages(train, validation, tokenizer.size),
        "ordered": not is_list and are_sorted(tokenizer.decode(train[:MOST_LINES])),
    }


# Larger splits are memory-mapped, because they may exceed memory. Smaller ones are not, because
# SIGBUS ends the process if a mapped file is truncated.
MAPPED_FROM = 2**24  # bytes


def open_tokens(path: Path, tokenizer: Tokenizer) -> np.ndarray:
    if path.stat().st_size < MAPPED_FROM:
        return np.frombuffer(path.read_bytes(), tokenizer.dtype)
    return np.memmap(path, tokenizer.dtype, mode="r")
