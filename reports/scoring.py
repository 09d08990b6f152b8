"""Build the models of score.py, and print the scores that `gpt.scoring` computes, or write them as a page or CSV."""

import argparse
import base64
import csv
import io
import json
import math
import sys
import zlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

from base.errors import InputError, printable
from base.jobs.run_directory import Run
from base.progress import count, hidden
from data.seen import was_read
from gpt.analysis import Surprisals
from gpt.checkpoint import build, with_context
from gpt.evaluation import Score, make_score, totals
from gpt.facts import describe_windows
from gpt.model_file import Model, to_device
from gpt.scoring import Candidate, measure, measure_documents, pieces
from gpt.tokenizer import tokenizer_from
from reports.page import render_page
from reports.text_to_score import Document, EncodedText, display_name

ROWS = 20  # maximum documents in the printed table
WORDS = 60  # characters shown of the beginning of a document


class Columns:
    """A model's surprisals of a text's characters, and the most likely tokens at each, stored as bytes."""

    def __init__(self, vocabulary: int) -> None:
        self.nats = bytearray()  # surprisal in thousandths of a nat, uint16
        self.likely = bytearray()  # the top-k tokens, uint8 or uint16
        self.chances = bytearray()  # their probabilities in thousandths, uint16
        self._token = torch.uint8 if vocabulary <= 256 else torch.uint16

    def add(self, characters: Surprisals) -> None:
        self.nats += characters.millinats.to(torch.uint16).numpy().tobytes()
        self.likely += characters.top.to(self._token).numpy().tobytes()
        self.chances += (characters.probabilities * 1000).round().to(torch.uint16).numpy().tobytes()


def print_scores(
    checkpoints: list[Path], loaded: list[Model], text: EncodedText, options: argparse.Namespace, file: TextIO | None
) -> None:
    """Score the text, print the table of scores, and write the page (`--html`) or the CSV file (`--csv`)."""
    candidates = candidates_of(checkpoints, loaded, text, options)
    out = sys.stderr if options.per_char else sys.stdout
    labels = ["A  ", "B  "] if options.compare else [""]
    for label, candidate in zip(labels, candidates, strict=True):
        print(f"{label}{printable(candidate.file)}, step {candidate.step}", file=out)
        if candidate.trained:
            print(f"{label}the model was trained on this text; the loss on held-out text is higher", file=out)
    if len({candidate.model.config.context for candidate in candidates}) > 1:
        print("the models' contexts differ: the model with the longer one has an advantage", file=out)

    if options.per_document:
        return print_documents(candidates[0], text.documents, display_name(options), file)
    validated = "documents" if candidates[0].documents else "disjoint"  # the mode of validation
    if options.compare and not candidates[0].documents and any(meta["documents"] for *_, meta in loaded):
        print("the models' documents differ, so both read the text in disjoint windows", file=out)
    if options.window == "documents" != validated:
        raise InputError("--window documents: needs models that were trained on documents, divided in the same way")
    modes = [validated] if validated == "documents" and not options.stride else [validated, "strided"]
    if options.window:
        modes = [options.window]
    detailed = modes[-1]
    if options.per_char:
        modes.reverse()  # because its lines are printed while they are computed
    for mode in modes:
        in_detail = mode == detailed and (options.per_char or file)
        if in_detail:
            scores = score_in_detail(candidates, mode, options, file)
        else:
            scores = [measure(candidate, mode) for candidate in candidates]
        if mode == validated and options.split == "test" and options.context is None:
            if options.compare:  # the other model may decide how the text is read
                print("--compare: the test loss is not saved in summary.json; without --compare it is", file=sys.stderr)
            else:
                save_test_score(checkpoints[0], scores[0])
        if mode == modes[0]:
            length = f"{count(scores[0].characters, 'character')}, {count(scores[0].bytes, 'byte')}"
            print(f"{display_name(options)}: {length}", file=out)
            print(row("", ["nats/character", "perplexity", "bits/character", "bits/byte"]), file=out)
        for label, candidate, score in zip(labels, candidates, scores, strict=True):
            print(row(label + describe(candidate, mode), figures(score)), file=out)
        if options.compare:
            print(row(f"B - A  {mode} windows", difference(scores)), file=out)


def score_in_detail(
    candidates: list[Candidate], mode: str, options: argparse.Namespace, page_file: TextIO | None
) -> list[Score]:
    """Score the text character by character, and return the score of each model."""
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
    scores = [make_score(total) for total in sums]
    if page_file:
        models = [
            {"name": one.page_name, "mode": describe(one, mode), "figures": figures(own, 4), "vocabulary": tokens}
            for one, own, tokens in zip(candidates, scores, names, strict=True)
        ]
        about = {"title": display_name(options, path=False), "characters": scores[0].characters, "models": models}
        about["difference"] = difference(scores, 4) if options.compare else None
        about["trained"] = any(one.trained for one in candidates)
        page_file.write(page(about, text.getvalue(), columns))
    return scores


def page(about: dict[str, Any], text: str, columns: list[Columns]) -> str:
    """Return the page of a text: `about` is what its script reads, and `columns` has an entry for each model."""
    data: dict[str, bytes | bytearray] = {"letters": text.encode()}
    for number, column in enumerate(columns):
        data |= {f"{name}{number}": getattr(column, name) for name in ("nats", "likely", "chances")}
    packed = {name: base64.b64encode(zlib.compress(raw, 6)).decode() for name, raw in data.items()}
    return render_page("score_page", about["title"], about, packed)


