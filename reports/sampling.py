"""Write the texts of sample.py, one while it grows or many in batches, and compare them with the training text."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TextIO

import numpy as np

from base.errors import for_output, printable
from base.progress import Progress, count, hidden
from data.novelty import Copy, longest_copies, repeats
from gpt.inference.continuation import Continuation, find_stop, readable
from gpt.inference.generate import SamplingParams, generate_many, stream
from gpt.inference.weights import Weights
from gpt.tokenizer import Tokenizer

TRIES = 3  # texts that --new tries for each one that it should write
MAX_LISTED = 20  # texts whose longest copies are printed one by one
MAX_SHOWN = 80  # characters of a copy in a line


class Sample(NamedTuple):
    prompt: str
    seed: int
    text: Continuation
    document: str  # the last document, which may begin in the prompt; "" if blank or incomplete
    new: bool | None  # whether the training text lacks the document; None if that is ""
    copy: Copy  # the longest one from the training text, which --novelty asks for


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
        encoded = []  # (T0,) each
        for prompt, _ in rows:
            # A model needs at least one token, so the default prompt stands for none.
            given = self.end + prompt or self.tokenizer.default_prompt
            encoded.append(self.tokenizer.encode(given))
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
        """Return the samples of `rows`, compared with the training text if there is one."""
        encode = self.tokenizer.encode
        documents = []
        for (prompt, _), text in zip(rows, texts, strict=True):
            document = ""
            if self.end in text.stopped_by:
                # without the beginning of the end mark, if that is in the prompt
                prompt = prompt[: len(prompt) - text.stop_in_prompt]
                document = (prompt + text.text).rpartition(self.end)[2]
            documents.append(document if document.strip() else "")
        known = repeats(list(map(encode, documents)), self.trained, encode(self.end))
        copies = [Copy(0, 0)] * len(texts)
        if self.options.novelty:
            copies = longest_copies([encode(text.text) for text in texts], self.trained)
        samples = []
        for row, text, document, is_known, copy in zip(
            rows, texts, documents, known, copies, strict=True
        ):
            new = not is_known if document else None
            samples.append(Sample(*row, text, document, new, copy))
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
        written = set[str]()
        while rows and tries < max_tries:
            batch = rows[: max_tries - tries]
            tries += len(batch)
            rows = []
            for part in self.generate(batch):
                new = []
                for sample in part:
                    num_cut += self.end not in sample.text.stopped_by
                    if not sample.new or sample.document in written:
                        # so that no seed of a prompt is used twice
                        rows.append((sample.prompt, sample.seed + self.options.num_samples))
                    else:
                        written.add(sample.document)
                        new.append(sample)
                yield new
        line = f"{len(written):,} of {count(tries, self.document)} tried are new"
        if num_cut:
            line += f", {num_cut:,} cut by --num-chars {self.options.num_chars} or --stop"
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
            put(pieces)
        put("\n")
        return text

    def write(self, rows: list[tuple[str, int]], out: TextIO) -> list[Sample]:
        """Write each text when it is complete, a single one while it grows, and return the samples."""
        options = self.options
        is_shown = len(rows) == 1 and not options.json and not options.new
        if is_shown:
            ((prompt, seed),) = rows
            text = self.show(prompt, seed, out)
            parts = iter([self.samples(rows, [text])])
        elif options.new:
            parts = self.generate_new(rows)
        else:
            parts = self.generate(rows)
        separated = self.document != "line" or options.no_stop  # otherwise each text is one line
        written = 0
        num_cut = 0
        compared: list[Sample] = []  # with `--novelty`
        for part in parts:
            for sample in part:
                written += 1
                num_cut += not sample.text.stopped_by
                if options.novelty:
                    compared.append(sample)
                if is_shown:
                    continue
                if options.json:
                    line = self.as_json(sample)
                else:
                    heading = f"--- {written}\n" if separated else ""
                    text_shown = readable(sample.prompt + sample.text.text, self.end)
                    line = for_output(heading + text_shown, out)
                with hidden():
                    out.write(line + "\n")
                    out.flush()
        if num_cut and (self.stops_at_end or options.stop):
            end = r"the whole TEXT of --stop, in which \n is a line break and \\ a backslash"
            if self.stops_at_end:
                end = f"the end of a {self.document}"
            texts = f"{num_cut:,} of {count(written, 'text')}"
            print(f"{texts} reached --num-chars {options.num_chars} before {end}", file=sys.stderr)
        return compared

    def as_json(self, sample: Sample) -> str:
        text = sample.text
        line = {
            "prompt": sample.prompt,
            "text": text.text,
            "seed": sample.seed,
            "checkpoint": str(self.options.checkpoint),
        }
        if self.end:
            # With --no-stop, the end mark is part of the text.
            is_inside = find_stop(sample.prompt, text.text, self.end) is not None
            line["ended"] = self.end in text.stopped_by or is_inside
        if self.options.novelty:
            line["longest_copy"] = sample.copy.length
            if self.stops_at_end:
                line["new"] = sample.new
        return json.dumps(line)

    def print_novelty(self, samples: list[Sample]) -> None:
        """Print the longest copy of each text to stderr, of many the median and the longest; how many are new."""
        unit = self.tokenizer.unit
        lengths = [sample.copy.length for sample in samples]
        listed = list(enumerate(samples, start=1))
        if len(samples) > MAX_LISTED:
            median = f"longest copy: median {np.median(lengths):g} {unit}s"
            print(f"{median}, and the longest of all:", file=sys.stderr)
            listed = [listed[int(np.argmax(lengths))]]
        for row, sample in listed:
            begin, length = sample.copy
            tokens = self.tokenizer.encode(sample.text.text)
            line = f"{row}: " if len(samples) > 1 else ""
            line += f"longest copy: {length:,} of {count(len(tokens), unit)}"
            passage = self.tokenizer.decode(tokens[begin : begin + length])
            if passage:
                escaped = json.dumps(passage[:MAX_SHOWN], ensure_ascii=False)[1:-1]  # no quotes
                dots = "…" if len(passage) > MAX_SHOWN else ""
                line += f', "{printable(escaped)}{dots}"'
            print(line, file=sys.stderr)
        if self.stops_at_end:
            complete = [sample.new for sample in samples if sample.new is not None]
            new = sum(complete)
            verb = "is" if new == 1 else "are"
            documents = count(len(complete), f"complete {self.document}")
            print(f"{new:,} of {documents} {verb} new", file=sys.stderr)
