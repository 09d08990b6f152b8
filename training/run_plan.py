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
    """What a run is made of."""

    directory: Path  # runs/<name>/
    config: Config
    keys: list[str]  # of the configuration, those that were typed
    text: Text
    runtime: Runtime
    init_model: InitModel | None
    resume_point: ResumePoint | None
    resumed: bool  # whether the configuration is based on the run's config.yaml
    fresh: bool  # whether the directory must not exist yet
    started: float  # time.perf_counter() when the process began
    notes: tuple[str, ...] = ()  # lines of the run's introduction

    @cached_property
    def conditions(self) -> dict[str, Any]:
        """The run fingerprint."""
        return conditions(self.config, self.text, self.runtime)

    @property
    def is_over(self) -> bool:
        """Whether a resumed run has no steps left."""
        return self.resume_point is not None and self.resume_point.is_end(self.config)
