"""Read and encode the text of score.py for its models, without loading torch, so that errors appear at once."""

import argparse
import hashlib
import io
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from base.command_line import ABOUT_UNKNOWN, replace_unknown
from base.errors import InputError, printable
from base.jobs.run_directory import Run
from base.processes import command
from base.progress import Progress
from data.decoding import SourceFile, decode, suffix
from data.documents import WHITESPACE, DocumentRule, divide, is_divided
from data.seen import text_hash
from data.text import text_of_run
from gpt.model_file import Model
from gpt.tokenizer import ByteTokenizer, Tokenizer, UnknownCharacter, tokenizer_from

MAX_PAGE = 10_000_000  # maximum characters in an HTML page
PIECE = 2**20  # characters that are encoded at once, because that needs several times their memory


class EncodedText(NamedTuple):
    encoded: list[bytes]  # for each model, the tokens in the `dtype` of its tokenizer
    sha256: str  # hash of the file, or "" for a split of a run
    files: list[str]  # hash of the file's text (`data.seen`), or [] for a split of a run


def read_text(checkpoints: list[Path], loaded: list[Model], options: argparse.Namespace) -> EncodedText:
    """Return the text that score.py scores, encoded for each model in `loaded`.

    It is read as a training text is: byte models alone read its bytes; with a character model, all read its characters.
    """
    for path, (config, _, meta) in zip(checkpoints, loaded, strict=True):
        if options.per_document and meta["documents"] is None:
            why = "was not trained on documents (data.documents, data.field); score the whole text without this option"
            raise InputError(f"--per-document: {printable(path)} {why}")
        context = options.context or config.context
        if options.stride and options.stride > context:
            raise InputError(f"--stride {options.stride}: must be at most {context}, the context")
    tokenizers = [tokenizer_from(meta["vocabulary"]) for *_, meta in loaded]
    only_bytes = all(isinstance(tokenizer, ByteTokenizer) for tokenizer in tokenizers)
    if only_bytes and options.encoding != "utf-8":
        raise InputError(f"--encoding {options.encoding}: does not apply to a byte model, which reads bytes")
    with Progress("reading"):
        if options.split:
            raw = split_of_run(checkpoints[0], options.split)
            sha256 = ""
            files = []
            try:
                text: Any = raw if only_bytes else raw.decode()
            except UnicodeDecodeError:  # bytes are split anywhere
                whose = f"which {printable(options.compare)} cannot read; score a text file instead"
                raise InputError(f"--split {options.split}: begins or ends inside a character, {whose}") from None
        else:
            raw, label = read_file(options)
            text = raw
            sha256 = hashlib.sha256(raw).hexdigest()
            rule = dividing_rule(loaded, label, options.per_document)
            is_row = rule is not None and rule.kind == "row"
            if (not only_bytes or is_row) and not (is_row and suffix(label) == ".parquet"):
                text = "".join(decode(io.BytesIO(raw), label, options.encoding, option="--encoding "))
            if rule:
                documents = divide(text, rule, label)
                empty = "" if is_row else text[:0]
                mark = rule.end if isinstance(empty, str) else rule.end.encode()
                text = empty.join(document + mark for document in documents)
            files = [text_hash(io.BytesIO(raw), options.encoding)]
        if only_bytes:
            encoded = [text.encode() if isinstance(text, str) else text] * len(loaded)
        else:
            encoded = encode_text(text, tokenizers, options)
    if not encoded[0]:
        raise InputError(f"{display_name(options)}: is empty; there is no character to predict")
    if options.html is not None and len(encoded[0]) > MAX_PAGE * np.dtype(tokenizers[0].dtype).itemsize:
        raise InputError(f"--html: {display_name(options)} has more characters than a page can show, {MAX_PAGE:,}")
    return EncodedText(encoded, sha256, files)


def display_name(options: argparse.Namespace, path: bool = True) -> str:
    """Return a name for the scored text, for messages or, if not `path`, without folders for pages."""
    name, file = (name and printable(name if path else Path(name).name) for name in (options.checkpoint, options.file))
    if options.split:
        return f"{options.split} split of {name}"
    return "standard input" if options.file == "-" else file


def split_of_run(model: Path, split: str) -> bytes:
    """Return a split of the text that a model was trained on: UTF-8 or, for a byte model, its unchanged bytes."""
    if not model.with_name("last.ckpt").is_file():
        raise InputError(f"--split {split}: {printable(model)} is not in a run directory; name the text file instead")
    try:
        text = text_of_run(model)
    except InputError as error:
        whole = command("python", "score.py", Run(model.resolve().parents[1]).name)
        raise InputError(f"--split {split}: {error}; {whole} FILE scores a whole file") from None
    return text.tokenizer.utf8(getattr(text, split))


def dividing_rule(loaded: list[Model], label: str, per_document: bool) -> DocumentRule | None:
    """Return the rule by which the text is divided before all models read it, or None if they read it as it is."""
    first, *others = (model.meta["documents"] for model in loaded)
    if first is None or any(other != first for other in others):
        return None
    rule = DocumentRule(**first)  # the end marks of lines and paragraphs are part of the text
    return rule if rule.kind not in WHITESPACE and (per_document or is_divided(rule, label)) else None


def read_file(options: argparse.Namespace) -> tuple[bytes, str]:
    """Return (decompressed content, name) of the file that `options` name, which may be a pipe or standard input."""
    name = display_name(options)
    if options.file == "-":
        return sys.stdin.buffer.read(), name
    source, *others = SourceFile(name, Path(options.file)).unzip()
    if others:
        raise InputError(f"{name}: contains {1 + len(others):,} files; unpack it and score one of them")
    with source.open() as file:
        return file.read(), source.label


def encode_text(text: str, tokenizers: list[Tokenizer], options: argparse.Namespace) -> list[bytes]:
    """Encode a text for each tokenizer, after `--unknown` has skipped or replaced what one of them does not know."""
    for tokenizer in tokenizers:
        text = tokenizer.canonical(text)
    if options.unknown != "error":
        text = replace_unknown(text, tokenizers, options.unknown)
    models = [options.checkpoint, *([] if options.compare is None else [options.compare])]
    encoded = []
    for model, tokenizer in zip(models, tokenizers, strict=True):
        own = bytearray()
        for begin in range(0, len(text), PIECE):
            try:
                own += tokenizer.pack(text[begin : begin + PIECE]).tobytes()
            except UnknownCharacter as error:
                line = text.count("\n", 0, begin + error.position) + 1
                in_text = UnknownCharacter(error.character, begin + error.position, error.nearest)
                whose = f"{printable(model)}: " if options.compare else ""
                raise InputError(f"{display_name(options)}, line {line}: {whose}{in_text}; {ABOUT_UNKNOWN}") from None
        encoded.append(bytes(own))
    return encoded
