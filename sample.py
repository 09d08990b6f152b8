"""Write text with a trained model: `python sample.py`, or `python sample.py MODEL --prompt "def "`."""

import argparse
import io
import json
import os
import secrets
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple, TextIO

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
from base.errors import InputError, for_output, one_line, printable
from base.jobs.run_directory import find
from base.options import unescaped
from base.progress import Progress, count, hidden
from data.novelty import Copy, longest_copies, repeats, skipped
from gpt.inference.continuation import Continuation, find_stop, readable
from gpt.inference.generate import TEMPERATURE, SamplingParams, generate_many, stream
from gpt.inference.weights import Weights, load_weights
from gpt.tokenizer import Tokenizer, UnknownCharacter, tokenizer_from

TRIES = 3  # texts that --new tries for each one that it should write
MAX_LISTED = 20  # texts whose longest copies are printed one by one
ABOUT_STOP = r"the whole TEXT of --stop, in which \n is a line break and \\ a backslash"
MAX_SHOWN = 80  # characters of a copy in a line


class Sample(NamedTuple):
    prompt: str
    seed: int
    text: Continuation
    document: str  # the last document, which may begin in the prompt; "" if blank or incomplete
    new: bool | None  # whether the training text lacks the document; None if that is ""


class Novelty(NamedTuple):
    tokens: np.ndarray  # of the text, (n,)
    copy: Copy  # the longest one from the training text
    new: bool | None  # as in `Sample`


def last_document(prompt: str, text: Continuation, end: str) -> str:
    """Return the last document of `prompt` and `text`, which `end` completes, or "" if it is blank or incomplete."""
    if end not in text.stopped_by:
        return ""
    # without the beginning of the end mark, if that is in the prompt
    prompt = prompt[: len(prompt) - text.stop_in_prompt]
    document = (prompt + text.text).rpartition(end)[2]
    return document if document.strip() else ""


