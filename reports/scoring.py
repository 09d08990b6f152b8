"""Build the models of score.py, and show their scores: as a table, by character, as a page, or by document."""

import argparse
import base64
import csv
import json
import math
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from base.errors import InputError, printable
from base.jobs.run_directory import Run
from base.progress import count, hidden
from gpt.analysis import Surprisals
from gpt.checkpoint import build, with_context
from gpt.evaluation import Score
from gpt.facts import describe_windows
from gpt.model_file import Model, to_device
from gpt.scoring import Candidate, Reading, measure_documents
from reports.page import render_page
from reports.text_to_score import Document, EncodedText, display_name

ROWS = 20  # maximum documents in the printed table
BEGINNING = 60  # characters shown of the beginning of a document


def print_scores(
    checkpoints: list[Path],
    loaded: list[Model],
    text: EncodedText,
    options: argparse.Namespace,
    file: TextIO | None,
) -> None:
    """Score the text, print the table of scores, and write the page (`--html`) or the CSV file (`--csv`).

    `file` is the output that these options name, None without them.
    """
    candidates = candidates_of(checkpoints, loaded, text, options)
    out = sys.stderr if options.per_char else sys.stdout
    print_models(candidates, options, out)
    if options.per_document:
        documents = score_documents(candidates[0], text.documents)
        print_documents(documents, display_name(options), all_in_file=file is not None)
        if file:
            write_documents(documents, file)
        return
    # the mode of the validation loss of a run
    validation_mode = "documents" if candidates[0].end else "disjoint"
    has_documents = any(meta["documents"] for *_, meta in loaded)
    if options.compare and validation_mode == "disjoint" and has_documents:
        print("the models' documents differ, so both read the text in disjoint windows", file=out)
    modes = [options.window or validation_mode]
    if not options.window and (validation_mode == "disjoint" or options.stride):
        modes.append("strided")
    most_exact = modes[-1]
    if options.per_char:
        modes.reverse()  # because its lines are printed while they are computed
    for mode in modes:
        views: list[Lines | Page] = []
        html = Page(candidates)
        if options.per_char and mode == most_exact:
            views.append(Lines(candidates))
        if file and mode == most_exact:
            views.append(html)
        scores = measure(candidates, mode, views)
        if file and mode == most_exact:
            file.write(page(html, mode, scores, options))
        is_like_validation = mode == validation_mode and options.context is None
        if options.split == "test" and is_like_validation:
            save_test_score(checkpoints[0], scores[0], comparing=options.compare is not None)
        if mode == modes[0]:
            characters = count(scores[0].characters, "character")
            print(
                f"{display_name(options)}: {characters}, {count(scores[0].bytes, 'byte')}",
                file=out,
            )
            print(
                row("", ["nats/character", "perplexity", "bits/character", "bits/byte"]), file=out
            )
        for candidate, score in zip(candidates, scores, strict=True):
            print(row(candidate.label + describe(candidate, mode), figures(score)), file=out)
        if options.compare:
            print(row(f"B - A  {mode} windows", difference(scores)), file=out)


def print_models(candidates: list[Candidate], options: argparse.Namespace, out: TextIO) -> None:
    """Print which models are scored, and what makes their losses hard to compare."""
    warning = "the model was trained on this text; the loss on held-out text is higher"
    if options.split:  # of another split of the same files
        warning = "the model was trained on files of this text, perhaps on this split of it"
    for candidate in candidates:
        print(f"{candidate.label}{printable(candidate.file)}, step {candidate.step}", file=out)
        if candidate.saw_text:
            print(f"{candidate.label}{warning}", file=out)
    if len({candidate.model.config.context for candidate in candidates}) > 1:
        print(
            "the models' contexts differ: the model with the longer one has an advantage", file=out
        )


def measure(
    candidates: list[Candidate], mode: str, views: Sequence["Lines | Page"] = ()
) -> list[Score]:
    """Return the score of each model; the views see the characters of the text on the way."""
    readings = [Reading(candidate, mode, in_order=bool(views)) for candidate in candidates]
    if views:
        for surprisals in zip(*(reading.characters() for reading in readings), strict=True):
            for view in views:
                view.add(surprisals)
    else:
        for reading in readings:
            for _ in reading:
                pass
    return [reading.score for reading in readings]


