"""Load models and a text for score.py, and format what `gpt.scoring` finds."""

import argparse
import hashlib
import io
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, Any, TextIO

import numpy as np
import torch

from base.command_line import about_unknown, say_adapted
from base.errors import InputError, printable
from base.files import write_text
from base.jobs import run_directory
from base.processes import command
from base.progress import Progress, count, hidden
from data.corpus import CHUNK, Document, decode
from data.documents import WHITESPACE, Rule, divide
from data.text import text_of_run
from gpt.analysis import Costs
from gpt.checkpoint import load_checkpoint, with_context
from gpt.evaluation import Score, make_score, totals
from gpt.model_file import share_read, texts_read, to_device
from gpt.scoring import Candidate, measure, pieces
from gpt.tokenizer import ByteTokenizer, Tokenizer, UnknownCharacter, tokenizer_from
from reports.document_scores import print_documents
from reports.score_page import Columns, page

MAX_PAGE = 10_000_000  # characters in an HTML page


def print_scores(checkpoints: list[Path], options: argparse.Namespace, out_file: TextIO | None) -> None:
    """Load the models, encode and score the text, and print the table; fill the file of `--html` or `--csv`."""
    candidates = read(checkpoints, options)
    out = sys.stderr if options.per_char else sys.stdout
    labels = ["A  ", "B  "] if options.compare else [""]
    for label, candidate in zip(labels, candidates, strict=True):
        print(f"{label}{printable(candidate.file)}, step {candidate.step}", file=out)
    for label, candidate in zip(labels, candidates, strict=True):
        if candidate.trained:
            unseen = "the loss on unseen text is higher"
            if candidate.file.with_name("last.ckpt").exists():
                unseen = f"score.py {candidate.file.parent.parent} --split validation scores what it has not seen"
            print(f"{label}this is the text that the model was trained on; {printable(unseen)}", file=out)
    if len({candidate.model.config.context for candidate in candidates}) > 1:
        print("their contexts differ: the longer context is an advantage", file=out)

    if options.per_document:
        return print_documents(candidates[0], display_name(options), out_file)
    begun = time.perf_counter()
    # With --per-char, begin with the strided windows, whose lines are printed while they are computed.
    modes = ["strided", "disjoint"] if options.per_char else ["disjoint", "strided"]
    if options.window:
        modes = [options.window]
    for mode in modes:
        in_detail = mode == (options.window or "strided") and (options.per_char or out_file)
        if in_detail:
            scores = score_in_detail(candidates, mode, options, out_file)
        else:
            scores = [measure(candidate, mode) for candidate in candidates]
        if mode == modes[0]:
            length = f"{count(scores[0].characters, 'character')}, {count(scores[0].bytes, 'byte')}"
            print(f"{display_name(options)}: {length}", file=out)
            print(row("", ["nats/character", "perplexity", "bits/character", "bits/byte"]), file=out)
        comparable = mode == "disjoint" and options.split == "test" and options.context is None
        if comparable and (saved := save_test_score(checkpoints[0], scores[0])):
            print(f"saved in {saved}: test_loss, test_bpc", file=sys.stderr)
        for label, candidate, score in zip(labels, candidates, scores, strict=True):
            print(row(label + describe(candidate, mode), figures(score)), file=out)
        if options.compare:
            print(row(f"B - A  {mode} windows", difference(scores[0], scores[1])), file=out)
    seconds, total = time.perf_counter() - begun, len(modes) * sum(len(candidate.tokens) for candidate in candidates)
    print(f"{count(total, 'prediction')} in {seconds:.1f} s, {total / seconds:,.0f} a second", file=sys.stderr)


