"""Split and encode a text once, and load it from `<cache>/encoded/<fingerprint>/` at every later start."""

import hashlib
import json
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from filelock import FileLock

from base.errors import InputError, one_line, printable
from base.files import atomic, remove_unfinished
from base.jobs.run_directory import Run
from base.progress import Progress
from data.config import END, DataConfig
from data.corpus import open_corpus
from data.decoding import Corpus, Tick
from data.documents import DocumentRule, DocumentStats, contents
from data.hash_order import encode_documents
from data.ngrams import MOST_LINES, are_sorted, describe_likeness, losses_of_passages
from data.seen import file_hashes, was_read
from data.splits import SPLITS, Part, check_lengths, describe_files, split_files
from gpt.model_file import TextRead, read_description
from gpt.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer, UnknownCharacter, tokenizer_from
from gpt.windows import EvaluationText

# Larger splits are memory-mapped, because they may exceed memory. Smaller ones are not, because
# SIGBUS ends the process if a mapped file is truncated.
MAPPED_FROM = 2**24  # bytes
FORMAT = 2  # part of the fingerprint: increment it when the same text would be encoded differently
# increment it when the same text would be split differently: model files compare splits
SPLIT_FORMAT = 1
SEEN = (
    "the starting model was trained on files of this text, perhaps on what is held out here, "
    "so the loss may say nothing about new text"
)
# tokens of each split, tokenizer, meta.json
Encoded = tuple[dict[str, np.ndarray], Tokenizer, dict[str, Any]]


@dataclass(frozen=True)
class Text:
    """A text that is split and encoded, and what is known about it."""

    train: np.ndarray  # tokens of the training split, (N,) uint8 or uint16, read-only
    validation: np.ndarray  # tokens of the validation split, of the same dtype
    test: np.ndarray  # tokens of the test split, of the same dtype, empty if its fraction is 0
    tokenizer: Tokenizer  # the tokenizer, whose vocabulary contains the characters of all splits
    name: str  # name of the text, for messages
    fingerprint: str  # hexadecimal hash that is equal for equal content, settings and tokenizer
    # Number of characters by split. With the byte tokenizer, a character may be several tokens.
    characters: Mapping[str, int]
    extra_chars: str  # characters that are in the vocabulary whether the text contains them or not
    sha256: str  # SHA-256 of the file or, if there are several, a hash of their names and hashes
    texts: Sequence[TextRead]  # this text, then those that the model of `init_from` has read
    # how the text was divided into documents, or None if it was not divided
    documents: DocumentStats | None = None
    notes: tuple[str, ...] = ()  # lines about the text, logged when a run starts
    held_out: Sequence[str] = ()  # hashes of the files of which parts are held out (`data.seen`)

    @property
    def end(self) -> np.ndarray | None:
        """The end mark that follows each document, (M,) tokens, or None if the text is not a list of documents."""
        return self.tokenizer.pack(self.documents.rule.end) if self.documents else None

    @property
    def mode(self) -> str:
        """How windows are placed in an evaluation: they begin at `documents`, or are `disjoint`."""
        return "documents" if self.documents else "disjoint"

    @property
    def evaluated(self) -> EvaluationText:
        """The validation split with what an evaluation needs to know about it."""
        return EvaluationText(self.validation, self.tokenizer.token_sizes, self.end)

    def read_before(self, texts: Sequence[TextRead]) -> "Text":
        """Return a copy to whose `texts` those are added that the model of `init_from` has read.

        A line in its `notes` warns if these may contain what is held out here.
        """
        this = self.texts[0]
        others = [
            text
            for text in texts
            if (text["sha256"], text["split"]) != (this["sha256"], this["split"])
        ]
        notes = self.notes
        # no split with data.overfit, which holds nothing out
        if this["split"] and was_read(others, self.sha256, self.held_out):
            notes += (SEEN,)
        return replace(self, texts=[this, *others], notes=notes)


def open_text(config: DataConfig, context: int, extra_chars: str = "") -> Text:
    return encode_corpus(open_corpus(config), config, context, extra_chars)


