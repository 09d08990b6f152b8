"""The callback that writes a model file at each validation (`callbacks=snapshots`)."""

from typing import Any

import lightning as L

from gpt.training_checkpoint import write_model
from training.callbacks.checkpoints import Checkpoints


class Snapshots(L.Callback):
    """At each validation, writes the evaluated weights to `checkpoints/step-N.safetensors`, where N is the step.

    If another callback averages the weights, the module contains the average only during validation. So `Snapshots`
    copies the weights before the first validation batch and writes them when the validation has ended. `Checkpoints`
    saves after `Snapshots`, so if a run is killed between the two, the resumed run repeats the validation and writes
    the same file.
    """

    def __init__(self) -> None:
        self.weights: dict[str, Any] = {}

    def on_validation_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        if trainer.is_global_zero and not self.weights and not trainer.sanity_checking:
            self.weights = {name: weight.cpu().clone() for name, weight in pl_module.state_dict().items()}

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not self.weights:
            return
        folder = next(each.directory for each in trainer.callbacks if isinstance(each, Checkpoints))  # type: ignore[attr-defined]
        contents = {"state_dict": self.weights, "global_step": trainer.global_step}
        pl_module.on_save_checkpoint(contents)  # adds the description of the model
        write_model(folder / f"step-{trainer.global_step}.safetensors", contents)
        self.weights = {}
