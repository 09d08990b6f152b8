"""How much of what a model of Python writes is Python? `python benchmarks/parse_share.py [RUN] [--samples 200]`.

The share of samples that `ast.parse` accepts, beside the share of equally many pieces of validation text, cut in the
very same way: what is lost there is lost by the cut. A piece is what follows, for 1,000 characters, a place in the
validation text where a line begins with `def` or `class`: as the text has it, and as the model goes on, at temperature
0.8, from half a context of text before that place. So it begins with a whole line at column 0. Where it ends is decided
in two ways: at its last line break, in the middle of whatever statement, text or bracket it then is; and at its last
blank line, where fewer are open. The places are evenly spaced among all there are. Intervals are Wilson's.
"""

import argparse
import ast
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from base import run_directory  # noqa: E402
from base.command_line import Parser, answer, number  # noqa: E402
from base.errors import InputError  # noqa: E402
from conf.schema import from_yaml  # noqa: E402
from data.open_text import open_text
from data.text import Text  # noqa: E402
from gpt.checkpoint import load_checkpoint  # noqa: E402
from gpt.inference.generate import generate  # noqa: E402
from gpt.model import GPT  # noqa: E402

LENGTH = 1000  # characters of a piece, before it is cut
TEMPERATURE = 0.8
# Where a piece ends: the last place of a text at which it could.
CUTS = {"at its last line break": "\n", "at its last blank line": "\n\n"}
DEFINITION = re.compile(r"^(?=(?:def|class) )", re.MULTILINE)


def parses(text: str) -> bool:
    """Whether Python's grammar accepts a text that says something."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SyntaxWarning: an invalid escape is accepted
        try:
            ast.parse(text)
        except (SyntaxError, ValueError, MemoryError, RecursionError):  # of null bytes, or nested too deep
            return False
    return bool(text.strip())


def interval(count: int, total: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95 % interval of a share: all p whose own standard error reaches the share that was seen.

    Source: Wilson, J. Am. Stat. Assoc. 22 (1927) 209.
    """
    share, over = count / total, z * z / total
    middle = (share + over / 2) / (1 + over)
    half = (over * share * (1 - share) + over * over / 4) ** 0.5 / (1 + over)
    return middle - half, middle + half


def cut(text: str, end: str) -> str:
    """The text up to and with the last that reads so; nothing where there is none."""
    return text[: text.rfind(end) + len(end)] if end in text else ""


def places(text: str, before: int, count: int) -> list[int]:
    """So many places where a definition begins, evenly spaced among those with enough text before and behind.

    Raises:
        InputError: there are fewer.
    """
    found = [match.start() for match in DEFINITION.finditer(text)]
    found = [place for place in found if before <= place <= len(text) - LENGTH]
    if len(found) < count:
        raise InputError(f"--samples {count}: must be at most {len(found)}, the places in the validation text")
    return [found[k * len(found) // count] for k in range(count)]


def pieces(model: GPT, text: Text, count: int, seed: int) -> tuple[list[str], list[str]]:
    """So many pieces that the model writes, and as many of the validation text, from the same places; not cut yet."""
    validation, before = text.tokenizer.decode(text.validation), max(1, model.config.context // 2)
    begins = places(validation, before, count)
    # A character can be several tokens: the last ones make prompts of one length.
    prompts = [text.tokenizer.encode(validation[begin - before : begin])[-before:] for begin in begins]
    tokens = torch.stack([torch.as_tensor(prompt.astype("int64")) for prompt in prompts])  # (count, before)
    written = generate(model, tokens, LENGTH, temperature=TEMPERATURE, seed=seed)[:, before:]  # (count, LENGTH)
    return (
        [text.tokenizer.decode(row.numpy())[:LENGTH] for row in written],
        [validation[begin : begin + LENGTH] for begin in begins],
    )


def table(texts: Mapping[str, Sequence[str]]) -> str:
    """What parses of texts, by name, in each way to cut them, as Markdown."""
    lines = ["| | cut | parse | share | 95 % interval |", "|---|---|---|---|---|"]
    for name, each in texts.items():
        for way, end in CUTS.items():
            count = sum(parses(cut(text, end)) for text in each)
            low, high = (f"{100 * bound:.1f}" for bound in interval(count, len(each)))
            lines.append(f"| {name} | {way} | {count} of {len(each)} | {count / len(each):.1%} | {low} to {high} % |")
    return "\n".join(lines)


def measure(options: argparse.Namespace) -> None:
    """Print a Markdown table."""
    checkpoint = run_directory.find_model(options.run)
    config = from_yaml((checkpoint.parent.parent / "config.yaml").read_text("utf-8"))
    model, _ = load_checkpoint(checkpoint)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    text = open_text(config.data, config.model.context)
    written, real = pieces(model, text, options.samples, options.seed)
    print(table({str(checkpoint): written, "validation text": real}))


def cli(arguments: list[str] | None = None) -> int:
    """Run from the command line; what a person typed wrong is answered in one line with exit status 2."""
    parser = Parser(prog="parse_share.py", description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("run", nargs="?", help="run directory (default: the newest)")
    parser.add_argument("--samples", type=number(int, 1, 10**6), default=200)
    parser.add_argument("--seed", type=number(int, 0, 2**32), default=0)
    options = parser.parse_args(arguments)
    return answer("parse_share.py", lambda: measure(options), out_of_memory="fewer --samples")


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    sys.exit(cli())