def score_in_detail(
    candidates: list[Candidate], mode: str, options: argparse.Namespace, page_file: TextIO | None
) -> list[Score]:
    """Score the text; print a JSON line for each character with `--per-char`, fill the page with `--html`."""
    names = [candidate.tokenizer.names for candidate in candidates]
    sums = [torch.zeros(4, dtype=torch.float64) for _ in candidates]
    columns = [Columns(candidate.model.vocabulary) for candidate in candidates]
    text = io.StringIO()
    position = 0
    for characters, found in pieces(candidates, mode):
        for candidate, total, column, own in zip(candidates, sums, columns, found, strict=True):
            total += totals(own.nats, own.tokens, candidate.tokenizer.token_sizes)
            if page_file:
                column.add(own)
        if options.per_char:
            with hidden():
                sys.stdout.writelines(json_lines(position, characters, found, names))
                sys.stdout.flush()
        if page_file:
            text.write(characters)
        position += len(characters)
    scores = [one.per_byte(make_score(total)) for one, total in zip(candidates, sums, strict=True)]
    if page_file:
        models = [
            {"name": one.page_name, "mode": describe(one, mode, page=True)}
            | {"figures": figures(own, 4), "vocabulary": tokens}
            for one, own, tokens in zip(candidates, scores, names, strict=True)
        ]
        about = {"title": display_name(options, path=False), "characters": scores[0].characters, "models": models}
        about["difference"] = difference(scores[0], scores[1], 4) if options.compare else None
        about["trained"] = max(one.trained for one in candidates)
        page_file.write(page(about, text.getvalue(), columns))
    return scores


def display_name(options: argparse.Namespace, path: bool = True) -> str:
    """Return the name of the text for messages; without `path` only its last component, for pages."""
    name, file = (name and printable(name if path else Path(name).name) for name in (options.checkpoint, options.file))
    if options.split:
        return f"{options.split} split of {name}"
    return "standard input" if options.file == "-" else file


def split_of_run(model: Path, split: str) -> bytes:
    """Return the validation or test split of a model's run, in UTF-8; for a byte model the bytes of the text."""
    if not model.with_name("last.ckpt").is_file():
        raise InputError(f"--split {split}: {printable(model)} is not in a run directory; name the text file instead")
    try:
        text = text_of_run(model)
    except InputError as error:
        whole = command("python", "score.py", run_directory.name_of(run_of(model)))
        raise InputError(f"--split {split}: {error}; {whole} FILE scores a whole file") from None
    tokens = getattr(text, split)
    if not len(tokens):
        raise InputError(f"--split {split}: {run_of(model)} has an empty {split} split (data.split)")
    return text.tokenizer.utf8(tokens)


def save_test_score(model: Path, score: Score) -> Path | None:
    """Store the test loss in summary.json if `model` is the best of a run; return the path, None if it is not."""
    run = run_of(model)
    summary = run_directory.summary_of(run)
    if model.name != run_directory.model_of(run, "best").name or not summary:
        return None
    summary |= {"test_loss": score.loss, "test_bpc": score.bpc}
    write_text(run / "summary.json", json.dumps(summary, indent=2) + "\n")
    return run / "summary.json"


def run_of(model: Path) -> Path:
    """Return the run directory RUN of a model file, such as RUN/checkpoints/best.safetensors."""
    return model.resolve().parent.parent


def open_source(checkpoints: list[Path], options: argparse.Namespace) -> tuple[AbstractContextManager[IO[bytes]], int]:
    """Return the text as an open file, and the size in bytes; the size of standard input is unknown and given as 0."""
    if options.split:
        split = split_of_run(checkpoints[0], options.split)
        return io.BytesIO(split), len(split)
    if options.file == "-":
        return nullcontext(sys.stdin.buffer), 0
    texts = Document(display_name(options), Path(options.file)).unzip()
    if len(texts) > 1:
        raise InputError(f"{display_name(options)}: holds {len(texts):,} files; unpack it and score one of them")
    return texts[0].open(), Path(options.file).stat().st_size


