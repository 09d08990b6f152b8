"""End a trial that its search gives up."""

from collections.abc import Callable
from typing import Any

import lightning as L

from training.module import LitGPT


class Prune(L.Callback):
    """Ends a trial that a search gives up. It must come before the callback that saves, which keeps that it did.

    Args:
        hopeless: takes the step and the validation bits per character, says whether to give up; asked on one process.
    """

    def __init__(self, hopeless: Callable[[int, float], bool]) -> None:
        self.hopeless = hopeless
        self.pruned = False

    def state_dict(self) -> dict[str, Any]:
        """Whether it was given up."""
        return {"pruned": self.pruned}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What was given up stays so."""
        self.pruned = state_dict["pruned"]

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Ask, where there are steps left; all processes agree."""
        assert isinstance(pl_module, LitGPT) and pl_module.score is not None
        if trainer.sanity_checking or trainer.global_step >= trainer.max_steps:
            return
        asked = trainer.is_global_zero and self.hopeless(trainer.global_step, pl_module.score.bpc)
        self.pruned = trainer.strategy.reduce_boolean_decision(asked, all=False)
        trainer.should_stop = trainer.should_stop or self.pruned
