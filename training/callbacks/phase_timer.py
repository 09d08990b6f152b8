"""Seconds of a step by phase, by the CPU's clock or by CUDA events."""

import time
from itertools import pairwise

import torch

PHASES = ("data", "forward", "backward", "optimizer", "other")  # of a step


class PhaseTimer:
    """Measure which share of the time of training steps each phase takes. Call it at the end of each phase.

    On CUDA, shares are measured between events on the stream, of the steps where `recording` is set; only `shares`
    synchronizes.

    Args:
        device: that trains.
        replayed: whether steps are replayed CUDA graphs, whose phases are not known.
    """

    def __init__(self, device: torch.device, replayed: bool = False) -> None:
        self.cuda = device.type == "cuda"
        self.available = device.type in ("cpu", "cuda") and not replayed  # MPS is asynchronous and has no events here
        self.marked = time.perf_counter()
        self.step = 0.0  # seconds of steps since `take`, by the CPU's clock
        self.recording = False
        self.clear()

    def clear(self) -> None:
        """Forget the phases so far."""
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.events: list[tuple[str, torch.cuda.Event]] = []

    def __call__(self, phase: str) -> None:
        """End a phase; the time of one that is not in `PHASES`, such as a validation, is not counted."""
        now = time.perf_counter()
        if phase in PHASES:
            self.step += now - self.marked
            self.seconds[phase] += now - self.marked
        self.marked = now
        if self.cuda and self.available and self.recording:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.events.append((phase, event))

    def take(self) -> float:
        """Return the seconds of steps since the last call."""
        taken, self.step = self.step, 0.0
        return taken

    def shares(self) -> dict[str, float]:
        """Return each phase's share of the time since `clear`, adding up to 1; empty where it is not known."""
        seconds = self.seconds
        if self.cuda:
            seconds = dict.fromkeys(PHASES, 0.0)
            if self.events:
                self.events[-1][1].synchronize()
            for (_, before), (phase, after) in pairwise(self.events):
                if phase in PHASES:
                    seconds[phase] += before.elapsed_time(after)
        whole = sum(seconds.values())
        return {phase: seconds[phase] / whole for phase in PHASES} if whole and self.available else {}
