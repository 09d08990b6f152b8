"""Seconds of a step by phase, on the CPU or by CUDA events."""

import time
from itertools import pairwise

import torch

PARTS = ("data", "forward", "backward", "optimizer", "other")  # of the time of a step


class PhaseTimer:
    """Where the time of training steps goes: seconds by part, each part being told of when it is over.

    A GPU works behind the program. There the shares are those of its own clock, between events on its stream, of few
    steps: what is asked of it waits for nothing before `shares`.

    Args:
        device: that trains.
        replayed: whether steps are replayed, so that their phases are not known.
    """

    def __init__(self, device: torch.device, replayed: bool = False) -> None:
        self.cuda = device.type == "cuda"
        # On other devices the program would only see itself wait.
        self.known = device.type in ("cpu", "cuda") and not replayed
        self.marked = time.perf_counter()
        self.step = 0.0  # seconds since `take`, on the program's clock
        self.recording = False  # events, from the end of one step to the end of the next
        self.clear()

    def clear(self) -> None:
        """Forget what has been seen of the parts."""
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.events: list[tuple[str, torch.cuda.Event]] = []

    def __call__(self, part: str) -> None:
        """Say that a part is over; what is no part of a step, such as a validation, is not counted."""
        now = time.perf_counter()
        if part in PARTS:
            self.step += now - self.marked
            self.seconds[part] += now - self.marked
        self.marked = now
        if self.cuda and self.known and self.recording:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.events.append((part, event))

    def take(self) -> float:
        """Seconds of steps since the last call."""
        taken, self.step = self.step, 0.0
        return taken

    def shares(self) -> dict[str, float]:
        """By part, the share of the time of the steps since `clear`; they add up to 1. Empty where it is not known."""
        seconds = self.seconds
        if self.cuda:
            seconds = dict.fromkeys(PARTS, 0.0)
            if self.events:
                self.events[-1][1].synchronize()
            for (_, before), (part, after) in pairwise(self.events):
                if part in PARTS:
                    seconds[part] += before.elapsed_time(after)
        whole = sum(seconds.values())
        return {part: seconds[part] / whole for part in PARTS} if whole and self.known else {}
