"""What watching costs a run: `python benchmarks/watching.py [--rounds 3] [OVERRIDE ...]`.

Whole processes of the default run, in turn as it is and with `logger=none`, which writes and draws nothing: seconds,
and the ratio in each round. Such machines drift by more than what is sought, so the first also says how long each part
of watching took in the training process: all that a run would end without. The seconds of a core that the process
that draws has used are printed beside it; most of them are taken while training leaves a core alone. Nothing else
should run meanwhile.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

DRAWING = "(seconds of a core for the process that draws)"
SPENT: dict[str, float] = {}
DEPTH = 0


@contextlib.contextmanager
def spending(name: str) -> Iterator[None]:
    """Add the time of a block to its part, unless it is inside another."""
    global DEPTH
    started, DEPTH = time.perf_counter(), DEPTH + 1
    try:
        yield
    finally:
        DEPTH -= 1
        if DEPTH == 0:
            SPENT[name] = SPENT.get(name, 0.0) + time.perf_counter() - started


def timed(owner: Any, method: str, name: str) -> None:
    """Have a function say how long it takes."""
    whole: Callable[..., Any] = getattr(owner, method)

    def call(*arguments: Any, **named: Any) -> Any:
        with spending(name):
            return whole(*arguments, **named)

    setattr(owner, method, call)


def watched() -> None:
    """A run that says, at the end, what each part of watching took."""
    import train
    from reports import picture_process
    from training import assemble, finish
    from training.callbacks import metrics, pictures, samples

    for kind in (metrics.Metrics, samples.Samples, pictures.Pictures):
        for method in vars(kind):
            if method.startswith("on_") or method == "finish":
                timed(kind, method, kind.__name__)
    timed(finish, "log_result", "table of settings")
    timed(finish, "write_projector", "projector")
    timed(finish, "write_report", "report.html")
    timed(assemble, "choose_passage", "Pictures")
    end = picture_process.Renderer.end

    def end_and_ask(drawer: picture_process.Renderer) -> None:
        used = psutil.Process(drawer.process.pid).cpu_times()
        SPENT[DRAWING] = SPENT.get(DRAWING, 0.0) + used.user + used.system
        end(drawer)

    picture_process.Renderer.end = end_and_ask  # type: ignore[method-assign]
    status = train.cli()
    print(json.dumps(SPENT), file=sys.stderr)
    sys.exit(status)


def run(arguments: list[str]) -> tuple[float, dict[str, float]]:
    """Seconds of one process, and what it says of its parts."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        ended = subprocess.run(
            [sys.executable, str(ROOT / "benchmarks/watching.py"), "--watched", *arguments],
            cwd=folder, capture_output=True, text=True,
        )  # fmt: skip
        seconds = time.perf_counter() - started
    if ended.returncode:
        sys.exit(ended.stderr)
    return seconds, json.loads(ended.stderr.splitlines()[-1])


def main() -> None:
    """Run both in turn and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    given, overrides = parser.parse_known_args()
    ratios, shares, parts = [], [], []
    for number in range(given.rounds):
        first = number % 2  # in turn, as a machine gets warmer
        both = {}
        for logger in ([], ["logger=none"])[:: 1 - 2 * first]:
            both[bool(logger)] = run([*overrides, *logger])
        (seconds, spent), (without, _) = both[False], both[True]
        inside = sum(value for name, value in spent.items() if not name.startswith("("))
        ratios.append(seconds / without)
        shares.append(inside / seconds)
        parts.append(spent)
        print(
            f"round {number + 1}: {seconds:.1f} s, with logger=none {without:.1f} s; watching {inside:.2f} s",
            flush=True,
        )
    for name, values in (("default / logger=none", ratios), ("share of watching", shares)):
        print(f"{name}: median {statistics.median(values):.4f} ({min(values):.4f} to {max(values):.4f})")
    for name in parts[0]:
        print(f"{name}: {statistics.median(each.get(name, 0.0) for each in parts):.3f} s")


if __name__ == "__main__":
    if "--watched" in sys.argv:
        sys.argv.remove("--watched")
        watched()
    main()
