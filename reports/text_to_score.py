"""Read and encode the text of score.py for its models, without loading torch, so that errors appear at once."""

import argparse
import hashlib
import io
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from base.command_line import about_unknown, say_adapted
from base.errors import InputError, printable
from base.jobs.run_directory import Run
from base.processes import command
from base.progress import Progress
from data.corpus import Document
from data.decoding import CHUNK, decode
from data.documents import WHITESPACE, Rule, divide, is_divided
from data.text import text_of_run
from gpt.model_file import Model
from gpt.tokenizer import ByteTokenizer, Tokenizer, UnknownCharacter, tokenizer_from

MAX_PAGE = 10_000_000  # maximum characters in an HTML page


class EncodedText(NamedTuple):
    """A text, encoded for each model.

    Attributes:
        encoded: for each model, the tokens as bytes, in the `dtype` of the model's tokenizer.
        characters: number of characters of the text, or 0 if all models are byte models.
        size: number of bytes of the file, or 0 if characters were skipped or replaced.
        sha256: hash of the file, or "" if the text is not a file.
    """

    encoded: list[bytes | bytearray]
    characters: int
    size: int
    sha256: str


def read_text(checkpoints: list[Path], loaded: list[Model], options: argparse.Namespace) -> EncodedText:
    """Read the text that score.py scores, and return it encoded for each model.

    Args:
        checkpoints: the model file and, with `--compare`, a second model file.
        loaded: the contents of the model files.
        options: the options of the command line of score.py.

    Raises:
        InputError: the text or an option does not fit the models.
    """
    for path, (config, _, meta) in zip(checkpoints, loaded, strict=True):
        if options.per_document and meta["documents"] is None:
            why = "was not trained on documents (data.documents, data.field); score the whole text without this option"
            raise InputError(f"--per-document: {printable(path)} {why}")
        context = options.context or config.context
        if options.stride and options.stride > context:
            raise InputError(f"--stride {options.stride}: must be at most {context}, the context")
    tokenizers = [tokenizer_from(meta["vocabulary"]) for *_, meta in loaded]
    source, size, label, sha256 = open_source(checkpoints, options)
    with source as file, Progress("reading", size, "B") as progress:
        if (rule := rule_of(loaded)) and not options.split and (options.per_document or is_divided(rule, label)):
            file = marked(file, rule, tokenizers[0], label, options)
        texts, characters, size = encode_text(file, tokenizers, options, progress)
    if not texts[0]:
        raise InputError(f"{display_name(options)}: is empty; there is no character to predict")
    if options.html is not None and len(texts[0]) > MAX_PAGE * np.dtype(tokenizers[0].dtype).itemsize:
        raise InputError(f"--html: {display_name(options)} has more characters than a page can show, {MAX_PAGE:,}")
    return EncodedText(texts, characters, size, sha256)


def display_name(options: argparse.Namespace, path: bool = True) -> str:
    """Return a name for the scored text: the name of its file, `standard input`, or `validation split of RUN`.

    If `path` is true, the name includes the folders, as in messages. Otherwise it is only the last component of the
    path, as on pages.
    """
    name, file = (name and printable(name if path else Path(name).name) for name in (options.checkpoint, options.file))
    if options.split:
        return f"{options.split} split of {name}"
    return "standard input" if options.file == "-" else file


def split_of_run(model: Path, split: str) -> bytes:
    """Return the `validation` or `test` split of the text that a model was trained on, as bytes.

    The bytes are UTF-8 or, for a byte model, the unchanged bytes of the text. `model` is the path of the model file in
    the run directory, and `split` the name of the split.

    Raises:
        InputError: the model file is not in a run directory, the text cannot be read, or the split is empty.
    """
    if not model.with_name("last.ckpt").is_file():
        raise InputError(f"--split {split}: {printable(model)} is not in a run directory; name the text file instead")
    try:
        text = text_of_run(model)
    except InputError as error:
        whole = command("python", "score.py", Run(run_of(model)).name)
        raise InputError(f"--split {split}: {error}; {whole} FILE scores a whole file") from None
    tokens = getattr(text, split)
    if not len(tokens):
        raise InputError(f"--split {split}: {run_of(model)} has an empty {split} split (data.split)")
    return text.tokenizer.utf8(tokens)