@dataclass(frozen=True)
class Sampler:
    """A model, and the options of how it writes texts."""

    weights: Weights
    tokenizer: Tokenizer
    options: argparse.Namespace
    document: str  # what a document of the training text is called: line or document
    end: str  # the end mark of its documents, "" if it is not divided into documents
    trained: np.ndarray  # (N,), the training text for --new and --novelty, otherwise empty

    @property
    def stops_at_end(self) -> bool:
        """Whether a text ends where its document does."""
        return bool(self.end) and not self.options.no_stop

    def encode(self, prompt: str) -> np.ndarray:
        """Return the tokens that the model continues, (T0,): a prompt after the end mark, if any.

        A model needs at least one token, so the tokenizer's default prompt stands for none.
        """
        return self.tokenizer.encode(self.end + prompt or self.tokenizer.default_prompt)

    def continuations(self, rows: Sequence[tuple[str, int]]) -> Iterator[list[Continuation]]:
        """Continue all prompts of `rows`, pairs (prompt, seed), in one batch; yield the texts so far after each token.

        It is the same list each time; the last time all of them have ended.
        """
        options = self.options
        params = SamplingParams(options.temperature, options.top_k, options.top_p, options.min_p)
        stops = dict.fromkeys(options.stop, options.keep_stop)
        if self.stops_at_end:
            stops[self.end] = False
        texts = [Continuation(self.tokenizer, stops, prompt) for prompt, _ in rows]
        if options.output and not options.json:
            for text in texts:
                text.utf8.errors = "surrogateescape"  # a file gets the bytes as they are
        encoded = [self.encode(prompt) for prompt, _ in rows]  # (T0,) each
        seeds = [seed for _, seed in rows]
        for tokens in stream(self.weights, encoded, options.num_chars, params, seeds):
            for text, token in zip(texts, tokens.tolist(), strict=True):
                if not text.stopped_by:
                    text.add(token)
            yield texts
            if all(text.stopped_by for text in texts):
                break
        for text in texts:
            text.close()
        yield texts

    def samples(self, rows: list[tuple[str, int]], texts: list[Continuation]) -> list[Sample]:
        """Return the samples of `rows`, whose documents are compared with the training text."""
        pairs = zip(rows, texts, strict=True)
        documents = [last_document(prompt, text, self.end) for (prompt, _), text in pairs]
        encode = self.tokenizer.encode
        known = repeats(list(map(encode, documents)), self.trained, encode(self.end))
        samples = []
        for row, text, document, is_known in zip(rows, texts, documents, known, strict=True):
            new = not is_known if document else None
            samples.append(Sample(*row, text, document, new))
        return samples

    def generate(self, rows: list[tuple[str, int]]) -> Iterator[list[Sample]]:
        """Yield the samples of `rows` in the parts in which they are completed."""
        done = 0
        with Progress("writing", len(rows) * self.options.num_chars) as bar:
            for texts in generate_many(self.continuations, rows, self.weights, bar.update):
                yield self.samples(rows[done : done + len(texts)], texts)
                done += len(texts)

    def generate_new(self, rows: list[tuple[str, int]]) -> Iterator[list[Sample]]:
        """Yield a new document for each of `rows`, with another seed if the first one repeats the training text.

        The documents differ. The tries of a prompt have successive seeds, and there are at most
        `TRIES` for each row.
        """
        max_tries = TRIES * len(rows)
        tries = 0
        num_cut = 0
        num_stopped = 0
        written = set[str]()
        while rows and tries < max_tries:
            batch = rows[: max_tries - tries]
            tries += len(batch)
            rows = []
            for part in self.generate(batch):
                new = []
                for sample in part:
                    stopped_by = sample.text.stopped_by
                    num_cut += not stopped_by
                    num_stopped += bool(stopped_by) and self.end not in stopped_by
                    if not sample.new or sample.document in written:
                        # so that no seed of a prompt is used twice
                        rows.append((sample.prompt, sample.seed + self.options.num_samples))
                    else:
                        written.add(sample.document)
                        new.append(sample)
                yield new
        line = f"{len(written):,} of {count(tries, self.document)} tried are new"
        if num_cut:
            line += f", {num_cut:,} reached --num-chars {self.options.num_chars} before the end"
        if num_stopped:
            line += f", {num_stopped:,} ended at --stop before the end"
        print(line, file=sys.stderr)

    def show(self, prompt: str, seed: int, out: TextIO) -> Continuation:
        """Print a prompt and its continuation as it grows, in a line, and return the continuation."""

        def put(piece: str) -> None:
            out.write(for_output(readable(piece, self.end), out))
            out.flush()

        put(prompt)
        printed = 0  # pieces of the text
        for (text,) in self.continuations([(prompt, seed)]):
            pieces = "".join(text.pieces[printed:])
            printed = len(text.pieces)
            if pieces:
                put(pieces)
        put("\n")
        return text

    def compare(self, samples: list[Sample]) -> list[Novelty]:
        """Find the longest copies of samples, or return [] if `--novelty` does not ask for it."""
        if not (self.options.novelty and len(self.trained)):
            return []
        encoded = [self.tokenizer.encode(sample.text.text) for sample in samples]
        copies = longest_copies(encoded, self.trained)
        new = [sample.new for sample in samples]
        return list(map(Novelty, encoded, copies, new))

    def print_novelty(self, novelties: list[Novelty]) -> None:
        """Print the longest copy of each text to stderr, of many the median and the longest; how many are new."""
        unit = self.tokenizer.unit
        lengths = [novelty.copy.length for novelty in novelties]
        listed = list(enumerate(novelties, start=1))
        if len(novelties) > MAX_LISTED:
            median = f"longest copy: median {np.median(lengths):g} {unit}s"
            print(f"{median}, and the longest of all:", file=sys.stderr)
            listed = [listed[int(np.argmax(lengths))]]
        for row, (tokens, (begin, length), _) in listed:
            line = f"{row}: " if len(novelties) > 1 else ""
            line += f"longest copy: {length:,} of {count(len(tokens), unit)}"
            passage = self.tokenizer.decode(tokens[begin : begin + length])
            if passage:
                escaped = json.dumps(passage[:MAX_SHOWN], ensure_ascii=False)[1:-1]  # no quotes
                dots = "…" if len(passage) > MAX_SHOWN else ""
                line += f', "{printable(escaped)}{dots}"'
            print(line, file=sys.stderr)
        if self.stops_at_end:
            complete = [novelty.new for novelty in novelties if novelty.new is not None]
            new = sum(complete)
            verb = "is" if new == 1 else "are"
            documents = count(len(complete), f"complete {self.document}")
            print(f"{new:,} of {documents} {verb} new", file=sys.stderr)


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
        option = "--new" if options.new else "--novelty"
        trained = read_training_text(options.checkpoint, option, tokenizer)
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
        novelties = write(sampler, rows, out)
    if options.output:
        print(f"wrote {printable(options.output)}", file=sys.stderr)
    if novelties:  # `--novelty`, unless the training text is too long
        sampler.print_novelty(novelties)


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


