"""What is settled before the first step of a run."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from conf.schema import Config
from data.text import Text
from training.init_from import InitModel
from training.machine import Runtime, conditions
from training.resume import ResumePoint


@dataclass(frozen=True)
class RunPlan:
    """What a run is made of.

    Attributes:
        directory: `runs/<name>/`.
        config: the configuration.
        keys: the keys that were typed.
        text: the tokenized text.
        runtime: device, precision and compilation, each with its reason.
        init_model: the trained model that a fresh run starts from.
        resume_point: the checkpoint that a resumed run continues from.
        resumed: whether the configuration is based on the config.yaml of the run.
        fresh: whether the directory must not exist yet.
        started: `time.perf_counter()` when the process began.
        notes: lines of the run's introduction.
    """

    directory: Path
    config: Config
    keys: list[str]
    text: Text
    runtime: Runtime
    init_model: InitModel | None
    resume_point: ResumePoint | None
    resumed: bool
    fresh: bool
    started: float
    notes: tuple[str, ...] = ()

    @cached_property
    def conditions(self) -> dict[str, Any]:
        """The run fingerprint."""
        return conditions(self.config, self.text, self.runtime)

    @property
    def is_over(self) -> bool:
        """Whether a resumed run has no steps left."""
        return self.resume_point is not None and self.resume_point.is_end(self.config)
