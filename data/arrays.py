"""Split a corpus and encode it once, into arrays that are mapped into memory from then on.

A corpus lands in `<cache>/encoded/<fingerprint>/`: `train.bin`, `validation.bin`, `test.bin` (tokens
as uint8 or uint16, nothing else) and `meta.json`. The fingerprint covers the content of the text, so
the text itself is read (to hash it) at every start, and a change is always noticed.
"""

import hashlib
import json
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from base.files import atomic, remove_unfinished
from conf.fields import printable
from conf.progress import Progress
from data.config import DataConfig
from data.corpus import Corpus, DataError, cache_dir, is_remote, open_corpus
from data.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer, UnknownCharacter, tokenizer_from

if TYPE_CHECKING:
    from data.shards import Shards

FORMAT = 1  # part of the fingerprint: raise it when the same text would be split or encoded differently
SPLITS = ("train", "validation", "test")
BY_FILE = 40  # from this many documents on, a document goes to one split as a whole
DAY = 86_400  # seconds
Part = tuple[str, int, int]  # of a document: a split, and from where to where


@dataclass(frozen=True)
class Text:
    """An encoded corpus.

    Attributes:
        train: tokens, one-dimensional, uint8 or uint16, mapped into memory; of a text elsewhere, in shards.
        validation: likewise, never in shards.
        test: likewise, of length 0 where the split has no share for it.
        tokenizer: made from the whole corpus, not from the training part alone.
        name: of the corpus, for people.
        fingerprint: hexadecimal; equal for equal content, settings and tokenizer.
        characters: how many each split holds (tokens are fewer or more with other tokenizers).
        known: characters that the tokenizer was made to know besides those of the corpus.
    """

    train: "np.ndarray | Shards"
    validation: np.ndarray
    test: np.ndarray
    tokenizer: Tokenizer
    name: str
    fingerprint: str
    characters: Mapping[str, int]
    known: str


def open_text(config: DataConfig, context: int, known: str = "", *, as_before: bool = False) -> Text:
    """Open the text that `config` names, encoded and split; from the cache when it is there.

    How it is split: 40 documents or more, as the standard library has, by file (see `split_by_file`);
    fewer, each document contiguously. The pieces of a split are joined by one newline.

    Args:
        config: what text, and how it is split and tokenized.
        context: longest window in tokens; train and validation must hold at least one window and its targets.
        known: characters that belong to the vocabulary whether the text has them or not; none for bytes.
        as_before: of a text elsewhere, refuse what has changed since it was read, instead of reading it anew.

    Raises:
        DataError: one line that says what is wrong with the text and what is needed.
    """
    if is_remote(config.path):
        from data.shards import open_shards  # loads fsspec, which few runs need

        text = open_shards(config, context, known, as_before=as_before)
    else:
        text = _open_here(config, context, known)
    return text if config.overfit is None else _overfitted(text, config.overfit, context)


def _overfitted(text: Text, learned: int, context: int) -> Text:
    """The first `learned` tokens of the training text as all three splits."""
    if learned <= context:
        raise DataError(f"data.overfit={learned}: must be above model.context={context}")
    part = text.train[:learned]
    # No window of an epoch reaches the last `context` tokens at every phase: what is asked is covered whole.
    train, lengths = text.train[: learned + 2 * context], text.tokenizer.characters_per_token
    characters = dict.fromkeys(SPLITS, int(lengths[part].sum())) | {"train": int(lengths[train].sum())}
    return replace(text, train=train, validation=part, test=part, characters=characters)


def _open_here(config: DataConfig, context: int, known: str) -> Text:
    """Open text of this machine, as `open_text` says."""
    corpus = open_corpus(config)
    with Progress("hashing the text", corpus.size(), "B") as progress:
        digest = corpus.digest(progress.update)
    settings = [FORMAT, digest, corpus.encoding, corpus.python, [float(share) for share in config.split]]
    settings += [known] if known else []
    fingerprint = hashlib.sha256(json.dumps(settings).encode()).hexdigest()
    folder = cache_dir(config) / "encoded" / fingerprint
    opened = _checked(folder)
    if opened is None:
        try:
            _encode(corpus, digest, config.split, known, folder)
        except OSError as error:  # reading raises DataError: this is the cache
            raise cannot_keep(folder, error) from None
        opened = _checked(folder)
        if opened is None:
            raise DataError(f"{printable(folder)}: the encoded text was damaged as soon as it was written")
    arrays, tokenizer, characters = opened
    check_lengths(arrays, config, context, corpus)
    return Text(
        **arrays, tokenizer=tokenizer, name=corpus.name, fingerprint=fingerprint, characters=characters, known=known
    )


