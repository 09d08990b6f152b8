"""What is settled before the first step of a run."""

from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

from conf.schema import Config
from data.text import Text
from training.choosing.choose import Choice
from training.init_from import InitModel
from training.machine import Machine, conditions
from training.resume import ResumePoint


class Beginning(Enum):
    """How a run begins."""

    NEW = "the directory must not exist yet"
    FIRST = "resume=auto found nothing to continue; the directory may exist"
    RESUMED = "its config.yaml, changed by the command line, is the configuration"


@dataclass(frozen=True)
class RunPlan:
    """What a run is made of."""

    directory: Path  # runs/<name>/
    choice: Choice
    text: Text
    machine: Machine
    init_model: InitModel | None
    resume_point: ResumePoint | None
    beginning: Beginning
    started: float  # time.perf_counter() when the process began

    @property
    def config(self) -> Config:
        """The configuration; nothing in it is `auto` but the steps and validations of a run with `minutes`."""
        return self.choice.config

    @property
    def notes(self) -> list[str]:
        """Lines of the run's introduction."""
        start = [self.init_model.describe(self.text.tokenizer.vocabulary)] if self.init_model else []
        return [*start, *([] if self.beginning is Beginning.RESUMED else self.choice.notes)]

    def with_steps(self, steps: int) -> "RunPlan":
        """Return the plan with the number of steps that `minutes` has chosen while the run trained."""
        if self.config.trainer.max_steps == steps:
            return self
        config = replace(self.config, trainer=replace(self.config.trainer, max_steps=steps))
        return replace(self, choice=replace(self.choice, config=config))

    @cached_property
    def conditions(self) -> dict[str, Any]:
        """What the results depend on, see `training.machine.conditions`."""
        return conditions(self.config, self.text, self.machine)

    @property
    def is_over(self) -> bool:
        """Whether a resumed run has no steps left: at max_steps, or stopped early by callbacks that it still has."""
        if not (point := self.resume_point):
            return False
        same = point.conditions["callbacks"] == self.conditions["callbacks"]
        steps = self.config.trainer.max_steps
        return (steps != "auto" and point.step >= steps) or (point.record.over and same)
