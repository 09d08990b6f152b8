"""How fast sampling is, compared with a loop without a KV cache over the same model, as in nanoGPT.

    python benchmarks/sample_speed.py CHECKPOINT [--rounds 3]

Samples 1,000 characters from a prompt of one character, at temperature 0.8 with seed 0: one text,
and 64 in one batch. The table has characters per second, median and range over the rounds.
*Decode* is measured in a warm process with the model loaded, *whole* from the start of a Python
process to its end. The uncached loop reads the last `context` characters again for each character,
with torch's fused attention. For 64 texts, only its first `context` characters and 8 steps with a
full context are timed, because all steps with a full context cost the same.
"""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from measuring import ROOT, in_turn, make_parser, print_table, ratios, run, spread

LENGTH, QUICK_LENGTH = 1000, 30
FULL_STEPS = 8  # steps of the uncached loop with a full context that are timed at 64 texts


def uncached(checkpoint: str, rows: int, length: int) -> float:
    """Return the characters per second of the uncached loop for `rows` texts of `length` characters."""
    import torch

    from gpt import load

    model = load(checkpoint)[0].eval()
    # as in nanoGPT, and faster than explicit attention without a backward pass
    for block in model.blocks:
        block.attention.config = replace(model.config, attention="sdpa")
    context = model.config.context

    @torch.no_grad()
    def seconds(tokens: torch.Tensor, count: int) -> float:
        begun = time.perf_counter()
        for _ in range(count):
            logits = model(tokens[:, -context:])[:, -1] / 0.8  # (B, V)
            drawn = torch.multinomial(torch.softmax(logits, -1), 1)  # (B, 1)
            tokens = torch.cat((tokens, drawn), 1)  # (B, T + 1)
        return time.perf_counter() - begun

    torch.manual_seed(0)
    start = torch.zeros(rows, 1, dtype=torch.int64)
    seconds(start, 10)
    if rows == 1 or length <= context:
        return rows * length / seconds(start, length)
    full = seconds(start.expand(rows, context), FULL_STEPS) / FULL_STEPS
    return rows * length / (seconds(start, context) + (length - context) * full)


def cached(checkpoint: str, rows: int, length: int) -> float:
    """Return the characters per second of `gpt.generate` for `rows` texts of `length` characters."""
    import torch

    from gpt import generate, load

    model, prompts = load(checkpoint)[0], torch.zeros(rows, 1, dtype=torch.int64)
    for count in (20, length):  # the first warms up
        begun = time.perf_counter()
        generate(model, prompts, count, temperature=0.8, seed=0)
        seconds = time.perf_counter() - begun
    return rows * length / seconds


DECODE = {"decode, 1 text": (cached, 1), "decode, 64 texts": (cached, 64)}
DECODE |= {f"{name}, uncached": (uncached, rows) for name, (_, rows) in DECODE.items()}
# Rows with another baseline: a whole process of the uncached loop over 64 texts would take too
# long.
BASES = {"whole, 64 texts": "decode, 64 texts, uncached"}


def decode(options: list[str], name: str, _: int) -> float:
    """Measure a row of the table in a process of its own, and return its characters per second."""
    return float(run([__file__, *options, "--only", name])[1].split()[-1])


def whole(command: list[str | Path], characters: int, _: int) -> float:
    """Return `characters` divided by the seconds of the whole process that runs `command`."""
    return characters / run(command)[0]


def main() -> None:
    """Measure and print a Markdown table."""
    parser = make_parser(__doc__, text="model file or run directory")
    parser.add_argument(
        "--only", choices=DECODE, help="measure this row once, in this process, and print it"
    )
    options = parser.parse_args()
    length = QUICK_LENGTH if options.quick else LENGTH
    if options.only:
        kind, rows = DECODE[options.only]
        return print(kind(options.text, rows, length))
    again = [options.text, *(["--quick"] if options.quick else [])]
    systems = {name: partial(decode, again, name) for name in DECODE}
    loop = [__file__, *again, "--only", "decode, 1 text, uncached"]
    systems["whole, 1 text, uncached"] = partial(whole, loop, length)
    sample = [
        ROOT / "sample.py",
        options.text,
        "--num-chars",
        str(length),
        "--seed",
        "0",
        "--num-samples",
    ]
    for rows, name in ((1, "whole, 1 text"), (64, "whole, 64 texts")):
        systems[name] = partial(whole, [*sample, str(rows)], rows * length)
    seen, rows = in_turn(options.rounds, systems), []
    for name, speeds in seen.items():
        base = name if "uncached" in name else BASES.get(name, f"{name}, uncached")
        rows.append([name, spread(speeds), spread(ratios(speeds, seen[base]), ".1f")])
    print_table(["", "characters/s", "times the uncached loop"], rows)


if __name__ == "__main__":
    main()
