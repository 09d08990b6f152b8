"""The plan of a run: everything that is fixed before its first step."""

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
    """Whether a run is new or resumed, which decides whether its directory may exist and what its configuration is."""

    NEW = "the directory must not exist yet"
    FIRST = "resume=auto found nothing to continue; the directory may exist"
    RESUMED = "its config.yaml, changed by the command line, is the configuration"


@dataclass(frozen=True)
class RunPlan:
    """Everything that is fixed before the first step; `settle` in `training/run.py` creates it."""

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
        """The configuration; only with `minutes`, `trainer.max_steps` and `val_check_interval` may still be `auto`."""
        return self.choice.config

    @property
    def notes(self) -> list[str]:
        """Lines to log at the start of the run.

        They name the model that the run starts from, if any, and what was chosen for `auto`, unless the run is resumed.
        """
        start = [self.init_model.describe(self.text.tokenizer.vocabulary)] if self.init_model else []
        return [*start, *([] if self.beginning is Beginning.RESUMED else self.choice.notes)]

    def with_steps(self, steps: int) -> "RunPlan":
        """Return the plan with `trainer.max_steps=steps`, which a run with `minutes` chooses while it trains."""
        if self.config.trainer.max_steps == steps:
            return self
        config = replace(self.config, trainer=replace(self.config.trainer, max_steps=steps))
        return replace(self, choice=replace(self.choice, config=config))

    @cached_property
    def conditions(self) -> dict[str, Any]:
        """Everything that the results depend on bit for bit; see `training.machine.conditions`."""
        return conditions(self.config, self.text, self.machine)

    @property
    def is_over(self) -> bool:
        """Whether the run is resumed but has no steps left.

        That is so if it has reached max_steps, or if a callback, such as early stopping, has ended it and the
        configuration still has the same callbacks.
        """
        if not (point := self.resume_point):
            return False
        same = point.conditions["callbacks"] == self.conditions["callbacks"]
        steps = self.config.trainer.max_steps
        return (steps != "auto" and point.step >= steps) or (point.record.over and same)
