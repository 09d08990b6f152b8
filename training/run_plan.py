"""The plan of a run: everything that is fixed before its first step."""

import hashlib
import json
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from base.jobs.run_directory import Run
from conf.schema import Config
from data.text import Text
from reports.history import History
from training.choosing.choose import Choice
from training.machine import Machine, StartUp
from training.resume import InitModel, ResumePoint, conditions_of


@dataclass(frozen=True)
class RunPlan:
    """Everything that is fixed before the first step of a run, as `settle` in `training/run.py` returns it."""

    run: Run
    # the configuration in which each `auto` is replaced, and the reasons for the chosen values
    choice: Choice
    text: Text
    machine: Machine
    init_model: InitModel | None  # the trained model from which a new run starts (`init_from=`)
    # the checkpoint from which a resumed run continues, if it has one
    resume_point: ResumePoint | None
    # whether the run's config.yaml, changed by the command line, is its configuration
    resumed: bool
    # whether the run directory must not exist yet; False also for resume=auto, which found no run
    new: bool
    arguments: list[str]  # of the command line, which repeat the run under another name
    debug: bool  # whether a preset of conf/debug has named this new run
    startup: StartUp

    @property
    def config(self) -> Config:
        return self.choice.config

    @property
    def notes(self) -> list[str]:
        """Lines to log at the start of the run."""
        lines = list[str]()
        if self.machine.note:
            lines.append(f"GPU        {self.machine.note}")
        if self.init_model:
            lines.append(self.init_model.describe(self.text.tokenizer.vocabulary))
        if not self.resumed:
            lines += self.choice.notes
        return lines

    def with_steps(self, steps: int, interval: int) -> "RunPlan":
        """Return the plan with the steps and the interval of validations that `Deadline` has chosen."""
        trainer = self.config.trainer
        if trainer.max_steps == steps:  # `Deadline` has chosen nothing
            return self
        if trainer.val_check_interval != "auto":  # set, so it stays
            interval = trainer.val_check_interval
        config = replace(
            self.config, trainer=replace(trainer, max_steps=steps, val_check_interval=interval)
        )
        return replace(self, choice=replace(self.choice, config=config))

    def ended_by_callback(self, step: int, history: History) -> "RunPlan":
        """Return the plan of a run that ended before `Deadline` chose: the steps taken, with as many validations."""
        return self.with_steps(step, math.ceil(step / max(1, history.validations.seen)))

    @cached_property
    def conditions(self) -> dict[str, Any]:
        """Everything that the results of a run depend on, bit for bit, as name -> plain data.

        The names are the keys of the settings and, for example, `text`, `torch` and `device`.
        Checkpoints contain this dict, and a run resumes only if the dict is the same, unless the
        key `allow` lists the names that differ.
        """
        text = self.text
        vocabulary = hashlib.sha256(json.dumps(text.tokenizer.vocabulary).encode()).hexdigest()
        device = self.machine.device
        if device == "cpu":
            amx = torch.cpu.get_capabilities().get("amx_bf16")
            device += f" with {torch.backends.cpu.get_cpu_capability()}{' and AMX' if amx else ''}"
        elif self.machine.gpu:
            device += f" {self.machine.gpu.name}"
        return conditions_of(self.config) | {
            "text": f"{sum(text.characters.values())} characters {text.fingerprint[:12]}",
            "vocabulary": f"{text.tokenizer.size} tokens {vocabulary[:12]}",
            "world_size": self.machine.devices,
            "torch": str(torch.__version__),
            "device": device,
            "threads": torch.get_num_threads(),
        }

    @property
    def is_over(self) -> bool:
        """Whether a resumed run has reached max_steps, or was stopped early by a callback it still has."""
        point = self.resume_point
        if not point:
            return False
        same_callbacks = point.conditions["callbacks"] == self.conditions["callbacks"]
        was_ended = point.history.stopped_early and same_callbacks
        steps = self.config.trainer.max_steps
        # auto: `Deadline` had not chosen the number
        reached_steps = steps != "auto" and point.step >= steps
        return reached_steps or was_ended
