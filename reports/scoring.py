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
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch

from base.errors import InputError, printable
from base.jobs.run_directory import Run
from base.progress import count, hidden
from data.seen import was_read
from gpt.analysis import NUM_TOP, Surprisals
from gpt.checkpoint import build, with_context
from gpt.evaluation import Score, make_score, totals
from gpt.facts import describe_windows
from gpt.model_file import Model, to_device
from gpt.scoring import Candidate, measure, measure_documents, pieces
from gpt.tokenizer import Tokenizer
from reports.page import render_page
from reports.text_to_score import Document, EncodedText, display_name

ROWS = 20  # maximum documents in the printed table
BEGINNING = 60  # characters shown of the beginning of a document


class CharacterScores:
    """What a model predicts for each character of a text: the totals and, for a page, small integers."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.totals = torch.zeros(4, dtype=torch.float64)  # nats, tokens, characters, bytes
        self.characters = 0  # on the page so far
        # A text has no more characters than tokens. Memory is used only where something is
        # written.
        num_tokens = len(candidate.tokens)
        vocabulary = candidate.model.vocabulary
        top = min(NUM_TOP, vocabulary)
        token_dtype = np.uint8 if vocabulary <= 256 else np.uint16
        self._nats = np.empty(num_tokens, np.uint16)  # (N,), surprisals in thousandths of a nat
        self._likely = np.empty((num_tokens, top), token_dtype)  # (N, K), the most likely tokens
        # (N, K), their probabilities in thousandths
        self._chances = np.empty((num_tokens, top), np.uint16)

    def count(self, piece: Surprisals) -> None:
        """Add the next characters of the text to the totals."""
        nats = torch.from_numpy(piece.nats)  # (N,)
        tokens = torch.from_numpy(piece.tokens)  # (M,)
        self.totals += totals(nats, tokens, self.candidate.tokenizer.token_sizes)

    def add_to_page(self, piece: Surprisals) -> None:
        """Store the next characters of the text for the page."""
        new = slice(self.characters, self.characters + len(piece.nats))
        self._nats[new] = piece.millinats
        self._likely[new] = piece.top
        self._chances[new] = (piece.probabilities * 1000).round()
        self.characters = new.stop

    @property
    def columns(self) -> dict[str, memoryview]:
        """The arrays of the page, by the names that its script reads."""
        columns = {"nats": self._nats, "likely": self._likely, "chances": self._chances}
        return {name: column[: self.characters].data for name, column in columns.items()}


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
    print_models(candidates, out)
    if options.per_document:
        of_documents = score_documents(candidates[0], text.documents)
        print_documents(of_documents, display_name(options), all_in_file=file is not None)
        if file:
            write_documents(of_documents, file)
        return
    # the mode of the validation loss of a run
    validation_mode = "documents" if candidates[0].end else "disjoint"
    has_documents = any(meta["documents"] for *_, meta in loaded)
    if options.compare and validation_mode == "disjoint" and has_documents:
        print("the models' documents differ, so both read the text in disjoint windows", file=out)
    modes = modes_of(options, validation_mode)
    detailed = modes[-1]
    if options.per_char:
        modes.reverse()  # because its lines are printed while they are computed
    for mode in modes:
        if mode == detailed and (options.per_char or file):
            scores = score_in_detail(candidates, mode, options, file)
        else:
            scores = [measure(candidate, mode) for candidate in candidates]
        is_like_validation = mode == validation_mode and options.context is None
        if options.split == "test" and is_like_validation:
            save_test_score(checkpoints[0], scores[0], comparing=options.compare is not None)
        if mode == modes[0]:
            length = (
                f"{count(scores[0].characters, 'character')}, {count(scores[0].bytes, 'byte')}"
            )
            print(f"{display_name(options)}: {length}", file=out)
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
        print(f"{candidate.label}{printable(candidate.file)}, step {candidate.step}", file=out)
        if candidate.saw_text:
            warning = "the model was trained on this text; the loss on held-out text is higher"
            print(f"{candidate.label}{warning}", file=out)
    if len({candidate.model.config.context for candidate in candidates}) > 1:
        print(
            "the models' contexts differ: the model with the longer one has an advantage", file=out
        )


def modes_of(options: argparse.Namespace, validation_mode: str) -> list[str]:
    """Return the modes of windows in which the text is scored, the most exact one last."""
    if options.window:
        return [options.window]
    if validation_mode == "disjoint" or options.stride:
        return [validation_mode, "strided"]
    return [validation_mode]


def score_in_detail(
    candidates: list[Candidate], mode: str, options: argparse.Namespace, page_file: TextIO | None
) -> list[Score]:
    """Score the text by character, write the lines of `--per-char` and the page, and return the score of each model."""
    models = [CharacterScores(candidate) for candidate in candidates]
    text = io.StringIO()
    position = 0
    for characters, surprisals in pieces(candidates, mode):
        for model, piece in zip(models, surprisals, strict=True):
            model.count(piece)
            if page_file:
                model.add_to_page(piece)
        if options.per_char:
            with hidden():
                sys.stdout.writelines(json_lines(position, characters, surprisals, candidates))
                sys.stdout.flush()
        if page_file:
            text.write(characters)
        position += len(characters)
    scores = [make_score(model.totals) for model in models]
    if page_file:
        about_models = [
            about_model(candidate, mode, score)
            for candidate, score in zip(candidates, scores, strict=True)
        ]
        about = {
            "title": display_name(options, path=False),
            "characters": scores[0].characters,
            "models": about_models,
            "difference": difference(scores, 4) if options.compare else None,
            "trained": any(candidate.saw_text for candidate in candidates),
        }
        page_file.write(page(about, text.getvalue(), models))
    return scores


def about_model(candidate: Candidate, mode: str, score: Score) -> dict[str, Any]:
    """Return what the script of the page reads about a model."""
    return {
        "name": candidate.page_name,
        "mode": describe(candidate, mode),
        "figures": figures(score, 4),
        "vocabulary": candidate.tokenizer.names,
    }


def page(about: dict[str, Any], text: str, models: list[CharacterScores]) -> str:
    """Return the page of a text: `about` is what its script reads."""
    data: dict[str, bytes | memoryview] = {"letters": text.encode()}
    for number, model in enumerate(models):
        data |= {f"{name}{number}": column for name, column in model.columns.items()}
    packed = {name: base64.b64encode(zlib.compress(raw, 6)).decode() for name, raw in data.items()}
    return render_page("score_page", about["title"], about, packed)


class DocumentScores(NamedTuple):
    """The losses of documents, each read right after an end mark. A document's own end mark counts towards its loss."""

    documents: list[Document]
    marked: list[np.ndarray]  # the tokens of each, with its end mark
    nats: np.ndarray  # (documents,)
    characters: np.ndarray  # (documents,), with the end marks
    tokenizer: Tokenizer

    @property
    def losses(self) -> np.ndarray:
        """(documents,), in nats per character."""
        return self.nats / self.characters

    @property
    def worst_first(self) -> list[int]:
        return np.argsort(-self.losses, kind="stable").tolist()

    def beginning(self, index: int) -> str:
        # A character has at most 4 tokens. The end mark is left out.
        length = min(self.documents[index].length, 4 * BEGINNING)
        words = self.tokenizer.decode(self.marked[index][:length])
        return printable(" ".join(words.split()))[:BEGINNING]