def read_training_text(checkpoint: Path, option: str, tokenizer: Tokenizer) -> np.ndarray:
    """Return the tokens of the training text of a model's run, (N,), for `--new` or `--novelty`.

    If there are too many, `--new` is refused, and `--novelty` prints why, and there are none.
    """
    from data.text import text_of_run  # needs a quarter of the start-up time

    try:
        trained = text_of_run(checkpoint).train
    except InputError as error:
        raise InputError(f"{option}: the training text cannot be read: {error}") from None
    reason = skipped(trained, tokenizer.unit)
    if not reason:
        return trained
    if option == "--new":
        raise InputError(f"--new: {reason}")
    print(f"longest copy: skipped, because {reason}", file=sys.stderr)
    return trained[:0]


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
    from data.read import NotText, WrongEncoding
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
    except (NotText, WrongEncoding, UnicodeDecodeError):
        raise InputError(f"--prompt-file {name}: is not text in UTF-8") from None
    except InputError as error:
        raise InputError(f"--prompt-file {error}") from None
    if not any(texts):
        raise InputError(
            f"--prompt-file {name}: is empty or blank, must have at least one character"
        )
    return texts


def adapt(prompts: Sequence[str], unknown: str, tokenizer: Tokenizer) -> list[str]:
    """Refuse, skip or replace characters outside the vocabulary, as `unknown` says, and print what was changed."""
    if unknown != "error":
        return replace_unknown(
            [tokenizer.canonical(prompt) for prompt in prompts], [tokenizer], unknown
        )
    for prompt in prompts:
        try:
            tokenizer.encode(prompt)
        except UnknownCharacter as error:
            key = f"prompt {one_line(prompt)[:40]!r}" if len(prompts) > 1 else ""
            raise InputError(str(error), key, ABOUT_UNKNOWN) from None
    return list(prompts)


def write(sampler: Sampler, rows: list[tuple[str, int]], out: TextIO) -> list[Novelty]:
    """Write each text when it is complete, a single one while it grows; return what `Sampler.compare` does."""
    options = sampler.options
    reached = f"reached --num-chars {options.num_chars} before"
    if len(rows) == 1 and not options.json and not options.new:
        ((prompt, seed),) = rows
        text = sampler.show(prompt, seed, out)
        if options.stop and not text.stopped_by:
            print(f"the text {reached} {ABOUT_STOP}", file=sys.stderr)
        return sampler.compare(sampler.samples(rows, [text]))
    parts = sampler.generate_new(rows) if options.new else sampler.generate(rows)
    separated = sampler.document != "line" or options.no_stop  # otherwise each text is one line
    written = 0
    num_cut = 0
    novelties: list[Novelty] = []
    for part in parts:
        novelties_of_part = sampler.compare(part)
        novelties += novelties_of_part
        for sample, novelty in zip_longest(part, novelties_of_part):
            written += 1
            num_cut += not sample.text.stopped_by
            if options.json:
                line = as_json(sampler, sample, novelty)
            else:
                heading = f"--- {written}\n" if separated else ""
                text_shown = readable(sample.prompt + sample.text.text, sampler.end)
                line = for_output(heading + text_shown, out)
            with hidden():
                out.write(line + "\n")
                out.flush()
    if num_cut and (sampler.stops_at_end or options.stop):
        end = f"the end of a {sampler.document}" if sampler.stops_at_end else ABOUT_STOP
        print(f"{num_cut:,} of {count(written, 'text')} {reached} {end}", file=sys.stderr)
    return novelties


def as_json(sampler: Sampler, sample: Sample, novelty: Novelty | None) -> str:
    text = sample.text
    line = {
        "prompt": sample.prompt,
        "text": text.text,
        "seed": sample.seed,
        "checkpoint": str(sampler.options.checkpoint),
    }
    if sampler.end:
        # With --no-stop, the end mark is part of the text.
        is_inside = find_stop(sample.prompt, text.text, sampler.end) is not None
        line["ended"] = sampler.end in text.stopped_by or is_inside
    if novelty:
        line["longest_copy"] = novelty.copy.length
        if sampler.stops_at_end:
            line["new"] = sample.new
    return json.dumps(line)


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
