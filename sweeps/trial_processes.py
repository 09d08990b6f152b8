"""Run each trial of a sweep in its own process."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from base import run_directory, slurm
from base.errors import one_line
from base.log import log
from base.processes import cores
from sweeps.trial import Outcome, Trial

STOPS = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2")  # submitit sends SIGUSR2 at the time limit


def start(trial: Trial, workers: int = 1) -> subprocess.Popen:
    """Start the process of a trial, with its share of the CPU cores and its output in `console.log`."""
    # Hide the SLURM job from the trial: only the sweep may requeue it, and Lightning starts the ranks of the trial.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
    environment["CHARGPT_SWEEP"] = str(os.getpid())
    if trial.number is not None:
        environment["CHARGPT_TRIAL"] = str(trial.number)
    if workers > 1 and "OMP_NUM_THREADS" not in environment:
        environment["OMP_NUM_THREADS"] = str(max(1, cores() // workers))
    trial.directory.mkdir(parents=True, exist_ok=True)
    with open(trial.directory / "console.log", "ab") as console:
        return subprocess.Popen(
            trial.command,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            env=environment,
            process_group=0,  # Ctrl-C in the terminal reaches the sweep only, which passes it on
        )


def outcome(trial: Trial, status: int, stopped: bool) -> Outcome:
    """Return the outcome of a trial from its exit status and whether a signal has stopped the sweep."""
    if status == 0:
        return Outcome(str(run_directory.summary_of(trial.directory).get("status")))
    if stopped:
        return Outcome("interrupted")
    if status < 0:
        return Outcome("failed", f"killed by {signal.Signals(-status).name}")
    lines = (trial.directory / "console.log").read_text("utf-8", "replace").split("\n")
    last = next((one_line(line) for line in reversed(lines) if line.strip()), f"exit status {status}")
    return Outcome("failed", last.removeprefix("train.py: "))


def run_trials(trials: Iterator[Trial], workers: int, ended: Callable[[Trial, Outcome], None]) -> int | None:
    """Run trials, at most `workers` at the same time, and call `ended` at the end of each.

    Take the next trial only when a worker is free, because a search chooses the trial by earlier outcomes. After a
    signal, stop the running trials, start no other and return the signal.
    """
    running: dict[subprocess.Popen, Trial] = {}
    passed = 0  # number of signals that were sent on to the trials
    with receiving() as received:
        try:
            while True:
                while not received and len(running) < workers and (trial := next(trials, None)):
                    running[start(trial, workers)] = trial
                if not running:
                    return received[0] if received else None
                for number in received[passed:]:
                    for process in running:  # a trial exits at once on its second SIGINT
                        process.send_signal(number if number == signal.SIGINT else signal.SIGTERM)
                passed = len(received)
                time.sleep(0.05)
                for process in [each for each in running if each.poll() is not None]:
                    trial = running.pop(process)
                    ended(trial, outcome(trial, process.returncode, bool(received)))
        finally:
            for process in running:  # only after an exception
                process.kill()


def exit_status(failed: list[str], count: int, received: int | None) -> int:
    """Log the failed trials, or requeue the SLURM job at its time limit.

    Return 0, or 1 if trials have failed, or 128 + `received` after a signal.
    """
    if received is not None:
        if slurm.time_is_up(received):
            slurm.requeue()
        else:
            log.info("stopped    the same command continues")
        return 128 + received
    if failed:
        log.error(f"train.py: {len(failed)} of {count} trials failed: {'; '.join(failed)}")
    return 1 if failed else 0


@contextmanager
def receiving() -> Iterator[list[int]]:
    """Yield a list and append every received signal of `STOPS` to it."""
    received: list[int] = []
    numbers = [getattr(signal, name) for name in STOPS if hasattr(signal, name)]
    before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