def score_documents(candidate: Candidate, documents: list[Document]) -> DocumentScores:
    tokenizer = candidate.tokenizer
    mark = tokenizer.pack(candidate.end)
    ends = list(accumulate(document.length + len(mark) for document in documents))
    marked = np.split(candidate.tokens, ends[:-1])
    after_marks = [np.concatenate((mark, tokens)) for tokens in marked]
    nats = measure_documents(candidate, after_marks, known=len(mark))
    token_characters = tokenizer.token_sizes[:, 0]  # (V,)
    characters = np.array([token_characters[tokens].sum() for tokens in marked])
    return DocumentScores(documents, marked, nats, characters, tokenizer)


def print_documents(scores: DocumentScores, name: str, all_in_file: bool) -> None:
    """Print the documents with the highest loss per character."""
    size = int(scores.characters.sum())
    unknown = sum(document.unknown for document in scores.documents)
    num_documents = count(len(scores.documents), "document")
    print(f"{name}: {num_documents}, {count(size, 'character')} with end marks")
    print(
        f"{'nats/character':>14}{'perplexity':>16}{'characters':>13}{'unknown':>9}{'line':>9}  document"
    )
    mean = scores.nats.sum() / size
    print(document_row(mean, size, unknown, 0, "all, each from a fresh start"))
    losses = scores.losses
    for index in scores.worst_first[:ROWS]:
        document = scores.documents[index]
        characters = scores.characters[index]
        beginning = scores.beginning(index)
        print(document_row(losses[index], characters, document.unknown, document.line, beginning))
    if len(scores.documents) > ROWS:
        hint = "" if all_in_file else "; --csv FILE writes all of them"
        print(f"and {len(scores.documents) - ROWS:,} more{hint}")


