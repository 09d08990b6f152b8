"""Shuffle, split and encode documents by a hash of their content: copies share a split."""

import math
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import numpy as np

from base.errors import InputError, nearest, printable
from base.progress import count
from data.config import DOCUMENT_ENDS
from data.decoding import Corpus, Tick
from data.documents import Batch, DocumentRule, batches
from data.novelty import powers
from gpt.tokenizer import ByteTokenizer, Tokenizer

ORDER = ("validation", "test", "train")  # splits by increasing hash
PIECE = 2**18  # tokens that are yielded at once, unless a document is longer
LONG = 64  # mean length in tokens from which copying slices is faster than gathering tokens
BLOCK = 2**16  # characters or documents that are handled at once: they fit into the CPU's cache
BASE = 0xD1342543DE82EF95  # of the polynomial hash: odd, so that it has an inverse modulo 2**64
LENGTH_FACTOR = 0x9E3779B97F4A7C15


def content_hashes(points: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the hash of each document `points[start:end]` of a batch: (documents,) uint64.

    The hash of a document of n points is n * LENGTH_FACTOR plus the sum of points[start + i] *
    BASE**i, modulo 2**64, with its bits mixed. `points`, (points,), are the code points or bytes
    of the batch; `starts` and `ends`, (documents,), must be sorted.
    """
    hashes = (ends - starts).astype(np.uint64) * LENGTH_FACTOR
    inverse_powers = powers(pow(BASE, -1, 2**64), BLOCK)
    sums = np.zeros(BLOCK + 1, np.uint64)  # sums[k] is the sum of block[i] * BASE**i for i < k
    for begin in range(0, len(points), BLOCK):
        block = points[begin : begin + BLOCK]
        stop = begin + len(block)
        weighted = block * powers(BASE, BLOCK)[: len(block)]
        np.cumsum(weighted, out=sums[1 : len(block) + 1])
        first = np.searchsorted(ends, begin, "right")
        last = np.searchsorted(starts, stop)
        # The documents from `first` to `last - 1` have points in this block: block[left:right].
        left = starts[first:last].clip(min=begin) - begin
        right = ends[first:last].clip(max=stop) - begin
        # i counts from `left`, as if the document began there
        parts = (sums[right] - sums[left]) * inverse_powers[left]
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
    is_new: np.ndarray  # whether each differs from the one before it, then True: (documents + 1,)

    def divide(self, shares: list[float]) -> "list[SplitPart]":
        """Divide the documents between validation, test and training, in this order.

        All tokens are divided according to `shares`, of training, validation and test. Validation
        contains at least one document, and so does test if its share is above 0.
        """
        documents = len(self.ends)
        tokens = int(self.ends[-1])
        _, validation_share, test_share = shares
        test_begin = max(self._cut(validation_share * tokens), self._copies_end(0))
        held_out_share = validation_share + test_share
        train_begin = max(self._cut(held_out_share * tokens), test_begin)
        if test_share > 0 and train_begin == test_begin < documents:
            train_begin = self._copies_end(test_begin)
        return [
            SplitPart("validation", self, 0, test_begin),
            SplitPart("test", self, test_begin, train_begin),
            SplitPart("train", self, train_begin, documents),
        ]

    def pieces(self, begin: int, end: int) -> Iterator[np.ndarray]:
        """Yield the tokens, (n,), of several of the documents from `begin` to `end` at once."""
        while begin < end:
            tokens_before = self._tokens_before(begin)
            # number of whole documents in the next `PIECE` tokens
            fitting = np.searchsorted(self.ends[begin:end], tokens_before + PIECE, "right")
            stop = begin + max(1, int(fitting))
            sizes = np.diff(self.ends[begin:stop], prepend=tokens_before)
            yield _gathered(self.tokens, self.begins[begin:stop], sizes)
            begin = stop

    def _cut(self, border: float) -> int:
        """Return the number of documents before a border, which is given in tokens.

        Copies stay together: all of them are before the border if the middle of their tokens is.
        """
        token = math.ceil(border)  # because searching for a float would convert all `ends`
        document = int(np.searchsorted(self.ends, token))  # contains the border
        document = min(document, len(self.ends) - 1)  # rounding may move the border beyond the end
        # The document and its copies are those from `begin` to `end` - 1.
        begin = document - int(self.is_new[document::-1].argmax())
        end = self._copies_end(document)
        middle = (self._tokens_before(begin) + self._tokens_before(end)) / 2
        return end if middle <= border else begin

    def _copies_end(self, document: int) -> int:
        """Return the index of the next document that differs from `document`."""
        return document + 1 + int(self.is_new[document + 1 :].argmax())

    def _tokens_before(self, document: int) -> int:
        return int(self.ends[document - 1]) if document else 0


class SplitPart(NamedTuple):
    """The documents of one split."""

    split: str
    documents: Shuffled
    begin: int  # index of the first document of the split
    end: int  # index after its last document


def encode_documents(
    corpus: Corpus,
    rule: DocumentRule,
    tokenizer: Tokenizer,
    shares: list[float],
    folder: Path,
    tick: Tick,
) -> tuple[Iterator[tuple[str, np.ndarray]], dict[str, Any]]:
    """Encode documents in the order of their hashes, with temporary files in `folder`.

    With data.validation, each split has documents of its own; otherwise `shares` divides them.
    Memory, beyond fixed buffers and pages of the mapped files: at most 30 bytes per document.

    Returns:
        pairs: (split, tokens of some of its documents), with each document's end mark.
        stats: the fields of `DocumentStats` without `rule`.
    """
    end = tokenizer.pack(rule.end)
    parts = list[SplitPart]()
    held_out = list[np.ndarray]()  # sorted hashes, with data.validation only
    repeated = blank = copied = 0
    for split in ("", *ORDER):  # "" is the whole text, without data.validation
        files = tuple(file for file in corpus.files if file.split == split)
        if not files:
            continue
        documents = batches(replace(corpus, files=files), rule, tick)
        tokens, hashes, sizes, blank_here = _write(documents, tokenizer, end, folder)
        order, is_new = _sort(hashes)
        distinct = int(np.count_nonzero(is_new[:-1]))
        _check_distinct(corpus.name, split, rule, len(order), distinct)
        repeated += len(order) - distinct
        blank += blank_here
        if split == "train":  # the last of `ORDER`, so `held_out` is complete
            copied = sum(_count_common(other_hashes, hashes) for other_hashes in held_out)
        elif split:
            held_out.append(hashes)
        del hashes  # because the arrays of `_locate` need the memory
        begins, ends = _locate(order, sizes)
        shuffled = Shuffled(tokens, begins, ends, is_new)
        if split:
            parts.append(SplitPart(split, shuffled, 0, len(ends)))
        else:
            parts += shuffled.divide(shares)
    counts = dict.fromkeys(ORDER, 0)
    for part in parts:
        counts[part.split] = part.end - part.begin
    _check_train(shares, counts)
    stats = {"counts": counts, "repeated": repeated, "blank": blank, "copied": copied}
    return _pieces(parts, tick), stats


def _pieces(parts: list[SplitPart], tick: Tick) -> Iterator[tuple[str, np.ndarray]]:
    for split, documents, begin, end in parts:
        for tokens in documents.pieces(begin, end):
            tick(len(tokens))  # about as many bytes
            yield split, tokens


def _write(
    documents: Iterable[Batch], tokenizer: Tokenizer, end: np.ndarray, folder: Path
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Write all documents, encoded and with end marks, into a temporary file in `folder`.

    Returns:
        tokens: in reading order, mapped from the file: (tokens,).
        hashes: hash of each document: (documents,) uint64.
        sizes: 0, then the number of tokens of each document: (documents + 1,) int64.
        blank: number of blank documents, which are dropped.
    """
    hashes = array("Q")  # grows in place, unlike an array of NumPy
    sizes = array("q", [0])
    blank = 0
    with TemporaryFile(dir=folder) as file:
        for batch in documents:
            blank += batch.blank
            if not len(batch.starts):
                continue
            batch_hashes = content_hashes(batch.points, batch.starts, batch.ends)
            batch_tokens, batch_sizes = _mark_ends(batch, tokenizer, end)
            hashes.frombytes(batch_hashes.tobytes())
            sizes.frombytes(batch_sizes.tobytes())
            file.write(batch_tokens.data)
        file.flush()
        tokens = np.zeros(0, tokenizer.dtype)
        if hashes:  # an empty file cannot be mapped
            mapped = np.memmap(file, tokenizer.dtype, mode="r")  # outlives the open file
            tokens = np.asarray(mapped)
    return tokens, np.frombuffer(hashes, np.uint64), np.frombuffer(sizes, np.int64), blank


def _mark_ends(
    batch: Batch, tokenizer: Tokenizer, end: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return (tokens of a batch, with an end mark after each document; sizes with end marks)."""
    if isinstance(tokenizer, ByteTokenizer):
        tokens = batch.points
    else:
        tokens = tokenizer.pack(batch.text)
    sizes = batch.ends - batch.starts + len(end)
    # Each document with the tokens that follow it, which the end mark replaces.
    marked = _gathered(np.concatenate((tokens, end)), batch.starts, sizes)
    mark_starts = sizes.cumsum() - len(end)
    for offset, token in enumerate(end):
        marked[mark_starts + offset] = token
    return marked, sizes


def _sort(hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort hashes in place; return their former indices, and whether each is new.

    The indices are (documents,) int64; equal hashes keep their order. For the other array, see
    `Shuffled.is_new`.
    """
    order = hashes.argsort(kind="stable")
    hashes.sort()
    is_new = np.ones(len(hashes) + 1, bool)
    np.not_equal(hashes[1:], hashes[:-1], out=is_new[1:-1])
    return order, is_new


def _locate(order: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return `begins` and `ends` of `Shuffled`. To save memory, the arguments are overwritten.

    `order` are the indices of the documents, (documents,); `sizes`, (documents + 1,), are 0 and
    then the number of tokens of each document in reading order.
    """
    sorted_sizes = sizes[1:][order]
    ends = np.cumsum(sorted_sizes, out=sorted_sizes)
    file_begins = np.cumsum(sizes, out=sizes)  # where each document begins in the file
    for block in np.array_split(order, 1 + len(order) // BLOCK):
        block[:] = file_begins[block]
    return order, ends  # `order` has become `begins`


def _gathered(tokens: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Join the slices `tokens[start : start + size]` of all `starts` and `sizes` >= 1."""
    ends = sizes.cumsum()
    if ends[-1] > LONG * len(ends):
        slices = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
        return np.concatenate([tokens[start:stop] for start, stop in slices])
    # The index of each joined token is the sum of the steps up to it: 1 within a slice.
    steps = np.ones(ends[-1], np.int64)
    steps[0] = starts[0]
    lasts = starts + sizes - 1
    steps[ends[:-1]] = starts[1:] - lasts[:-1]  # the first token of each later slice
    return tokens.take(steps.cumsum(out=steps))


def _count_common(held_out: np.ndarray, trained: np.ndarray) -> int:
    """Return how many of the hashes `held_out` are among those of training. Both are sorted."""
    common = 0
    for block in np.array_split(held_out, 1 + len(held_out) // BLOCK):
        places = np.searchsorted(trained, block)
        common += int(np.count_nonzero(trained.take(places, mode="clip") == block))
    return common


def _check_distinct(name: str, split: str, rule: DocumentRule, number: int, distinct: int) -> None:
    """Raise an `InputError` if a text, or a split with files of its own, has too few documents."""
    least = 1 if split else 3
    if distinct >= least:
        return
    key = "data.field" if rule.kind == "row" else "data.documents"
    escapes = str.maketrans({"\\": r"\\", "\n": r"\n", "\t": r"\t"})  # see `DocumentRule.of`
    value = printable(rule.name.translate(escapes) or rule.kind)
    if split:
        name += f" ({split})"
        needed = "at least one is needed"
    else:
        needed = "at least 3 different ones are needed"
    if rule.kind == "part":
        needed += nearest(value, DOCUMENT_ENDS)  # a misspelled kind counts as a separator
    if rule.kind == "file" and not split:
        needed += "; leave data.documents out to divide each file, or set data.validation=NAME"
    documents = f"{count(number, 'document')}, {distinct:,} different"
    raise InputError(f"{name}: has {documents} with {key}={value}; {needed}")


def _check_train(shares: list[float], counts: dict[str, int]) -> None:
    if counts["train"]:
        return
    setting = ",".join(f"{share:g}" for share in shares)
    numbers = ", ".join(f"{counts[split]:,} for {split}" for split in ORDER)
    what = f"data.split=[{setting}]: leaves no document for training"
    raise InputError(f"{what}: {numbers}; raise the first share")
