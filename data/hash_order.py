"""Shuffle, split and encode documents by a hash of their content, so that copies of a document share a split."""

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np

from base.errors import InputError, nearest, printable
from data.config import DOCUMENT_KINDS
from data.decoding import Tick
from data.documents import Batch, Rule
from data.novelty import powers
from gpt.tokenizer import ByteTokenizer, Tokenizer

ORDER = ("validation", "test", "train")  # splits by increasing hash; training last, to compare it with the held-out
BUCKET = 2**21  # tokens that are sorted at once
PIECE = 2**18  # tokens that are yielded at once
MAX_BITS = 9  # at most 2**9 buckets: a longer text has longer ones
LONG = 64  # mean length in tokens from which copying slices is faster than gathering tokens
BLOCK = 2**16  # characters that are hashed at once: their products fit into the CPU's cache
BASE = 0xD1342543DE82EF95  # of the polynomial hash: odd, so that it has an inverse modulo 2**64
ENTRY = np.dtype([("hash", np.uint64), ("size", np.uint32), ("copies", np.uint32)])  # of equal documents in a run


def content_hashes(points: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the hash of each document `points[start:end]` of a batch: (documents,) uint64.

    `points` are the code points or bytes of the batch. No document may be empty, and `starts` and `ends` must be
    sorted. The polynomial hash of a document, the sum of point[i] * BASE ** i modulo 2**64 with i counted from the
    document's start, is added to the document's length times an odd constant. Then the bits of the sum are mixed.
    Source of the mixing: Steele et al., Fast Splittable Pseudorandom Number Generators (2014).
    """
    hashes = (ends - starts).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for begin in range(0, len(points), BLOCK):
        block = points[begin : begin + BLOCK]
        first, last = np.searchsorted(ends, begin, "right"), np.searchsorted(starts, begin + len(block))
        if first >= last:
            continue
        weighted = np.append(block * powers(BASE, BLOCK)[: len(block)], np.uint64(0))  # the last sum may end here
        inside = np.stack((starts[first:last], ends[first:last]), axis=1).clip(begin, begin + len(block)) - begin
        sums = np.add.reduceat(weighted, inside.ravel())[::2]
        sums = sums * powers(pow(BASE, -1, 2**64), BLOCK).take(inside[:, 0])  # counted from the document's start
        sums[:1] *= np.uint64(pow(BASE, max(0, int(begin - starts[first])), 2**64))
        hashes[first:last] += sums
    hashes ^= hashes >> np.uint64(30)
    hashes *= np.uint64(0xBF58476D1CE4E5B9)
    hashes ^= hashes >> np.uint64(27)
    hashes *= np.uint64(0x94D049BB133111EB)
    hashes ^= hashes >> np.uint64(31)
    return hashes


class _Runs:
    """Sorted runs of documents in two temporary files: `ENTRY` records, and the documents' tokens."""

    def __init__(self, bits: int, dtype: Any, entries: IO[bytes], tokens: IO[bytes]) -> None:
        self.files, self.dtypes = (entries, tokens), (ENTRY, np.dtype(dtype))
        self.borders = np.arange(1, 2**bits, dtype=np.uint64) << np.uint64(64 - bits)  # of the buckets
        self.cuts: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])  # places of the buckets, by file and run

    def append(self, entries: np.ndarray, tokens: np.ndarray) -> None:
        """Write a run: `ENTRY` records, sorted by their hashes, and the tokens of their documents."""
        cuts = np.concatenate(([0], np.searchsorted(entries["hash"], self.borders), [len(entries)]))
        token_cuts = np.append(0, entries["size"].cumsum(dtype=np.int64))[cuts]
        for file, array, places, known in zip(
            self.files, (entries, tokens), (cuts, token_cuts), self.cuts, strict=True
        ):
            file.write(array.tobytes())
            known.append(places + (known[-1][-1] if known else 0))

    def bucket(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (entries, tokens) of the documents in bucket `number` of all runs, unsorted."""
        found = []
        for file, dtype, known in zip(self.files, self.dtypes, self.cuts, strict=True):
            file.flush()
            places = [(cuts[number : number + 2] * dtype.itemsize).tolist() for cuts in known]
            pieces = [os.pread(file.fileno(), end - begin, begin) for begin, end in places if begin < end]
            found.append(np.frombuffer(b"".join(pieces), dtype))
        return found[0], found[1]


def _gathered(tokens: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Join the slices `tokens[start : start + size]` of all `starts` and `sizes` >= 1."""
    ends = sizes.cumsum(dtype=np.int64)
    if ends[-1] > LONG * len(ends):
        return np.concatenate([tokens[a:b] for a, b in zip(starts.tolist(), (starts + sizes).tolist(), strict=True)])
    index = np.ones(ends[-1], np.int64)  # the distance from each place to the next, then their sums: the places
    index[0] = starts[0]
    index[ends[:-1]] = starts[1:] - starts[:-1] - sizes[:-1] + 1
    return tokens.take(index.cumsum(out=index))


def _run(batch: Batch, tokenizer: Tokenizer, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the documents of a batch as a run: (`ENTRY` records sorted by hash, tokens with end marks).

    Equal documents share one record, so that a bucket stays small even if a document is repeated millions of times.
    """
    text, points, starts, ends, _ = batch
    hashes, kept, copies = np.unique(content_hashes(points, starts, ends), return_index=True, return_counts=True)
    starts, sizes = starts[kept], (ends - starts)[kept] + len(end)
    entries = np.empty(len(kept), ENTRY)
    entries["hash"], entries["size"], entries["copies"] = hashes, sizes, copies
    tokens = points if isinstance(tokenizer, ByteTokenizer) else tokenizer.pack(text)
    found = _gathered(np.concatenate((tokens, end)), starts, sizes)
    found[sizes.cumsum()[:, None] + np.arange(-len(end), 0)] = end
    return entries, found


class HashOrder:
    """Encodes the documents of a text in the order of their hashes, each document as a whole in one split."""

    def __init__(self, name: str, rule: Rule, tokenizer: Tokenizer, size: int, folder: Path, tick: Tick) -> None:
        """Prepare to encode the text `name`, which has about `size` tokens, with temporary files in `folder`."""
        self.name, self.rule, self.tokenizer, self.folder = name, rule, tokenizer, folder
        self.tick = tick  # called after each sorted bucket
        self.bits, self.end = min(MAX_BITS, (size // BUCKET).bit_length()), tokenizer.pack(rule.end)
        self.held_out = [np.zeros(0, np.uint64)]  # with data.validation: hashes of the validation and test documents
        # Fields of `Documents`, complete once all documents are encoded.
        self.found: dict[str, Any] = {"counts": dict.fromkeys(ORDER, 0), "repeated": 0, "blank": 0, "copied": 0}

    def encode_own(self, batches: Mapping[str, Iterable[Batch]]) -> Iterator[tuple[str, np.ndarray]]:
        """Encode the documents of each split of a text with data.validation, and yield pairs (split, tokens)."""
        for split in filter(batches.__contains__, ORDER):
            if split == "train":
                self.held_out = [np.sort(np.concatenate(self.held_out))]
            yield from self.encode(batches[split], [1.0, 0.0, 0.0], split)

    def encode(self, batches: Iterable[Batch], shares: list[float], own: str = "") -> Iterator[tuple[str, np.ndarray]]:
        """Encode all documents, sorted by hash, and yield pairs (split, tokens of some of the split's documents).

        All tokens, in the order of the hashes, are divided between the splits according to `shares`. A document belongs
        to the split that contains the document's middle. Validation contains at least one document, and so does test if
        its share is above 0.
        """
        done = distinct = 0
        with TemporaryFile(dir=self.folder) as entries_file, TemporaryFile(dir=self.folder) as tokens_file:
            runs = _Runs(self.bits, self.tokenizer.dtype, entries_file, tokens_file)
            total = self._collect(batches, runs)
            borders = [shares[1] * total, (shares[1] + shares[2]) * total]  # of validation and test
            counts = dict.fromkeys(ORDER, 0)
            for number in range(2**self.bits):
                entries, tokens = runs.bucket(number)
                if not len(entries):
                    continue
                order = entries["hash"].argsort(kind="stable")
                starts = (entries["size"].cumsum(dtype=np.int64) - entries["size"])[order]
                entries = entries[order]
                sizes, copies = entries["size"], entries["copies"]
                self._compare(entries["hash"], copies, own)
                ends = np.multiply(sizes, copies, dtype=np.int64).cumsum()
                # Equal documents, even of different runs, form one group, which shares a split.
                groups = np.append(np.unique(entries["hash"], return_index=True)[1], len(ends))
                group_ends = ends[groups[1:] - 1]
                middles = done + (group_ends + np.append(0, group_ends[:-1])) / 2
                places = _places(middles, borders, first=not distinct, lacks_test=shares[2] > 0 and not counts["test"])
                distinct += len(places)
                firsts = groups[np.searchsorted(places, range(4))]  # the first entry of each split, and their number
                cuts = np.concatenate((firsts, np.searchsorted(ends, range(0, ends[-1], PIECE))))
                for begin, end in pairwise(np.unique(cuts)):
                    split, several = ORDER[np.searchsorted(firsts, begin, "right") - 1], copies[begin:end]
                    counts[split] += int(several.sum())
                    gathered = _gathered(tokens, starts[begin:end].repeat(several), sizes[begin:end].repeat(several))
                    yield own or split, gathered
                done += int(ends[-1])
                self.tick(int(ends[-1]))
        _check_counts(f"{self.name} ({own})" if own else self.name, self.rule, shares, counts, distinct)
        for split, number in counts.items():
            self.found["counts"][own or split] += number
        self.found["repeated"] += sum(counts.values()) - distinct

    def _collect(self, batches: Iterable[Batch], runs: "_Runs") -> int:
        """Encode all documents, append them to `runs`, and return the number of their tokens."""
        total = 0
        for batch in batches:
            self.found["blank"] += batch.blank
            if len(batch.starts):
                entries, tokens = _run(batch, self.tokenizer, self.end)
                runs.append(entries, tokens)
                total += int(entries["size"] @ entries["copies"].astype(np.int64))
        return total

    def _compare(self, hashes: np.ndarray, copies: np.ndarray, own: str) -> None:
        """If data.validation is set, count in `found["copied"]` the held-out documents that are also in training."""
        if own in ("validation", "test"):
            self.held_out.append(hashes.repeat(copies))
        elif own:
            distinct, (held_out,) = np.unique(hashes), self.held_out
            found = np.searchsorted(held_out, distinct, "right") - np.searchsorted(held_out, distinct)
            self.found["copied"] += int(found.sum())


def _places(middles: np.ndarray, borders: list[float], *, first: bool, lacks_test: bool) -> np.ndarray:
    """Return the split of each set of equal documents: (sets,) uint8 indices into `ORDER`."""
    places = np.searchsorted(borders, middles).astype(np.uint8)
    if first:
        places[0] = 0
    if lacks_test and 1 not in places and 2 in places:
        places[np.argmax(places == 2)] = 1
    return places


def _check_counts(name: str, rule: Rule, shares: list[float], counts: Mapping[str, int], distinct: int) -> None:
    """Raise an `InputError` if a text has too few documents for its splits, or if `shares` leave none for training."""
    key = "data.field" if rule.kind == "row" else "data.documents"
    escapes = str.maketrans({"\\": r"\\", "\n": r"\n", "\t": r"\t"})  # see `Rule.of`
    value = printable(rule.name.translate(escapes) or rule.kind)
    number = sum(counts.values())
    if distinct < (3 if shares[1] else 1):
        near = nearest(value, DOCUMENT_KINDS) if rule.kind == "part" else ""
        least = "at least 3 different ones are" if shares[1] else "at least one is"
        what = f"{number:,} document{'' if number == 1 else 's'}, {distinct:,} different"
        raise InputError(f"{name}: has {what} with {key}={value}; {least} needed{near}")
    if shares[1] and not counts["train"]:
        shown = ",".join(f"{share:g}" for share in shares)
        split = ", ".join(f"{counts[split]:,} for {split}" for split in ORDER)
        raise InputError(f"data.split=[{shown}]: leaves no document for training: {split}; raise the first share")
