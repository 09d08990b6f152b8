"""Load the models of score.py and encode its text. PyTorch is loaded last, so that errors appear at once."""

import argparse
import io
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from base.command_line import ABOUT_UNKNOWN, replace_unknown
from base.errors import InputError, printable
from base.processes import command
from base.progress import Progress
from data.divide import DocumentRule, parts
from data.find import unzipped
from data.read import SourceFile
from data.seen import FileHash, was_read
from data.text import text_of_run
from gpt.model_file import read, to_device
from gpt.tokenizer import ByteTokenizer, Tokenizer, UnknownCharacter, tokenizer_from
from gpt.windows import EvaluationText

if TYPE_CHECKING:
    from gpt.model import GPT

MAX_PAGE = 10_000_000  # maximum characters in an HTML page


class Document(NamedTuple):
    # the line of the file in which it begins (in JSON and Parquet, its row), or 0 in a split of a
    # run
    line: int
    # number of characters outside the vocabulary, which --unknown skipped or replaced
    unknown: int
    length: int  # in tokens, without the end mark


class Candidate(NamedTuple):
    """A model to score, and the text encoded for this model."""

    label: str  # what a line about it begins with: "A  " or "B  " in a comparison
    file: Path
    meta: Mapping[str, Any]  # what the file says about the model
    model: "GPT"
    tokenizer: Tokenizer
    text: EvaluationText  # as strided windows read it
    # if the text was divided: its documents, each followed by its end mark
    documents: list[Document]
    saw_text: bool  # whether the model was trained on this text


class ScoredText(NamedTuple):
    pairs: list[tuple[int, str]]  # (line, document) or, if the text is not divided, (line, text)
    rule: DocumentRule | None  # None if the text is not divided
    sha256: str  # hash of the file or, for a split, of the text of the run
    files: list[str]  # hashes of the texts of its files (`data.seen`)
    split: str = ""  # hash of how the text of the run was split

    def was_read(self, meta: Mapping[str, Any]) -> bool:
        """Return whether the model that `meta` describes was trained on this text."""
        texts = meta["texts"]
        if self.split:  # which a run with the same split holds out, too
            this = (self.sha256, self.split)
            texts = [text for text in texts if (text["sha256"], text["split"]) != this]
        return was_read(texts, self.sha256, self.files)