def write_documents(scores: DocumentScores, file: TextIO) -> None:
    """Write all documents as CSV, the highest loss per character first."""
    table = csv.writer(file, lineterminator="\n")
    columns = "document line nats_per_character perplexity characters unknown beginning"
    table.writerow(columns.split())
    losses = scores.losses
    for index in scores.worst_first:
        document = scores.documents[index]
        loss = float(losses[index])
        characters = int(scores.characters[index])
        figures = [loss, perplexity(loss), characters, document.unknown]
        beginning = scores.beginning(index)
        table.writerow([index + 1, document.line or "", *figures, beginning])


def document_row(loss: float, characters: int, unknown: int, line: int, text: str) -> str:
    return f"{loss:>14.6f}{perplexity(loss):>16.6f}{characters:>13,}{unknown:>9,}{line or '':>9}  {text}"


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
    for label, path, tokenizer, tokens, (config, weights, meta) in zip(
        labels, checkpoints, text.tokenizers, text.tokens, loaded, strict=True
    ):
        model = build(config, weights)
        to_device(model, options.device)
        if options.context:
            # A window longer than the text would only be padding, which costs time.
            longest = min(options.context, max(1, len(tokens) - 1))
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
            saw_text=was_read(meta["texts"], text.sha256, text.files),
            end=text.end,
        )
        candidates.append(candidate)
    return candidates


def describe(candidate: Candidate, mode: str) -> str:
    """Return how windows cover the text."""
    context = candidate.model.config.context
    windows = describe_windows(mode, context)
    if mode == "sample":
        return f"{windows}, as sample.py reads"
    if mode != "strided":
        return windows
    if candidate.end:
        windows = describe_windows("documents", context)
    return f"{windows}, stride {candidate.stride}"


def json_lines(
    first: int, text: str, surprisals: tuple[Surprisals, ...], candidates: list[Candidate]
) -> Iterator[str]:
    """Yield a JSON line for each character of `text`, which begins at position `first` of the whole text."""
    of_models = map(json_surprisals, surprisals, candidates)
    for position, (character, line, *others) in enumerate(
        zip(text, *of_models, strict=True), first
    ):
        line = {"position": position, "character": character} | line
        for other in others:  # none, or that of the second model
            line["other"] = other
        yield json.dumps(line) + "\n"


def json_surprisals(surprisals: Surprisals, candidate: Candidate) -> Iterator[dict[str, Any]]:
    likely = surprisals.likely(candidate.tokenizer.names, digits=6)
    for nats, most_likely in zip(surprisals.nats.tolist(), likely, strict=True):
        yield {"nats": round(nats, 9), "likely": dict(most_likely)}


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