def encode_corpus(corpus: Corpus, config: DataConfig, context: int, extra_chars: str = "") -> Text:
    """Return a text, split and encoded, from the cache if it is there.

    With `data.validation`, each split has files of its own. Otherwise documents are split by
    `data/hash_order.py`, and other texts by `data/splits.py`. Within a split, the texts of
    different files are joined by newlines.
    """
    with Progress("hashing the text", corpus.size(), "B") as progress:
        stamps = corpus.stamps()
        digests = corpus.digests(progress.update)
    shares = [float(share) for share in config.split]
    settings = [SPLIT_FORMAT, corpus.digest(digests), corpus.encoding, corpus.python, shares]
    rule = DocumentRule.of(config)
    if rule:
        settings += [{rule.kind: rule.name}]
    if config.validation is not None:
        settings += [[source.split for source in corpus.files]]
    split_hash = hashlib.sha256(json.dumps(settings).encode()).hexdigest()
    fingerprint = hashlib.sha256(json.dumps([FORMAT, *settings, extra_chars]).encode()).hexdigest()
    folder = corpus.cache / "encoded" / fingerprint
    with Progress("checking the encoded text"):
        cached = _load(folder)
    arrays, tokenizer, meta = cached or _encode(
        corpus, rule, stamps, digests, config.split, extra_chars, folder
    )
    check_lengths(arrays, config, context, corpus)
    about_files = () if rule else describe_files(corpus, digests, config.split)
    sha256 = corpus.identity(digests)
    text = Text(
        **arrays, tokenizer=tokenizer, name=corpus.name, fingerprint=fingerprint, characters=meta["characters"],
        extra_chars=extra_chars, sha256=sha256, held_out=meta["files"]["held_out"],
        texts=[{"sha256": sha256, "split": split_hash, "files": meta["files"]["train"]}],
        documents=DocumentStats(rule, **meta["documents"]) if rule else None,
        notes=corpus.notes + about_files,
    )  # fmt: skip
    if config.overfit is not None:
        return _overfitted(text, config.overfit, context)
    # no warning if validation has files of its own
    is_ordered = meta["ordered"] and config.validation is None
    likeness = describe_likeness(meta["losses"], is_ordered)
    return replace(text, notes=text.notes + likeness)


def text_of_run(model: Path) -> Text:
    """Return the text on which the model in the file `model`, such as RUN/checkpoints/best.safetensors, was trained.

    The run's config.yaml says where the text is; the model file contains hashes of the text and of
    its splits.
    """
    architecture, meta = read_description(model)
    run = Run(model.resolve().parent.parent)
    try:
        settings = yaml.safe_load(run.config.read_text(encoding="utf-8"))
        config = DataConfig(**settings["data"])
        is_first = settings["init_from"] is None
    except (OSError, ValueError, LookupError, TypeError, RecursionError, yaml.YAMLError) as error:
        raise InputError(f"{printable(run.config)}: {one_line(error)[:300]}") from None
    # A run with init_from= also has the characters of the model from which it started.
    extra_chars = "" if is_first else meta["vocabulary"].get("characters", "")
    text = open_text(config, architecture.context, extra_chars)
    trained_on = [(read["sha256"], read["split"]) for read in meta["texts"][:1]]
    opened = [(read["sha256"], read["split"]) for read in text.texts]
    if trained_on != opened or text.tokenizer.vocabulary != meta["vocabulary"]:
        raise InputError(
            f"{text.name} has changed since {printable(run.name)} was trained, and so have its splits"
        )
    return text


def _overfitted(text: Text, length: int, context: int) -> Text:
    """Return a copy whose validation and test are the first `length` training tokens (`data.overfit`)."""
    if length <= context:
        raise InputError(f"data.overfit={length}: must be above model.context={context}")
    # An epoch begins at a random phase and may miss the last `context` tokens, hence the 2 *
    # context extra tokens.
    train_length = length + 2 * context
    train = text.train[:train_length]
    if len(train) < train_length:
        train = np.concatenate((text.train, text.validation, text.test))[:train_length]
    part = train[:length]  # of training, and all of validation and test

    characters_of = text.tokenizer.token_sizes[:, 0]  # (V,), characters of each token
    held_out = int(characters_of[part].sum())
    characters = {
        "train": int(characters_of[train].sum()),
        "validation": held_out,
        "test": held_out,
    }
    texts: list[TextRead] = [{**text.texts[0], "split": ""}]  # because no text is held out
    return replace(
        text, train=train, validation=part, test=part, characters=characters, texts=texts
    )


