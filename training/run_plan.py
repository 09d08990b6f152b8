"""What is settled before the first step of a run."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from conf.merge import Layer
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
    typed: Layer  # of the configuration, what was typed
    text: Text
    runtime: Runtime
    init_model: InitModel | None
    resume_point: ResumePoint | None
    resumed: bool  # whether the configuration is based on the run's config.yaml
    fresh: bool  # whether the directory must not exist yet
    started: float  # time.perf_counter() when the process began
    notes: tuple[str, ...] = ()  # lines of the run's introduction
    settle_again: Any = None  # with `minutes`, the callback that chooses the steps again after a tenth

    @cached_property
    def conditions(self) -> dict[str, Any]:
        """The run fingerprint."""
        return conditions(self.config, self.text, self.runtime)

    @property
    def is_over(self) -> bool:
        """Whether a resumed run has no steps left: at max_steps, or stopped early by callbacks that it still has."""
        if not (point := self.resume_point):
            return False
        same = point.conditions["callbacks"] == self.config.callbacks
        return point.step >= self.config.trainer.max_steps or (point.record.over and same)
