"""Stop a trial when its search prunes it."""

from collections.abc import Callable
from typing import Any

import lightning as L

from training.module import LitGPT


class Prune(L.Callback):
    """Stop a trial when `should_prune` (step, validation bpc) says so; rank 0 calls it and decides for all ranks.

    Must come before `Checkpoints`, so that a checkpoint has the new value of `pruned`.
    """

    def __init__(self, should_prune: Callable[[int, float], bool]) -> None:
        self.should_prune = should_prune
        self.pruned = False

    def state_dict(self) -> dict[str, Any]:
        return {"pruned": self.pruned}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.pruned = state_dict["pruned"]

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, LitGPT) and pl_module.score is not None
        if trainer.sanity_checking or trainer.global_step >= trainer.max_steps:
            return
        prune = trainer.is_global_zero and self.should_prune(trainer.global_step, pl_module.score.bpc)
        self.pruned = trainer.strategy.reduce_boolean_decision(prune, all=False)
        trainer.should_stop = trainer.should_stop or self.pruned
