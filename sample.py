"""Write text with a trained model: `python sample.py`, or `python sample.py MODEL --prompt "def "`."""

import argparse
import io
import json
import os
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np

if sys.flags.safe_path:  # PYTHONSAFEPATH leaves out the folder of this file
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from base.command_line import ABOUT_UNKNOWN, Parser, add_unknown, device, main, number, replace_unknown, writing_to
from base.errors import InputError, for_output, one_line, printable
from base.jobs import run_directory
from base.options import unescaped
from base.progress import Progress, count, hidden
from data.novelty import Copy, describe, longest_copies, repeats, skipped
from gpt.inference.continuation import Continuation, beginning, readable
from gpt.inference.generate import TEMPERATURE, SamplingParams, generate_many, stream
from gpt.inference.weights import Weights, load_weights
from gpt.tokenizer import Tokenizer, UnknownCharacter, tokenizer_from

LISTED = 20  # texts whose longest copies are printed one by one
TRIES = 3  # texts that --new tries for each one that it should write


class Sample(NamedTuple):
    prompt: str
    seed: int
    text: Continuation

    def document(self, end: str) -> str:
        """Return the document that `end` completes, or "" if the text is not complete or blank."""
        if not end or end not in self.text.stopped_by:
            return ""
        document = (self.prompt + self.text.text).rpartition(end)[2]
        return document if document.strip() else ""


class Novelty(NamedTuple):
    tokens: np.ndarray  # of the text, (n,)
    copy: Copy  # the longest one
    new: bool | None  # whether the training text lacks the document; None unless it is complete


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
    from_file = "read a prompt, or one for each document of a model of documents, from FILE; -: standard input"
    add("--prompt-file", metavar="FILE", action="append", default=[], help=from_file)
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
    copied = "print to stderr the longest copies from the training text, and how many documents are new"
    add("--novelty", action="store_true", help=copied)
    new = f"write only documents that are new and differ, of at most {TRIES} times --num-samples"
    add("--new", action="store_true", help=new)
    add("--interactive", action="store_true", help="ask for prompts in the terminal")
    add("--device", type=device, default="cpu", metavar="D", help="device: cpu, cuda, cuda:1 or mps (default cpu)")
    return parser


def sample(options: argparse.Namespace) -> None:
    checkpoint = options.checkpoint = run_directory.find_model(options.checkpoint)
    alone = ("prompt", "prompt_file", "output", "json", "novelty", "new")
    excluded = [f"--{key}" for key in alone if getattr(options, key)]
    if options.interactive and excluded:
        raise InputError(f"--interactive: cannot be combined with {excluded[0].replace('_', '-')}")
    if options.new and options.no_stop:
        raise InputError("--new: cannot be combined with --no-stop")
    if "" in options.stop:
        raise InputError("--stop '': must have at least one character")
    weights, meta = load_weights(checkpoint, options.device)
    tokenizer = tokenizer_from(meta["vocabulary"])
    documents = meta["documents"] or {"kind": "", "end": ""}
    options.document, options.end = "line" if documents["kind"] == "line" else "document", documents["end"]
    if options.new and not options.end:
        why = "was not trained on documents (data.documents, data.field)"
        raise InputError(f"--new: {printable(checkpoint)} {why}")
    if options.interactive:
        keys = "Enter continues a prompt, Ctrl-C stops a text, Ctrl-D ends"
        print(f"{printable(checkpoint)}, step {meta['step']}; {keys}", file=sys.stderr)
        return converse(weights, tokenizer, options)
    prompts = list(options.prompt)
    for name in options.prompt_file:
        prompts += read_prompts(name, tokenizer, meta["documents"])
    if not prompts and not stat.S_ISCHR(os.fstat(0).st_mode):
        print("standard input is not read; --prompt-file - uses it as the prompt", file=sys.stderr)
    prompts = adapt(prompts, options.unknown, tokenizer)
    if "" in prompts:
        raise InputError("--prompt: a prompt is empty, or none of its characters is in the vocabulary")
    trained = training_text(checkpoint, tokenizer, options) if options.new or options.novelty else None
    if options.seed is None:
        options.seed = secrets.randbits(32)
    novelties: list[Novelty] = []
    output: AbstractContextManager[TextIO] = nullcontext(sys.stdout)
    if options.output is not None:
        files = [checkpoint, *map(Path, options.prompt_file)]
        output = writing_to(options.output, "--output", files, overwrite=options.overwrite)
    with output as out:
        print(f"{printable(checkpoint)}, step {meta['step']}, --seed {options.seed}", file=sys.stderr)
        rows = [(prompt, options.seed + number) for prompt in prompts or [""] for number in range(options.num_samples)]
        if len(rows) == 1 and not options.json and not options.new:
            samples: Iterable[Sample] = [write_one(weights, tokenizer, rows[0], options, out)]
        else:
            if options.new and trained is not None:
                samples = new_documents(weights, tokenizer, rows, trained, options)
            else:
                samples = generated(weights, tokenizer, rows, options)
            if options.json and options.novelty and trained is not None:  # each line has its novelty
                samples = list(samples)
                novelties = novelties_of(samples, trained, tokenizer, options)
            samples = write(samples, novelties, options, out)
    if options.novelty and trained is not None:
        report_novelty(novelties or novelties_of(samples, trained, tokenizer, options), tokenizer, options)


