"""Write text with a trained model: `python sample.py`, or `python sample.py CHECKPOINT --prompt "def "`."""

import argparse
import codecs
import io
import os
import re
import secrets
import sys
from collections.abc import Callable
from typing import Any

from conf.fields import nearest, one_line
from gpt import runs


def cli(arguments: list[str] | None = None) -> int:
    """Run from the command line; what a person typed wrong is answered in one line with exit status 2."""
    options = parse(arguments)
    try:
        checkpoint = runs.find_checkpoint(options.checkpoint)
    except runs.RunError as error:
        return refuse(error)

    from data.tokenizer import UnknownCharacter
    from gpt.checkpoint import CheckpointError
    from gpt.fit.report import is_out_of_memory

    try:
        sample(checkpoint, options)
    except (CheckpointError, UnknownCharacter, DeviceError) as error:
        return refuse(error)
    except KeyboardInterrupt:
        return 130
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        given = f"--num-samples {options.num_samples} of --num-chars {options.num_chars}"
        return refuse(ValueError(f"out of memory: {given} are too many at once; lower one of them"))
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"sample.py: {one_line(error)}", file=sys.stderr)
        return 1
    return 0


class DeviceError(ValueError):
    """A device this machine does not have, in one line."""


def refuse(error: Exception) -> int:
    """Answer wrong input in one line."""
    print(f"sample.py: {one_line(error)}", file=sys.stderr)
    return 2


class Parser(argparse.ArgumentParser):
    """An argument parser that answers in one line and names the nearest option."""

    def error(self, message: str) -> Any:
        """Leave with exit status 2."""
        words = message.rpartition("unrecognized arguments: ")[2].split()
        flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
        near = nearest(words[0], flags) if words and words[0].startswith("--") else ""
        self.exit(2, f"{self.prog}: {message}{near}\n")


def number(kind: Callable[[str], Any], least: int, what: str, most: int) -> Callable[[str], Any]:
    """A parser of numbers from `least` to `most`."""

    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text}: must be {what}, at least {least} and at most {most}")
        return value

    return read


def device(text: str) -> str:
    """A parser of names of devices that can compute."""
    if not re.fullmatch(r"cpu|mps|cuda(:\d{1,4})?", text):
        raise argparse.ArgumentTypeError(f"{text}: must be cpu, cuda, cuda:1 or mps")
    return text


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    whole = "a whole number"
    parser = Parser(prog="sample.py", description="Write text with a trained model.", allow_abbrev=False)
    parser.add_argument(
        "checkpoint", nargs="?", help="checkpoint, run directory or name of a run (default: the newest)"
    )
    parser.add_argument("--prompt", metavar="TEXT", help="text to go on from (default: a line break)")
    chars, samples = number(int, 0, whole, 10**9), number(int, 1, whole, 10_000)
    heat, most = number(float, 0, "a number", 1000), number(int, 1, whole, 2**31)
    seed = number(int, 0, whole, 2**63 - 1)
    add = parser.add_argument
    add("--num-chars", type=chars, default=500, metavar="N", help="length (default 500)")
    add("--num-samples", type=samples, default=1, metavar="N", help="how many (default 1)")
    add("--temperature", type=heat, default=0.8, metavar="T", help="0 is greedy (default 0.8)")
    add("--top-k", type=most, metavar="K", help="draw from the K most likely characters (default: all)")
    add("--seed", type=seed, metavar="N", help="the same seed writes the same text")
    add("--device", type=device, default="cpu", metavar="D", help="cpu, cuda, cuda:1, mps (default cpu)")
    return parser.parse_args(arguments)


def sample(checkpoint: Any, options: argparse.Namespace) -> None:
    """Load a checkpoint and print text: one sample as it is drawn, several one below the other."""
    import torch

    from data.tokenizer import tokenizer_from
    from gpt.checkpoint import CheckpointError, load_checkpoint
    from gpt.generate import generate, stream

    model, meta = load_checkpoint(checkpoint)
    try:
        tokenizer = tokenizer_from(meta["vocabulary"])
        if tokenizer.size != model.vocabulary:
            raise ValueError(f"a vocabulary of {tokenizer.size} for a model of {model.vocabulary}")
    except ValueError as error:
        raise CheckpointError(f"{checkpoint}: {error}") from None
    characters = meta["vocabulary"].get("characters", "\n")
    start = "\n" if "\n" in characters else characters[0]
    prompt = torch.from_numpy(tokenizer.encode(options.prompt or start)).expand(options.num_samples, -1)
    try:
        model.to(options.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise DeviceError(f"--device {options.device}: cannot be used here: {reason}") from None

    seed = secrets.randbits(32) if options.seed is None else options.seed
    drawing = {"temperature": options.temperature, "top_k": options.top_k, "seed": seed}
    print(f"{checkpoint}, step {meta['global_step']}, --seed {seed}", file=sys.stderr)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if options.num_samples > 1:
        for number, tokens in enumerate(generate(model, prompt, options.num_chars, **drawing), start=1):
            print(f"--- {number}\n{tokenizer.decode((tokens if options.prompt else tokens[1:]).numpy())}")
        return
    print(options.prompt or "", end="", flush=True)
    # A character of several bytes is shown once its last byte is there.
    utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
    whole_bytes = meta["vocabulary"]["kind"] == "byte"
    for token in stream(model, prompt, options.num_chars, **drawing):
        text = utf8.decode(bytes(token.tolist())) if whole_bytes else tokenizer.decode(token.numpy())
        print(text, end="", flush=True)
    print()


if __name__ == "__main__":
    sys.exit(cli())
