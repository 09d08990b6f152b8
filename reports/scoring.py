"""Show the scores of score.py: as a table, by character, as a page, or by document."""

import argparse
import base64
import csv
import json
import math
import sys
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from base.errors import printable
from base.jobs.run_directory import Run
from base.progress import count, hidden
from gpt import scoring
from gpt.analysis import Surprisals, by_character
from gpt.evaluation import Score, first_totals, make_score
from gpt.facts import describe_windows
from reports.page import render_page
from reports.text_to_score import Candidate, display_name

ROWS = 20  # maximum documents in the printed table
BEGINNING = 60  # characters shown of the beginning of a document


def print_scores(
    candidates: list[Candidate], options: argparse.Namespace, file: TextIO | None
) -> None:
    """Score the text, print the table of scores, and write the page (`--html`) or the CSV file (`--csv`).

    `file` is the output that these options name, None without them.
    """
    out = sys.stderr if options.per_char else sys.stdout
    print_models(candidates, options, out)
    name = display_name(options)
    first = candidates[0]
    if options.per_document:
        documents = score_documents(first)
        print_documents(documents, name, all_in_file=file is not None)
        if file:
            write_documents(documents, file)
        return
    # the mode of the validation loss of a run
    validation_mode = "disjoint" if first.text.end is None else "documents"
    has_documents = any(candidate.meta["documents"] for candidate in candidates)
    if options.compare and validation_mode == "disjoint" and has_documents:
        print("the models' documents differ, so both read the text in disjoint windows", file=out)
    modes = [options.window or validation_mode]
    if not options.window and (validation_mode == "disjoint" or options.stride):
        modes.append("strided")
    most_exact = modes[-1]
    if options.per_char:
        modes.reverse()  # because its lines are printed while they are computed
    views: list[Lines | Page] = []
    if options.per_char:
        views.append(Lines(candidates))
    page = Page(candidates)
    if file:
        views.append(page)
    for mode in modes:
        is_shown = mode == most_exact
        scores = measure(candidates, mode, views if is_shown else [])
        if file and is_shown:
            file.write(page.html(mode, scores, options))
        is_like_validation = mode == validation_mode and options.context is None
        if options.split == "test" and is_like_validation:
            save_test_score(first.file, scores[0], comparing=options.compare is not None)
        if mode == modes[0]:
            characters = count(scores[0].characters, "character")
            print(f"{name}: {characters}, {count(scores[0].bytes, 'byte')}", file=out)
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
        print(
            f"{candidate.label}{printable(candidate.file)}, step {candidate.meta['step']}",
            file=out,
        )
        if candidate.saw_text:
            print(f"{candidate.label}{warning}", file=out)
    if len({candidate.model.config.context for candidate in candidates}) > 1:
        print(
            "the models' contexts differ: the model with the longer one has an advantage", file=out
        )


def measure(
    candidates: list[Candidate], mode: str, views: Sequence["Lines | Page"]
) -> list[Score]:
    """Return the score of each model; the views see the characters of the text on the way."""
    totals = []
    characters = []
    for candidate in candidates:
        text = candidate.text
        if mode != "strided":
            text = replace(text, stride=None)
        if mode == "disjoint":  # which does not know documents
            text = replace(text, end=None)
        total = first_totals(text)  # (4,), of the tokens so far
        batches = scoring.read_text(candidate.model, text, mode, total, in_order=bool(views))
        totals.append(total)
        if views:
            decode = candidate.tokenizer.decode
            characters.append(by_character(batches, text, decode, scoring.PIECE))
        else:
            for _ in batches:
                pass
    for surprisals in zip(*characters, strict=True):
        for view in views:
            view.add(surprisals)
    return list(map(make_score, totals))


