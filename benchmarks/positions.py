"""How position encodings and attention windows change the loss and the speed.

    python benchmarks/positions.py [--steps 1200] [--rounds 1]
    python benchmarks/positions.py --speed --rounds 5

Trains the default recipe with each position encoding and with attention windows, and scores the
whole validation split in nats per character: in disjoint windows of 1, 2 and 4 times the training
context, and as sample.py reads it. Each encoding is trained once with the default recipe, and once
without key offset, token shift and convolution, because these tell a model something about
positions, too. The number of the round is the seed. `--speed` trains nothing: it times forward and
backward of the default model in bf16, not compiled, and prints ratios to rotary's.
"""

import math
import re
import tempfile
import time
from contextlib import chdir
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from measuring import QUICK, ROOT, in_turn, make_parser, print_table, ratios, run, spread

from data.text import text_of_run
from gpt import GPT, ModelConfig
from gpt.inference.decoder import Decoder
from gpt.inference.weights import load_weights

BARE = ("model.key_offset=false", "model.token_shift=false", "model.conv_taps=1")
KINDS = ("rotary", "learned", "sinusoidal", "none")
WINDOWS = (("rotary", 128), ("rotary", 64), ("rotary", 16), ("none", 64))
VARIANTS = {
    **{f"{kind} | all | default": (kind, "null", ()) for kind in KINDS},
    **{f"{kind} | all | no offset, shift, convolution": (kind, "null", BARE) for kind in KINDS},
    **{f"{kind} | {window} | default": (kind, str(window), ()) for kind, window in WINDOWS},
}


def losses(settings: list[str], context: int, learned: bool, seed: int) -> list[float | None]:
    """Train, and return score.py's losses in windows of 1, 2 and 4 times `context`, and as sample.py reads.

    With a `learned` table of positions, the losses beyond the training context are None.
    """
    longer = (2 * context, 4 * context)
    options = ["--window disjoint", *(f"--window disjoint --context {T}" for T in longer)]
    found: list[float | None] = []
    with tempfile.TemporaryDirectory() as folder:
        run([ROOT / "train.py", "name=run", f"seed={seed}", *settings], folder)
        for option in options:
            if learned and "--context" in option:
                found.append(None)
                continue
            _, printed = run(
                [ROOT / "score.py", "run", "--split", "validation", *option.split()], folder
            )
            found.append(float(re.findall(r" (\d+\.\d+)", printed.splitlines()[-1])[0]))
        with chdir(folder):
            found.append(loss_as_sampled(Path("runs/run/checkpoints/best.safetensors")))
    return found


def loss_as_sampled(checkpoint: Path) -> float:
    """Return the loss of the validation split in nats per character, read with the window rule of the decoder."""
    weights, _ = load_weights(checkpoint, "cpu")
    decoder = Decoder(weights)
    tokens = torch.from_numpy(text_of_run(checkpoint).validation.astype(np.int64))  # (N,)
    nats = math.log(len(weights.embedding))  # of the first token
    for inputs, targets in zip(tokens[:-1].split(2048), tokens[1:].split(2048), strict=True):
        logits = torch.from_numpy(decoder.read(inputs[None].numpy())[0])  # (T, V)
        nats += F.cross_entropy(logits, targets, reduction="sum").item()
    return nats / len(tokens)


def seconds(model: GPT, batch: int, _: int) -> float:
    """Return the seconds of one forward and backward pass of `batch` windows. The round, `_`, is ignored."""
    tokens = torch.randint(model.vocabulary, (batch, model.config.context))
    begun = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(tokens)  # (B, T, V)
    logits.float().logsumexp(-1).mean().backward()
    return time.perf_counter() - begun


def print_speed(rounds: int, config: ModelConfig, batch: int) -> None:
    """Time all position encodings and windows at the context of `config` and at four times that, and print a table."""
    torch.manual_seed(0)
    rows = []
    for context, windows in ((config.context, batch), (4 * config.context, max(1, batch // 4))):
        configs = {kind: replace(config, positions=kind, context=context) for kind in KINDS}
        for kind, window in WINDOWS:
            configs[f"{kind}, window {window}"] = replace(configs[kind], window=window)
        models = {name: partial(seconds, GPT(each, 96), windows) for name, each in configs.items()}
        in_turn(1, models)  # warm up
        seen = in_turn(rounds, models)
        for name, times in seen.items():
            milliseconds = spread([1e3 * each for each in times], ".1f", " ms")
            rows.append(
                [
                    f"{name}, context {context}",
                    milliseconds,
                    spread(ratios(times, seen["rotary"]), ".2f"),
                ]
            )
    print_table(["positions", "forward and backward", "times rotary's"], rows)


def main() -> None:
    """Train and score, or time the passes, and print a Markdown table."""
    parser = make_parser(__doc__, rounds=1, text="")
    parser.add_argument(
        "--steps", type=int, default=1200, help="optimizer steps of each training (default 1200)"
    )
    parser.add_argument("--path", default="null", help="text file (default: the built-in corpus)")
    parser.add_argument(
        "--speed", action="store_true", help="time forward and backward instead of training"
    )
    options = parser.parse_args()
    if options.speed:
        config = (
            ModelConfig(layers=1, heads=1, dim=16, context=16) if options.quick else ModelConfig()
        )
        return print_speed(options.rounds, config, 8)
    fixed = [f"data.path={options.path}", f"trainer.max_steps={options.steps}", "logger=none"]
    fixed += [f"trainer.val_check_interval={options.steps}", *(QUICK if options.quick else [])]
    systems = {}
    for name, (kind, window, recipe) in list(VARIANTS.items())[: 2 if options.quick else None]:
        settings = [*fixed, f"model.positions={kind}", f"model.window={window}", *recipe]
        systems[name] = partial(losses, settings, 16 if options.quick else 256, kind == "learned")
    seen = in_turn(options.rounds, systems)
    rows = [
        [
            name,
            *(
                "-" if None in column else spread(column, ".4f")
                for column in zip(*rounds, strict=True)
            ),
        ]
        for name, rounds in seen.items()
    ]
    print_table(["positions", "window", "recipe", "1x", "2x", "4x", "as sample.py reads"], rows)


if __name__ == "__main__":
    main()
