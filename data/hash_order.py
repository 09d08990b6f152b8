"""Shuffle, split and encode documents by a hash of their content, so that copies of a document share a split."""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

import numpy as np

from base.errors import InputError, nearest, printable
from data.config import DOCUMENT_KINDS
from data.decoding import Corpus, Tick
from data.documents import Batch, DocumentRule, batches
from data.novelty import powers
from gpt.tokenizer import ByteTokenizer, Tokenizer

ORDER = ("validation", "test", "train")  # splits by increasing hash
PIECE = 2**18  # tokens that are yielded at once, unless a document is longer
LONG = 64  # mean length in tokens from which copying slices is faster than gathering tokens
BLOCK = 2**16  # characters, hashes or documents that are handled at once: they fit into the CPU's cache
BASE = 0xD1342543DE82EF95  # of the polynomial hash: odd, so that it has an inverse modulo 2**64
LENGTH_FACTOR = 0x9E3779B97F4A7C15


def content_hashes(points: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the hash of each document `points[start:end]` of a batch: (documents,) uint64.

    The hash of a document of n points is n * LENGTH_FACTOR + the sum of points[start + i] * BASE ** i, modulo 2**64,
    with its bits mixed. `points` are code points or bytes, and `starts` and `ends` must be sorted.
    """
    hashes = (ends - starts).astype(np.uint64) * LENGTH_FACTOR
    inverse_powers = powers(pow(BASE, -1, 2**64), BLOCK)
    sums = np.zeros(BLOCK + 1, np.uint64)  # sums[k]: of block[i] * BASE ** i for all i < k
    for begin in range(0, len(points), BLOCK):
        block = points[begin : begin + BLOCK]
        stop = begin + len(block)
        np.cumsum(block * powers(BASE, BLOCK)[: len(block)], out=sums[1 : len(block) + 1])
        first = np.searchsorted(ends, begin, "right")
        last = np.searchsorted(starts, stop)
        # In this block are parts of the documents `first` to `last - 1`: block[left:right].
        left = starts[first:last].clip(min=begin) - begin
        right = ends[first:last].clip(max=stop) - begin
        parts = (sums[right] - sums[left]) * inverse_powers[left]  # the power of a part's first point is 0
        if first < last and starts[first] < begin:  # the first document began in an earlier block
            parts[:1] *= pow(BASE, int(begin - starts[first]), 2**64)
        hashes[first:last] += parts
    return _mixed(hashes)


def _mixed(hashes: np.ndarray) -> np.ndarray:
    """Mix the bits of each hash, in place.

    Source: Steele et al., Fast Splittable Pseudorandom Number Generators (2014).
    """
    hashes ^= hashes >> 30
    hashes *= 0xBF58476D1CE4E5B9
    hashes ^= hashes >> 27
    hashes *= 0x94D049BB133111EB
    hashes ^= hashes >> 31
    return hashes


class Shuffled(NamedTuple):
    """Encoded documents, each with its end mark, in the order of their hashes."""

    tokens: np.ndarray  # of all documents in reading order, mapped from a file: (tokens,)
    begins: np.ndarray  # where each document begins in `tokens`: (documents,) int64
    ends: np.ndarray  # number of tokens of each document and all before it: (documents,) int64
    is_new: np.ndarray  # whether each document differs from the one before it: (documents + 1,) bool, the last is True

    def divide(self, shares: list[float]) -> "list[Part]":
        """Divide the documents between the splits.

        All tokens are divided according to `shares`. Validation contains at least one document, and so does test if its
        share is above 0.
        """
        documents = len(self.ends)
        tokens = int(self.ends[-1])
        test = max(self._cut(shares[1] * tokens), self._copies_end(0))
        train = max(self._cut((shares[1] + shares[2]) * tokens), test)
        if shares[2] > 0 and train == test < documents:
            train = self._copies_end(test)
        return [
            Part("validation", self, 0, test),
            Part("test", self, test, train),
            Part("train", self, train, documents),
        ]

    def pieces(self, begin: int, end: int) -> Iterator[np.ndarray]:
        """Yield the tokens of the documents from `begin` to `end`, several documents at once: (n,)."""
        while begin < end:
            tokens_before = self._tokens_before(begin)
            fitting = np.searchsorted(self.ends[begin:end], tokens_before + PIECE, "right")
            stop = begin + max(1, int(fitting))
            sizes = np.diff(self.ends[begin:stop], prepend=tokens_before)
            yield _gathered(self.tokens, self.begins[begin:stop], sizes)
            begin = stop

    def _cut(self, border: float) -> int:
        """Return the number of documents before a border, in tokens, which is moved so that copies stay together.

        A document and its copies are before the border if the middle of their tokens is.
        """
        document = min(int(np.searchsorted(self.ends, border)), len(self.ends) - 1)  # contains the border
        begin = document - int(self.is_new[document::-1].argmax())
        end = self._copies_end(document)
        middle = (self._tokens_before(begin) + self._tokens_before(end)) / 2
        return end if middle <= border else begin

    def _copies_end(self, document: int) -> int:
        """Return the index of the next document that differs from `document`."""
        return document + 1 + int(self.is_new[document + 1 :].argmax())

    def _tokens_before(self, document: int) -> int:
        return int(self.ends[document - 1]) if document else 0


class Part(NamedTuple):
    """The documents of one split."""

    split: str
    documents: Shuffled
    begin: int  # index of the first document of the split
    end: int  # index after its last document


def encode_documents(
    corpus: Corpus, rule: DocumentRule, tokenizer: Tokenizer, shares: list[float], folder: Path, tick: Tick
) -> tuple[Iterator[tuple[str, np.ndarray]], dict[str, Any]]:
    """Encode the documents of a text in the order of their hashes, with temporary files in `folder`.

    With data.validation, each split has documents of its own; otherwise `shares` divides them. Memory, beyond fixed
    buffers: at most 30 bytes per document.

    Returns:
        (pairs (split, tokens of some of its documents), the fields of `DocumentStats` without `rule`).
    """
    end = tokenizer.pack(rule.end)
    parts = list[Part]()
    held_out = list[np.ndarray]()  # with data.validation: hashes of the validation and test documents
    repeated = blank = copied = 0
    for own in ("", *ORDER):  # "" without data.validation
        files = tuple(document for document in corpus.documents if document.split == own)
        if not files:
            continue
        found = batches(replace(corpus, documents=files), rule, tick)
        tokens, hashes, bounds, dropped = _write(found, tokenizer, end, folder)
        order, is_new = _sort(hashes)
        distinct = int(np.count_nonzero(is_new[:-1]))
        _check_distinct(corpus.name, own, rule, len(order), distinct)
        repeated += len(order) - distinct
        blank += dropped
        if own == "train":
            copied = sum(_count_common(each, hashes) for each in held_out)
        elif own:
            held_out.append(hashes)
        del hashes  # because the arrays of `_locate` need as much memory
        documents = Shuffled(tokens, *_locate(order, bounds), is_new)
        if own:
            parts.append(Part(own, documents, 0, len(order)))
        else:
            parts += documents.divide(shares)
    counts = dict.fromkeys(ORDER, 0) | {part.split: part.end - part.begin for part in parts}
    _check_train(shares, counts)
    return _pieces(parts, tick), {"counts": counts, "repeated": repeated, "blank": blank, "copied": copied}


def _pieces(parts: list[Part], tick: Tick) -> Iterator[tuple[str, np.ndarray]]:
    for split, documents, begin, end in parts:
        for tokens in documents.pieces(begin, end):
            tick(len(tokens))
            yield split, tokens


def _write(
    found: Iterable[Batch], tokenizer: Tokenizer, end: np.ndarray, folder: Path
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Write the tokens of all documents, each followed by its end mark, into a temporary file in `folder`.

    Returns:
        (tokens, mapped from the file: (tokens,); hash of each document: (documents,) uint64; size of each document in
        tokens, after a 0: (documents + 1,) int64; number of blank documents).
    """
    hashes = array("Q")  # this type grows in place
    sizes = array("q", [0])
    blank = 0
    with TemporaryFile(dir=folder) as file:
        for batch in found:
            blank += batch.blank
            if not len(batch.starts):
                continue
            text, points, starts, ends, _ = batch
            hashes.frombytes(content_hashes(points, starts, ends).tobytes())
            tokens = points if isinstance(tokenizer, ByteTokenizer) else tokenizer.pack(text)
            marked_sizes = ends - starts + len(end)
            sizes.frombytes(marked_sizes.tobytes())
            marked = _gathered(np.concatenate((tokens, end)), starts, marked_sizes)
            marked[marked_sizes.cumsum()[:, None] + np.arange(-len(end), 0)] = end
            file.write(marked.data)
        file.flush()
        mapped = np.zeros(0, tokenizer.dtype)
        if hashes:
            mapped = np.asarray(np.memmap(file, tokenizer.dtype, mode="r"))  # outlives the open file
    return mapped, np.frombuffer(hashes, np.uint64), np.frombuffer(sizes, np.int64), blank


def _sort(hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort hashes in place, and return their order and whether each hash differs from the one before it.

    The order is (documents,) int64, equal ones in reading order. The other array has a last True: (documents + 1,).
    """
    order = hashes.argsort(kind="stable")
    hashes.sort()
    is_new = np.ones(len(hashes) + 1, bool)
    np.not_equal(hashes[1:], hashes[:-1], out=is_new[1:-1])
    return order, is_new


def _locate(order: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return `begins` and `ends` of `Shuffled`, for which the arguments are overwritten to save memory."""
    ends = sizes[1:][order]
    np.cumsum(ends, out=ends)
    bounds = np.cumsum(sizes, out=sizes)
    begins = order
    for block in np.array_split(begins, 1 + len(begins) // BLOCK):
        block[:] = bounds[block]
    return begins, ends


def _gathered(tokens: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Join the slices `tokens[start : start + size]` of all `starts` and `sizes` >= 1."""
    ends = sizes.cumsum()
    if ends[-1] > LONG * len(ends):
        slices = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
        return np.concatenate([tokens[start:stop] for start, stop in slices])
    steps = np.ones(ends[-1], np.int64)  # from the index of each token to that of the next
    steps[0] = starts[0]
    steps[ends[:-1]] = starts[1:] - (starts + sizes)[:-1] + 1
    return tokens.take(steps.cumsum(out=steps))


def _count_common(held_out: np.ndarray, trained: np.ndarray) -> int:
    """Return how many of the hashes `held_out` are among those of training, `trained`; both are sorted."""
    common = 0
    for block in np.array_split(held_out, 1 + len(held_out) // BLOCK):
        places = np.searchsorted(trained, block)
        common += np.count_nonzero(trained.take(places, mode="clip") == block)
    return int(common)


def _check_distinct(name: str, own: str, rule: DocumentRule, number: int, distinct: int) -> None:
    """Raise an `InputError` if a text, or the split `own` of data.validation, has too few different documents."""
    if distinct >= (1 if own else 3):
        return
    key = "data.field" if rule.kind == "row" else "data.documents"
    escapes = str.maketrans({"\\": r"\\", "\n": r"\n", "\t": r"\t"})  # see `DocumentRule.of`
    value = printable(rule.name.translate(escapes) or rule.kind)
    label = f"{name} ({own})" if own else name
    needed = "at least one is needed" if own else "at least 3 different ones are needed"
    if rule.kind == "part":
        needed += nearest(value, DOCUMENT_KINDS)
    elif rule.kind == "file" and not own:
        needed += "; leave data.documents out to divide each file, or set data.validation=NAME"
    documents = f"{number:,} document{'' if number == 1 else 's'}"
    raise InputError(f"{label}: has {documents}, {distinct:,} different with {key}={value}; {needed}")


def _check_train(shares: list[float], counts: dict[str, int]) -> None:
    if not counts["train"]:
        shown = ",".join(f"{share:g}" for share in shares)
        split = ", ".join(f"{counts[split]:,} for {split}" for split in ORDER)
        raise InputError(f"data.split=[{shown}]: leaves no document for training: {split}; raise the first share")
