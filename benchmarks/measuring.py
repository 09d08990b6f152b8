"""Functions that the benchmarks share: time processes, repeat rounds, print medians with ranges and the machine.

The scripts import this module before the packages of the repository, because it makes them
importable.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(1, str(ROOT))

T = TypeVar("T")
QUICK = (
    "model.layers=1 model.heads=1 model.dim=16 model.context=16 data.batch=4 trainer.max_steps=4 "
    "trainer.val_check_interval=4 trainer.accelerator=cpu compile=false logger=none"
).split()


def make_parser(
    doc: str, rounds: int = 3, text: str = "text file, such as tiny Shakespeare"
) -> argparse.ArgumentParser:
    """Return a parser with `--rounds`, `--quick` and, unless `text` is empty, a text file as its argument."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if text:
        parser.add_argument("text", type=os.path.abspath, help=text)
    parser.add_argument(
        "--rounds", type=int, default=rounds, help=f"number of measurements (default {rounds})"
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny models and few steps, only to test this script"
    )
    return parser


def print_machine() -> None:
    """Print the processor, the git commit and the versions of packages, on one line."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next(
        (line.partition(": ")[2] for line in lines if line.startswith("model name")),
        platform.processor(),
    )
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
    ).stdout
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "lightning", "numpy"))
    print(
        f"{model}, {os.cpu_count()} cores; commit {commit.strip()}; Python {platform.python_version()}, {versions}\n"
    )


def run(
    command: Sequence[str | Path], folder: str | Path = ".", **environment: str
) -> tuple[float, str]:
    """Run Python with the arguments `command`, and return (seconds of the whole process, its standard output).

    OpenMP's environment variables of the shell are not passed on, because they would override what
    a command sets.
    """
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("GOMP_", "OMP_"))
    }
    begun = time.perf_counter()
    ended = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env=kept | environment,
        capture_output=True,
        text=True,
    )
    seconds = time.perf_counter() - begun
    if ended.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{ended.stderr}")
    return seconds, ended.stdout


def train(*settings: str, **environment: str) -> tuple[float, dict[str, Any]]:
    """Train with train.py, and return (seconds of the process, content of summary.json)."""
    with tempfile.TemporaryDirectory() as folder:
        seconds, _ = run([ROOT / "train.py", "name=run", *settings], folder, **environment)
        return seconds, json.loads(Path(folder, "runs/run/summary.json").read_text())


def of_text(text: str, *settings: str, steps: int | None = None, quick: bool = False) -> list[str]:
    """Return settings that train on the first 90 % of a text, with one validation after the last step."""
    of_steps = (
        []
        if steps is None
        else [f"trainer.max_steps={steps}", f"trainer.val_check_interval={steps}"]
    )
    return [
        f"data.path={text}",
        "data.split=[0.9,0.1,0.0]",
        *of_steps,
        *settings,
        *(QUICK if quick else []),
    ]


def our_speed(settings: Sequence[str], seed: int) -> float:
    """Train with train.py, and return the characters per second during steps."""
    return train(*settings, f"seed={seed}")[1]["characters_per_second"]


def plain(text: str, *options: str, steps: int, seed: int) -> tuple[float, dict[str, float]]:
    """Train with plain_loop.py, and return (seconds of the process, {characters_per_second, loss})."""
    command = [
        ROOT / "benchmarks/plain_loop.py",
        text,
        *options,
        "--steps",
        str(steps),
        "--seed",
        str(seed),
    ]
    seconds, printed = run(command)
    return seconds, json.loads(printed.splitlines()[-1])


def plain_speed(text: str, steps: int, seed: int, options: Sequence[str] = ()) -> float:
    """Train with plain_loop.py, and return the characters per second of the median step."""
    return plain(text, "--speed", *options, steps=steps, seed=seed)[1]["characters_per_second"]


def at_once(works: Iterable[Callable[[], T]]) -> list[T]:
    """Call functions at the same time, each in a thread, and return their results in order."""
    works = list(works)
    with ThreadPoolExecutor(len(works)) as pool:
        return [begun.result() for begun in [pool.submit(work) for work in works]]


def in_turn(rounds: int, systems: Mapping[str, Callable[[int], T]]) -> dict[str, list[T]]:
    """Call each system once per round, with the number of the round, from 1, as its seed; return all results by name.

    Even rounds call the systems in reverse order, so that none always runs first.
    """
    seen: dict[str, list[T]] = {name: [] for name in systems}
    for number in range(1, rounds + 1):
        for name in list(systems)[:: 1 if number % 2 else -1]:
            seen[name].append(systems[name](number))
            print(
                f"round {number} of {rounds}: {name}: {seen[name][-1]}",
                file=sys.stderr,
                flush=True,
            )
    return seen


def spread(values: Sequence[float], form: str = ",.0f", unit: str = "") -> str:
    """Return values as text: their median and, in brackets, their range."""
    return (
        f"{statistics.median(values):{form}}{unit} ({min(values):{form}} to {max(values):{form}})"
    )


def ratios(values: Sequence[float], base: Sequence[float]) -> list[float]:
    """Return each value divided by the value of `base` in the same round."""
    return [value / other for value, other in zip(values, base, strict=True)]


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a line about the machine, and then a Markdown table."""
    print_machine()
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
