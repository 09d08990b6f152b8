"""Read and encode the text of score.py for its models, without loading torch, so that errors appear at once."""

import argparse
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from base.command_line import ABOUT_UNKNOWN, replace_unknown
from base.errors import InputError, printable
from base.jobs.run_directory import Run
from base.processes import command
from base.progress import Progress
from data.divide import DocumentRule, documents
from data.find import unzipped
from data.read import SourceFile, decode
from data.seen import FileHash
from data.text import text_of_run
from gpt.model_file import Model
from gpt.tokenizer import ByteTokenizer, Tokenizer, UnknownCharacter, tokenizer_from

MAX_PAGE = 10_000_000  # maximum characters in an HTML page
PIECE = 2**20  # characters that are encoded at once, because that needs several times their memory


class Document(NamedTuple):
    # the line of the file in which it begins (in JSON and Parquet, its row), or 0 in a split of a
    # run
    line: int
    # number of characters outside the vocabulary, which --unknown skipped or replaced
    unknown: int
    length: int  # in tokens, without the end mark


class EncodedText(NamedTuple):
    tokenizers: list[Tokenizer]  # of each model
    tokens: list[np.ndarray]  # for each model, (N,) in the `dtype` of its tokenizer
    end: str  # the end mark of documents, if all models were trained on documents of one rule, or ""
    documents: list[Document]  # if the text was divided: documents, each followed by its end mark
    sha256: str  # hash of the file, or "" for a split of a run
    files: list[str]  # hash of the file's text (`data.seen`), or [] for a split of a run


def check_models(
    checkpoints: list[Path],
    loaded: list[Model],
    rule: DocumentRule | None,
    only_bytes: bool,
    options: argparse.Namespace,
) -> None:
    """Check the options of score.py that depend on the models and what they share."""
    for path, (config, _, meta) in zip(checkpoints, loaded, strict=True):
        if options.per_document and meta["documents"] is None:
            why = "was not trained on documents (data.documents, data.field); score the whole text without this option"
            raise InputError(f"--per-document: {printable(path)} {why}")
        context = options.context or config.context
        if options.stride and options.stride > context:
            raise InputError(f"--stride {options.stride}: must be at most {context}, the context")
    if only_bytes and options.encoding != "utf-8":
        raise InputError(
            f"--encoding {options.encoding}: does not apply to a byte model, which reads bytes"
        )
    if options.window == "documents" and rule is None:
        raise InputError(
            "--window documents: needs models that were trained on documents, divided in the same way"
        )


def read_text(
    checkpoints: list[Path], loaded: list[Model], options: argparse.Namespace
) -> EncodedText:
    """Check the options that depend on the models, and return the text to score, encoded for each model.

    It is read as a training text is: byte models alone read its bytes; with a character model, all
    read its characters.
    """
    tokenizers = [tokenizer_from(meta["vocabulary"]) for *_, meta in loaded]
    only_bytes = all(isinstance(tokenizer, ByteTokenizer) for tokenizer in tokenizers)
    rule = shared_rule(loaded)
    end = rule.end if rule else ""
    check_models(checkpoints, loaded, rule, only_bytes, options)
    sha256 = ""
    files = []
    with Progress("reading"):
        if options.split:
            if not options.per_document:  # one text, which contains its end marks
                rule = None
            parts = parts_of_split(
                split_of_run(checkpoints[0], options.split), rule, only_bytes, options
            )
        else:
            raw, label = read_file(options)
            # of lines, for example, the file is one text, which contains its end marks
            if rule and not options.per_document and not rule.divides(label):
                rule = None
            parts = parts_of_file(raw, label, rule, only_bytes, options)
            file_hash = FileHash(options.encoding)
            file_hash.update(raw)
            sha256, text_hash = file_hash.finish()
            files = [text_hash]
        if options.per_document and not parts:
            raise InputError(
                f"--per-document: {display_name(options)} has only whitespace, which is not a document"
            )
        tokens, described = encode_parts(parts, rule, tokenizers, only_bytes, options)
    if not len(tokens[0]):
        raise InputError(f"{display_name(options)}: is empty; there is no character to predict")
    if options.html is not None and len(tokens[0]) > MAX_PAGE:
        raise InputError(
            f"--html: {display_name(options)} has more characters than a page can show, {MAX_PAGE:,}"
        )
    return EncodedText(tokenizers, tokens, end, described, sha256, files)


def parts_of_split(
    raw: bytes, rule: DocumentRule | None, only_bytes: bool, options: argparse.Namespace
) -> list[tuple[int, str]]:
    """Return pairs (0, document) or, without a rule, one pair (0, split).

    The line is 0, because a split is not a file and has no lines. If all models read bytes, each
    byte is a character.
    """
    text = raw.decode("latin-1")
    if not only_bytes:
        try:
            text = raw.decode()
        except UnicodeDecodeError:  # the split of a byte model begins anywhere
            whose = f"which {printable(options.compare)} cannot read; score a text file instead"
            raise InputError(
                f"--split {options.split}: begins or ends inside a character, {whose}"
            ) from None
    if not rule:
        return [(0, text)]
    return [(0, document) for document in text.split(rule.end) if document.strip()]


