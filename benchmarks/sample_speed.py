"""Sampling against an uncached loop over the same model, as nanoGPT writes it: characters per second.

    python benchmarks/sample_speed.py CHECKPOINT [--rounds 3]

1,000 characters from a prompt of one character, one text and 64 side by side. *Decode*: in a warm process, with the
model loaded. *Whole*: from the start of a Python process to its end. The uncached loop reads the last `context`
characters anew for each character, with torch's fused attention; at 64 texts it is timed over its first 256 characters
and over 8 of the 744 with a full context, which all cost the same. Rounds go in turn; median and range.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpt.model import GPT

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

LENGTH = 1000
FULL_STEPS = 8  # of the uncached loop's steps with a full context that are timed at 64 texts


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(MEASURES[options.only](options.checkpoint))
        return
    seen: dict[str, list[float]] = {name: [] for name in MEASURES}
    for _ in range(options.rounds):
        for name in MEASURES:
            command = [sys.executable, __file__, options.checkpoint, "--only", name]
            ended = subprocess.run(command, capture_output=True, text=True, check=True)
            seen[name].append(float(ended.stdout.split()[-1]))
    print("| | characters/s, median (range) | times the uncached loop (range over rounds) |\n|---|---|---|")
    for name, speeds in seen.items():
        base = seen[BASES[name]]
        ratios = [speed / slow for speed, slow in zip(speeds, base, strict=True)]
        print(
            f"| {name} | {statistics.median(speeds):,.0f} ({min(speeds):,.0f} to {max(speeds):,.0f}) "
            f"| {statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f}) |"
        )


def uncached(checkpoint: str, rows: int) -> float:
    """Characters per second of the plain loop over the model of a checkpoint."""
    from gpt.checkpoint import load_checkpoint

    return plain_loop(load_checkpoint(checkpoint)[0], rows)


def plain_loop(model: "GPT", rows: int) -> float:
    """Characters per second of the plain loop, where the model is; on a GPU in bf16, as it is written for one."""
    import torch

    device = model.head.weight.device
    for block in model.blocks:  # as in nanoGPT, and faster than the explicit one without a backward pass
        block.attention.config = replace(model.config, attention="sdpa")
    context = model.config.context

    @torch.no_grad()
    @torch.autocast(device.type, torch.bfloat16, enabled=device.type != "cpu")
    def steps(tokens: torch.Tensor, count: int) -> float:
        begun = time.perf_counter()
        for _ in range(count):
            logits = model(tokens[:, -context:])[:, -1] / 0.8
            drawn = torch.multinomial(torch.softmax(logits, -1), 1)
            tokens = torch.cat((tokens, drawn), 1)
        tokens[0, -1].item()  # waits for a GPU
        return time.perf_counter() - begun

    start = torch.zeros(rows, 1, dtype=torch.int64, device=device)
    steps(start, 10)
    if rows == 1:
        return LENGTH / steps(start, LENGTH)
    full = steps(start.expand(rows, context), FULL_STEPS) / FULL_STEPS
    return rows * LENGTH / (steps(start, context) + (LENGTH - context) * full)


def cached(checkpoint: str, rows: int) -> float:
    """Characters per second of gpt/inference/generate.py."""
    import numpy as np

    from gpt.inference.generate import stream
    from gpt.inference.parallel import generate_many
    from gpt.inference.sampling import SamplingParams
    from gpt.inference.weights import load_weights

    weights, _ = load_weights(checkpoint)

    def run(count: int) -> float:
        begun = time.perf_counter()

        def work(part: slice):
            prompts = [np.zeros(1, np.int64)] * (part.stop - part.start)
            return stream(weights, prompts, count, SamplingParams(temperature=0.8), range(part.start, part.stop))

        for _ in generate_many(work, rows, weights):
            pass
        return time.perf_counter() - begun

    run(20)
    return rows * LENGTH / run(LENGTH)


def whole(checkpoint: str, rows: int) -> float:
    """Characters per second of a process that runs sample.py."""
    arguments = [checkpoint, "--num-chars", str(LENGTH), "--num-samples", str(rows), "--seed", "0"]
    begun = time.perf_counter()
    subprocess.run([sys.executable, str(ROOT / "sample.py"), *arguments], capture_output=True, check=True)
    return rows * LENGTH / (time.perf_counter() - begun)


def whole_uncached(checkpoint: str) -> float:
    """Characters per second of a process that runs the plain loop over one text."""
    begun = time.perf_counter()
    command = [sys.executable, __file__, checkpoint, "--only", "decode, 1 at once, uncached"]
    subprocess.run(command, capture_output=True, check=True)
    return LENGTH / (time.perf_counter() - begun)


MEASURES = {
    "decode, 1 at once, uncached": lambda checkpoint: uncached(checkpoint, 1),
    "decode, 1 at once": lambda checkpoint: cached(checkpoint, 1),
    "decode, 64 at once, uncached": lambda checkpoint: uncached(checkpoint, 64),
    "decode, 64 at once": lambda checkpoint: cached(checkpoint, 64),
    "whole, 1 at once, uncached": whole_uncached,
    "whole, 1 at once": lambda checkpoint: whole(checkpoint, 1),
    "whole, 64 at once": lambda checkpoint: whole(checkpoint, 64),
}
BASES = {name: name if "uncached" in name else f"{name}, uncached" for name in MEASURES} | {
    "whole, 64 at once": "decode, 64 at once, uncached"
}

if __name__ == "__main__":
    os.environ.pop("OMP_NUM_THREADS", None)
    main()
