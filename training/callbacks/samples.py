"""Generate texts at each validation."""

from collections.abc import Callable
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor

from gpt.inference.generate import generate
from reports.tensorboard import as_markdown
from training.history import History
from training.module import LitGPT
from training.sharding import whole_model

FINAL_SAMPLE_LENGTH = 500
FINAL_SAMPLE_TEMPERATURE = 0.6
TEMPERATURES = (0.6, 1.0)
SAMPLE_LENGTH = 100  # tokens of each text during training
MAX_SAVED = 20  # max validations whose texts a checkpoint holds


class Samples(L.Callback):
    """Continue the same prompts at each validation, with the same seed, at each of `TEMPERATURES`."""

    def __init__(self, prompts: Tensor, decode: Callable[[np.ndarray], str], length: int | None) -> None:
        self.prompts, self.decode = prompts, decode  # (B, T0) int64, tokens to text
        self.length = length or SAMPLE_LENGTH  # tokens of each text
        self.history = History(MAX_SAVED)  # of [step, [[temperature, prompt, text], ...]]

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.history.load_state_dict(state_dict["history"])

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, LitGPT)
        if not trainer.loggers:
            return
        model = whole_model(trainer, pl_module.net)
        if model is None:
            return
        texts: list[list[Any]] = []
        given = self.prompts.shape[1]
        for temperature in TEMPERATURES:
            tokens = generate(model, self.prompts, self.length, temperature=temperature, seed=0).numpy()
            texts += [[temperature, self.decode(row[:given]), self.decode(row[given:])] for row in tokens]
            for board in boards(trainer):
                written = as_markdown([(prompt, text) for _, prompt, text in texts[-len(tokens) :]])
                board.experiment.add_text(f"samples/temperature_{temperature:.1f}", written, trainer.global_step)
        self.history.add([trainer.global_step, texts])


def boards(trainer: L.Trainer) -> list[TensorBoardLogger]:
    """Return the Trainer's TensorBoard loggers."""
    return [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