def parts_of_file(
    raw: bytes,
    label: str,
    rule: DocumentRule | None,
    only_bytes: bool,
    options: argparse.Namespace,
) -> list[tuple[int, str]]:
    """Return pairs (line, document) or, without a rule, one pair (1, text).

    If all models read bytes, each byte is a character.
    """
    file = io.BytesIO(raw)
    encoding = None if only_bytes else options.encoding
    if not rule:
        return [(1, "".join(decode(file, label, encoding, option="--encoding ")))]
    pairs = documents(file, label, rule, encoding, option="--encoding ")
    return [(line, document) for line, document in pairs if document.strip()]


def display_name(options: argparse.Namespace, path: bool = True) -> str:
    """Return a name for the scored text, for messages or, if not `path`, without folders for pages."""
    if options.file == "-":
        return "standard input"
    name = options.checkpoint if options.split else options.file
    if not path:
        name = Path(name).name
    name = printable(name)
    if options.split:
        return f"{options.split} split of {name}"
    return name


def split_of_run(model: Path, split: str) -> bytes:
    """Return a split of the text that a model was trained on: UTF-8 or, for a byte model, its unchanged bytes."""
    run = Run(model.resolve().parent.parent)
    if not run.config.is_file():
        raise InputError(
            f"--split {split}: {printable(model)} is not in a run directory; name the text file instead"
        )
    try:
        text = text_of_run(model)
    except InputError as error:
        whole = command("python", "score.py", run.name)
        raise InputError(f"--split {split}: {error}; {whole} FILE scores a whole file") from None
    return text.tokenizer.utf8(getattr(text, split))


def shared_rule(loaded: list[Model]) -> DocumentRule | None:
    """Return the rule by which the texts of all models were divided, or None if there is no such rule."""
    first, *others = [model.meta["documents"] for model in loaded]
    if first is None or any(other != first for other in others):
        return None
    return DocumentRule(**first)


def read_file(options: argparse.Namespace) -> tuple[bytes, str]:
    """Return (decompressed content, name) of the file that `options` name, which may be a pipe or standard input."""
    name = display_name(options)
    if options.file == "-":
        return sys.stdin.buffer.read(), name
    source, *others = unzipped(SourceFile(name, Path(options.file)))
    if others:
        raise InputError(
            f"{name}: contains {1 + len(others):,} files; unpack it and score one of them"
        )
    with source.open() as file:
        return file.read(), source.label


def encode_parts(
    parts: list[tuple[int, str]],
    rule: DocumentRule | None,
    tokenizers: list[Tokenizer],
    only_bytes: bool,
    options: argparse.Namespace,
) -> tuple[list[np.ndarray], list[Document]]:
    """Encode parts of a text, pairs (line, text), for each tokenizer; with a `rule`, an end mark follows each part.

    Before, `--unknown` skips or replaces what one of the tokenizers does not know.
    """
    end = rule.end if rule else ""
    lines = [line for line, _ in parts]
    texts = [text for _, text in parts]
    unknown = [0] * len(texts)
    if only_bytes:
        joined = "".join(text + end for text in texts)
        encoded = [np.frombuffer(joined.encode("latin-1"), np.uint8)] * len(tokenizers)
    else:
        for tokenizer in tokenizers:
            texts = [tokenizer.canonical(text) for text in texts]
        if options.unknown != "error":
            unknown_characters = set().union(*texts).difference(tokenizers[0].names)
            # Only --per-document, for which there is one model, prints these numbers.
            unknown = [sum(map(text.count, unknown_characters)) for text in texts]
            texts = replace_unknown(texts, tokenizers, options.unknown)
        models = [options.checkpoint]
        if options.compare is not None:
            models.append(options.compare)
        encoded = []
        for model, tokenizer in zip(models, tokenizers, strict=True):
            mark = tokenizer.pack(end)  # (M,)
            pieces = [mark[:0]]  # so that there is one even if there are no parts
            for line, text in zip(lines, texts, strict=True):
                try:
                    pieces += pack(text, tokenizer)
                except UnknownCharacter as error:
                    # a row may write a line break in another way
                    if rule is None or rule.kind != "row":
                        line += text.count("\n", 0, error.position)
                    whose = f"{printable(model)}: " if options.compare else ""
                    raise InputError(
                        f"{display_name(options)}, line {line}: {whose}{error}; {ABOUT_UNKNOWN}"
                    ) from None
                pieces.append(mark)
            encoded.append(np.concatenate(pieces))
    if not rule:
        return encoded, []
    return encoded, list(map(Document, lines, unknown, map(len, texts)))


def pack(text: str, tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    """Yield the tokens of a text in pieces, or raise `UnknownCharacter` with the position in the whole text."""
    for begin in range(0, len(text), PIECE):
        try:
            yield tokenizer.pack(text[begin : begin + PIECE])
        except UnknownCharacter as error:
            raise UnknownCharacter(
                error.character, begin + error.position, error.nearest
            ) from None
