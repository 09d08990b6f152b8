"""Score the text of score.py, and show the scores: as a table, by character, as a page, or by document."""

import argparse
import base64
import csv
import json
import math
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch
from torch import Tensor

from base.errors import printable
from base.jobs.run_directory import Run
from base.progress import Progress, count, hidden
from gpt.analysis import Surprisals, by_character
from gpt.evaluation import (
    Predictions,
    Score,
    first_totals,
    make_score,
    predictions,
    totals,
    window_batches,
)
from gpt.facts import describe_windows
from gpt.model import GPT
from gpt.windows import EvaluationText, windows_of_groups
from reports.page import render_page
from reports.text_to_score import Candidate, display_name

PIECE = 4096  # characters that are shown at once
ROWS = 20  # maximum documents in the printed table
BEGINNING = 60  # characters shown of the beginning of a document


def print_scores(
    candidates: list[Candidate], options: argparse.Namespace, file: TextIO | None
) -> None:
    """Score the text, print the table of scores, and write the page (`--html`) or the CSV file (`--csv`).

    `file` is the output that these options name, None without them.
    """
    out = sys.stderr if options.per_char else sys.stdout
    print_models(candidates, out)
    name = display_name(options)
    first = candidates[0]
    if options.per_document:
        show_documents(score_documents(first), name, file)
        return
    # the mode of the validation loss of a run
    validation_mode = "disjoint" if first.text.end is None else "documents"
    modes = [options.window or validation_mode]
    if not options.window and (validation_mode == "disjoint" or options.stride):
        modes.append("strided")
    most_exact = modes[-1]
    if options.per_char:
        modes.reverse()  # because its lines are printed while they are computed
    for mode in modes:
        page = Page(candidates) if file and mode == most_exact else None
        scores = measure(candidates, mode, page, options.per_char and mode == most_exact)
        if file and page:
            file.write(page.html(mode, scores, options))
        # Beside another model, this one may read the text in another way.
        is_like_validation = mode == validation_mode and not (options.context or options.compare)
        if options.split == "test" and is_like_validation:
            run = Run(first.file.resolve().parents[1])
            summary = run.summary
            if first.file.name == run.model("best").name and summary.status is not None:
                test = scores[0]
                run.write_summary(replace(summary, test_loss=test.loss, test_bpc=test.bpc))
                print(f"saved in {run}/summary.json: test_loss, test_bpc", file=sys.stderr)
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


def print_models(candidates: list[Candidate], out: TextIO) -> None:
    """Print which models are scored, and what makes their losses hard to compare."""
    for candidate in candidates:
        print(
            f"{candidate.label}{printable(candidate.file)}, step {candidate.meta['step']}",
            file=out,
        )
        if candidate.saw_text:
            warning = (
                "the model was trained on files of this text; the loss on held-out text is higher"
            )
            print(f"{candidate.label}{warning}", file=out)
    if len({candidate.model.config.context for candidate in candidates}) > 1:
        print(
            "the models' contexts differ: the model with the longer one has an advantage", file=out
        )


def measure(
    candidates: list[Candidate], mode: str, page: "Page | None", per_char: bool
) -> list[Score]:
    """Return the score of each model; on the way, the characters of the text are printed and added to the page."""
    in_order = page is not None or per_char
    sums = []
    characters = []
    for candidate in candidates:
        text = candidate.text
        if mode != "strided":
            text = replace(text, stride=None)
        if mode == "disjoint":  # which does not know documents
            text = replace(text, end=None)
        total = first_totals(text)  # (4,), of the tokens so far
        sums.append(total)
        batches = read_text(candidate.model, text, mode, total, in_order)
        if in_order:
            characters.append(by_character(batches, text, candidate.tokenizer.decode, PIECE))
        else:
            for _ in batches:
                pass
    position = 0
    for surprisals in zip(*characters, strict=True):
        if per_char:
            print_characters(candidates, surprisals, position)
            position += len(surprisals[0].text)
        if page:
            page.add(surprisals)
    return list(map(make_score, sums))