class Lines:
    """The view `--per-char`: a line of JSON for each character, with the surprisal under each model."""

    def __init__(self, candidates: list[Candidate]) -> None:
        self.names = [candidate.tokenizer.names for candidate in candidates]
        self.position = 0

    def add(self, surprisals: tuple[Surprisals, ...]) -> None:
        of_models = []
        for piece, names in zip(surprisals, self.names, strict=True):
            likely = piece.likely(names, digits=6)
            of_models.append(
                [
                    {"nats": round(nats, 9), "likely": dict(most_likely)}
                    for nats, most_likely in zip(piece.nats.tolist(), likely, strict=True)
                ]
            )
        with hidden():
            for character, line, *others in zip(surprisals[0].text, *of_models, strict=True):
                line = {"position": self.position, "character": character} | line
                for other in others:  # none, or that of the second model
                    line["other"] = other
                sys.stdout.write(json.dumps(line) + "\n")
                self.position += 1
            sys.stdout.flush()


class Page:
    """The view `--html`: small integers for each character, by the names that the script of the page reads.

    These columns are compressed while they grow.
    """

    def __init__(self, candidates: list[Candidate]) -> None:
        self.candidates = candidates
        self.deflate = defaultdict[str, Any](zlib.compressobj)
        self.packed = defaultdict[str, bytearray](bytearray)

    def add(self, surprisals: tuple[Surprisals, ...]) -> None:
        arrays: dict[str, Any] = {"letters": surprisals[0].text.encode()}
        for number, (candidate, piece) in enumerate(zip(self.candidates, surprisals, strict=True)):
            token_dtype = np.uint8 if candidate.tokenizer.size <= 256 else np.uint16
            arrays[f"nats{number}"] = piece.millinats
            arrays[f"likely{number}"] = piece.top.astype(token_dtype)
            thousandths = (piece.probabilities * 1000).round()
            arrays[f"chances{number}"] = thousandths.astype(np.uint16)
        for name, array in arrays.items():
            self.packed[name] += self.deflate[name].compress(array)

    def html(self, mode: str, scores: list[Score], options: argparse.Namespace) -> str:
        models = []
        for candidate, score in zip(self.candidates, scores, strict=True):
            # without the folders above the run, because pages are sent to others
            name = candidate.file.name
            if candidate.file.parent.name == "checkpoints":
                name = f"{candidate.file.parent.parent.name}/{name}"
            models.append(
                {
                    "name": f"{printable(name)}, step {candidate.meta['step']}",
                    "mode": describe(candidate, mode),
                    "figures": figures(score, 4),
                    "vocabulary": candidate.tokenizer.names,
                }
            )
        title = display_name(options, path=False)
        about = {
            "title": title,
            "characters": scores[0].characters,
            "models": models,
            "difference": difference(scores, 4) if options.compare else None,
            "trained": any(candidate.saw_text for candidate in self.candidates),
        }
        columns = {
            name: base64.b64encode(self.packed[name] + deflate.flush()).decode()
            for name, deflate in self.deflate.items()
        }
        return render_page("score_page", title, about, columns)


class DocumentScore(NamedTuple):
    """The loss of a document that was read right after an end mark. Its own end mark counts, too."""

    number: int  # in the text, from 1
    line: int  # as in `Document`
    nats: float  # per character
    characters: int
    unknown: int
    beginning: str


def score_documents(candidate: Candidate) -> list[DocumentScore]:
    """Score each document by itself, and return the most surprising one first."""
    tokenizer = candidate.tokenizer
    text = candidate.text
    assert text.end is not None
    lengths = [document.length + len(text.end) for document in candidate.documents]
    stops = np.cumsum(lengths)  # (documents,)
    losses = scoring.measure_documents(candidate.model, text, stops)  # (documents,)
    scores = []
    for number, (document, nats, tokens) in enumerate(
        zip(candidate.documents, losses.tolist(), np.split(text.tokens, stops[:-1]), strict=True),
        1,
    ):
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


def describe(candidate: Candidate, mode: str) -> str:
    """Return how windows cover the text."""
    context = candidate.model.config.context
    if mode != "strided":
        return describe_windows(mode, context)
    if candidate.text.end is not None:
        mode = "documents"
    return f"{describe_windows(mode, context)}, stride {candidate.text.stride}"


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
