"""Take a model elsewhere: `python export.py CHECKPOINT --to onnx model.onnx`, and back from safetensors."""

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from conf.commandline import Parser, answer
from conf.fields import InputError, printable
from conf.progress import Progress
from gpt import runs

# For each format, which gpt/export/ has a module for, the end of its file's name (none: a folder), and a use of it.
FORMATS = {
    "safetensors": (".safetensors", "safetensors.torch.load_file({!r})"),
    "onnx": (".onnx", "onnxruntime.InferenceSession({!r}).run(None, {{'tokens': tokens}})"),
    "torch": (".pt2", "torch.export.load({!r}).module()(tokens)"),
    "hf": ("", "transformers.AutoModelForCausalLM.from_pretrained({!r})"),
    "web": (".html", "open {!r} in a browser"),
}


def cli(arguments: list[str] | None = None) -> int:
    """Run from the command line; what a person typed wrong is answered in one line with exit status 2."""
    options = parse(arguments)
    several = "the model is in memory more than once while it is written and checked; use a machine with more"
    return answer("export.py", lambda: work(options), out_of_memory=several)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(
        prog="export.py",
        usage="export.py CHECKPOINT --to FORMAT OUT\n       export.py NAME.safetensors --from safetensors OUT.ckpt",
        description="Write a model in a format that other programs load. Nothing that exists is written over.",
        epilog="safetensors: NAME.safetensors has the weights, NAME.json beside it the model's shape and vocabulary; "
        "onnx: NAME.onnx; torch: NAME.pt2, of torch.export; hf: a new folder for the library transformers; "
        "web: NAME.html, one page for any browser.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("source", metavar="CHECKPOINT", help="checkpoint, run directory or name of a run")
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--to", choices=FORMATS, metavar="FORMAT", help=f"one of {', '.join(FORMATS)}")
    way.add_argument("--from", choices=["safetensors"], metavar="FORMAT", dest="origin", help="back from safetensors")
    add("out", metavar="OUT", help="what to write: a file that ends as the format's do, a folder for hf")
    return parser.parse_args(arguments)


def work(options: argparse.Namespace) -> None:
    """Export or bring back, and say in one line what was written."""
    out = Path(options.out)
    suffix, use = FORMATS[options.to] if options.to else (".ckpt", "python sample.py {!r}")
    if out.suffix != suffix and suffix:
        raise InputError(f"OUT {out}: must end in {suffix}")
    for path in (out, out.with_suffix(".json")) if options.to == "safetensors" else (out,):
        if os.path.lexists(path):
            raise InputError(f"OUT {path}: exists; give another name or remove it first")
    if not out.parent.is_dir():
        raise InputError(f"OUT {out}: there is no folder {out.parent}")

    try:
        with unfinished(out) as new:
            note = export(options, new) if options.to else bring_back(options, new)
            size = sum(file.stat().st_size for file in new.parent.rglob("*") if file.is_file())
    except ModuleNotFoundError as error:
        raise InputError(f"{error.name} is not installed: pip install -c constraints.txt -e '.[export]'") from None
    print(f"{out}: {size / 1e6:.1f} MB, {note}; use it: {use.format(str(out))}")


@contextmanager
def unfinished(out: Path) -> Iterator[Path]:
    """Where to write what shall become `out`, and files beside it: they take their names when all is well."""
    folder = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    folder.mkdir()
    try:
        yield folder / out.name
        for made in folder.iterdir():
            made.rename(out.with_name(made.name))
    finally:
        shutil.rmtree(folder)


def export(options: argparse.Namespace, new: Path) -> str:
    """Write a checkpoint in another format, and say what is in it."""
    checkpoint = runs.find_checkpoint(options.source)
    with Progress("loading the model"):
        from gpt.checkpoint import load_checkpoint

        model, meta = load_checkpoint(checkpoint)
        write = getattr(import_module(f"gpt.export.{options.to}"), f"write_{options.to}")
    with Progress(f"writing {printable(new.name)} and checking it"):
        difference = write(model, meta, new)
    note = f"step {meta['global_step']} of {checkpoint}"
    return note if difference is None else f"{note}, logits differ by at most {difference:.1g} of the largest"


def bring_back(options: argparse.Namespace, new: Path) -> str:
    """Write a checkpoint of what `--to safetensors` wrote, and say what is in it."""
    from gpt.archive import PREFIX
    from gpt.checkpoint import save
    from gpt.export.safetensors import read_safetensors

    model, meta = read_safetensors(Path(options.source))
    save(new, {**meta, "state_dict": {PREFIX + key: value for key, value in model.state_dict().items()}})
    return f"step {meta['global_step']} of {options.source}"


if __name__ == "__main__":
    sys.exit(cli())
