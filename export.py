"""Export a model to another format: `python export.py MODEL --to onnx model.onnx`."""

import argparse
import os
import re
import sys
from pathlib import Path
from typing import Any

from base import run_directory
from base.command_line import Parser, add_overwrite, answer, output_path
from base.errors import InputError, describe_os_error, printable
from base.files import atomic
from base.progress import Progress
from gpt.export.formats import FORMATS, load_writer


def cli(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    options = parse(arguments)
    advice = "an export needs the model in memory more than once; use a machine with more memory"
    return answer("export.py", lambda: run(options), out_of_memory=advice)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(
        prog="export.py",
        usage="export.py MODEL --to FORMAT OUT [--guess FILE|validation] [--overwrite]",
        description="Write a model in a format that other programs load.",
        epilog="OUT is NAME.onnx for onnx, NAME.pt2 for torch (torch.export), NAME.html for web, a new folder for hf "
        "(transformers).",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("source", metavar="MODEL", help="model file, run directory or name of a run")
    add("--to", required=True, choices=FORMATS, metavar="FORMAT", help=f"one of {', '.join(FORMATS)}")
    add("out", metavar="OUT", help="file or folder to write, see below")
    guess = "with --to web: add a game; visitors guess, and can read, text of FILE or of the run's validation split"
    add("--guess", metavar="FILE|validation", help=guess)
    add_overwrite(add)
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> None:
    """Check the options, export the model and print one line: file, size, and how to load it."""
    out = Path(options.out)
    suffix, _, usage = FORMATS[options.to]
    if options.overwrite and not suffix:
        raise InputError(f"--overwrite: is for a file; --to {options.to} writes a new folder")
    if out.suffix != suffix and suffix:
        raise InputError(f"OUT {out}: must end in {suffix}")
    if options.guess is not None and options.to != "web":
        raise InputError(f"--guess {options.guess}: is for --to web, not {options.to}")
    file = run_directory.find_model(options.source)
    target = out
    if suffix:
        target = output_path(options.out, "OUT", [file], overwrite=options.overwrite)
    elif os.path.lexists(out):
        raise InputError(f"OUT {out}: exists; --to {options.to} needs the name of a new folder")
    if not out.parent.is_dir():
        raise InputError(f"OUT {out}: no such folder: {out.parent}")

    try:
        with atomic(target) as new:
            try:
                (new.touch if suffix else new.mkdir)()  # fails here, before the slow work, if the folder is read-only
            except OSError as error:
                error.filename = options.out
                raise InputError(f"OUT {describe_os_error(error)}") from None
            note = export(options, file, new)
            size = sum(file.stat().st_size for file in (new, *new.rglob("*")) if file.is_file())
    except ModuleNotFoundError as error:
        raise InputError(f"{error.name} is not installed: pip install -c constraints.txt -e '.[export]'") from None
    print(printable(f"{out}: {size / 1e6:.1f} MB, {note}; use it: {usage.format(str(out))}"))


def export(options: argparse.Namespace, file: Path, new: Path) -> str:
    """Write the model `file` to `new` in the other format and check it; return what the last line says about it."""
    with Progress("loading the model"):
        from gpt.checkpoint import load_checkpoint

        model, meta = load_checkpoint(file)
        write = load_writer(options.to)
    game, note = {}, f"step {meta['step']} of {file}"
    if options.guess is not None:
        game["passages"], said = passages(options.guess, file, meta["vocabulary"], model.config.context)
        note += f", {said}"
    with Progress(f"writing {printable(options.out)} and checking it"):
        difference = write(model, meta, new, **game)
    return note if difference is None else f"{note}, logits differ by at most {difference:.1g} of the largest"


def passages(source: str, file: Path, vocabulary: dict[str, Any], context: int) -> tuple[list[str], str]:
    """Choose the passages of the guessing game; return them, and what the last line says about them.

    A passage has only characters of the vocabulary and does not occur in the text that the model was trained on.
    """
    from data.config import DataConfig
    from data.open_text import open_text
    from data.passages import TO_GUESS, to_guess
    from data.sources import is_remote, open_corpus
    from gpt import checkpoint

    if vocabulary["kind"] == "byte":
        return [], "no game, because the model reads bytes"
    unchecked = ""
    try:
        saved = checkpoint.read(file.with_name("last.ckpt"))["data"]
        config = DataConfig(**{key: saved[key] for key in DataConfig.__dataclass_fields__})
        text = None if is_remote(config.path) else open_text(config, context, saved["known"])
        if text is None or text.fingerprint != saved["fingerprint"]:
            raise InputError(f"{saved['name']}: has changed since the run, or is not on this machine")
        trained, guessed = (text.tokenizer.decode(tokens) for tokens in (text.train[:], text.validation))
    except InputError as error:
        if source == "validation":
            raise InputError(f"--guess validation: {error}; name a text file instead") from None
        trained, unchecked = "", f", not compared with the training text ({error})"
    if source != "validation":
        try:
            corpus = open_corpus(DataConfig(path=source))
            texts = ["".join(map(str, corpus.read(document))) for document in corpus.documents]
        except InputError as error:  # leave out its advice, which names options of train.py
            said = re.sub(r"^data\.path=.*?: |; (data\.tokenizer|name its encoding).*", "", str(error))
            raise InputError(f"--guess {source}: {said}") from None
        guessed = "\n".join(["", *texts])
    if found := to_guess(guessed, trained, vocabulary["characters"]):
        number = f"{len(found)} passage{'s' * (len(found) > 1)} of {source} to guess"
        return found, f"{number}, which whoever has the page can read{unchecked}"
    advice = "name a text file instead" if source == "validation" else "name another text"
    wanted = f"{TO_GUESS} characters from the beginning of a line, all in the vocabulary and not in the training text"
    raise InputError(f"--guess {source}: has no {wanted}; {advice}")


if __name__ == "__main__":
    sys.exit(cli())