class Lines:
    """The view `--per-char`: a line of JSON for each character, with the surprisal under each model."""

    def __init__(self, candidates: list[Candidate]) -> None:
        self.names = [candidate.tokenizer.names for candidate in candidates]
        self.position = 0

    def add(self, surprisals: tuple[Surprisals, ...]) -> None:
        of_models = map(self._predicted, surprisals, self.names)
        with hidden():
            for character, line, *others in zip(surprisals[0].text, *of_models, strict=True):
                line = {"position": self.position, "character": character} | line
                for other in others:  # none, or that of the second model
                    line["other"] = other
                sys.stdout.write(json.dumps(line) + "\n")
                self.position += 1
            sys.stdout.flush()

    def _predicted(self, surprisals: Surprisals, names: list[str]) -> Iterator[dict[str, Any]]:
        likely = surprisals.likely(names, digits=6)
        for nats, most_likely in zip(surprisals.nats.tolist(), likely, strict=True):
            yield {"nats": round(nats, 9), "likely": dict(most_likely)}


class Page:
    """The view `--html`: small integers for each character, by the names that the script of the page reads."""

    def __init__(self, candidates: list[Candidate]) -> None:
        self.candidates = candidates
        self.columns: dict[str, Column] = {}

    def add(self, surprisals: tuple[Surprisals, ...]) -> None:
        arrays: dict[str, Any] = {"letters": surprisals[0].text.encode()}
        for number, (candidate, piece) in enumerate(zip(self.candidates, surprisals, strict=True)):
            token_dtype = np.uint8 if candidate.model.vocabulary <= 256 else np.uint16
            arrays[f"nats{number}"] = piece.millinats
            arrays[f"likely{number}"] = piece.top.astype(token_dtype)
            thousandths = (piece.probabilities * 1000).round()
            arrays[f"chances{number}"] = thousandths.astype(np.uint16)
        for name, array in arrays.items():
            self.columns.setdefault(name, Column()).add(array)


