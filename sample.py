"""Write text with a trained model: `python sample.py`, or `python sample.py MODEL --prompt "def "`."""

import argparse
import io
import os
import secrets
import stat
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TextIO

import numpy as np

if sys.flags.safe_path:  # PYTHONSAFEPATH leaves out the folder of this file
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from base.command_line import (
    ABOUT_UNKNOWN,
    Parser,
    add_device,
    add_unknown,
    check_combinations,
    main,
    number,
    replace_unknown,
    writing_to,
)
from base.errors import InputError, printable
from base.jobs.run_directory import find
from base.options import unescaped
from data.novelty import skipped
from gpt.inference.generate import TEMPERATURE
from gpt.inference.weights import load_weights
from gpt.tokenizer import Tokenizer, UnknownCharacter, tokenizer_from
from reports.sampling import TRIES, Sampler


def cli(arguments: list[str] | None = None) -> int:
    """Run sample.py and return the exit status."""
    options = make_parser().parse_args(arguments)
    advice = f"lower --num-samples {options.num_samples} or --num-chars {options.num_chars}"
    return main("sample.py", lambda: sample(options), out_of_memory=advice)


def make_parser() -> Parser:
    about = "Write text with a trained model."
    parser = Parser(prog="sample.py", description=about, allow_abbrev=False)
    add = parser.add_argument
    add(
        "checkpoint",
        nargs="?",
        help="model file, run directory or name of a run (default: the newest run)",
    )
    add = parser.add_argument_group("prompts").add_argument
    several = "prompt text; repeat the option to continue several prompts in one batch"
    add("--prompt", metavar="TEXT", action="append", default=[], help=several)
    from_file = "read a prompt, or one for each document of a model of documents, from FILE; -: standard input"
    add("--prompt-file", metavar="FILE", action="append", default=[], help=from_file)
    add_unknown(add, "prompt characters")
    add = parser.add_argument_group("sampling").add_argument
    length = "length of each text in characters, or in bytes with a byte model (default 500)"
    add("--num-chars", type=number(int, 1, 10**9), default=500, metavar="N", help=length)
    add(
        "--num-samples",
        type=number(int, 1, 10**6),
        default=1,
        metavar="N",
        help="texts for each prompt (default 1)",
    )
    heat = f"sampling temperature; 0: always choose the most likely character (default {TEMPERATURE:g})"
    add("--temperature", type=number(float, 0, 1000), default=TEMPERATURE, metavar="T", help=heat)
    add(
        "--top-k",
        type=number(int, 1, 2**31),
        metavar="K",
        help="sample from the K most likely characters",
    )
    nucleus = "nucleus sampling: keep the smallest set of characters with total probability P"
    add("--top-p", type=number(float, 1e-9, 1), default=1.0, metavar="P", help=nucleus)
    relative = "drop characters that are less than P times as probable as the most likely one"
    add("--min-p", type=number(float, 0, 1), default=0.0, metavar="P", help=relative)
    end = r"end the text before TEXT, in which \n is a line break, \t a tab and \\ a backslash; repeat it for several"
    end += "; if TEXT begins in the prompt, nothing is written after the prompt"
    add("--stop", type=unescaped, metavar="TEXT", action="append", default=[], help=end)
    add(
        "--keep-stop",
        action="store_true",
        help="write the TEXT of --stop, too, where it ends the text",
    )
    add(
        "--no-stop",
        action="store_true",
        help="with a model trained on documents: continue after the end of one",
    )
    add(
        "--seed",
        type=number(int, 0, 2**63 - 1),
        metavar="N",
        help="random seed (default: a new one each time)",
    )
    add = parser.add_argument_group("output").add_argument
    add("--output", metavar="FILE", help="write the texts to FILE")
    add("--overwrite", action="store_true", help="replace the output file if it exists")
    add("--json", action="store_true", help="write each text as a line of JSON")
    copied = (
        "print to stderr the longest copies from the training text, and how many documents are new"
    )
    add("--novelty", action="store_true", help=copied)
    new = f"write only documents that are new and differ, of at most {TRIES} times --num-samples"
    add("--new", action="store_true", help=new)
    add("--interactive", action="store_true", help="ask for prompts in the terminal")
    add_device(add)
    return parser


