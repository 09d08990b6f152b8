"""Two processes against one: characters per second, efficiency, and what communication costs.

    python benchmarks/scaling.py TEXT [--rounds 3] [--steps 150] [--model tiny]
    python benchmarks/scaling.py --communication

Each row is `train.py` itself, one thread a process, not compiled; rounds go in turn; median and range. *Side by side*
is two runs that know nothing of each other at the same time: what two processes of this machine do when neither waits
for the other. What `ddp` loses against it is communication. `--communication` prints what a step sends, computed from
the shapes of models: gradients are averaged in fp32 by a ring, 2 (N - 1) / N of their bytes a device; `fsdp` gathers
weights twice and scatters gradients once, (N - 1) / N each, and Muon gathers its matrices once more.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

BATCH = 8  # windows a process and step
# Nominal rates of one direction, bytes per second: what is reached is less.
LINKS = {"1 Gbit/s": 1.25e8, "10 Gbit/s": 1.25e9, "100 Gbit/s": 1.25e10, "NVLink 450 GB/s": 4.5e11}
SHAPES = {"tiny": (4, 128), "small": (4, 256), "baby": (6, 384)} | {
    "12 layers, 768 wide": (12, 768), "24 layers, 1024 wide": (24, 1024), "24 layers, 2048 wide": (24, 2048),
    "32 layers, 4096 wide": (32, 4096),
}  # fmt: skip


def parameters(layers: int, dim: int) -> tuple[int, int]:
    """All weights of a model over 96 characters, and those in the matrices of its blocks."""
    import torch

    from gpt.config import ModelConfig
    from gpt.model import GPT

    with torch.device("meta"):
        model = GPT(ModelConfig(layers=layers, heads=dim // 64, dim=dim), 96)
    return model.num_parameters(), sum(weight.numel() for weight in model.blocks.parameters() if weight.ndim == 2)


def sent(weights: int, matrices: int, devices: int, strategy: str) -> float:
    """Bytes that each device sends in a step with Muon."""
    share = 4 * (devices - 1) / devices
    return share * (2 * weights if strategy == "ddp" else 3 * weights + matrices)


def amount(size: float) -> str:
    """Bytes as people read them."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"


def duration(seconds: float) -> str:
    """Seconds as people read them."""
    return f"{seconds:,.1f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def print_communication() -> None:
    """What a step sends on many devices, by model, and how long that takes at least."""
    links = " | ".join(f"ddp over {name}" for name in LINKS)
    print(f"| model | weights | training state of each device with ddp | sent with ddp | sent with fsdp | {links} |")
    print("|---|---|---|---|---|" + "---|" * len(LINKS))
    for name, (layers, dim) in SHAPES.items():
        weights, matrices = parameters(layers, dim)
        # Weights and gradients, and what Muon keeps of matrices (one number) and AdamW of all else (two).
        state = 4 * (2 * weights + matrices + 2 * (weights - matrices))
        by_strategy = [sent(weights, matrices, 10**9, strategy) for strategy in ("ddp", "fsdp")]
        times = " | ".join(duration(by_strategy[0] / rate) for rate in LINKS.values())
        amounts = " | ".join(map(amount, by_strategy))
        print(f"| {name} | {weights / 1e6:,.1f} M | {amount(state)} | {amounts} | {times} |")


def run(text: Path, place: Path, steps: int, model: str, *arguments: str) -> subprocess.Popen:
    """Start a run with one thread a process."""
    return subprocess.Popen(
        [
            sys.executable, ROOT / "train.py", f"data.path={text}", "data.split=[0.96,0.02,0.02]", f"model={model}",
            f"trainer.max_steps={steps}", f"trainer.val_check_interval={steps}", "trainer.accelerator=cpu",
            "compile=false", "logger=none", *arguments,
        ],
        cwd=place, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL,
    )  # fmt: skip


def speeds(runs: list[subprocess.Popen], place: Path) -> float:
    """Characters per second while stepping, of runs that go on at the same time, added up."""
    for process in runs:
        if process.wait():
            raise SystemExit("a run has failed")
    total = 0.0
    for summary in place.glob("runs/*/summary.json"):
        total += json.loads(summary.read_text())["characters_per_second"]
    return total


def measure(text: Path, steps: int, model: str) -> dict[str, float]:
    """One round: characters per second by row."""
    single = ["trainer.devices=1", f"data.batch={BATCH}"]
    double = ["trainer.devices=2", f"data.batch={2 * BATCH}"]
    rows = {
        "one process": [single],
        "two side by side": [[*single, "name=one"], [*single, "name=other"]],
        "ddp, each the same batch": [["trainer=ddp", *double]],
        "ddp, half the batch each": [["trainer=ddp", "trainer.devices=2", f"data.batch={BATCH}"]],
        "fsdp, each the same batch": [["trainer=fsdp", *double]],
    }
    found = {}
    for name, runs in rows.items():
        with tempfile.TemporaryDirectory() as place:
            started = [run(text, Path(place), steps, model, *arguments) for arguments in runs]
            found[name] = speeds(started, Path(place))
    return found


def main() -> None:
    """Measure, and print Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--model", default="tiny", choices=("tiny", "small", "baby"))
    parser.add_argument("--step-ms", type=float, help="of one device, for the projection; the measured one by default")
    parser.add_argument("--communication", action="store_true", help="only the computed table")
    options = parser.parse_args()
    if options.communication or options.text is None:
        print_communication()
        return
    rounds = [measure(options.text.absolute(), options.steps, options.model) for _ in range(options.rounds)]

    def spread(values: list[float], unit: str = "") -> str:
        return f"{statistics.median(values):,.0f}{unit} ({min(values):,.0f} to {max(values):,.0f})"

    print("| one thread a process | characters/s, median (range) | of twice one process | of two side by side |")
    print("|---|---|---|---|")
    for name in rounds[0]:
        twice = [100 * each[name] / each["one process"] / 2 for each in rounds]
        beside = [100 * each[name] / each["two side by side"] for each in rounds]
        print(
            f"| {name} | {spread([each[name] for each in rounds])} | {spread(twice, ' %')} | {spread(beside, ' %')} |"
        )
    waits = [100 * (1 - each["ddp, each the same batch"] / each["two side by side"]) for each in rounds]
    print(f"\nShare of a ddp step that is communication: {spread(waits, ' %')}")

    weights, matrices = parameters(*SHAPES[options.model])
    speed = statistics.median(each["one process"] for each in rounds)
    step = options.step_ms / 1000 if options.step_ms else BATCH * 256 / speed
    print(f"\nProjection, not a measurement: efficiency of ddp at {1000 * step:.0f} ms a step, nothing overlapping")
    print("| devices | " + " | ".join(LINKS) + " |\n|---|" + "---|" * len(LINKS))
    for devices in (2, 8, 64):
        times = [step + sent(weights, matrices, devices, "ddp") / rate for rate in LINKS.values()]
        print(f"| {devices} | " + " | ".join(f"{100 * step / time:.1f} %" for time in times) + " |")


if __name__ == "__main__":
    main()
