"""Write text with a trained model: `python sample.py`, or `python sample.py MODEL --prompt "def "`."""

import argparse
import io
import json
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TextIO

import numpy as np

if sys.flags.safe_path:  # PYTHONSAFEPATH leaves out the folder of this file
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from base.command_line import ABOUT_UNKNOWN, Parser, add_unknown, device, main, number, replace_unknown, writing_to
from base.errors import InputError, for_output, one_line, printable
from base.jobs import run_directory
from base.progress import Progress, count, hidden
from data.novelty import describe, longest_copies, repeats, skipped
from gpt.inference.continuation import Continuation, beginning, readable
from gpt.inference.generate import TEMPERATURE, SamplingParams, generate_many, stream
from gpt.inference.weights import Weights, load_weights
from gpt.tokenizer import Tokenizer, UnknownCharacter, tokenizer_from


def cli(arguments: list[str] | None = None) -> int:
    """Run sample.py and return the exit status."""
    options = make_parser().parse_args(arguments)
    advice = f"lower --num-samples {options.num_samples} or --num-chars {options.num_chars}"
    return main("sample.py", lambda: sample(options), out_of_memory=advice)


def make_parser() -> Parser:
    about = "Write text with a trained model."
    parser = Parser(prog="sample.py", description=about, allow_abbrev=False)
    add = parser.add_argument
    add("checkpoint", nargs="?", help="model file, run directory or name of a run (default: the newest run)")
    add = parser.add_argument_group("prompts").add_argument
    several = "prompt text; repeat the option to continue several prompts in one batch"
    add("--prompt", metavar="TEXT", action="append", default=[], help=several)
    add("--prompt-file", metavar="FILE", action="append", default=[], help="read a prompt from FILE; -: standard input")
    add_unknown(add, "prompt characters")
    add = parser.add_argument_group("sampling").add_argument
    length = "length of each text in characters, or in bytes with a byte model (default 500)"
    add("--num-chars", type=number(int, 1, 10**9), default=500, metavar="N", help=length)
    add("--num-samples", type=number(int, 1, 10**6), default=1, metavar="N", help="texts for each prompt (default 1)")
    heat = f"sampling temperature; 0: always choose the most likely character (default {TEMPERATURE:g})"
    add("--temperature", type=number(float, 0, 1000), default=TEMPERATURE, metavar="T", help=heat)
    add("--top-k", type=number(int, 1, 2**31), metavar="K", help="sample from the K most likely characters")
    nucleus = "nucleus sampling: keep the smallest set of characters with total probability P"
    add("--top-p", type=number(float, 1e-9, 1), default=1.0, metavar="P", help=nucleus)
    relative = "drop characters that are less than P times as probable as the most likely one"
    add("--min-p", type=number(float, 0, 1), default=0.0, metavar="P", help=relative)
    end = r"end the text before TEXT, in which \n is a line break, \t a tab and \\ a backslash; repeat it for several"
    add("--stop", type=unescaped, metavar="TEXT", action="append", default=[], help=end)
    add("--no-stop", action="store_true", help="with a model trained on documents: continue after the end of one")
    add("--seed", type=number(int, 0, 2**63 - 1), metavar="N", help="random seed (default: a new one each time)")
    add = parser.add_argument_group("output").add_argument
    add("--output", metavar="FILE", help="write the texts to FILE")
    add("--overwrite", action="store_true", help="replace the output file if it exists")
    add("--json", action="store_true", help="write each text as a line of JSON")
    copied = "print to stderr each text's longest copy from the training text, and how many documents are new"
    add("--novelty", action="store_true", help=copied)
    add("--interactive", action="store_true", help="ask for prompts in the terminal")
    add("--device", type=device, default="cpu", metavar="D", help="device: cpu, cuda, cuda:1 or mps (default cpu)")
    return parser


def unescaped(text: str) -> str:
    return re.sub(r"\\[nt\\]", lambda found: {"n": "\n", "t": "\t"}.get(found[0][1], "\\"), text)