def training_text(checkpoint: Path, tokenizer: Tokenizer, options: argparse.Namespace) -> np.ndarray | None:
    """Return the tokens of the training text of a model's run, (N,), or None (and print why) if there are too many."""
    from data.text import text_of_run  # needs a quarter of the start-up time

    option = "--new" if options.new else "--novelty"
    if not run_directory.Run(checkpoint.resolve().parent.parent).config.is_file():
        raise InputError(f"{option}: {printable(checkpoint)} is not in a run directory: its training text is unknown")
    try:
        trained = text_of_run(checkpoint).train
    except InputError as error:
        raise InputError(f"{option}: the training text cannot be read: {error}") from None
    reason = skipped(trained, tokenizer.unit)
    if reason and options.new:
        raise InputError(f"--new: {reason}")
    if reason:
        print(f"longest copy: skipped, because {reason}", file=sys.stderr)
        return None
    return trained


def read_prompts(name: str, tokenizer: Tokenizer, documents: dict[str, str] | None) -> list[str]:
    """Return the prompts in a UTF-8 file or, if `name` is `-`, in standard input.

    A file of `documents` is divided as the training text was; any other file is one prompt.
    """
    # As in training, a character model reads every line end as LF; a byte model reads the bytes unchanged.
    newline = "" if tokenizer.unit == "byte" else None
    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        text = io.TextIOWrapper(io.BytesIO(raw), "utf-8-sig", newline=newline).read()
        if tokenizer.unit == "character":
            text = text.replace("\ufeff", "")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"is not UTF-8: {error}"
        raise InputError(f"--prompt-file {name}: {one_line(reason)}") from None
    if not text:
        raise InputError(f"--prompt-file {name}: is empty, must have at least one character")
    if documents is None:
        return [text]
    from data.documents import DocumentRule, divide, is_divided  # needs a tenth of the start-up time

    rule = DocumentRule(**documents)
    if rule.kind == "row" and not is_divided(rule, name):  # the beginning of a row, which is not in a table
        return [text]
    pairs = divide(text.encode() if tokenizer.unit == "byte" else text, rule, name)
    if not pairs:
        raise InputError(f"--prompt-file {name}: has only whitespace, which is not a document")
    return [prompt if isinstance(prompt, str) else prompt.decode() for _, prompt in pairs]


def adapt(prompts: Sequence[str], unknown: str, tokenizer: Tokenizer) -> list[str]:
    """Refuse, skip or replace characters outside the vocabulary, as `unknown` says, and print what was changed."""
    if unknown != "error":
        return replace_unknown([tokenizer.canonical(prompt) for prompt in prompts], [tokenizer], unknown)
    for prompt in prompts:
        try:
            tokenizer.encode(prompt)
        except UnknownCharacter as error:
            where = f"prompt {one_line(prompt)[:40]!r}: " if len(prompts) > 1 else ""
            raise InputError(f"{where}{error}; {ABOUT_UNKNOWN}") from None
    return list(prompts)


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


def generated(
    weights: Weights, tokenizer: Tokenizer, rows: list[tuple[str, int]], options: argparse.Namespace
) -> Iterator[Sample]:
    encoded = [tokenizer.encode(begun(prompt, tokenizer, options)) for prompt, _ in rows]

    def work(part: slice) -> Iterator[list[Continuation]]:
        return continuations(weights, encoded[part], [seed for _, seed in rows[part]], tokenizer, options)

    remaining = iter(rows)
    with Progress("writing", len(rows) * options.num_chars) as bar:
        for part in generate_many(work, len(rows), weights, bar.update):
            for text in part:
                prompt, seed = next(remaining)
                yield Sample(prompt, seed, text)