def _load(folder: Path) -> Encoded | None:
    """Return the encoded text in `folder`, with large splits memory-mapped, or None if a file is missing or damaged."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="ascii"))
        tokenizer = tokenizer_from(meta["vocabulary"])
        arrays = dict[str, np.ndarray]()
        for split in SPLITS:
            arrays[split] = _open(folder / f"{split}.bin", tokenizer)
            if _checksum(folder / f"{split}.bin") != meta["checksums"][split]:
                return None
        return (
            arrays,
            tokenizer,
            {key: meta[key] for key in ("characters", "documents", "files", "losses", "ordered")},
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _open(path: Path, tokenizer: Tokenizer) -> np.ndarray:
    if path.stat().st_size < MAPPED_FROM:
        return np.frombuffer(path.read_bytes(), tokenizer.dtype)
    return np.memmap(path, tokenizer.dtype, mode="r")


def _checksum(path: Path) -> int:
    """Return the CRC-32 of a file. It is read in chunks because a memory map would keep all its pages in memory."""
    checksum = 0
    with open(path, "rb") as file:
        while chunk := file.read(2**20):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def _encode(
    corpus: Corpus,
    rule: DocumentRule | None,
    stamps: list[tuple[int, int]],
    digests: list[str],
    shares: list[float],
    extra_chars: str,
    folder: Path,
) -> Encoded:
    """Encode a corpus into `folder` and return it. If several processes need it, one encodes and the others wait."""
    # One pass reads the vocabulary and one the tokens; with a rule, a third writes the documents
    # in their order.
    passes = 3 if rule else 2
    progress = Progress("encoding", passes * corpus.size(), "B")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with progress, FileLock(folder.parent / ".lock"):
            encoded = _load(folder)
            if encoded:  # another process has just encoded it
                return encoded
            tick = progress.update
            sizes, tokenizer = _read_vocabulary(corpus, rule, extra_chars, tick)
            if rule:
                parts, divided = encode_documents(
                    corpus, rule, tokenizer, shares, folder.parent, tick
                )
                files = file_hashes(corpus, None)
            else:
                parts_of = split_files(corpus, sizes, shares, digests)
                parts = _encode_parts(corpus, parts_of, tokenizer, tick)
                divided = {}
                files = file_hashes(corpus, parts_of)
            unchanged_parts = _while_unchanged(parts, corpus, stamps)
            _save(folder, tokenizer, unchanged_parts, {"documents": divided, "files": files})
    except UnknownCharacter:  # the file has a character that it did not have in the first pass
        raise _changed(corpus) from None
    except (
        OSError
    ) as error:  # from writing the cache, because a text that cannot be read raises an InputError
        raise InputError(
            f"{printable(folder)}: cannot save the encoded text: {error.strerror or error}; "
            "data.cache_dir= sets another folder"
        ) from None
    encoded = _load(folder)
    if encoded:
        return encoded
    raise InputError(
        f"{printable(folder)}: the encoded text was damaged as soon as it was written; check the disk"
    )


def _read_vocabulary(
    corpus: Corpus, rule: DocumentRule | None, extra_chars: str, tick: Tick
) -> tuple[list[int], Tokenizer]:
    """Return (length of each file in characters or bytes, if there is no rule; tokenizer)."""
    texts: Iterable[Any] = (corpus.read(source, tick) for source in corpus.files)
    # The end marks of lines and paragraphs are part of the text. The model reads no other separators.
    if rule and rule.end == END:
        texts = [contents(corpus, rule, tick)]
    sizes, characters = scan(texts)
    end = ""
    if rule:
        end = rule.end
    else:
        files = zip(corpus.files, sizes, strict=True)
        splits = [source.split for source, size in files if size]
        if len(splits) > len(set(splits)):
            end = "\n"  # joins the files of a split
    return sizes, _make_tokenizer(corpus, characters, end, extra_chars)


def _while_unchanged(
    parts: Iterable[tuple[str, np.ndarray]], corpus: Corpus, stamps: list[tuple[int, int]]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield `parts`; raise an `InputError` if the files of the corpus were changed meanwhile."""
    yield from parts
    if corpus.stamps() != stamps:
        raise _changed(corpus)


def _changed(corpus: Corpus) -> InputError:
    return InputError(f"{corpus.name}: was changed while it was being read; start again")