def sample(options: argparse.Namespace) -> None:
    checkpoint = options.checkpoint = run_directory.find_model(options.checkpoint)
    excluded = [f"--{key}" for key in ("prompt", "prompt_file", "output", "json", "novelty") if getattr(options, key)]
    if options.interactive and excluded:
        raise InputError(f"--interactive: cannot be combined with {excluded[0].replace('_', '-')}")
    if "" in options.stop:
        raise InputError("--stop '': must have at least one character")
    weights, meta = load_weights(checkpoint, options.device)
    tokenizer = tokenizer_from(meta["vocabulary"])
    documents = meta["documents"] or {"kind": "", "end": ""}
    options.document, options.end = "line" if documents["kind"] == "line" else "document", documents["end"]
    if options.interactive:
        keys = "Enter continues a prompt, Ctrl-C stops a text, Ctrl-D ends"
        print(f"{printable(checkpoint)}, step {meta['step']}; {keys}", file=sys.stderr)
        return converse(weights, tokenizer, options)
    # As in training, a character model reads every line end as LF; a byte model reads the bytes unchanged.
    newline = "" if tokenizer.unit == "byte" else None
    prompts = options.prompt + [read_prompt(name, newline) for name in options.prompt_file]
    if not prompts and not stat.S_ISCHR(os.fstat(0).st_mode):
        print("standard input is not read; --prompt-file - uses it as the prompt", file=sys.stderr)
    prompts = [adapt(prompt, options.unknown, tokenizer) for prompt in prompts]
    if "" in prompts:
        raise InputError("--prompt: a prompt is empty, or none of its characters is in the vocabulary")
    trained = training_text(checkpoint, tokenizer) if options.novelty else None
    if options.seed is None:
        options.seed = secrets.randbits(32)
    output: AbstractContextManager[TextIO] = nullcontext(sys.stdout)
    if options.output is not None:
        files = [checkpoint, *map(Path, options.prompt_file)]
        output = writing_to(options.output, "--output", files, overwrite=options.overwrite)
    with output as out:
        print(f"{printable(checkpoint)}, step {meta['step']}, --seed {options.seed}", file=sys.stderr)
        rows = [(prompt, options.seed + number) for prompt in prompts or [""] for number in range(options.num_samples)]
        texts = write(weights, tokenizer, rows, options, out)
    if trained is not None:
        report_novelty(rows, texts, trained, tokenizer, options)


def training_text(checkpoint: Path, tokenizer: Tokenizer) -> np.ndarray | None:
    """Return the tokens of the training text of a model's run, (N,), or None (and print why) if there are too many."""
    from data.text import text_of_run  # needs a quarter of the start-up time

    if not checkpoint.with_name("last.ckpt").is_file():
        raise InputError(f"--novelty: {printable(checkpoint)} is not in a run directory: its training text is unknown")
    try:
        trained = text_of_run(checkpoint).train
    except InputError as error:
        raise InputError(f"--novelty: the training text cannot be read: {error}") from None
    if reason := skipped(trained, tokenizer.unit):
        print(reason, file=sys.stderr)
    return None if reason else trained


def read_prompt(name: str, newline: str | None) -> str:
    """Return the UTF-8 text of a file or, if `name` is `-`, of standard input; `newline` as in `io.TextIOWrapper`."""
    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        text = io.TextIOWrapper(io.BytesIO(raw), "utf-8-sig", newline=newline).read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"is not UTF-8: {error}"
        raise InputError(f"--prompt-file {name}: {one_line(reason)}") from None
    if not text:
        raise InputError(f"--prompt-file {name}: is empty, must have at least one character")
    return text


def adapt(prompt: str, unknown: str, tokenizer: Tokenizer) -> str:
    """Refuse, skip or replace characters outside the vocabulary, as `unknown` says, and print what was changed."""
    if unknown != "error":
        return replace_unknown([tokenizer.canonical(prompt)], [tokenizer], unknown)[0]
    try:
        tokenizer.encode(prompt)
    except UnknownCharacter as error:
        raise InputError(f"{error}; {ABOUT_UNKNOWN}") from None
    return prompt


def continuations(
    weights: Weights, prompts: list[np.ndarray], seeds: list[int], tokenizer: Tokenizer, options: argparse.Namespace
) -> Iterator[list[Continuation]]:
    """Continue all `prompts` in one batch, and yield the continuations so far after each token."""
    params = SamplingParams(options.temperature, options.top_k, options.top_p, options.min_p)
    stops = options.stop + ([options.end] if options.end and not options.no_stop else [])
    written = [Continuation(tokenizer, stops) for _ in prompts]
    for tokens in stream(weights, prompts, options.num_chars, params, seeds):
        for text, token in zip(written, tokens.tolist(), strict=True):
            if not text.ended:
                text.add(token)
        yield written
        if all(text.ended for text in written):
            break
    for text in written:
        text.close()
    yield written