def cannot_keep(folder: Path, error: OSError) -> DataError:
    """What to tell of a cache that cannot be written."""
    return DataError(
        f"{printable(folder)}: cannot keep the encoded text there: {error.strerror or error}; "
        "another place is set by data.cache_dir="
    )


def check_lengths(arrays: Mapping[str, Sized], config: DataConfig, context: int, corpus: Corpus) -> None:
    """Refuse a split in which no window fits."""
    unit = "characters" if corpus.encoding else "bytes"
    whole = sum(len(tokens) for tokens in arrays.values())
    if whole <= context:
        raise DataError(
            f"{corpus.name}: {whole:,} {unit} are too few: one window of model.context={context} "
            f"needs {context + 1:,} in train and in validation; lower model.context or name a longer text"
        )
    for split, share in zip(SPLITS, config.split, strict=True):
        length = len(arrays[split])
        # Test is only ever evaluated, where a shorter last window is fine: two tokens make one prediction.
        needed = context + 1 if split != "test" else 2 if share > 0 else 0
        if length < needed:
            way = f"lower model.context={context} or " if split != "test" else ""
            raise DataError(
                f"{corpus.name}: {split} holds {length:,} of {whole:,} {unit} but needs at least {needed:,}; "
                f"{way}give it a larger share than {share:g} with data.split="
            )


# -- Splitting -----------------------------------------------------------------------------------


def split_by_file(sizes: Mapping[str, int], shares: list[float]) -> dict[str, str]:
    """Send each document to one split.

    In an order given by a hash of their names, documents fill validation up to its share of the
    characters, then test; the rest is train. A document is passed over where taking it would miss the
    share by more than leaving it out does. So a document's place depends on names and sizes alone.

    Returns:
        The split of each document, by name.
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
    """Where validation and test begin in a document of `size` characters."""
    # The small number mends products such as 0.29 * 100 = 28.999999999999996.
    first = int(size * shares[0] + 1e-6)
    return first, size if shares[2] == 0 else int(size * (shares[0] + shares[1]) + 1e-6)


def cuts(corpus: Corpus, sizes: list[int], shares: list[float]) -> list[list[Part]]:
    """The parts that each document is cut into."""
    if len(sizes) >= BY_FILE:
        names = [document.name for document in corpus.documents]
        placed = split_by_file(dict(zip(names, sizes, strict=True)), shares)
        return [[(placed[name], 0, size)] for name, size in zip(names, sizes, strict=True)]
    parts: list[list[Part]] = []
    for size in sizes:
        second, third = split_within(size, shares)
        parts.append([("train", 0, second), ("validation", second, third), ("test", third, size)])
    return parts


# -- Encoding ------------------------------------------------------------------------------------


def scan(corpus: Corpus, tick: Callable[[int], object] = lambda size: None) -> tuple[list[int], str]:
    """First pass: how long each document is, and the distinct characters (or bytes) of them all, sorted."""
    sizes, low, others = [], b"", np.zeros(0x110000, bool)
    for document in corpus.documents:
        size = 0
        for chunk in corpus.read(document, tick):
            size += len(chunk)
            if isinstance(chunk, str) and not chunk.isascii():
                points = np.frombuffer(chunk.encode("utf-32-le", "surrogatepass"), np.uint32)
                if not others.take(points, mode="clip").all():  # reading is far quicker than writing
                    others[points] = True
            else:
                raw = chunk.encode("ascii") if isinstance(chunk, str) else chunk
                # Deleting what is known leaves nothing, except early on: far quicker than looking at each byte.
                low += bytes(set(raw.translate(None, low)))
        sizes.append(size)
    others[list(low)] = True
    return sizes, "".join(map(chr, np.flatnonzero(others)))


def make_tokenizer(corpus: Corpus, characters: str, known: str, joined: bool) -> Tokenizer:
    """Make the tokenizer for a corpus, or refuse it."""
    if not characters:
        raise DataError(f"{corpus.name}: is empty: 0 characters")
    if len(characters) == 1:
        raise DataError(f"{corpus.name}: holds only one distinct character, {characters!r}: there is nothing to learn")
    if corpus.encoding is None:
        return ByteTokenizer()
    if joined:
        characters += "\n"
    try:
        return CharTokenizer(characters + known)
    except ValueError as error:
        raise DataError(f"{corpus.name}: {error}") from None


def pieces(
    corpus: Corpus, parts_of: list[list[Part]], tokenizer: Tokenizer, tick: Callable[[int], object] = lambda size: None
) -> Iterator[tuple[str, np.ndarray]]:
    """Second pass: the tokens of each split, in the order of the text, pieces of documents joined by one newline."""
    begun = set()
    for document, parts in zip(corpus.documents, parts_of, strict=True):
        position = 0
        for chunk in corpus.read(document, tick):
            tokens = np.frombuffer(chunk, np.uint8) if isinstance(chunk, bytes) else tokenizer.pack(chunk)
            for split, begin, end in parts:
                piece = tokens[max(begin - position, 0) : max(end - position, 0)]
                if len(piece):
                    if position <= begin and split in begun:
                        yield split, tokenizer.pack("\n")
                    begun.add(split)
                    yield split, piece
            position += len(tokens)


def _encode(corpus: Corpus, digest: str, shares: list[float], known: str, folder: Path) -> None:
    """Encode a corpus into `folder`, all or nothing.

    Raises:
        DataError: the text cannot be read or used.
        OSError: the cache cannot be written.
    """
    changed = DataError(f"{corpus.name}: was changed while it was being read; start again")
    try:
        with Progress("encoding", 2 * corpus.size(), "B") as progress:
            sizes, characters = scan(corpus, progress.update)
            tokenizer = make_tokenizer(corpus, characters, known, joined=sum(size > 0 for size in sizes) > 1)

            def encoded() -> Iterator[tuple[str, np.ndarray]]:
                yield from pieces(corpus, cuts(corpus, sizes, shares), tokenizer, progress.update)
                if corpus.digest() != digest:
                    raise changed

            keep(folder, tokenizer, encoded())
    except UnknownCharacter:  # the first pass has seen every character there was
        raise changed from None


def keep(folder: Path, tokenizer: Tokenizer, encoded: Iterable[tuple[str, np.ndarray]]) -> None:
    """Write the tokens of the splits into `folder`, all or nothing.

    Raises:
        OSError: the cache cannot be written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_unfinished(folder.parent, seconds=DAY)
    lengths, counts, checksums = (dict.fromkeys(SPLITS, 0) for _ in range(3))
    try:
        with atomic(folder) as unfinished:
            unfinished.mkdir()
            with ExitStack() as stack:
                files = {split: stack.enter_context(open(unfinished / f"{split}.bin", "wb")) for split in SPLITS}
                for split, piece in encoded:
                    files[split].write(piece.data)
                    checksums[split] = zlib.crc32(piece.data, checksums[split])
                    lengths[split] += len(piece)
                    counts[split] += count_characters(piece, isinstance(tokenizer, ByteTokenizer))
            meta = {"vocabulary": tokenizer.vocabulary, "lengths": lengths, "characters": counts}
            (unfinished / "meta.json").write_text(json.dumps(meta | {"checksums": checksums}), encoding="ascii")
            if load(folder) is None:
                shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        if load(folder) is None:  # else another process was quicker
            raise