def scan(texts: Iterable[Iterable[str | bytes]]) -> tuple[list[int], str]:
    """Return (length of each text, all distinct characters in sorted order)."""
    sizes = []
    seen = np.zeros(0x110000, bool)  # whether each code point occurs
    known = b""  # those below 256 that occur, again, for `translate`
    for text in texts:
        size = 0
        for chunk in text:
            size += len(chunk)
            if isinstance(chunk, str) and not chunk.isascii():
                points = np.frombuffer(chunk.encode("utf-32-le", "surrogatepass"), np.uint32)
                # Mostly nothing is new, and reading is far faster than writing.
                if not seen.take(points, mode="clip").all():
                    seen[points] = True
            else:
                code = chunk.encode("ascii") if isinstance(chunk, str) else chunk
                new = code.translate(None, known)  # without what is known, so mostly empty
                if new:
                    seen[np.frombuffer(new, np.uint8)] = True
                    known = bytes(np.flatnonzero(seen[:256]).tolist())
        sizes.append(size)
    return sizes, "".join(map(chr, np.flatnonzero(seen)))


def _make_tokenizer(corpus: Corpus, characters: str, end: str, extra_chars: str) -> Tokenizer:
    """Return the tokenizer of a corpus, whose vocabulary has its `characters`, the end mark and `extra_chars`."""
    if end == END and END in characters:
        way = "remove it, or set data.documents=line or paragraph"
        raise InputError(f"{corpus.name}: contains U+0003, the end mark of documents; {way}")
    if not characters:
        raise InputError(f"{corpus.name}: is empty: 0 characters")
    if len(characters) == 1:
        raise InputError(
            f"{corpus.name}: holds only one distinct character, {characters!r}: there is nothing to learn"
        )
    if corpus.encoding is None:
        return ByteTokenizer()
    try:
        return CharTokenizer(characters + end + extra_chars)
    except ValueError as error:
        raise InputError(f"{corpus.name}: {error}") from None


def _encode_parts(
    corpus: Corpus, parts_of: list[list[Part]], tokenizer: Tokenizer, tick: Tick
) -> Iterator[tuple[str, np.ndarray]]:
    """Encode the files of a corpus one after the other, and yield pairs (split, tokens)."""
    begun = set()  # splits
    for source, parts in zip(corpus.files, parts_of, strict=True):
        position = 0  # of the chunk in the file, in tokens
        for chunk in corpus.read(source, tick):
            if isinstance(chunk, bytes):
                tokens: np.ndarray = np.frombuffer(chunk, np.uint8)
            else:
                tokens = tokenizer.pack(chunk)
            for split, begin, end in parts:
                piece = tokens[max(begin - position, 0) : max(end - position, 0)]
                if len(piece):
                    # the first piece of a part follows the part of another file
                    if position <= begin and split in begun:
                        yield split, tokenizer.pack("\n")
                    begun.add(split)
                    yield split, piece
            position += len(tokens)


def _save(
    folder: Path,
    tokenizer: Tokenizer,
    encoded: Iterator[tuple[str, np.ndarray]],
    meta: dict[str, Any],
) -> None:
    """Write pairs (split, tokens) and `meta`, with their counts, checksums and losses added, into `folder`."""
    # A damaged text must go, because `atomic` replaces no folder. The caller holds the lock.
    shutil.rmtree(folder, ignore_errors=True)
    remove_unfinished(folder.parent)
    counts = dict.fromkeys(SPLITS, 0)  # of characters
    checksums = dict.fromkeys(SPLITS, 0)
    with atomic(folder) as unfinished:
        unfinished.mkdir()
        with ExitStack() as stack:
            files = {
                split: stack.enter_context(open(unfinished / f"{split}.bin", "wb"))
                for split in SPLITS
            }
            for split, piece in encoded:
                files[split].write(piece.data)
                checksums[split] = zlib.crc32(piece.data, checksums[split])
                counts[split] += len(piece)
                # 10xxxxxx continues a character and is not counted
                if isinstance(tokenizer, ByteTokenizer):
                    counts[split] -= int(np.count_nonzero((piece & 0xC0) == 0x80))
        meta |= {"vocabulary": tokenizer.vocabulary, "characters": counts, "checksums": checksums}
        train = _open(unfinished / "train.bin", tokenizer)
        validation = _open(unfinished / "validation.bin", tokenizer)
        meta["losses"] = losses_of_passages(train, validation, tokenizer.size)
        meta["ordered"] = not meta["documents"] and are_sorted(
            tokenizer.decode(train[:MOST_LINES])
        )
        (unfinished / "meta.json").write_text(json.dumps(meta), encoding="ascii")
