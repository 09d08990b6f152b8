"""Export a model to another format: `python export.py MODEL --to onnx model.onnx`."""

import argparse
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

if sys.flags.safe_path:  # PYTHONSAFEPATH leaves out the folder of this file
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from base.command_line import Parser, main, output_path
from base.errors import InputError, describe_os_error, printable
from base.files import atomic
from base.jobs.run_directory import find
from base.progress import Progress
from gpt.model_file import read
from gpt.tokenizer import tokenizer_from

# suffix of the file ("": a folder), and how to use it; gpt/export/to_FORMAT.py writes it
FORMATS = {
    "onnx": (".onnx", "onnxruntime.InferenceSession({!r}).run(None, {{'tokens': tokens}})"),
    "hf": ("", "transformers.AutoModelForCausalLM.from_pretrained({!r}, trust_remote_code=True)"),
    "web": (".html", "open {!r} in a browser"),
    "card": (".md", "fill in the licence in {!r}"),
}


def cli(arguments: list[str] | None = None) -> int:
    """Run export.py and return the exit status."""
    options = parse(arguments)
    advice = "an export needs the model in memory more than once; use a machine with more memory"
    return main("export.py", lambda: run(options), out_of_memory=advice)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="export.py",
        usage="export.py MODEL --to FORMAT OUT [--title TEXT] [--guess FILE|validation] [--overwrite]",
        description="Write a model in a format that other programs load.",
        epilog="OUT is NAME.onnx for onnx, NAME.html for web, a folder for hf (transformers), which contains a model "
        "card, too, and NAME.md for card.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("source", metavar="MODEL", help="model file, run directory or name of a run")
    add(
        "--to",
        required=True,
        choices=FORMATS,
        metavar="FORMAT",
        help=f"one of {', '.join(FORMATS)}",
    )
    add("out", metavar="OUT", help="file or folder to write: see below")
    add("--title", help="with --to web: heading and title of the page")
    guess = "with --to web: add a guessing game with passages of FILE or of the run's validation split, which become "
    guess += "readable in the page"
    add("--guess", metavar="FILE|validation", help=guess)
    add(
        "--overwrite",
        action="store_true",
        help="replace the output file if it exists; a folder must be new or empty",
    )
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> None:
    """Check the options, export the model, and print how to load it and what is known about the export."""
    out = Path(options.out)
    suffix, usage = FORMATS[options.to]
    if suffix and out.suffix != suffix:
        raise InputError(f"OUT {out}: must end in {suffix}")
    for option in ("title", "guess"):
        value = getattr(options, option)
        if value is not None and options.to != "web":
            raise InputError(f"--{option} {value}: only works with --to web, not {options.to}")
    model = find(options.source, "model")
    if suffix:
        target = output_path(options.out, "OUT", [model], overwrite=options.overwrite)
    else:
        target = out.resolve()
        if target.is_file() or target.is_dir() and any(target.iterdir()):
            raise InputError(f"OUT {out}: must be a new or empty folder")
    try:
        with atomic(target) as new:
            try:
                # Fails here, before the slow work, if OUT cannot be written.
                if suffix:
                    new.touch()
                else:
                    new.mkdir()
            except OSError as error:
                error.filename = options.out  # instead of the temporary name
                raise InputError(f"OUT {describe_os_error(error)}") from None
            step, *facts = export(options, model, new)
            files = [new] if suffix else new.iterdir()
            size = sum(file.stat().st_size for file in files)
    except ModuleNotFoundError as error:
        raise InputError(
            f"{error.name} is not installed: pip install -c constraints.txt -e '.[export]'"
        ) from None
    amount = f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
    how = usage.format(str(out))
    for line in (f"{out}: {amount}, {step}; use it: {how}", *facts):
        print(printable(line))


def export(options: argparse.Namespace, file: Path, new: Path) -> list[str]:
    """Write the model in `file` to `new`, and return facts to print, the first of them its step."""
    with Progress("loading the model"):
        config, weights, meta = read(file)
        from gpt.checkpoint import build  # loads torch

        model = build(config, weights)
    for_web: dict[str, Any] = {}  # the arguments that only the `write` of to_web.py has
    if options.to == "web":
        for_web["title"] = options.title
    facts = [f"step {meta['step']} of {file}"]
    if options.guess is not None:
        from reports.guessing_game import game_passages  # loads torch

        tokenizer = tokenizer_from(meta["vocabulary"])
        for_web["passages"], fact = game_passages(
            options.guess, file, tokenizer, meta["documents"]
        )
        facts.append(fact)
    with Progress(f"writing {printable(options.out)} and checking it"):
        if options.to != "card":
            fact = import_module(f"gpt.export.to_{options.to}").write(model, meta, new, **for_web)
            if fact:
                facts.append(fact)
        if options.to in ("card", "hf"):
            from reports.card import card

            text = card(model, meta, file, hf=options.to == "hf")
            card_file = new / "README.md" if options.to == "hf" else new
            card_file.write_text(text, encoding="utf-8", newline="\n")
    return facts


if __name__ == "__main__":
    sys.exit(cli())
