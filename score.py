"""Score a text: `python score.py MODEL FILE` prints exact nats and bits per character, and bits per byte."""

import argparse
import io
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from base import run_directory
from base.command_line import Parser, add_overwrite, add_unknown, answer, device, number, writing_to
from base.errors import InputError, nearest, printable
from base.processes import keep_freed_memory
from base.progress import count, hidden
from reports.run_text import save_test_score
from reports.score_lines import difference, figures, json_lines, row
from reports.scoring import Candidate, describe, display_name, measure, pieces, read

if TYPE_CHECKING:
    from gpt.evaluation import Score

MODES = ("disjoint", "strided", "sample")
DEFAULT_MODES = MODES[:2]


def cli(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    options = parse(arguments)
    return answer("score.py", lambda: run(options), out_of_memory="the text or the model is too large for this machine")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(
        prog="score.py", description="Measure how well a trained model predicts a text.", allow_abbrev=False
    )
    add = parser.add_argument
    add("checkpoint", help="model file, run directory or name of a run")
    add("file", nargs="?", help="text file; - is standard input")
    split = "score a split of the text that the run was trained on, instead of a file"
    add("--split", choices=("validation", "test"), help=split)
    add("--compare", metavar="OTHER", help="score a second model or run on the same text")
    window = "context of each character: disjoint or overlapping (strided) windows, or as sample.py reads (sample)"
    add("--window", choices=MODES, help=f"{window}; default: disjoint, then strided")
    stride = "tokens from the start of one strided window to the next (default: context / 2)"
    add("--stride", type=number(int, 1, 2**20), metavar="N", help=stride)
    context = number(int, 1, 2**20)
    add("--context", type=context, metavar="N", help="context length in tokens (default: the model's)")
    add("--per-char", action="store_true", help="print a line of JSON for each character, and the scores to stderr")
    add("--html", metavar="OUT", help="write an HTML page that colours each character by its surprisal")
    add_overwrite(add)
    add("--encoding", default="utf-8", metavar="E", help="encoding of the text file (default utf-8)")
    add_unknown(add, "characters")
    add("--device", type=device, default="cpu", metavar="D", help="device: cpu, cuda, cuda:1 or mps (default cpu)")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> None:
    """Check the options and score; open the page's file before the slow work, so that a wrong name is found first."""
    checkpoints = [run_directory.find_model(name) for name in (options.checkpoint, options.compare) if name is not None]
    if (options.file is None) == (options.split is None):
        raise InputError(f"{options.checkpoint}: name either a text file or --split to score")
    text = Path(options.file or "")
    if options.file not in (None, "-") and not text.exists():
        others = os.listdir(text.parent) if text.parent.is_dir() else []
        raise InputError(f"{options.file}: no such file{nearest(text.name, others)}")
    if options.split and options.encoding != "utf-8":
        raise InputError(f"--encoding {options.encoding}: is for a text file; --split takes the encoding from the run")
    if options.stride and options.window not in (None, "strided"):
        raise InputError(f"--stride {options.stride}: is for --window strided, not {options.window}")
    if options.overwrite and options.html is None:
        raise InputError("--overwrite: is for --html")
    if options.html is None:
        return print_scores(checkpoints, options, None)
    with writing_to(options.html, "--html", [*checkpoints, text], overwrite=options.overwrite) as page:
        print_scores(checkpoints, options, page)
    print(f"wrote {printable(options.html)}: open it in a browser", file=sys.stderr)


def print_scores(checkpoints: list[Path], options: argparse.Namespace, page_file: TextIO | None) -> None:
    """Load the models, encode and score the text, and print the table."""
    keep_freed_memory()
    candidates = read(checkpoints, options)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    out = sys.stderr if options.per_char else sys.stdout
    letters = ["A  ", "B  "] if options.compare else [""]
    for letter, candidate in zip(letters, candidates, strict=True):
        print(letter + candidate.name, file=out)
    if len({candidate.model.config.context for candidate in candidates}) > 1:
        print("their contexts differ: the longer context is an advantage", file=out)

    begun = time.perf_counter()
    # With --per-char, begin with the strided windows, whose lines are printed while they are computed.
    modes = [options.window] if options.window else list(DEFAULT_MODES)[:: -1 if options.per_char else 1]
    for mode in modes:
        in_detail = mode == (options.window or "strided") and (options.per_char or page_file)
        if in_detail:
            scores = score_in_detail(candidates, mode, options, page_file)
        else:
            scores = [measure(candidate, mode) for candidate in candidates]
        if mode == modes[0]:
            length = f"{count(scores[0].characters, 'character')}, {count(scores[0].bytes, 'byte')}"
            print(f"{display_name(options)}: {length}", file=out)
            print(row("", ["nats/character", "bits/character", "bits/byte"]), file=out)
        comparable = mode == "disjoint" and options.split == "test" and options.context is None
        if comparable and (saved := save_test_score(checkpoints[0], scores[0])):
            print(f"saved in {saved}: test_loss, test_bpc", file=sys.stderr)
        for letter, candidate, score in zip(letters, candidates, scores, strict=True):
            print(row(letter + describe(candidate, mode), figures(score)), file=out)
        if options.compare:
            print(row(f"B - A  {mode} windows", difference(*scores)), file=out)
    seconds, total = time.perf_counter() - begun, len(modes) * sum(len(candidate.tokens) for candidate in candidates)
    print(f"{count(total, 'prediction')} in {seconds:.1f} s, {total / seconds:,.0f} a second", file=sys.stderr)


def score_in_detail(
    candidates: list[Candidate], mode: str, options: argparse.Namespace, page_file: TextIO | None
) -> "list[Score]":
    """Score the text; print a JSON line for each character with `--per-char`, fill the page with `--html`."""
    import torch

    from gpt.evaluation import make_score, totals
    from reports.score_page import Columns, page

    names = [candidate.tokenizer.names for candidate in candidates]
    sums = [torch.zeros(4, dtype=torch.float64) for _ in candidates]
    columns = [Columns(candidate.model.vocabulary) for candidate in candidates]
    text = io.StringIO()
    for piece in pieces(candidates, mode):
        for candidate, total, costs in zip(candidates, sums, piece.costs, strict=True):
            total += totals(costs.nats, costs.tokens, candidate.tokenizer.token_sizes)
        if options.per_char:
            with hidden():
                sys.stdout.writelines(json_lines(piece, names))
                sys.stdout.flush()
        if page_file:
            text.write(piece.text)
            for column, costs in zip(columns, piece.costs, strict=True):
                column.add(costs)
    scores = [make_score(total) for total in sums]
    if page_file:
        models = [
            {"name": one.page_name, "mode": describe(one, mode, page=True)}
            | {"figures": figures(own), "vocabulary": tokens}
            for one, own, tokens in zip(candidates, scores, names, strict=True)
        ]
        about = {"title": display_name(options, path=False), "characters": scores[0].characters, "models": models}
        about["difference"] = difference(*scores) if options.compare else None
        page_file.write(page(about, text.getvalue(), columns))
    return scores


if __name__ == "__main__":
    sys.exit(cli())
