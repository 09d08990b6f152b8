"""Score a text: `python score.py MODEL FILE` prints exact nats and bits per character, and bits per byte."""

import argparse
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TextIO

from base.command_line import Parser, add_unknown, device, main, number, writing_to
from base.errors import InputError, nearest, printable
from base.jobs import run_directory
from base.processes import keep_freed_memory
from base.progress import Progress


def cli(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    options = parse(arguments)
    return main("score.py", lambda: run(options), out_of_memory="the text or the model is too large for this machine")


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
    add("--window", choices=("disjoint", "strided", "sample"), help=f"{window}; default: disjoint, then strided")
    stride = "tokens from the start of one strided window to the next (default: context / 2)"
    add("--stride", type=number(int, 1, 2**20), metavar="N", help=stride)
    context = number(int, 1, 2**20)
    add("--context", type=context, metavar="N", help="context length in tokens (default: the model's)")
    add("--per-char", action="store_true", help="print a line of JSON for each character, and the scores to stderr")
    add("--html", metavar="OUT", help="write an HTML page that colours each character by its surprisal")
    add("--overwrite", action="store_true", help="replace the output file if it exists")
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
    page: AbstractContextManager[TextIO | None] = nullcontext()
    if options.html is not None:
        page = writing_to(options.html, "--html", [*checkpoints, text], overwrite=options.overwrite)
    keep_freed_memory()
    with page as file:
        with Progress("loading the model"):
            from reports.scoring import print_scores  # loads torch
        print_scores(checkpoints, options, file)
    if options.html is not None:
        print(f"wrote {printable(options.html)}: open it in a browser", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(cli())
