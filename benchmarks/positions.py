"""What do positions and windows cost and give? `python benchmarks/positions.py [--steps 1200] [--seeds 1] [--speed]`.

Trains the default recipe with each way for places to enter and with windows of attention, and scores the whole
validation split in disjoint windows of 1, 2 and 4 times the training context, and as sample.py reads it. Once as the
recipe is, and once without key offset and token shift, which tell a model something about places by themselves.
With `--speed`: forward and backward of the default model, in rounds with each kind in turn, as ratios to rotary ones.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

import numpy as np
import torch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from conf.schema import from_yaml  # noqa: E402
from data.batches import evaluation_windows  # noqa: E402
from data.open_text import open_text  # noqa: E402
from gpt.checkpoint import load_checkpoint  # noqa: E402
from gpt.config import ModelConfig  # noqa: E402
from gpt.evaluation import evaluate, reduce  # noqa: E402
from gpt.inference.decoder import Decoder  # noqa: E402
from gpt.inference.weights import weights_of  # noqa: E402
from gpt.model import GPT  # noqa: E402
from gpt.transfer import with_context  # noqa: E402

PLAIN = ("model.key_offset=false", "model.token_shift=false", "model.conv_taps=1")
KINDS = ("rotary", "learned", "sinusoidal", "alibi", "none")
WINDOWS = (("rotary", 128), ("rotary", 64), ("rotary", 16), ("alibi", 64), ("none", 64))
TIMES = (1, 2, 4)
PIECE = 4096  # tokens read at once as sample.py reads


def train(steps: int, seed: int, *overrides: str) -> list[float | None]:
    """Train a model; its validation losses at each of `TIMES` the context, None where there are no places, and as read.

    Raises:
        CalledProcessError: training failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "train.py"), "name=run", f"seed={seed}", f"trainer.max_steps={steps}"]
        subprocess.run([*command, "logger=none", *overrides], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        run = Path(folder) / "runs" / "run"
        config = from_yaml((run / "config.yaml").read_text("utf-8"))
        text = open_text(config.data, config.model.context)
        model, _ = load_checkpoint(run / "checkpoints" / "last.ckpt")
    tokens, V = text.validation, text.tokenizer.size
    first, sizes = int(tokens[0]), text.tokenizer.token_sizes
    losses: list[float | None] = []
    for times in TIMES:
        context = times * config.model.context
        if times > 1 and config.model.positions == "learned":
            losses.append(None)
            continue
        windows = evaluation_windows(tokens, context, PIECE // context)
        losses.append(evaluate(with_context(model, context).eval(), windows, first, sizes).loss)
    decoder = Decoder(weights_of(model))
    numbers = tokens.astype(np.int64)
    read = (
        (torch.from_numpy(decoder.read(piece[None, :-1])[0]), torch.from_numpy(piece[1:]))
        for piece in (numbers[start : start + PIECE + 1] for start in range(0, len(numbers) - 1, PIECE))
    )
    return [*losses, reduce(read, first, V, sizes).loss]


@torch.enable_grad()
def speed(rounds: int, windows: int = 8) -> None:
    """Print how long forward and backward of a batch take, not compiled, in bf16."""
    configs = {f"{kind}": ModelConfig(positions=kind) for kind in KINDS}
    configs |= {f"{kind}, window {window}": ModelConfig(positions=kind, window=window) for kind, window in WINDOWS}
    longer = {f"{name}, context 1024": replace(config, context=1024) for name, config in configs.items()}
    for group, batch in ((configs, windows), (longer, windows // 4)):
        models = {name: GPT(config, 96) for name, config in group.items()}
        times: dict[str, list[float]] = {name: [] for name in group}
        for turn in range(rounds + 1):
            for name, model in models.items():
                tokens = torch.randint(96, (batch, group[name].context))
                begun = time.perf_counter()
                with torch.autocast("cpu", torch.bfloat16):
                    logits = model(tokens)
                logits.float().logsumexp(-1).mean().backward()
                if turn:  # the first is for warming up
                    times[name].append(time.perf_counter() - begun)
        base = times[next(iter(group))]
        for name, each in times.items():
            ratios = [one / other for one, other in zip(each, base, strict=True)]
            spread = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            print(f"| {name} | {1e3 * median(each):.1f} ms | {spread} |", flush=True)


def main() -> None:
    """Print a row for each kind as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--speed", action="store_true", help="train nothing, take times")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    if options.speed:
        return speed(options.rounds)
    print(
        "| positions | window | recipe | 1x | 2x | 4x | as sample.py reads |\n|---|---|---|---|---|---|---|", flush=True
    )
    rows = [(kind, None, ()) for kind in KINDS]
    rows += [(kind, None, PLAIN) for kind in KINDS] + [(kind, window, ()) for kind, window in WINDOWS]
    for kind, window, recipe in rows:
        overrides = [f"model.positions={kind}", f"model.window={'null' if window is None else window}", *recipe]
        results = [train(options.steps, seed, *overrides) for seed in range(options.seeds)]
        cells = ["-" if None in each else f"{mean(each):.4f}" for each in zip(*results, strict=True)]
        named = "no offset, no shift" if recipe else "default"
        print(f"| {kind} | {window or 'all'} | {named} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
