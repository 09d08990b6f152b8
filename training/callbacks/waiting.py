"""Show progress while a run takes no steps."""

from typing import Any

import lightning as L

from base.progress import Progress
from training.module import LitGPT


class Waiting(L.Callback):
    """Show what a run waits for: setup, compiling, validation, and the other callbacks after a validation.

    It must come before those.
    """

    def __init__(self) -> None:
        self.shown: Progress | None = None

    def show(self, what: str, total: int = 0) -> None:
        """Replace what is shown."""
        self.end()
        self.shown = Progress(what, total).__enter__()

    def end(self) -> None:
        """Show nothing from now on."""
        if self.shown is not None:
            self.shown.__exit__()
            self.shown = None

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self.show("setting up")

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, LitGPT)
        self.show("compiling" if pl_module.compile_step else "the first step")

    def on_train_batch_end(self, *_: Any) -> None:
        self.end()

    def on_validation_start(self, trainer: L.Trainer, *_: Any) -> None:
        self.show("validating", trainer.datamodule.num_validated() // trainer.world_size)  # type: ignore[attr-defined]

    def on_validation_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, *_: Any) -> None:
        assert self.shown is not None
        self.shown.update(batch[0].numel())

    def on_validation_end(self, *_: Any) -> None:
        self.show("saving and sampling")

    def on_train_end(self, *_: Any) -> None:
        self.end()

    def on_exception(self, *_: Any) -> None:
        self.end()
