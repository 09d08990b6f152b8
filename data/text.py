"""Split and encode a text once, then map it into memory from `<cache>/encoded/<fingerprint>/`.

The folder has `meta.json` and, with the tokens as uint8 or uint16, `train.bin`, `validation.bin` and `test.bin`. The
fingerprint includes a hash of the text, which is computed at every start. So a changed text is encoded again.
"""

import hashlib
import json
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from base.errors import InputError, printable
from base.files import atomic, remove_unfinished
from base.progress import Progress
from data.config import DataConfig, cache_dir
from data.corpus import Corpus, Tick, open_corpus
from data.documents import Documents, Rule, check_end_mark, contents, encode_documents
from gpt.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer, UnknownCharacter, tokenizer_from

SPLITS = ("train", "validation", "test")
BY_FILE = 40  # with at least this many documents, none is divided: each belongs to one split
RARE = 5  # a character that occurs fewer times can hardly be learned
FORMAT = 1  # part of the fingerprint: raise it when the same text would be split or encoded differently
Part = tuple[str, int, int]  # a part of a document: split, begin, end
# Tokens and number of characters of each split; `counts`, `repeated` and `blank` of `Documents`, if there are any.
Encoded = tuple[dict[str, np.ndarray], Tokenizer, dict[str, int], dict[str, Any]]


@dataclass(frozen=True)
class Text:
    """An encoded corpus."""

    train: np.ndarray  # one-dimensional, uint8 or uint16, mapped into memory
    validation: np.ndarray  # the same dtype
    test: np.ndarray  # the same dtype, empty if its fraction is 0
    tokenizer: Tokenizer  # has the characters of all splits
    name: str  # name of the corpus, for messages
    fingerprint: str  # hexadecimal; equal for equal content, settings and tokenizer
    characters: Mapping[str, int]  # number of characters of each split; with bytes as tokens, at most its tokens
    extra_chars: str  # added to the vocabulary, whether the corpus has them or not
    hashes: Sequence[str]  # SHA-256 of the bytes of each file; empty if the text has many, each in one split
    documents: Documents | None = None  # what the text was divided into; None if it is one long text
    notes: tuple[str, ...] = ()  # lines about the text for the introduction of a run


def open_text(config: DataConfig, context: int, extra_chars: str = "") -> Text:
    """Open the text that `config` names, encoded and split, from the cache if it is there.

    With `data.documents` or `data.field`, each document belongs to one split (see `data/documents.py`). Otherwise, at
    least 40 files, such as the standard library, are split by file (see `split_by_file`). With fewer, each
    file is divided into three parts. The parts of a split are joined by newlines.

    Args:
        config: source, split and tokenizer.
        context: window length in tokens; train and validation must each have at least context + 1 tokens.
        extra_chars: characters to add to the vocabulary, whether the text has them or not.
    """
    corpus = open_corpus(config)
    with Progress("hashing the text", corpus.size(), "B") as progress:
        stamps, digests = corpus.stamps(), corpus.digests(progress.update)
    shares = [float(share) for share in config.split]
    settings = [FORMAT, corpus.digest(digests), corpus.encoding, corpus.python, shares]
    settings += [extra_chars] if extra_chars else []
    rule = Rule.of(config)
    settings += [{rule.kind: rule.name}] if rule else []
    fingerprint = hashlib.sha256(json.dumps(settings).encode()).hexdigest()
    folder = cache_dir(config) / "encoded" / fingerprint
    with Progress("checking the encoded text"):
        opened = _load(folder)
    arrays, tokenizer, characters, found = opened or _encode(corpus, rule, stamps, config.split, extra_chars, folder)
    check_lengths(arrays, config, context, corpus)
    text = Text(
        **arrays, tokenizer=tokenizer, name=corpus.name, fingerprint=fingerprint, characters=characters,
        extra_chars=extra_chars, hashes=digests if rule or len(digests) < BY_FILE else [],
        documents=Documents(rule.kind, rule.end, **found) if rule else None,
        notes=corpus.notes + rare_characters(folder),
    )  # fmt: skip
    return text if config.overfit is None else _overfitted(text, config.overfit, context)


def text_of_run(model: Path) -> Text:
    """Open the text that the run of a model file, such as RUN/checkpoints/best.safetensors, was trained on.

    Raises:
        InputError: there is no training checkpoint beside the model, or the text is missing or has changed.
    """
    from gpt.training_checkpoint import read  # loads torch

    contents = read(model.with_name("last.ckpt"))
    saved = contents["data"]
    config = DataConfig(**{key: saved[key] for key in DataConfig.__dataclass_fields__})
    text = open_text(config, contents["model_config"]["context"], saved["extra_chars"])
    if text.fingerprint != saved["fingerprint"]:
        run = model.resolve().parent.parent
        raise InputError(f"{text.name} has changed since {printable(run.name)} was trained, and so have its splits")
    return text