def read(checkpoints: list[Path], options: argparse.Namespace) -> list[Candidate]:
    """Load the models and encode the text for each; raise an `InputError` if a model or the text cannot be used."""
    with Progress("loading the model"):
        loaded = [load_checkpoint(path) for path in checkpoints]
    for path, (model, meta) in zip(checkpoints, loaded, strict=True):
        if options.per_document and meta["documents"] is None:
            why = "was not trained on documents (data.documents, data.field); score the whole text without this option"
            raise InputError(f"--per-document: {printable(path)} {why}")
        to_device(model, options.device)
        context = options.context or model.config.context
        if options.stride and options.stride > context:
            raise InputError(f"--stride {options.stride}: must be at most {context}, the context")
    tokenizers = [tokenizer_from(meta["vocabulary"]) for _, meta in loaded]
    source, size = open_source(checkpoints, options)
    hashed = ""
    if options.file not in (None, "-") and Path(options.file).is_file():
        with open(options.file, "rb") as file:
            hashed = hashlib.file_digest(file, "sha256").hexdigest()
    with source as file, Progress("reading", size, "B") as progress:
        if options.per_document and not options.split:
            file = marked(file, Rule(**loaded[0][1]["documents"]), tokenizers[0], options)
        texts, size = encode_text(file, tokenizers, options, progress)
    if not texts[0]:
        raise InputError(f"{display_name(options)}: is empty; there is no character to predict")
    if options.html is not None and len(texts[0]) > MAX_PAGE * np.dtype(tokenizers[0].dtype).itemsize:
        raise InputError(f"--html: {display_name(options)} has more characters than a page can show, {MAX_PAGE:,}")
    candidates = []
    for path, (model, meta), tokenizer, text in zip(checkpoints, loaded, tokenizers, texts, strict=True):
        tokens = np.frombuffer(text, tokenizer.dtype)
        if options.context:
            # Limit the context to the text: padding a longer window would cost time.
            context = min(options.context, max(1, len(tokens) - 1))
            try:
                model = with_context(model, context).eval()
            except ValueError as error:
                raise InputError(f"--context {context}: {error}") from None
        stride = min(options.stride or max(1, model.config.context // 2), model.config.context)
        trained = share_read(texts_read(meta), hashed)
        documents = meta["documents"]
        candidates.append(Candidate(path, meta["step"], model, tokenizer, tokens, stride, trained, size, documents))
    return candidates


def marked(file: IO[bytes], rule: Rule, tokenizer: Tokenizer, options: argparse.Namespace) -> IO[bytes]:
    """Replace the separators of documents by end marks, as in a split of a run."""
    if rule.kind in WHITESPACE:
        return file
    name = display_name(options)
    if rule.kind != "row" and isinstance(tokenizer, ByteTokenizer):
        text: Any = file.read()
    else:
        text = "".join(decode(file, name, options.encoding, option="--encoding "))
    content = (each if isinstance(each, bytes) else each.encode() for each in divide(text, rule, name))
    return io.BytesIO(b"".join(each + rule.end.encode() for each in content))


def encode_text(
    file: IO[bytes], tokenizers: list[Tokenizer], options: argparse.Namespace, progress: Any
) -> tuple[list[bytes | bytearray], int]:
    """Encode a text for each tokenizer, piece by piece, so that only the tokens are in memory.

    As in training, a byte model reads the bytes unchanged; for a character model a byte-order mark is dropped and line
    ends become LF. A character that one tokenizer lacks is skipped or replaced for all, see `--unknown`: then, and
    where `--per-char` or `--html` compares character by character, all models read the text of the character models.
    Return the tokens, and the number of the file's bytes, 0 if characters were skipped or replaced.
    """
    models = [options.checkpoint, *([] if options.compare is None else [options.compare])]
    is_byte = [isinstance(tokenizer, ByteTokenizer) for tokenizer in tokenizers]
    raw, size = bytearray(), 0
    if any(is_byte):
        while chunk := file.read(CHUNK):
            progress.update(len(chunk))
            raw += chunk
    if all(is_byte):
        if options.encoding != "utf-8":
            raise InputError(f"--encoding {options.encoding}: is not for a byte model, which reads bytes")
        return [raw] * len(tokenizers), len(raw)

    def tick(read: int) -> None:
        nonlocal size
        size += read
        if not raw:
            progress.update(read)

    texts = [bytearray() for _ in tokenizers]
    position, line, changes = 0, 1, Counter[tuple[str, str]]()
    source: IO[bytes] = io.BytesIO(raw) if raw else file
    chunks: Iterable[str] = decode(source, display_name(options), options.encoding, tick, "--encoding ")
    if isinstance(file, io.BytesIO):  # has been decoded; in short documents, many U+0003 would look like a binary file
        text = source.read()
        chunks, size = [text.decode()], len(text)
    for piece in whole_words(chunks):
        for tokenizer in tokenizers:
            piece = tokenizer.canonical(piece)
        if options.unknown != "error":
            adapted = adapt_for_all(piece, tokenizers, options.unknown)
            if adapted != piece:
                for letter, times in Counter(piece).items():
                    if (form := adapt_for_all(letter, tokenizers, options.unknown)) != letter:
                        changes[letter, form] += times
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
        return [*texts], 0
    if not (options.per_char or options.html):
        return [raw if own else text for own, text in zip(is_byte, texts, strict=True)], size
    if any(own and text != raw for own, text in zip(is_byte, texts, strict=True)):
        print("the byte model reads the text of the character model, without CR and byte order mark", file=sys.stderr)
    return [*texts], size


def adapt_for_all(text: str, tokenizers: list[Tokenizer], unknown: str) -> str:
    """Skip or replace the characters that one of the tokenizers lacks."""
    for replace in [True, False] if unknown == "replace" else [False]:
        for tokenizer in tokenizers:
            text = tokenizer.adapt(text, replace=replace)
    return text


def whole_words(text: Iterable[str]) -> Iterator[str]:
    """Divide a text after spaces or line ends, if it has any: a letter stays with its accents."""
    left = ""
    for piece in text:
        piece = left + piece
        end = max(piece.rfind(" "), piece.rfind("\n")) + 1 or len(piece)
        left = piece[end:]
        yield piece[:end]
    yield left


def describe(candidate: Candidate, mode: str, page: bool = False) -> str:
    """Describe a mode with context and stride, such as `strided windows of 256, stride 128`; a page explains it."""
    context, stride = candidate.model.config.context, candidate.stride
    words = {"strided": f", stride {stride}", "sample": ", as sample.py reads"}.get(mode, "")
    why = {
        "strided": f"; the model reads at least {context - stride} {candidate.tokenizer.unit}s before each",
        "disjoint": "; the model begins each window anew",
    }
    return f"{mode} windows of {context}{words}{why.get(mode, '') if page else ''}"


def json_lines(first: int, text: str, found: tuple[Costs, ...], names: list[list[str]]) -> Iterator[str]:
    """Yield a line of JSON for each character from position `first`; "other" has the values of the second model."""
    values = zip(*map(json_costs, found, names), strict=True)
    for position, (letter, (own, *other)) in enumerate(zip(text, values, strict=True), first):
        line = {"position": position, "character": letter} | own
        if other:
            line["other"] = other[0]
        yield json.dumps(line) + "\n"


def json_costs(found: Costs, names: list[str]) -> Iterator[dict[str, Any]]:
    """Yield for each character the surprisal in nats, and the probabilities of the top-k tokens."""
    for nats, top, probs in zip(found.nats.tolist(), found.top.tolist(), found.probabilities.tolist(), strict=True):
        best = {names[token]: round(p, 6) for token, p in zip(top, probs, strict=True) if p > 0}
        yield {"nats": round(nats, 9), "likely": best}


def figures(score: Score, digits: int = 6) -> list[str]:
    """Format nats per character, perplexity per token, bits per character and bits per byte."""
    return [f"{value:.{digits}f}" for value in (score.bpc * math.log(2), perplexity(score), score.bpc, score.bpb)]


def perplexity(score: Score) -> float:
    """Return e to the loss per token: the number of equally probable tokens among which guessing costs as much."""
    return math.exp(score.loss) if score.loss < 700 else math.inf  # beyond it, exp overflows


def difference(a: Score, b: Score, digits: int = 6) -> list[str]:
    """Format the figures of B minus those of A."""
    nats, more = (b.bpc - a.bpc) * math.log(2), perplexity(b) - perplexity(a)
    return [f"{value:+.{digits}f}" for value in (nats, more, b.bpc - a.bpc, b.bpb - a.bpb)]


def row(name: str, cells: list[str]) -> str:
    """Format a row of the table."""
    return f"{name:<42}" + "".join(f"{cell:>16}" for cell in cells)
