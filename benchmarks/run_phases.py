"""Where the seconds of a run go: `python benchmarks/run_phases.py [--rounds 3] [--other CHECKOUT] [OVERRIDE ...]`.

Whole processes of `python train.py OVERRIDE ...`, one after the other. The table has the seconds of each phase, median
and range over the rounds, and the share that is not training steps. With `--other`, a checkout of another version runs
in turn with this one. Nothing else should run meanwhile.
"""

import argparse
import json
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STEPS = "training steps"


class Phases:
    """Seconds of each phase; a phase inside another is not counted in the outer one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.stack, self.last = ["start: settle the run, load torch"], time.perf_counter()

    def count(self) -> None:
        """Add the time since the last call to the innermost phase."""
        now = time.perf_counter()
        self.seconds[self.stack[-1]] = self.seconds.get(self.stack[-1], 0.0) + now - self.last
        self.last = now

    def switch(self, phase: str) -> None:
        """Begin another phase in place of the innermost one."""
        self.count()
        self.stack[-1] = phase

    def time(self, owner: Any, name: str, phase: str, then: str = "") -> None:
        """Count a function as a phase; `then` replaces the phase around the function when it has ended."""
        function: Callable[..., Any] = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            self.count()
            self.stack.append(phase)
            try:
                return function(*arguments, **named)
            finally:
                self.count()
                self.stack.pop()
                if then:
                    self.stack[-1] = then

        setattr(owner, name, timed)


def measured(train: str) -> None:
    """Run train.py in this process and print the seconds of its phases."""
    phases = Phases()
    from training import run

    fit = run.fit

    def timed_fit(*arguments: Any) -> Any:
        phases.switch("load Lightning, build the parts")
        import lightning as L
        from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop

        from training import assemble, finish
        from training.callbacks import checkpoints, pictures, samples
        from training.module import LitGPT

        phases.time(L.Trainer, "fit", "set up Lightning", then="finish: other")
        phases.time(_EvaluationLoop, "run", "validations")
        phases.time(samples.Samples, "on_validation_end", "validations: samples")
        phases.time(pictures.Pictures, "on_validation_end", "validations: data of the pictures")
        phases.time(checkpoints.Checkpoints, "on_validation_end", "validations: checkpoints")
        phases.time(finish, "evaluate_split", "finish: exact evaluation")
        phases.time(finish, "write_sample", "finish: sample")
        phases.time(finish, "write_report", "finish: report.html")
        phases.time(pictures.Pictures, "finish", "finish: wait for pictures")
        step = LitGPT.training_step

        def first_step(self: LitGPT, *given: Any) -> Any:
            phases.switch("first step (compiled code from the cache)")
            try:
                return step(self, *given)
            finally:
                phases.switch(STEPS)
                LitGPT.training_step = step  # type: ignore[method-assign]

        LitGPT.training_step = first_step  # type: ignore[method-assign]
        assert assemble
        return fit(*arguments)

    run.fit = timed_fit
    try:
        runpy.run_path(train, run_name="__main__")
    finally:
        phases.count()
        print(json.dumps(phases.seconds), file=sys.stderr)


def run_once(root: Path, overrides: list[str]) -> dict[str, float]:
    """Run train.py of a checkout in a new process and return the seconds of its phases."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        ended = subprocess.run(
            [sys.executable, str(ROOT / "benchmarks/run_phases.py"), "--measured", str(root), "name=run", *overrides],
            cwd=folder, capture_output=True, text=True,
        )  # fmt: skip
        whole = time.perf_counter() - started
        if ended.returncode:
            sys.exit(ended.stderr)
        summary = json.loads(Path(folder, "runs/run/summary.json").read_text())
    seconds = json.loads(ended.stderr.splitlines()[-1])
    seconds["interpreter's start and exit"] = whole - sum(seconds.values())
    not_steps = whole - seconds[STEPS]
    loss, speed = (summary.get(key) or 0.0 for key in ("val_loss", "characters_per_second"))
    return seconds | {"all": whole, "not training steps": not_steps, "validation loss": loss, "characters/s": speed}


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--other", type=Path, help="checkout of another version, measured in turn with this one")
    options, overrides = parser.parse_known_args()
    roots = [ROOT] + ([options.other.resolve()] if options.other else [])
    rounds: dict[Path, list[dict[str, float]]] = {root: [] for root in roots}
    for number in range(options.rounds):
        for root in roots[:: 1 - 2 * (number % 2)]:
            rounds[root].append(run_once(root, overrides))
            last = rounds[root][-1]
            print(f"round {number + 1}: {root.name} {last['all']:.1f} s, {last['validation loss']:.4f}", flush=True)
    for root in roots:
        print(f"\n| {root.name} | seconds |\n|---|---|")
        for phase in rounds[root][0]:
            values = [each.get(phase, 0.0) for each in rounds[root]]
            digits = 4 if phase == "validation loss" else 0 if phase == "characters/s" else 2
            low, middle, high = (f"{f(values):,.{digits}f}" for f in (min, statistics.median, max))
            print(f"| {phase} | {middle} ({low} to {high}) |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measured"]:
        root = sys.argv[2]
        sys.argv[:3] = [f"{root}/train.py"]
        sys.path.insert(0, root)
        measured(f"{root}/train.py")
    main()