def sample(options: argparse.Namespace) -> None:
    options.checkpoint = find(options.checkpoint, "model")
    check_options(options)
    weights, meta = load_weights(options.checkpoint, options.device)
    tokenizer = tokenizer_from(meta["vocabulary"])
    documents = meta["documents"] or {"kind": "", "end": ""}
    document = "line" if documents["kind"] == "line" else "document"
    checkpoint = printable(options.checkpoint)
    if options.new and not documents["end"]:
        raise InputError(
            f"--new: {checkpoint} was not trained on documents (data.documents, data.field)"
        )
    prompts = []
    if not options.interactive:
        prompts = all_prompts(options, tokenizer, meta["documents"])
    trained = np.empty(0, tokenizer.dtype)
    if options.new or options.novelty:
        from data.text import text_of_run  # needs a quarter of the start-up time

        try:
            trained = text_of_run(options.checkpoint).train
            reason = skipped(trained, tokenizer.unit)
            if reason:
                raise InputError(reason)
        except InputError as error:
            option = "--new" if options.new else "--novelty"
            raise InputError(f"{option}: {error}") from None
    sampler = Sampler(weights, tokenizer, options, document, documents["end"], trained)
    if options.interactive:
        keys = "Enter continues a prompt, Ctrl-C stops a text, Ctrl-D ends"
        print(f"{checkpoint}, step {meta['step']}; {keys}", file=sys.stderr)
        converse(sampler)
        return
    if options.seed is None:
        options.seed = secrets.randbits(32)
    output: AbstractContextManager[TextIO] = nullcontext(sys.stdout)
    if options.output is not None:
        inputs = [options.checkpoint, *map(Path, options.prompt_file)]
        output = writing_to(options.output, "--output", inputs, overwrite=options.overwrite)
    rows: list[tuple[str, int]] = []
    for prompt in prompts:
        rows += [(prompt, options.seed + number) for number in range(options.num_samples)]
    with output as out:
        print(f"{checkpoint}, step {meta['step']}, --seed {options.seed}", file=sys.stderr)
        compared = sampler.write(rows, out)
    if options.output:
        print(f"wrote {printable(options.output)}", file=sys.stderr)
    if compared:  # with `--novelty`
        sampler.print_novelty(compared)


def check_options(options: argparse.Namespace) -> None:
    """Refuse options that cannot be combined."""
    check_combinations(
        options,
        excluded={
            "interactive": ("prompt", "prompt_file", "output", "json", "novelty", "new"),
            "new": ("no_stop",),
        },
        needed={"keep_stop": "stop"},
    )
    if "" in options.stop:
        raise InputError("--stop '': must have at least one character")


def all_prompts(
    options: argparse.Namespace, tokenizer: Tokenizer, documents: dict[str, str] | None
) -> list[str]:
    prompts = list(options.prompt)
    for name in options.prompt_file:
        prompts += read_prompts(name, tokenizer, documents)
    # A character device is a terminal or /dev/null: nothing was piped in.
    if not prompts and not stat.S_ISCHR(os.fstat(0).st_mode):
        print("standard input is not read; --prompt-file - uses it as the prompt", file=sys.stderr)
    prompts = adapt(prompts, options.unknown, tokenizer)
    if "" in prompts:
        raise InputError(
            "--prompt: a prompt is empty, or none of its characters is in the vocabulary"
        )
    return prompts or [""]


def read_prompts(
    name: str, tokenizer: Tokenizer, rule_of_training: dict[str, str] | None
) -> list[str]:
    """Return the prompts in a UTF-8 file, which may be compressed, or, if `name` is `-`, in standard input.

    If the training text was divided, so is the file; otherwise it is one prompt.
    """
    # needs a tenth of the start-up time
    from data.divide import DocumentRule, parts
    from reports.text_to_score import open_file

    # As in training, a byte model reads bytes, each of which is a character here.
    encoding = None if tokenizer.unit == "byte" else "utf-8"
    rule = DocumentRule(**rule_of_training) if rule_of_training else None
    # A prompt in a file that is not a table is the beginning of one row.
    if rule and rule.kind == "row" and not rule.divides(name):
        rule = None
    try:
        with open_file(name, name) as (file, label):
            texts = [text for _, text in parts(file, label, rule, encoding)]
        if encoding is None:
            texts = [text.encode("latin-1").decode("utf-8-sig") for text in texts]
    except UnicodeDecodeError as error:
        raise InputError(f"--prompt-file {name}: {error}") from None
    except InputError as error:
        raise InputError(f"--prompt-file {error.reason}") from None
    if not any(texts):
        raise InputError(
            f"--prompt-file {name}: is empty or blank, must have at least one character"
        )
    return texts


def adapt(prompts: list[str], unknown: str, tokenizer: Tokenizer) -> list[str]:
    """Refuse, skip or replace characters outside the vocabulary, as `unknown` says, and print what was changed."""
    if unknown != "error":
        return replace_unknown(
            [tokenizer.canonical(prompt) for prompt in prompts], [tokenizer], unknown
        )
    for prompt in prompts:
        try:
            tokenizer.encode(prompt)
        except UnknownCharacter as error:
            raise InputError(f"{error}; {ABOUT_UNKNOWN}") from None
    return prompts


def converse(sampler: Sampler) -> None:
    """Ask for prompts in the terminal and continue each, until the input ends (Ctrl-D)."""
    options = sampler.options
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # then such a character is refused in a line
    with suppress(ImportError):
        import readline  # noqa: F401 - adds history and line editing to input()
    while True:
        try:
            (prompt,) = adapt([input("> ")], options.unknown, sampler.tokenizer)
            if not prompt:
                continue
            seed = secrets.randbits(32) if options.seed is None else options.seed
            sampler.show(prompt, seed, sys.stdout)
            print(f"[seed {seed}]")
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
        except InputError as error:
            print(error)


if __name__ == "__main__":
    sys.exit(cli())