def read_text(
    model: GPT, text: EvaluationText, mode: str, total: Tensor, in_order: bool
) -> Iterator[Predictions]:
    """Yield what a model predicts for a text, and add the totals of each batch to `total`, (4,).

    `mode` is how the windows lie. Only if `in_order` do the batches follow the text; otherwise they
    need less padding.
    """
    batches = window_batches(text, text.windows(model.config.context), in_order=in_order)
    with Progress(f"scoring, {mode} windows", len(text.tokens)) as progress:
        for batch in predictions(model, batches):
            total += totals(batch.nats, batch.targets, text.token_sizes)
            yield batch
            progress.update(len(batch.targets))


def print_characters(
    candidates: list[Candidate], surprisals: tuple[Surprisals, ...], position: int
) -> None:
    """Print a line of JSON for each character from `position` on, with the surprisal under each model."""
    columns: list[Iterable[Any]] = [surprisals[0].text]
    for candidate, piece in zip(candidates, surprisals, strict=True):
        likely = piece.likely(candidate.tokenizer.names, digits=6)
        columns += [piece.nats.tolist(), map(dict, likely)]
    with hidden():
        for place, (character, nats, likely, *other) in enumerate(
            zip(*columns, strict=True), position
        ):
            line = {"position": place, "character": character}
            line |= {"nats": round(nats, 9), "likely": likely}
            if other:  # of the second model
                line["other"] = {"nats": round(other[0], 9), "likely": other[1]}
            sys.stdout.write(json.dumps(line) + "\n")
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
    """Score each document by itself, after an end mark, and return the most surprising one first."""
    model = candidate.model
    tokenizer = candidate.tokenizer
    text = candidate.text
    assert text.end is not None and text.stride is not None
    context = model.config.context
    lengths = [document.length + len(text.end) for document in candidate.documents]
    stops = np.cumsum(lengths)  # (documents,)
    starts = stops - lengths  # (documents,)
    mark = min(len(text.end), context)
    windows = windows_of_groups(starts, stops, context, text.stride, mark)
    order = np.argsort(-windows.lengths, kind="stable")  # (W,), that of `window_batches`
    first_target = windows.begins + windows.first_counted + 1  # (W,), its position in the text
    document_of_window = np.searchsorted(starts, first_target, "right") - 1  # (W,)
    num_targets = windows.lengths - windows.first_counted  # (W,)
    document_of_target = np.repeat(document_of_window[order], num_targets[order])  # (targets,)
    nats = []
    with Progress("scoring documents", len(text.tokens)) as progress:
        for batch in predictions(model, window_batches(text, windows)):
            nats.append(batch.nats)
            progress.update(len(batch.targets))
    losses = np.bincount(document_of_target, torch.cat(nats).numpy())  # (documents,)
    scores = []
    for number, (document, loss, tokens) in enumerate(
        zip(candidate.documents, losses.tolist(), np.split(text.tokens, stops[:-1]), strict=True),
        1,
    ):
        characters = int(tokenizer.token_sizes[tokens, 0].sum())
        # A character has at most 4 tokens.
        words = tokenizer.decode(tokens[: min(document.length, 4 * BEGINNING)])
        beginning = printable(" ".join(words.split()))[:BEGINNING]
        scores.append(
            DocumentScore(
                number, document.line, loss / characters, characters, document.unknown, beginning
            )
        )
    return sorted(scores, key=lambda score: -score.nats)


def show_documents(scores: list[DocumentScore], name: str, file: TextIO | None) -> None:
    """Print the documents with the highest loss per character, which come first, and write all to `file` as CSV."""
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
        hint = "" if file else "; --csv FILE writes all of them"
        print(f"and {len(scores) - ROWS:,} more{hint}")
    if file:
        table = csv.writer(file, lineterminator="\n")
        columns = "document line nats_per_character perplexity characters unknown beginning"
        table.writerow(columns.split())
        for number, line, nats, *others in scores:
            table.writerow([number, line or "", nats, perplexity(nats), *others])


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
