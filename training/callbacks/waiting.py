"""Show what a run does while it takes no steps."""

from typing import Any

import lightning as L

from base.progress import Progress
from training.module import LitGPT


class Waiting(L.Callback):
    """Show what a run waits for: setup, compiling, validation, and the callbacks after a validation.

    Must be the first callback, because what it shows after a validation is the others' work.
    """

    def __init__(self) -> None:
        self.shown: Progress | None = None

    def show(self, what: str, total: int = 0) -> None:
        """Show `what`, with `total` units of work, instead of what was shown before."""
        self.end()
        self.shown = Progress(what, total).__enter__()

    def end(self, *_: Any, **__: Any) -> None:
        """Show nothing from now on."""
        if self.shown is not None:
            self.shown.__exit__()
            self.shown = None

    on_train_batch_end = on_train_end = on_exception = end

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self.show("setting up")

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, LitGPT)
        self.show("compiling" if pl_module.compile_step else "the first step")

    def on_validation_start(self, trainer: L.Trainer, *_: Any) -> None:
        self.show("validating", trainer.datamodule.num_validated() // trainer.world_size)  # type: ignore[attr-defined]

    def on_validation_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, *_: Any) -> None:
        assert self.shown is not None
        self.shown.update(batch[0].numel())

    def on_validation_end(self, *_: Any) -> None:
        self.show("saving and sampling")