def count_characters(tokens: np.ndarray, bytes: bool) -> int:
    """How many characters begin in these tokens: each is one, or where they are bytes, all but 10xxxxxx begin one."""
    return len(tokens) - (int(np.count_nonzero((tokens & 0xC0) == 0x80)) if bytes else 0)


def _checked(folder: Path) -> "tuple[dict[str, np.ndarray], Tokenizer, dict[str, int]] | None":
    with Progress("checking the encoded text"):
        return load(folder)


def load(folder: Path) -> tuple[dict[str, np.ndarray], Tokenizer, dict[str, int]] | None:
    """Open what `keep` has written, or return None where it is missing, incomplete or damaged."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="ascii"))
        tokenizer = tokenizer_from(meta["vocabulary"])
        arrays = {split: _map(folder / f"{split}.bin", tokenizer.dtype, meta["lengths"][split]) for split in SPLITS}
        if any(zlib.crc32(arrays[split].data) != meta["checksums"][split] for split in SPLITS):
            return None
        return arrays, tokenizer, {split: int(meta["characters"][split]) for split in SPLITS}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _map(path: Path, dtype: type[np.unsignedinteger], length: int) -> np.ndarray:
    """Map a file of `length` tokens into memory, read-only; ValueError if it has another size."""
    size = path.stat().st_size
    if size != length * np.dtype(dtype).itemsize:
        raise ValueError(f"{path} holds {size} bytes")
    return np.memmap(path, dtype, mode="r") if length else np.zeros(0, dtype)  # an empty file cannot be mapped