def write(
    weights: Weights, tokenizer: Tokenizer, rows: list[tuple[str, int]], options: argparse.Namespace, out: TextIO
) -> list[Continuation]:
    """Continue the prompts and seeds `rows`; write a single text while it grows, several when each is complete."""
    encoded = [tokenizer.encode(begun(prompt, tokenizer, options)) for prompt, _ in rows]

    def work(part: slice) -> Iterator[list[Continuation]]:
        return continuations(weights, encoded[part], [seed for _, seed in rows[part]], tokenizer, options)

    if len(rows) == 1 and not options.json:
        text = show(rows[0][0], work(slice(1)), options.end, out)
        out.write("\n")
        out.flush()
        return [text]
    separated = options.document != "line" or options.no_stop  # otherwise each text is one line
    texts: list[Continuation] = []
    with Progress("writing", len(rows) * options.num_chars) as bar:
        for part in generate_many(work, len(rows), weights, bar.update):
            for text in part:
                prompt, seed = rows[len(texts)]
                texts.append(text)
                if options.json:
                    line = {"prompt": prompt, "text": text.text, "seed": seed, "checkpoint": str(options.checkpoint)}
                    line |= {"ended": options.end in text.stopped_by or options.end in text.text} if options.end else {}
                    shown = json.dumps(line)
                else:
                    heading = f"--- {len(texts)}\n" if separated else ""
                    shown = for_output(heading + readable(prompt + text.text, options.end), out)
                with hidden():
                    out.write(shown + "\n")
                    out.flush()
    cut = sum(not text.stopped_by for text in texts)
    if cut and options.end and not options.no_stop:
        reached = f"reached --num-chars {options.num_chars} before the end of a {options.document}"
        print(f"{cut:,} of {count(len(rows), 'text')} {reached}", file=sys.stderr)
    return texts


def begun(prompt: str, tokenizer: Tokenizer, options: argparse.Namespace) -> str:
    return options.end + prompt if options.end else prompt or beginning(tokenizer, "")


def report_novelty(
    rows: list[tuple[str, int]], texts: list[Continuation], trained: np.ndarray, tokenizer: Tokenizer,
    options: argparse.Namespace,
) -> None:  # fmt: skip
    """Print each text's longest copy from the tokens `trained`, and how many complete documents are not among them."""
    tokens = [tokenizer.encode(text.text) for text in texts]
    for index, (own, copy) in enumerate(zip(tokens, longest_copies(tokens, trained), strict=True), start=1):
        print((f"{index}: " if len(rows) > 1 else "") + describe(copy, own, tokenizer), file=sys.stderr)
    if options.end and not options.no_stop:
        whole = [
            prompt + text.text for (prompt, _), text in zip(rows, texts, strict=True) if options.end in text.stopped_by
        ]
        documents = [tokenizer.encode(each) for text in whole if (each := text.rpartition(options.end)[2]).strip()]
        new = repeats(documents, trained, tokenizer.encode(options.end)).count(False)
        what = count(len(documents), f"complete {options.document}")
        print(f"{new:,} of {what} {'is' if new == 1 else 'are'} new", file=sys.stderr)


def show(prompt: str, texts: Iterator[list[Continuation]], end: str, out: TextIO) -> Continuation:
    """Print `prompt` and its continuation as it grows, and return the continuation."""
    out.write(for_output(readable(prompt, end), out))
    out.flush()
    printed = 0  # pieces of the text
    for (text,) in texts:
        if new := "".join(text.pieces[printed:]):
            out.write(for_output(readable(new, end), out))
            out.flush()
        printed = len(text.pieces)
    return text


def converse(weights: Weights, tokenizer: Tokenizer, options: argparse.Namespace) -> None:
    with suppress(ImportError):
        import readline  # noqa: F401 - adds history and line editing to input()
    while True:
        try:
            if not (prompt := adapt(input("> "), options.unknown, tokenizer)):
                continue
            seed = secrets.randbits(32) if options.seed is None else options.seed
            given = tokenizer.encode(begun(prompt, tokenizer, options))
            texts = continuations(weights, [given], [seed], tokenizer, options)
            show(prompt, texts, options.end, sys.stdout)
            print(f"\n[seed {seed}]")
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
        except InputError as error:
            print(error)


if __name__ == "__main__":
    sys.exit(cli())
