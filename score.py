"""Measure how well a model predicts a text: `python score.py MODEL FILE` prints nats and bits per character."""

import argparse
import math
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TextIO

if sys.flags.safe_path:  # PYTHONSAFEPATH leaves out the folder of this file
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from base.command_line import (
    Parser,
    add_device,
    add_unknown,
    check_combinations,
    main,
    number,
    writing_to,
)
from base.errors import InputError, nearest, printable
from base.jobs.run_directory import Run, find, matching, path_of
from base.processes import keep_freed_memory


def cli(arguments: list[str] | None = None) -> int:
    """Run score.py with `arguments`, by default those of this process, and return the exit status."""
    options = parse(arguments)
    return main(
        "score.py",
        lambda: run(options),
        out_of_memory="the text or the model is too large for this machine",
    )


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse `arguments`, by default those of this process, and return the options."""
    parser = Parser(
        prog="score.py",
        description="Measure how well a trained model predicts a text.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("checkpoint", help="model file, run directory or name of a run")
    add("file", nargs="?", help="text file; - is standard input")
    split = "score a split of the run's text instead of a file; for a sweep or a pattern, score all its runs"
    add("--split", choices=("validation", "test"), help=split)
    add("--compare", metavar="OTHER", help="score a second model or run on the same text")
    window = "context of each character: windows that are disjoint, begin at documents or overlap (strided); default: "
    window += "documents for a list, otherwise disjoint, then strided"
    add("--window", choices=("disjoint", "documents", "strided"), help=window)
    stride = "tokens from the start of one strided window to the next (default: context / 2)"
    add("--stride", type=number(int, 1, 2**20), metavar="N", help=stride)
    context = "context length in tokens (default: the model's)"
    add("--context", type=number(int, 1, 2**20), metavar="N", help=context)
    add(
        "--per-char",
        action="store_true",
        help="print a line of JSON for each character, and the table to stderr",
    )
    add(
        "--html",
        metavar="OUT",
        help="write an HTML page that colours each character by its surprisal",
    )
    documents = "score each document by itself, for a model trained on documents, and list the most surprising ones "
    documents += "first"
    add("--per-document", action="store_true", help=documents)
    add("--csv", metavar="OUT", help="with --per-document: write all documents to a CSV file")
    add("--overwrite", action="store_true", help="replace the output file if it exists")
    add("--encoding", metavar="E", help="encoding of the text file (default utf-8)")
    add_unknown(add, "characters")
    add_device(add)
    # Options may stand between MODEL and FILE.
    return parser.parse_intermixed_args(arguments)


def run(options: argparse.Namespace) -> None:
    """Find the models, check the options, and score the text."""
    path = path_of(options.checkpoint)
    needs_one_run = options.compare or options.per_char or options.html or options.per_document
    is_several = Run(path).is_sweep or not os.path.exists(path)
    if options.split and is_several and not needs_one_run:
        runs = [run for run in matching(options.checkpoint) if run.bpc < math.inf]
        if runs:
            score_trials(sorted(runs, key=lambda run: run.directory), options)
            return
    checkpoints = []
    for key in ("checkpoint", "compare"):
        name = getattr(options, key)
        if name is None:
            continue
        checkpoint = find(name, "model")
        checkpoints.append(checkpoint)
        if Run(path_of(name)).is_sweep:  # the output names the trial that stands for it
            trial = Run(checkpoint.parent.parent).name
            print(f"{printable(name)}: its best trial is {printable(trial)}", file=sys.stderr)
            setattr(options, key, trial)
    check_options(options)
    option = "csv" if options.per_document else "html"
    out = getattr(options, option)
    output: AbstractContextManager[TextIO | None] = nullcontext()
    if out is not None:
        # which the output must not replace; Path(""), the current folder, is not a file
        inputs = [*checkpoints, Path(options.file or "")]
        output = writing_to(out, f"--{option}", inputs, overwrite=options.overwrite)
    keep_freed_memory()  # for the next batch
    with output as file:  # before the slow work, so that a wrong name fails early
        from reports.text_to_score import load_candidates

        candidates = load_candidates(checkpoints, options)
        from reports.scoring import print_scores  # loads torch

        print_scores(candidates, options, file)
    if out is not None:
        print(f"wrote {printable(out)}", file=sys.stderr)


def check_options(options: argparse.Namespace) -> None:
    """Check the options that do not depend on a model; `reports.text_to_score` checks the others."""
    if (options.file is None) == (options.split is None):
        raise InputError(f"{options.checkpoint}: name either a text file or --split to score")
    text = Path(options.file or "")
    if options.file not in (None, "-") and not text.exists():
        others = os.listdir(text.parent) if text.parent.is_dir() else []
        raise InputError(f"{options.file}: no such file{nearest(text.name, others, text.suffix)}")
    if options.stride and options.window not in (None, "strided"):
        raise InputError(
            f"--stride {options.stride}: only works with --window strided, not {options.window}"
        )
    excluded = {
        "per_document": ("window", "compare", "per_char", "html"),
        "split": ("encoding",),  # that of the run
    }
    check_combinations(options, excluded, needed={"csv": "per_document"})


def score_trials(trials: list[Run], options: argparse.Namespace) -> None:
    """Score a split of each run, which adds the loss to its summary.json, and print the table of the runs.

    The sweep.csv of their sweeps is written anew.
    """
    for trial in trials:
        window = options.window
        if window is None and options.stride is None:  # as its validation loss was measured
            window = trial.summary.mode or "disjoint"
        run(argparse.Namespace(**vars(options) | {"checkpoint": str(trial), "window": window}))
    from sweeps.table import as_text, compare_runs, write_csv  # loads Hydra

    for folder in {trial.directory.parent for trial in trials}:
        if Run(folder).is_sweep:
            write_csv(folder, compare_runs(Run(folder).trials))
    print(f"\n{as_text(compare_runs(matching(options.checkpoint)))}")


if __name__ == "__main__":
    sys.exit(cli())
