"""How long it takes to a good model of tiny Shakespeare, whole processes, against a plain PyTorch loop.

    python benchmarks/time_to_loss.py tinyshakespeare.txt
    python benchmarks/time_to_loss.py tinyshakespeare.txt --only 1.4697 --seeds 1,2,3

The plain loop and each question in turn, a seed a round. A time is that of the whole process: start of Python, imports,
compilation, evaluations, the printed sample.
A loss is over the whole validation split in disjoint windows of the training context, by the weights the run ends
with. A run counts as having reached a loss only if its final loss is below it, so the time is that of a run
which was made to end there. Nothing else should run meanwhile.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
# The model for each question and how long it must be trained, found with seeds 0 and 101.
FULL = "compile=true logger=none".split()
RUNS = {
    "plain loop's final loss": (
        "model.layers=2 model.context=64 data.batch=24 optim.lr=2e-2 optim.muon_lr=2e-2 optim.warmup=10 "
        "trainer.max_steps=150 logger=none"
    ).split(),
    "plain loop's wall clock": [*FULL, "trainer.max_steps=1150", "trainer.val_check_interval=1150"],
    "1.4697": [*FULL, "trainer.max_steps=1800", "trainer.val_check_interval=1800"],
    "10 minutes": ["minutes=10"],
}


def plain(text: str, seed: str) -> tuple[float, float]:
    """Seconds and loss of the plain loop."""
    started = time.perf_counter()
    command = [sys.executable, str(ROOT / "benchmarks" / "plain_loop.py"), text, "--seed", seed]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    return time.perf_counter() - started, json.loads(ended.stdout.splitlines()[-1])["loss"]


def train(folder: str, *arguments: str, **environment: str) -> tuple[float, dict[str, Any]]:
    """Seconds and summary.json of a process of `train.py name=run` in a folder."""
    command = [sys.executable, str(ROOT / "train.py"), *arguments]
    started = time.perf_counter()
    ended = subprocess.run(command, cwd=folder, env=os.environ | environment, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if ended.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{ended.stderr}")
    return seconds, json.loads(Path(folder, "runs/run/summary.json").read_text())


def ours(text: str, seed: int | str, *arguments: str, **environment: str) -> tuple[float, dict[str, Any]]:
    """Seconds and summary.json of a whole run on a text of which a tenth is for validation."""
    of_text = ["name=run", f"data.path={text}", "data.split=[0.9,0.1,0.0]", f"seed={seed}"]
    with tempfile.TemporaryDirectory() as folder:
        return train(folder, *of_text, *arguments, **environment)


def main() -> None:
    """Run everything in turn, a seed each round, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", help="tiny Shakespeare")
    parser.add_argument("--seeds", default="1,2,3", help="one round each")
    parser.add_argument("--only", choices=RUNS, action="append", help="answer this question; may be repeated")
    given = parser.parse_args()
    text = str(Path(given.text).absolute())
    seen: dict[str, list[tuple[float, float, float]]] = {}

    def row(name: str, seconds: float, loss: float, line: float | None) -> None:
        seen.setdefault(name, []).append((seconds, base[0] / seconds, loss))
        reached = "" if line is None else "yes" if loss <= line else "no: does not count"
        print(f"| {name} | {seed} | {seconds:.1f} | {base[0] / seconds:.2f} | {loss:.4f} | {reached} |", flush=True)

    print("| run | seed | whole process, seconds | plain loop's seconds over these | loss | reached |")
    print("|---|---|---|---|---|---|")
    for seed in given.seeds.split(","):
        base = plain(text, seed)
        row("plain loop", *base, None)
        lines = {"plain loop's final loss": base[1], "1.4697": 1.4697}
        for name in given.only or RUNS:
            seconds, summary = ours(text, seed, *RUNS[name])
            row(name, seconds, summary["last_val_loss"], lines.get(name))
    for name, values in seen.items():
        seconds, ratio, loss = (statistics.median(column) for column in zip(*values, strict=True))
        print(f"| {name} | median | {seconds:.1f} | {ratio:.2f} | {loss:.4f} | |", flush=True)


if __name__ == "__main__":
    main()