def _overfitted(text: Text, length: int, context: int) -> Text:
    """Limit all three splits to the first `length` training tokens; training gets a few more."""
    if length <= context:
        raise InputError(f"data.overfit={length}: must be above model.context={context}")
    part = text.train[:length]
    # An epoch begins at a random token and may miss the last `context` tokens. So keep 2 * context extra tokens.
    train, sizes = text.train[: length + 2 * context], text.tokenizer.token_sizes[:, 0]
    characters = dict.fromkeys(SPLITS, int(sizes[part].sum())) | {"train": int(sizes[train].sum())}
    return replace(text, train=train, validation=part, test=part, characters=characters)


def _load(folder: Path) -> Encoded | None:
    """Map the files of an encoded text into memory; return None if the folder is missing, incomplete or damaged."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="ascii"))
        tokenizer = tokenizer_from(meta["vocabulary"])
        arrays = {}
        for split in SPLITS:
            path = folder / f"{split}.bin"
            if _checksum(path) != meta["checksums"][split]:
                return None
            arrays[split] = np.zeros(0, tokenizer.dtype)
            if meta["lengths"][split]:  # an empty file cannot be mapped
                arrays[split] = np.memmap(path, tokenizer.dtype, mode="r")
        characters = {split: int(meta["characters"][split]) for split in SPLITS}
        return arrays, tokenizer, characters, meta.get("documents", {})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def rare_characters(folder: Path) -> tuple[str, ...]:
    """Return a line about rare characters if they are at least ten, and over a tenth of the vocabulary."""
    meta = json.loads((folder / "meta.json").read_text(encoding="ascii"))
    rare, size = meta.get("rare", 0), len(meta["vocabulary"].get("characters", ""))
    if rare < 10 or 10 * rare <= size:
        return ()
    what = f"{rare:,} of {size:,} characters occur fewer than five times and can hardly be learned"
    return (f"{what}; data.tokenizer=byte has no rare tokens",)


def _checksum(path: Path) -> int:
    """Return the CRC-32 of a file. Read it in chunks: a map would hold all its pages in memory."""
    checksum = 0
    with open(path, "rb") as file:
        while chunk := file.read(2**20):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def _encode(
    corpus: Corpus,
    rule: Rule | None,
    stamps: list[tuple[int, int]],
    shares: list[float],
    extra_chars: str,
    folder: Path,
) -> Encoded:
    """Encode a corpus into `folder` and open it. `stamps` are the corpus's stamps from before its files were hashed.

    Of several processes one encodes, and the others wait for it.
    """
    changed = InputError(f"{corpus.name}: was changed while it was being read; start again")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        passes = 3 if rule else 2
        with Progress("encoding", passes * corpus.size(), "B") as progress, FileLock(folder.parent / ".lock"):
            if opened := _load(folder):  # another process has just encoded it
                return opened
            shutil.rmtree(folder, ignore_errors=True)
            remove_unfinished(folder.parent)
            tick, found = progress.update, dict[str, Any]()
            if rule:
                sizes, characters, rare = scan(contents(corpus, rule, tick))
                check_end_mark(corpus, rule, characters)
                tokenizer = _make_tokenizer(corpus, characters, rule.end + extra_chars)
                parts = encode_documents(corpus, rule, tokenizer, shares, sum(sizes), folder.parent, tick, found)
            else:
                sizes, characters, rare = scan(corpus.read(document, tick) for document in corpus.documents)
                joined = sum(size > 0 for size in sizes) > 1  # by newlines
                tokenizer = _make_tokenizer(corpus, characters, "\n" * joined + extra_chars)
                parts = _encode_parts(corpus, split_documents(corpus, sizes, shares), tokenizer, tick)

            def encoded() -> Iterator[tuple[str, np.ndarray]]:
                yield from parts
                if corpus.stamps() != stamps:
                    raise changed

            _save(folder, tokenizer, encoded(), found, rare)
    except UnknownCharacter:  # the first pass did not see this character
        raise changed from None
    except OSError as error:  # the cache cannot be written: a text that cannot be read is an InputError
        raise InputError(
            f"{printable(folder)}: cannot save the encoded text: {error.strerror or error}; "
            "data.cache_dir= sets another folder"
        ) from None
    if opened := _load(folder):
        return opened
    raise InputError(f"{printable(folder)}: the encoded text was damaged as soon as it was written; check the disk")


def scan(texts: Iterable[Iterable[str | bytes]]) -> tuple[list[int], str, int]:
    """First pass: return the length of each text, the sorted distinct characters (or bytes), and how many are rare.

    Rare characters occur fewer than `RARE` times.
    """
    sizes, counts = [], np.zeros(0x110000, np.uint8)  # how often each code point occurs, up to RARE
    frequent = b""  # characters of ASCII chunks, or bytes, that occur RARE times
    for text in texts:
        size = 0
        for chunk in text:
            size += len(chunk)
            if isinstance(chunk, str) and not chunk.isascii():
                points = np.frombuffer(chunk.encode("utf-32-le", "surrogatepass"), np.uint32)
                found = counts.take(points, mode="clip")
                if found.min() == RARE:  # reading is far faster than writing
                    continue
                points = points[found < RARE]
            else:
                raw = chunk.encode("ascii") if isinstance(chunk, str) else chunk
                # First delete the frequent bytes: far faster than counting the whole chunk.
                points = np.frombuffer(raw.translate(None, frequent), np.uint8)
            if len(points):
                distinct, times = np.unique(points, return_counts=True)
                counts[distinct] = np.minimum(counts[distinct] + times, RARE)
                frequent = bytes(np.flatnonzero(counts[:256] == RARE).tolist())
        sizes.append(size)
    seen = np.flatnonzero(counts)
    return sizes, "".join(map(chr, seen)), int(np.count_nonzero(counts[seen] < RARE))


def _make_tokenizer(corpus: Corpus, characters: str, more: str) -> Tokenizer:
    """Make the tokenizer of a corpus from its characters and `more`, such as those of an end mark."""
    if not characters:
        raise InputError(f"{corpus.name}: is empty: 0 characters")
    if len(characters) == 1:
        raise InputError(f"{corpus.name}: holds only one distinct character, {characters!r}: there is nothing to learn")
    if corpus.encoding is None:
        return ByteTokenizer()
    try:
        return CharTokenizer(characters + more)
    except ValueError as error:
        raise InputError(f"{corpus.name}: {error}") from None


def _encode_parts(
    corpus: Corpus, parts_of: list[list[Part]], tokenizer: Tokenizer, tick: Tick
) -> Iterator[tuple[str, np.ndarray]]:
    """Second pass: yield (split, tokens) in the order of the text, with a newline between the parts of a split.

    `parts_of` lists the parts of each document.
    """
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


def _save(
    folder: Path, tokenizer: Tokenizer, encoded: Iterator[tuple[str, np.ndarray]], found: Mapping[str, Any], rare: int
) -> None:
    """Write the (split, tokens) of `encoded` into `folder`, atomically.

    What was `found` of documents is there when all is encoded. `rare` is the number of rare characters.
    """
    lengths, counts, checksums = (dict.fromkeys(SPLITS, 0) for _ in range(3))
    with atomic(folder) as unfinished:
        unfinished.mkdir()
        with ExitStack() as stack:
            files = {split: stack.enter_context(open(unfinished / f"{split}.bin", "wb")) for split in SPLITS}
            for split, piece in encoded:
                files[split].write(piece.data)
                checksums[split] = zlib.crc32(piece.data, checksums[split])
                lengths[split] += len(piece)
                counts[split] += len(piece)
                if isinstance(tokenizer, ByteTokenizer):  # 10xxxxxx continues a character and is not counted
                    counts[split] -= int(np.count_nonzero((piece & 0xC0) == 0x80))
        meta: dict[str, Any] = {"vocabulary": tokenizer.vocabulary, "lengths": lengths, "characters": counts}
        meta |= {"rare": rare} | ({"documents": found} if found else {})
        (unfinished / "meta.json").write_text(json.dumps(meta | {"checksums": checksums}), encoding="ascii")


def check_lengths(arrays: Mapping[str, Sized], config: DataConfig, context: int, corpus: Corpus) -> None:
    """Raise `InputError` if train or validation holds no window, or if a wanted test split has no two tokens."""
    unit = "characters" if corpus.encoding else "bytes"
    whole = sum(len(tokens) for tokens in arrays.values())
    if whole <= context:
        raise InputError(
            f"{corpus.name}: {whole:,} {unit} are too few: one window of model.context={context} "
            f"needs {context + 1:,} in train and in validation; lower model.context or name a longer text"
        )
    for split, share in zip(SPLITS, config.split, strict=True):
        length = len(arrays[split])
        # Windows of the test split may be shorter than `context`, since it is only evaluated: two tokens are enough.
        needed = context + 1 if split != "test" else 2 if share > 0 else 0
        if length < needed:
            way = f"lower model.context={context} or " if split != "test" else ""
            way += f"give it a larger share than {share:g} with data.split="
            if len(corpus.documents) >= BY_FILE and Rule.of(config) is None:
                way += f"; from {BY_FILE} files on, whole files belong to a split: join them into fewer"
            raise InputError(
                f"{corpus.name}: {split} holds {length:,} of {whole:,} {unit} but needs at least {needed:,}; {way}"
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