def run_of(model: Path) -> Path:
    """Return the run directory RUN of a model file whose path is RUN/checkpoints/best.safetensors, for example."""
    return model.resolve().parent.parent


def rule_of(loaded: list[Model]) -> Rule | None:
    """Return the rule by which the models' training texts were divided into documents.

    The result is None if the texts were not divided into documents, or if they were divided in different ways.
    """
    first, *others = (model.meta["documents"] for model in loaded)
    return Rule(**first) if first is not None and all(other == first for other in others) else None


def open_source(
    checkpoints: list[Path], options: argparse.Namespace
) -> tuple[AbstractContextManager[IO[bytes]], int, str, str]:
    """Open the text that the options of score.py name: a file, standard input, or a split of a run.

    `checkpoints` contains the model files.

    Returns:
        (file, size, name, sha256): the file, as a context manager; its size in bytes, or 0 if unknown; its name; its
            SHA-256, or "" if the text is not a file.

    Raises:
        InputError: the text cannot be read, or the file is an archive of several files.
    """
    if options.split:
        split = split_of_run(checkpoints[0], options.split)
        return io.BytesIO(split), len(split), "", ""
    if options.file == "-":
        return nullcontext(sys.stdin.buffer), 0, display_name(options), ""
    texts = Document(display_name(options), Path(options.file)).unzip()
    if len(texts) > 1:
        raise InputError(f"{display_name(options)}: contains {len(texts):,} files; unpack it and score one of them")
    sha256 = ""
    if Path(options.file).is_file():  # not a pipe, which can be read only once
        with texts[0].open() as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    return texts[0].open(), Path(options.file).stat().st_size, texts[0].label, sha256


def marked(file: IO[bytes], rule: Rule, tokenizer: Tokenizer, name: str, options: argparse.Namespace) -> IO[bytes]:
    """Return a text as a model trained on documents reads it: a file in memory with an end mark after each document.

    Separators between documents and the syntax of tables are left out. A text of lines or paragraphs is not changed,
    because it contains the end marks already.

    Args:
        file: the text.
        rule: how the model's training text was divided into documents.
        tokenizer: tokenizer of the model.
        name: name of the text, for messages.
        options: the options of the command line of score.py, such as `--encoding`.
    """
    if rule.kind in WHITESPACE:
        return file
    if rule.kind != "row" and isinstance(tokenizer, ByteTokenizer):
        text: Any = file.read()
    else:
        text = "".join(decode(file, name, options.encoding, option="--encoding "))
    content = (each if isinstance(each, bytes) else each.encode() for each in divide(text, rule, name))
    return io.BytesIO(b"".join(each + rule.end.encode() for each in content))