def load_candidates(checkpoints: list[Path], options: argparse.Namespace) -> list[Candidate]:
    """Load the models, check the options that depend on them, and encode the text to score for each model.

    It is read as a training text is: byte models alone read its bytes; with a character model, all
    read its characters.
    """
    with Progress("loading the model"):
        loaded = [read(path) for path in checkpoints]
    tokenizers = [tokenizer_from(meta["vocabulary"]) for *_, meta in loaded]
    rules = [meta["documents"] for *_, meta in loaded]
    encoding = options.encoding or "utf-8"
    is_bytes = all(isinstance(tokenizer, ByteTokenizer) for tokenizer in tokenizers)
    if is_bytes and not options.encoding:
        encoding = None
    rule = None  # by which the texts of all models were divided
    if rules[0] is not None and all(other == rules[0] for other in rules):
        rule = DocumentRule(**rules[0])
    elif options.per_document or options.window == "documents":
        option = "--per-document" if options.per_document else "--window documents"
        raise InputError(
            f"{option}: needs a model trained on documents (data.documents, data.field), and all models the same ones"
        )
    with Progress("reading"):
        if options.split:
            text = read_split(checkpoints[0], rule, encoding, options)
        else:
            text = read_file(rule, encoding, options)
        encoded, documents = encode(text, tokenizers, encoding, options)
    if options.html is not None and len(encoded[0]) > MAX_PAGE:
        raise InputError(
            f"--html: the text has more characters than a page can show, {MAX_PAGE:,}"
        )
    with Progress("loading PyTorch"):
        from gpt.checkpoint import build, with_context
    labels = ["A  ", "B  "] if options.compare else [""]
    candidates = []
    for label, path, tokenizer, tokens, (config, weights, meta) in zip(
        labels, checkpoints, tokenizers, encoded, loaded, strict=True
    ):
        model = build(config, weights)
        to_device(model, options.device)
        end = tokenizer.pack(rule.end) if rule else None
        if options.context:
            try:
                model = with_context(model, options.context).eval()
            except ValueError as error:
                raise InputError(f"--context {options.context}: {error}") from None
        context = model.config.context
        stride = options.stride or max(1, context // 2)
        if stride > context:
            raise InputError(f"--stride {stride}: must be at most {context}, the context")
        strided = EvaluationText(tokens, tokenizer.token_sizes, end, stride)
        saw_text = text.was_read(meta)
        candidates.append(
            Candidate(label, path, meta, model, tokenizer, strided, documents, saw_text)
        )
    return candidates


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


def read_split(
    model: Path, rule: DocumentRule | None, encoding: str | None, options: argparse.Namespace
) -> ScoredText:
    """Return a split of the text that a model was trained on. Its documents have no lines: all have line 0."""
    split = options.split
    try:
        trained = text_of_run(model)
    except InputError as error:
        whole = command("python", "score.py", options.checkpoint)
        raise InputError(f"--split {split}: {error}; {whole} FILE scores a whole file") from None
    raw = trained.tokenizer.utf8(getattr(trained, split))
    try:
        text = raw.decode(encoding or "latin-1")
    except UnicodeDecodeError as error:  # the split of a byte model may begin inside a character
        raise InputError(f"--split {split}: {error}; score a text file instead") from None
    pairs = [(0, text)]
    if not options.per_document:  # one text, which contains its end marks
        rule = None
    if rule:
        pairs = [(0, document) for document in text.split(rule.end) if document.strip()]
    split_hash = trained.texts[0]["split"]
    return ScoredText(pairs, rule, trained.sha256, list(trained.held_out), split_hash)


def read_file(
    rule: DocumentRule | None, encoding: str | None, options: argparse.Namespace
) -> ScoredText:
    """Return the text of the file that `options` name, which may be compressed, a pipe or standard input."""
    file_hash = FileHash(None)  # it is given the decoded text
    with open_file(options.file, display_name(options)) as (file, label):
        # of lines, for example, the file is one text, which contains its end marks
        if rule and not options.per_document and not rule.divides(label):
            rule = None
        try:
            pairs = parts(file, label, rule, encoding, file_hash.update)
        except InputError as error:
            message = str(error).replace("data.encoding=", "--encoding ")
            raise InputError(message) from None
    sha256, text_hash = file_hash.finish()
    return ScoredText(pairs, rule, sha256, [text_hash])


@contextmanager
def open_file(name: str, label: str) -> Iterator[tuple[IO[bytes], str]]:
    """Context manager that yields (file, label for messages): `name`, decompressed, or standard input for `-`."""
    if name == "-":
        yield io.BytesIO(sys.stdin.buffer.read()), label
        return
    source, *others = unzipped(SourceFile(label, Path(name)))
    if others:
        raise InputError(
            f"{label}: contains {1 + len(others):,} files; unpack it and name one of them"
        )
    with source.open() as file:
        yield file, source.label


def encode(
    text: ScoredText,
    tokenizers: list[Tokenizer],
    encoding: str | None,
    options: argparse.Namespace,
) -> tuple[list[np.ndarray], list[Document]]:
    """Encode a text for each tokenizer, and describe its documents if it is divided.

    Before, `--unknown` skips or replaces what one of the tokenizers does not know.
    """
    end = text.rule.end if text.rule else ""
    lines = [line for line, _ in text.pairs]
    texts = [part for _, part in text.pairs]
    unknown = [0] * len(texts)
    if encoding:
        for tokenizer in tokenizers:
            texts = list(map(tokenizer.canonical, texts))
        if options.unknown != "error":
            unknown_characters = set().union(*texts).difference(tokenizers[0].names)
            # Only --per-document, for which there is one model, prints these numbers.
            unknown = [sum(map(part.count, unknown_characters)) for part in texts]
            texts = replace_unknown(texts, tokenizers, options.unknown)
    if not any(part + end for part in texts):
        raise InputError(f"{display_name(options)}: is empty; there is nothing to predict")
    encoded = []
    for tokenizer in tokenizers:
        pieces = []
        for line, part in zip(lines, texts, strict=True):
            part += end
            if not encoding:  # each character is a byte
                pieces.append(np.frombuffer(part.encode("latin-1"), np.uint8))
                continue
            try:
                pieces.append(tokenizer.pack(part))
            except UnknownCharacter as error:
                # a row may write a line break in another way
                if text.rule is None or text.rule.kind != "row":
                    line += part.count("\n", 0, error.position)
                raise InputError(
                    f"{display_name(options)}, line {line}: {error}; {ABOUT_UNKNOWN}"
                ) from None
        encoded.append(np.concatenate(pieces))
    if not text.rule:
        return encoded, []
    return encoded, list(map(Document, lines, unknown, map(len, texts)))
