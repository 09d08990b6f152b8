"""What a run has measured so far, which its checkpoints contain."""

import math
import time
from dataclasses import asdict, dataclass, field
from typing import Any

MAX_POINTS = 1000  # max stored losses, and max stored validations
MAX_SAMPLES = 20  # max validations whose sample texts are stored


@dataclass
class BoundedSeries:
    """A list that stores at most `size` of the entries added to it: first all, then every second, then every fourth.

    Whenever the list is full, every second stored entry is removed, and from then on only half as
    many of the added entries are stored. The stored entries depend only on the number of added
    entries, so a resumed run stores the same entries as an uninterrupted one.
    """

    size: int  # maximum number of stored entries, an even number
    entries: list[Any] = field(default_factory=list)  # the stored entries
    seen: int = 0  # number of entries added so far
    every: int = 1  # one in this many added entries is stored

    def add(self, entry: Any) -> None:
        """Count `entry` as added, and store it unless it is skipped because only one in `every` entries is stored."""
        if self.seen % self.every == 0:
            if len(self.entries) == self.size:
                self.entries = self.entries[::2]
                self.every *= 2
            self.entries.append(entry)
        self.seen += 1


def _series(size: int) -> Any:
    return field(default_factory=lambda: BoundedSeries(size))


@dataclass
class History:
    """What a run has measured so far. A checkpoint contains its `state()`, so a resumed run continues it."""

    losses: BoundedSeries = _series(MAX_POINTS)  # of training: [step, nats per token]
    validations: BoundedSeries = _series(MAX_POINTS)  # [step, nats per token, bits per character]
    # of a validation: [step, [[temperature, prompt, text], ...]]
    samples: BoundedSeries = _series(MAX_SAMPLES)
    best_loss: float = math.inf  # the lowest validation loss
    best_step: int = -1
    validated_step: int = 0  # the step of the last validation
    loss_sum: float = 0.0  # of the training losses since the last entry of `losses`
    loss_count: int = 0
    seconds: float = 0.0  # of training in earlier processes, including validations and checkpoints
    # of the timed steps: all but the first of each process, which is slow
    step_seconds: float = 0.0
    timed_steps: int = 0
    peak_flops: float | None = None  # FLOP/s of all devices together, None if unknown
    # whether training ended before max_steps, such as by early stopping
    stopped_early: bool = False

    def __post_init__(self) -> None:
        # These are not fields, because a checkpoint does not contain them.
        # When training began in this process, None before and after it.
        self._started: float | None = None
        self._step_began = 0.0

    @classmethod
    def of(cls, state: dict[str, Any]) -> "History":
        """Return the history that `state` has described."""
        series = {
            name: BoundedSeries(**state[name]) for name in ("losses", "validations", "samples")
        }
        return cls(**state | series)

    def state(self) -> dict[str, Any]:
        return asdict(self) | {"seconds": self.elapsed()}

    def start_clock(self) -> None:
        self._started = time.perf_counter()
        self.begin_step()

    def stop_clock(self) -> None:
        self.seconds = self.elapsed()
        self._started = None

    def elapsed(self) -> float:
        """Return the seconds of training so far, in all processes."""
        if self._started is None:
            return self.seconds
        return self.seconds + time.perf_counter() - self._started

    def begin_step(self) -> None:
        """Let the time of the next step begin now, because a validation or a save has ended."""
        self._step_began = time.perf_counter()

    def end_step(self, steps: int = 1) -> None:
        """Count `steps` timed steps, which have taken the time since the last call or `begin_step`."""
        now = time.perf_counter()
        self.step_seconds += now - self._step_began
        self.timed_steps += steps
        self._step_began = now

    def add_loss(self, loss: float) -> None:
        self.loss_sum += loss
        self.loss_count += 1

    def end_interval(self, step: int) -> float:
        """Store the mean of the losses since the last call as the training loss at `step`, and return it."""
        loss = self.loss_sum / self.loss_count
        self.losses.add([step, loss])
        self.loss_sum = 0.0
        self.loss_count = 0
        return loss

    def add_validation(self, step: int, loss: float, bpc: float) -> None:
        self.validations.add([step, loss, bpc])
        self.validated_step = step
        # a run from a trained model is first validated at step 0
        if loss < self.best_loss and step > 0:
            self.best_loss = loss
            self.best_step = step