class Column:
    """A column of the page, compressed while it grows."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(6)
        self._packed = bytearray()

    def add(self, part: Any) -> None:
        self._packed += self._deflate.compress(part)

    def base64(self) -> str:
        return base64.b64encode(self._packed + self._deflate.flush()).decode()


def page(view: Page, mode: str, scores: list[Score], options: argparse.Namespace) -> str:
    """Return the page of a text."""
    models = [
        {
            "name": candidate.page_name,
            "mode": describe(candidate, mode),
            "figures": figures(score, 4),
            "vocabulary": candidate.tokenizer.names,
        }
        for candidate, score in zip(view.candidates, scores, strict=True)
    ]
    title = display_name(options, path=False)
    about = {
        "title": title,
        "characters": scores[0].characters,
        "models": models,
        "difference": difference(scores, 4) if options.compare else None,
        "trained": any(candidate.saw_text for candidate in view.candidates),
    }
    packed = {name: column.base64() for name, column in view.columns.items()}
    return render_page("score_page", title, about, packed)


class DocumentScore(NamedTuple):
    """The loss of a document that was read right after an end mark. Its own end mark counts, too."""

    number: int  # in the text, from 1
    line: int  # as in `Document`
    nats: float  # per character
    characters: int
    unknown: int
    beginning: str


def score_documents(candidate: Candidate, documents: list[Document]) -> list[DocumentScore]:
    """Score each document by itself, and return the most surprising one first."""
    tokenizer = candidate.tokenizer
    mark = len(tokenizer.pack(candidate.end))
    lengths = np.array([document.length + mark for document in documents])
    losses = measure_documents(candidate, lengths)  # (documents,)
    scores = []
    begin = 0
    for number, (document, nats) in enumerate(zip(documents, losses.tolist(), strict=True), 1):
        tokens = candidate.tokens[begin : begin + document.length + mark]
        begin += len(tokens)
        characters = int(tokenizer.token_sizes[tokens, 0].sum())
        # A character has at most 4 tokens.
        words = tokenizer.decode(tokens[: min(document.length, 4 * BEGINNING)])
        beginning = printable(" ".join(words.split()))[:BEGINNING]
        scores.append(
            DocumentScore(
                number, document.line, nats / characters, characters, document.unknown, beginning
            )
        )
    return sorted(scores, key=lambda score: -score.nats)


def print_documents(scores: list[DocumentScore], name: str, all_in_file: bool) -> None:
    """Print the documents with the highest loss per character, which come first."""
    size = sum(score.characters for score in scores)
    mean = sum(score.nats * score.characters for score in scores) / size
    unknown = sum(score.unknown for score in scores)
    print(f"{name}: {count(len(scores), 'document')}, {count(size, 'character')} with end marks")
    print(
        f"{'nats/character':>14}{'perplexity':>16}{'characters':>13}{'unknown':>9}{'line':>9}  document"
    )
    everything = DocumentScore(0, 0, mean, size, unknown, "all, each from a fresh start")
    for _, line, nats, characters, unknown, beginning in [everything, *scores[:ROWS]]:
        counts = f"{characters:>13,}{unknown:>9,}{line or '':>9}"
        print(f"{nats:>14.6f}{perplexity(nats):>16.6f}{counts}  {beginning}")
    if len(scores) > ROWS:
        hint = "" if all_in_file else "; --csv FILE writes all of them"
        print(f"and {len(scores) - ROWS:,} more{hint}")


def write_documents(scores: list[DocumentScore], file: TextIO) -> None:
    """Write all documents as CSV, the highest loss per character first."""
    table = csv.writer(file, lineterminator="\n")
    columns = "document line nats_per_character perplexity characters unknown beginning"
    table.writerow(columns.split())
    for number, line, nats, *others in scores:
        table.writerow([number, line or "", nats, perplexity(nats), *others])


def save_test_score(model: Path, score: Score, comparing: bool) -> None:
    """Store the test loss in summary.json if `model` is the best model of a run, and print the file's path.

    It is not stored if two models are compared, because the other one may decide how the text is
    read.
    """
    if comparing:
        print(
            "--compare: the test loss is not saved in summary.json; without --compare it is",
            file=sys.stderr,
        )
        return
    run = Run(model.resolve().parents[1])
    summary = run.summary
    if model.name == run.model("best").name and summary.status is not None:
        run.write_summary(replace(summary, test_loss=score.loss, test_bpc=score.bpc))
        print(f"saved in {run}/summary.json: test_loss, test_bpc", file=sys.stderr)


def candidates_of(
    checkpoints: list[Path], loaded: list[Model], text: EncodedText, options: argparse.Namespace
) -> list[Candidate]:
    labels = ["A  ", "B  "] if options.compare else [""]
    candidates = []
    for label, path, tokenizer, tokens, saw_text, (config, weights, meta) in zip(
        labels, checkpoints, text.tokenizers, text.tokens, text.saw_text, loaded, strict=True
    ):
        model = build(config, weights)
        to_device(model, options.device)
        if options.context:
            # A window longer than the text would only be padding, which costs time.
            length = len(tokenizer.pack(text.end)) + len(tokens)
            longest = min(options.context, max(1, length - 1))
            try:
                model = with_context(model, longest).eval()
            except ValueError as error:
                raise InputError(f"--context {longest}: {error}") from None
        context = model.config.context
        stride = options.stride or max(1, context // 2)
        candidate = Candidate(
            label=label,
            file=path,
            step=meta["step"],
            model=model,
            tokenizer=tokenizer,
            tokens=tokens,
            stride=min(stride, context),
            saw_text=saw_text,
            end=text.end,
        )
        candidates.append(candidate)
    return candidates


def describe(candidate: Candidate, mode: str) -> str:
    """Return how windows cover the text."""
    context = candidate.model.config.context
    if mode != "strided":
        return describe_windows(mode, context)
    windows = describe_windows("documents" if candidate.end else mode, context)
    return f"{windows}, stride {candidate.stride}"


def figures(score: Score, digits: int = 6) -> list[str]:
    return [f"{value:.{digits}f}" for value in numbers(score)]


def difference(scores: list[Score], digits: int = 6) -> list[str]:
    return [f"{b - a:+.{digits}f}" for a, b in zip(*map(numbers, scores), strict=True)]


def numbers(score: Score) -> tuple[float, float, float, float]:
    """Return nats per character, perplexity, bits per character and bits per byte."""
    nats = score.bpc * math.log(2)
    return nats, perplexity(nats), score.bpc, score.bpb


def perplexity(nats: float) -> float:
    if nats > 700:  # exp would overflow
        return math.inf
    return math.exp(nats)


def row(name: str, cells: list[str]) -> str:
    return f"{name:<42}" + "".join(f"{cell:>16}" for cell in cells)