def encode_text(
    file: IO[bytes], tokenizers: list[Tokenizer], options: argparse.Namespace, progress: Any
) -> tuple[list[bytes | bytearray], int, int]:
    """Encode a text for each tokenizer, chunk by chunk, so that only the tokens are in memory.

    As in training, a byte model reads the bytes unchanged, and for a character model a byte order mark is dropped and
    line ends become LF. But all models read the text as the character models do if `--per-char` or `--html` compares
    models by character, or if `--unknown` skips or replaces a character that a tokenizer lacks. `progress` is updated
    with the number of bytes read.

    Returns (tokens for each tokenizer, characters that a character model reads or 0, size of the file in bytes or 0 if
    characters were skipped or replaced).
    Raises InputError if a vocabulary lacks a character, or if `--encoding` is set and all models are byte models.
    """
    models = [options.checkpoint, *([] if options.compare is None else [options.compare])]
    is_byte = [isinstance(tokenizer, ByteTokenizer) for tokenizer in tokenizers]
    raw, size = read_bytes(file, progress) if any(is_byte) else bytearray(), 0
    if all(is_byte):
        if options.encoding != "utf-8":
            raise InputError(f"--encoding {options.encoding}: does not apply to a byte model, which reads bytes")
        return [raw] * len(tokenizers), 0, len(raw)

    def tick(read: int) -> None:
        nonlocal size
        size += read
        if not raw:
            progress.update(read)

    texts = [bytearray() for _ in tokenizers]
    position, line, changes = 0, 1, Counter[tuple[str, str]]()
    source: IO[bytes] = io.BytesIO(raw) if raw else file
    chunks: Iterable[str] = decode(source, display_name(options), options.encoding, tick, "--encoding ")
    if isinstance(file, io.BytesIO):  # already decoded; with many end marks U+0003 it would pass for a binary file
        text = source.read()
        chunks, size = [text.decode()], len(text)
    for piece in whole_words(chunks):
        for tokenizer in tokenizers:
            piece = tokenizer.canonical(piece)
        if options.unknown != "error":
            adapted = adapt_for_all(piece, tokenizers, options.unknown)
            if adapted != piece:
                changes += changed_characters(piece, tokenizers, options.unknown)
            piece = adapted
        for model, encoded, tokenizer in zip(models, texts, tokenizers, strict=True):
            try:
                encoded += tokenizer.pack(piece).tobytes()
            except UnknownCharacter as error:
                line += piece.count("\n", 0, error.position)
                in_text = UnknownCharacter(error.character, position + error.position, error.nearest)
                whose = f"{printable(model)}: " if options.compare else ""
                raise InputError(f"{display_name(options)}, line {line}: {whose}{in_text}; {about_unknown()}") from None
        position, line = position + len(piece), line + piece.count("\n")
    if changes:
        say_adapted(f"--unknown {options.unknown}", changes)
        return [*texts], position, 0
    if not (options.per_char or options.html):
        return [raw if own else text for own, text in zip(is_byte, texts, strict=True)], position, size
    if any(own and text != raw for own, text in zip(is_byte, texts, strict=True)):
        print("the byte model reads the text of the character model, without CR and byte-order mark", file=sys.stderr)
    return [*texts], position, size


def read_bytes(file: IO[bytes], progress: Any) -> bytearray:
    """Read a file as a whole, update `progress` with the number of bytes read, and return the content."""
    raw = bytearray()
    while chunk := file.read(CHUNK):
        progress.update(len(chunk))
        raw += chunk
    return raw


def adapt_for_all(text: str, tokenizers: list[Tokenizer], unknown: str) -> str:
    """Return `text` with only those characters that all tokenizers know.

    If `unknown` is "skip", other characters are dropped. If `unknown` is "replace", each other character is replaced by
    the nearest known character, or dropped if no character is near.
    """
    for replace in [True, False] if unknown == "replace" else [False]:
        for tokenizer in tokenizers:
            text = tokenizer.adapt(text, replace=replace)
    return text


def changed_characters(text: str, tokenizers: list[Tokenizer], unknown: str) -> Counter[tuple[str, str]]:
    """Count the characters of `text` that `adapt_for_all` changes, by pairs (character, replacement).

    The replacement is "" if the character is dropped. `unknown` is skip or replace.
    """
    forms = {letter: adapt_for_all(letter, tokenizers, unknown) for letter in set(text)}
    return Counter((letter, forms[letter]) for letter in text if forms[letter] != letter)


def whole_words(text: Iterable[str]) -> Iterator[str]:
    """Yield the text of the chunks `text` in new chunks, each of which ends after a space or a line break if possible.

    So a letter and its accents, which may be separate code points, stay in the same chunk.
    """
    left = ""
    for piece in text:
        piece = left + piece
        end = max(piece.rfind(" "), piece.rfind("\n")) + 1 or len(piece)
        left = piece[end:]
        yield piece[:end]
    yield left