def new_documents(
    weights: Weights, tokenizer: Tokenizer, rows: list[tuple[str, int]], trained: np.ndarray,
    options: argparse.Namespace,
) -> Iterator[Sample]:  # fmt: skip
    """Yield a new document for each of `rows`, with another seed if the first one repeats the training text.

    The documents differ. The tries of a prompt have successive seeds, and there are at most `TRIES` for each row.
    """
    wanted = len(rows)
    tried = 0
    cut = 0
    written = set[str]()
    while rows and tried < TRIES * wanted:
        samples = list(generated(weights, tokenizer, rows[: TRIES * wanted - tried], options))
        tried += len(samples)
        cut += sum(not sample.text.stopped_by for sample in samples)
        documents = [sample.document(options.end) for sample in samples]
        encoded = [tokenizer.encode(document) for document in documents]
        repeated = repeats(encoded, trained, tokenizer.encode(options.end))
        rows = []
        for sample, document, is_known in zip(samples, documents, repeated, strict=True):
            if not document or is_known or document in written:
                rows.append((sample.prompt, sample.seed + options.num_samples))
            else:
                written.add(document)
                yield sample
    said = f"{len(written):,} of {count(tried, options.document)} tried are new"
    if cut:
        said += f", {cut:,} reached --num-chars {options.num_chars} before the end"
    print(said, file=sys.stderr)


def write_one(
    weights: Weights, tokenizer: Tokenizer, row: tuple[str, int], options: argparse.Namespace, out: TextIO
) -> Sample:
    """Continue a prompt, and write the text while it grows."""
    prompt, seed = row
    tokens = tokenizer.encode(begun(prompt, tokenizer, options))
    text = show(prompt, continuations(weights, [tokens], [seed], tokenizer, options), options.end, out)
    out.write("\n")
    out.flush()
    return Sample(prompt, seed, text)


def write(
    samples: Iterable[Sample], novelties: list[Novelty], options: argparse.Namespace, out: TextIO
) -> list[Sample]:
    """Write each text when it is complete, and return all; `novelties` are for lines of JSON."""
    separated = options.document != "line" or options.no_stop  # otherwise each text is one line
    written: list[Sample] = []
    for sample in samples:
        written.append(sample)
        prompt, seed, text = sample
        if options.json:
            line = {"prompt": prompt, "text": text.text, "seed": seed, "checkpoint": str(options.checkpoint)}
            if options.end:
                line["ended"] = options.end in text.stopped_by or options.end in text.text
            if novelties:
                novelty = novelties[len(written) - 1]
                line["longest_copy"] = novelty.copy.length
                if options.end and not options.no_stop:
                    line["new"] = novelty.new
            shown = json.dumps(line)
        else:
            heading = f"--- {len(written)}\n" if separated else ""
            shown = for_output(heading + readable(prompt + text.text, options.end), out)
        with hidden():
            out.write(shown + "\n")
            out.flush()
    cut = sum(not sample.text.stopped_by for sample in written)
    if cut and options.end and not options.no_stop:
        reached = f"reached --num-chars {options.num_chars} before the end of a {options.document}"
        print(f"{cut:,} of {count(len(written), 'text')} {reached}", file=sys.stderr)
    return written


def begun(prompt: str, tokenizer: Tokenizer, options: argparse.Namespace) -> str:
    return options.end + prompt if options.end else prompt or beginning(tokenizer, "")


def novelties_of(
    samples: Iterable[Sample], trained: np.ndarray, tokenizer: Tokenizer, options: argparse.Namespace
) -> list[Novelty]:
    """Compare texts with the tokens `trained`, (N,)."""
    tokens = [tokenizer.encode(sample.text.text) for sample in samples]
    copies = longest_copies(tokens, trained)
    documents = [sample.document(options.end) for sample in samples]
    complete = [tokenizer.encode(document) for document in documents if document]
    repeated = iter(repeats(complete, trained, tokenizer.encode(options.end)))
    new = [not next(repeated) if document else None for document in documents]
    return [Novelty(*each) for each in zip(tokens, copies, new, strict=True)]


def report_novelty(novelties: list[Novelty], tokenizer: Tokenizer, options: argparse.Namespace) -> None:
    """Print the longest copy of each text, or of many texts the median and the longest, and how many are new."""
    listed = list(enumerate(novelties, start=1))
    if len(novelties) > LISTED:
        median = np.median([novelty.copy.length for novelty in novelties])
        print(f"longest copy: median {median:g} {tokenizer.unit}s, and the longest of all:", file=sys.stderr)
        listed = [max(listed, key=lambda each: each[1].copy.length)]
    for index, novelty in listed:
        label = f"{index}: " if len(novelties) > 1 else ""
        print(label + describe(novelty.copy, novelty.tokens, tokenizer), file=sys.stderr)
    if options.end and not options.no_stop:
        complete = [novelty.new for novelty in novelties if novelty.new is not None]
        new = complete.count(True)
        what = count(len(complete), f"complete {options.document}")
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
            (prompt,) = adapt([input("> ")], options.unknown, tokenizer)
            if not prompt:
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