def print_documents(candidate: Candidate, documents: list[Document], name: str, file: TextIO | None) -> None:
    """Print the documents with the highest loss per character, and write all documents to `file` as CSV.

    The model reads each document right after an end mark, and the document's own end mark counts towards its loss.
    """
    assert candidate.documents
    tokenizer = candidate.tokenizer
    mark = tokenizer.pack(candidate.documents["end"])
    ends = list(accumulate(document.length + len(mark) for document in documents))
    marked = np.split(candidate.tokens, ends[:-1])  # each document with its end mark
    nats = measure_documents(candidate, [np.concatenate((mark, tokens)) for tokens in marked], len(mark))
    characters = np.array([tokenizer.token_sizes[tokens, 0].sum() for tokens in marked])
    losses = nats / characters
    order = np.argsort(-losses, kind="stable").tolist()

    def beginning(number: int) -> str:
        length = min(documents[number].length, 4 * WORDS)
        words = tokenizer.decode(marked[number][:length])
        return printable(" ".join(words.split()))[:WORDS]

    size = int(characters.sum())
    unknown = sum(document.unknown for document in documents)
    print(f"{name}: {count(len(documents), 'document')}, {count(size, 'character')} with end marks")
    print(f"{'nats/character':>14}{'perplexity':>16}{'characters':>13}{'unknown':>9}{'line':>9}  document")
    print(document_row(nats.sum() / size, size, unknown, 0, "all, each from a fresh start"))
    for number in order[:ROWS]:
        document = documents[number]
        print(document_row(losses[number], characters[number], document.unknown, document.line, beginning(number)))
    if len(order) > ROWS:
        print(f"and {len(order) - ROWS:,} more" + ("" if file else "; --csv FILE writes all of them"))
    if file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["document", "line", "nats_per_character", "perplexity", "characters", "unknown", "beginning"])
        for number in order:
            loss = float(losses[number])
            line, unknown, _ = documents[number]
            figures = [loss, perplexity(loss), int(characters[number]), unknown]
            table.writerow([number + 1, line or "", *figures, beginning(number)])


def document_row(loss: float, characters: int, unknown: int, line: int, text: str) -> str:
    return f"{loss:>14.6f}{perplexity(loss):>16.6f}{characters:>13,}{unknown:>9,}{line or '':>9}  {text}"


def save_test_score(model: Path, score: Score) -> None:
    """Store the test loss in summary.json if `model` is the best model of a run, and print the file's path."""
    run = Run(model.resolve().parents[1])
    summary = run.summary
    if model.name == run.model("best").name and summary.status is not None:
        path = run.directory / "summary.json"
        replace(summary, test_loss=score.loss, test_bpc=score.bpc).write(path)
        print(f"saved in {path}: test_loss, test_bpc", file=sys.stderr)


def candidates_of(
    checkpoints: list[Path], loaded: list[Model], text: EncodedText, options: argparse.Namespace
) -> list[Candidate]:
    candidates, rules = [], [meta["documents"] for *_, meta in loaded]
    for path, (config, weights, meta), encoded in zip(checkpoints, loaded, text.encoded, strict=True):
        model, tokenizer = build(config, weights), tokenizer_from(meta["vocabulary"])
        to_device(model, options.device)
        tokens = np.frombuffer(encoded, tokenizer.dtype)
        if options.context:
            # A window longer than the text would only be padding, which costs time.
            context = min(options.context, max(1, len(tokens) - 1))
            try:
                model = with_context(model, context).eval()
            except ValueError as error:
                raise InputError(f"--context {context}: {error}") from None
        stride = min(options.stride or max(1, model.config.context // 2), model.config.context)
        trained = was_read(meta["texts"], text.sha256, text.files)
        shared = rules[0] if rules[0] == rules[-1] else None
        candidates.append(Candidate(path, meta["step"], model, tokenizer, tokens, stride, trained, shared))
    return candidates


def describe(candidate: Candidate, mode: str) -> str:
    """Return how windows cover the text."""
    more = {"strided": f", stride {candidate.stride}", "sample": ", as sample.py reads"}.get(mode, "")
    shown = "documents" if mode == "strided" and candidate.documents else mode
    return describe_windows(shown, candidate.model.config.context) + more


def json_lines(first: int, text: str, found: tuple[Surprisals, ...], names: list[list[str]]) -> Iterator[str]:
    """Yield a JSON line for each character of `text`, which begins at position `first` of the whole text."""
    values = zip(text, *map(json_surprisals, found, names), strict=True)
    for position, (letter, own, *other) in enumerate(values, first):
        line = {"position": position, "character": letter} | own
        if other:
            line["other"] = other[0]
        yield json.dumps(line) + "\n"


def json_surprisals(found: Surprisals, names: list[str]) -> Iterator[dict[str, Any]]:
    for nats, top, probs in zip(found.nats.tolist(), found.top.tolist(), found.probabilities.tolist(), strict=True):
        best = {names[token]: round(p, 6) for token, p in zip(top, probs, strict=True) if p > 0}
        yield {"nats": round(nats, 9), "likely": best}


def figures(score: Score, digits: int = 6) -> list[str]:
    return [f"{value:.{digits}f}" for value in numbers(score)]


def difference(scores: list[Score], digits: int = 6) -> list[str]:
    return [f"{b - a:+.{digits}f}" for a, b in zip(*map(numbers, scores), strict=True)]


def numbers(score: Score) -> tuple[float, float, float, float]:
    """Return nats per character, perplexity, bits per character and bits per byte."""
    nats = score.bpc * math.log(2)
    return nats, perplexity(nats), score.bpc, score.bpb


def perplexity(nats: float) -> float:
    return math.inf if nats > 700 else math.exp(nats)  # beyond it, exp overflows


def row(name: str, cells: list[str]) -> str:
    return f"{name:<42}" + "".join(f"{cell:>16}" for cell in cells)
