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
from base.progress import hidden
from reports.run_text import save_test_score
from reports.score_lines import count, difference, figures, json_lines, row
from reports.scoring import Reader, describe, display_name, measure, pieces, read

if TYPE_CHECKING:
    from gpt.evaluation import Score

MODES = ("disjoint", "strided", "sample")
BOTH = MODES[:2]  # scored by default


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
    add("--html", metavar="OUT", help="write an HTML page that colours each character by its surprisal in bits")
    add_overwrite(add)
    add("--encoding", default="utf-8", metavar="E", help="encoding of the text file (default utf-8)")
    add_unknown(add, "characters")
    add("--device", type=device, default="cpu", metavar="D", help="device: cpu, cuda, cuda:1 or mps (default cpu)")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> None:
    """Check the options, open the page to find a wrong name early, and score."""
    checkpoints = [run_directory.find_model(name) for name in (options.checkpoint, options.compare) if name is not None]
    if (options.file is None) == (options.split is None):
        raise InputError(f"score.py {options.checkpoint}: name either a text file or --split")
    text = Path(options.file or "")
    if options.file not in (None, "-") and not text.exists():
        others = os.listdir(text.parent) if text.parent.is_dir() else []
        raise InputError(f"{options.file}: no such file{nearest(text.name, others)}")
    if options.split and options.encoding != "utf-8":
        raise InputError(f"--encoding {options.encoding}: is for a text file; the encoding of a run's text is known")
    if options.stride and options.window not in (None, "strided"):
        raise InputError(f"--stride {options.stride}: is for --window strided, not {options.window}")
    if options.html is None:
        return print_scores(checkpoints, options, None)
    with writing_to(options.html, "--html", [*checkpoints, text], overwrite=options.overwrite) as page:
        print_scores(checkpoints, options, page)
    print(f"wrote {printable(options.html)}: open it in a browser", file=sys.stderr)


def print_scores(checkpoints: list[Path], options: argparse.Namespace, page_file: TextIO | None) -> None:
    """Load the models, read the text, score it and print the table."""
    keep_freed_memory()
    readers = read(checkpoints, options)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    out = sys.stderr if options.per_char else sys.stdout
    letters = ["A  ", "B  "] if options.compare else [""]
    for letter, reader in zip(letters, readers, strict=True):
        print(letter + reader.name, file=out)
    if len({reader.model.config.context for reader in readers}) > 1:
        print("their contexts differ: the longer context is an advantage", file=out)

    begun = time.perf_counter()
    # With --per-char, score in detail first, so that lines are printed as they are computed.
    modes = [options.window] if options.window else list(reversed(BOTH) if options.per_char else BOTH)
    for mode in modes:
        in_detail = mode == (options.window or "strided") and (options.per_char or page_file)
        if in_detail:
            scores = score_in_detail(readers, mode, options, page_file)
        else:
            scores = [measure(each, mode) for each in readers]
        if mode == modes[0]:
            length = f"{count(scores[0].characters, 'character')}, {count(scores[0].bytes, 'byte')}"
            print(f"{display_name(options)}: {length}", file=out)
            print(row("", ["nats/character", "bits/character", "bits/byte"]), file=out)
        whole = mode == "disjoint" and options.split == "test" and options.context is None
        if whole and (saved := save_test_score(checkpoints[0], scores[0])):
            print(f"saved in {saved}: test_loss, test_bpc", file=sys.stderr)
        for letter, reader, score in zip(letters, readers, scores, strict=True):
            print(row(letter + describe(reader, mode), figures(score)), file=out)
        if options.compare:
            print(row(f"B - A  {mode} windows", difference(*scores)), file=out)
    seconds, total = time.perf_counter() - begun, len(modes) * sum(len(reader.tokens) for reader in readers)
    print(f"{count(total, 'prediction')} in {seconds:.1f} s, {total / seconds:,.0f} a second", file=sys.stderr)


def score_in_detail(
    readers: list[Reader], mode: str, options: argparse.Namespace, page_file: TextIO | None
) -> "list[Score]":
    """Score the text and write the surprisal of each character, as JSON lines and as a page, as the options say."""
    import torch

    from gpt.evaluation import score, totals
    from reports.score_page import Columns, page

    names = [reader.tokenizer.names for reader in readers]
    sums = [torch.zeros(4, dtype=torch.float64) for _ in readers]
    columns = [Columns(reader.model.vocabulary) for reader in readers]
    whole = io.StringIO()
    for piece in pieces(readers, mode):
        for reader, total, costs in zip(readers, sums, piece.costs, strict=True):
            total += totals(costs.nats, costs.tokens, reader.tokenizer.token_sizes)
        if options.per_char:
            with hidden():
                sys.stdout.writelines(json_lines(piece, names))
                sys.stdout.flush()
        if page_file:
            whole.write(piece.text)
            for column, costs in zip(columns, piece.costs, strict=True):
                column.add(costs)
    scores = [score(total) for total in sums]
    if page_file:
        models = [
            {"name": reader.name, "mode": describe(reader, mode), "figures": figures(each), "vocabulary": vocabulary}
            for reader, each, vocabulary in zip(readers, scores, names, strict=True)
        ]
        about = {"title": display_name(options), "characters": scores[0].characters, "models": models}
        about["difference"] = difference(*scores) if options.compare else None
        page_file.write(page(about, whole.getvalue(), columns))
    return scores


if __name__ == "__main__":
    sys.exit(cli())
