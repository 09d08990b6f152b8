"""How fast training is, compared with a plain PyTorch loop in the same rounds.

    python benchmarks/train_speed.py tinyshakespeare.txt
    python benchmarks/train_speed.py tinyshakespeare.txt --nanogpt nanoGPT    # its checkout, to judge the baseline

Every system runs in a process of its own, in turn. The number of the round is the seed, and the
table contains medians and ranges. Nothing else should run meanwhile. Characters per second are
those of the steps themselves: they include batches, logging and progress, but not imports,
compilation and evaluations. `GPT.flops_per_token` counts the FLOPs, without the matrix products of
Muon. The peak is the fastest `torch.mm` in bf16, of sizes 512 to 4096, in each round.
"""

import pickle
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from measuring import (
    in_turn,
    make_parser,
    of_text,
    our_speed,
    plain_speed,
    print_table,
    ratios,
    run,
    spread,
)
from plain_loop import prepare

from base.options import spell
from gpt import GPT, ModelConfig

STEPS = 200
# By name: the model, whose FLOPs are counted, and the other settings.
SAME = ModelConfig(layers=4, heads=4, dim=128, context=64)
PLAIN_MODEL = replace(
    SAME,
    positions="learned",
    qk_norm=False,
    key_offset=False,
    token_shift=False,
    conv_taps=1,
    tied=True,
)
ADAMW = ["optim.name=adamw", "optim.lr=3e-3", "compile=true"]
OURS = {
    "ours, same shape and batch 12": (SAME, ["data.batch=12", "compile=false"]),
    "ours, same shape and batch 12, compiled": (SAME, ["data.batch=12", "compile=true"]),
    "the plain loop's parts and AdamW, batch 12": (PLAIN_MODEL, ["data.batch=12", *ADAMW]),
    "ours, same shape, batch 256, compiled": (SAME, ["data.batch=256", "compile=true"]),
    "the plain loop's parts and AdamW, batch 256": (PLAIN_MODEL, ["data.batch=256", *ADAMW]),
    "default recipe, not compiled": (ModelConfig(), ["compile=false"]),
    "default recipe": (ModelConfig(), ["compile=true"]),  # the default where there is a compiler
}


def peak(sizes: Sequence[int], _: int) -> float:
    """Return the highest GFLOP/s of a bf16 product of square matrices, each size repeated for a second."""
    best = 0.0
    for size in sizes:
        matrix, until = torch.ones(size, size, dtype=torch.bfloat16), time.perf_counter() + 1
        while (started := time.perf_counter()) < until:
            torch.mm(matrix, matrix)
            best = max(best, 2e-9 * size**3 / (time.perf_counter() - started))
    return best


def nanogpt_speed(text: str, checkout: Path, steps: int, _: int) -> float:
    """Train with nanoGPT's own train.py, without its evaluations, and return the median characters per second."""
    folder = checkout / "data" / "shakespeare_char"
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": prepare(text, folder)}))
    options = {
        "device": "cpu", "compile": False, "block_size": 64, "batch_size": 12, "n_layer": 4, "n_head": 4, "n_embd": 128,
        "dropout": 0.0, "max_iters": steps, "lr_decay_iters": steps, "log_interval": 1, "eval_interval": 10**9,
        "eval_iters": 1,
    }  # fmt: skip
    flags = [f"--{key}={value}" for key, value in options.items()]
    _, printed = run(["train.py", "config/train_shakespeare_char.py", *flags], checkout)
    return (
        12
        * 64
        * 1000
        / statistics.median(float(found) for found in re.findall(r"time ([\d.]+)ms", printed))
    )


def main() -> None:
    """Measure everything in turn and print a Markdown table."""
    parser = make_parser(__doc__)
    parser.add_argument(
        "--nanogpt", type=Path, help="checkout of nanoGPT, which is then measured, too"
    )
    options = parser.parse_args()
    text, steps = options.text, 3 if options.quick else STEPS
    systems = {
        "peak": partial(peak, (64,) if options.quick else (512, 1024, 2048, 4096)),
        "plain loop": partial(plain_speed, text, steps),
    }
    if options.nanogpt:
        systems["nanoGPT"] = partial(nanogpt_speed, text, options.nanogpt.absolute(), steps)
    for name, (model, others) in OURS.items():
        settings = [
            *(f"model.{key}={spell(value)}" for key, value in vars(model).items()),
            *others,
        ]
        systems[name] = partial(
            our_speed, of_text(text, *settings, steps=STEPS, quick=options.quick)
        )
    seen = in_turn(options.rounds, systems)
    models = {name: model for name, (model, _) in OURS.items()} | {"plain loop": PLAIN_MODEL}
    vocabulary, peaks = len(set(Path(text).read_text("utf-8"))), seen.pop("peak")
    rows = []
    for name, speeds in seen.items():
        row = [name, spread(speeds), spread(ratios(speeds, seen["plain loop"]), ".2f"), "", ""]
        if name in models:
            rates = [
                GPT(models[name], vocabulary).flops_per_token() * speed / 1e9 for speed in speeds
            ]
            row[3:] = spread(rates), spread(ratios(rates, peaks), ".0%")
        rows.append(row)
    print_table(
        ["system", "characters/s", "times the plain loop", "GFLOP/s", "share of bf16 peak"], rows
    )
    print(f"\nPeak in bf16: {spread(peaks)} GFLOP/s")


if __name__ == "__main__":
    main()
