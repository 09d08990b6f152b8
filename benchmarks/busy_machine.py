"""How fast training is beside other work: `python benchmarks/busy_machine.py TEXT [--other CHECKOUT] [--rounds 3]`.

Characters per second of the steps of the default recipe, compiled: alone, beside one process that only computes,
and two trainings at once (the mean of both), as a share of the same system alone in that round. `--other` is a
checkout of another version; benchmarks/plain_loop.py is measured in the same rounds. Nothing else should run.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STEPS = 80
Run = Callable[[], tuple[subprocess.Popen, Callable[[str], float]]]
# OMP settings of the shell would hide what the commands do by themselves.
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith(("GOMP_", "OMP_"))}


def start(root: Path, text: str) -> tuple[subprocess.Popen, Callable[[str], float]]:
    """Start train.py of a checkout; return the process and what reads its speed."""
    folder = tempfile.TemporaryDirectory()
    settings = f"name=run compile=true logger=none trainer.max_steps={STEPS} trainer.val_check_interval={STEPS}"
    command = [sys.executable, str(root / "train.py"), f"data.path={text}", *settings.split()]
    process = subprocess.Popen(command, cwd=folder.name, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)

    def speed(_: str) -> float:
        summary = json.loads(Path(folder.name, "runs/run/summary.json").read_text())
        folder.cleanup()
        return summary["characters_per_second"]

    return process, speed


def start_plain(text: str) -> tuple[subprocess.Popen, Callable[[str], float]]:
    """Start the plain loop."""
    command = [sys.executable, str(ROOT / "benchmarks/plain_loop.py"), text, "--steps", "300"]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    return process, lambda printed: json.loads(printed.splitlines()[-1])["characters_per_second"]


def measure(run: Run, count: int = 1) -> float:
    """Return the mean speed of `count` processes at once."""
    started = [run() for _ in range(count)]
    printed = [process.communicate()[0] for process, _ in started]
    if any(process.returncode for process, _ in started):
        sys.exit("a process failed")
    return statistics.mean(speed(text) for (_, speed), text in zip(started, printed, strict=True))


@contextmanager
def busy():
    """Keep one core busy."""
    process = subprocess.Popen(["sh", "-c", "while :; do :; done"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def main() -> None:
    """Measure in rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", help="tiny Shakespeare")
    parser.add_argument("--other", type=Path, help="checkout of another version")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    text = str(Path(options.text).resolve())
    systems: dict[str, Run] = {"this version": lambda: start(ROOT, text)}
    if options.other:
        systems["the other version"] = lambda: start(options.other.resolve(), text)
    systems["plain loop"] = lambda: start_plain(text)
    seen: dict[str, list[tuple[float, float, float]]] = {name: [] for name in systems}
    for number in range(options.rounds):
        for name, run in list(systems.items())[:: 1 - 2 * (number % 2)]:
            alone = measure(run)
            with busy():
                beside = measure(run)
            seen[name].append((alone, beside / alone, measure(run, 2) / alone))
            print(
                f"round {number + 1}: {name}: {alone:,.0f}, {beside / alone:.2f}, {seen[name][-1][2]:.2f}", flush=True
            )
    print("| | alone, characters/s | beside one busy process | two at once, each |\n|---|---|---|---|")
    for name, rounds in seen.items():
        columns = [
            f"{statistics.median(each):,.{2 * (i > 0)}f} ({min(each):,.{2 * (i > 0)}f} to {max(each):,.{2 * (i > 0)}f})"
            for i, each in enumerate(zip(*rounds, strict=True))
        ]
        print(f"| {name} | {' | '.join(columns)} |")


if __name__ == "__main__":
    main()
