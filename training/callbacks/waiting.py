"""What a run shows while it takes no steps: what comes before the first one, validations, and what follows them."""

from typing import Any

import lightning as L
from torch import Tensor

from base.progress import Progress
from training.module import LitGPT


class Waiting(L.Callback):
    """Shows what a run waits for; it comes first, so that what other callbacks do after a validation is shown, too."""

    def __init__(self, validated: int) -> None:
        self.validated = validated
        self.shown: Progress | None = None
        self.restored = False  # whether a checkpoint that is resumed has been taken over

    def show(self, what: str, total: int = 0) -> None:
        """End what is shown, and show something else."""
        self.end()
        self.shown = Progress(what, total).__enter__()

    def end(self) -> None:
        """Show no more."""
        if self.shown is not None:
            self.shown.__exit__()
            self.shown = None

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """All processes are there."""
        self.show("setting up")

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The first step takes longer than the others."""
        self.restored = True
        assert isinstance(pl_module, LitGPT)
        self.show("compiling" if pl_module.compile_step else "the first step")

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Tensor, batch_idx: int
    ) -> None:
        """A step was taken."""
        self.end()

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """A validation begins."""
        self.show("validating", self.validated)

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """So much of it is done."""
        assert self.shown is not None
        self.shown.update(batch[0].numel())

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Samples are drawn, and a checkpoint is saved."""
        self.show("writing what came of it")

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """There is nothing to wait for."""
        self.end()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Leave the terminal as it was."""
        self.end()
