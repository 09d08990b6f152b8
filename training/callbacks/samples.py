"""Generate texts at each validation."""

from collections.abc import Callable
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor

from gpt.inference.generate import generate
from reports.tensorboard import Summary, as_markdown
from training.history import History
from training.module import LitGPT
from training.strategy import whole_model

FINAL_SAMPLE_LENGTH = 500
FINAL_SAMPLE_TEMPERATURE = 0.6
TEMPERATURES = (0.6, 1.0)
SAMPLE_LENGTH = 100  # tokens of each text
SAMPLES_KEPT = 20  # validations whose texts checkpoints keep


class Samples(L.Callback):
    """Has the model go on from the same prompts at each validation, at two temperatures, always from the same seeds.

    Args:
        prompts: (B, T0) int64.
        decode: tokens to text.
    """

    def __init__(self, prompts: Tensor, decode: Callable[[np.ndarray], str]) -> None:
        self.prompts, self.decode = prompts, decode
        self.history = History(SAMPLES_KEPT)  # of [step, [[temperature, prompt, text], ...]]

    def state_dict(self) -> dict[str, Any]:
        """The texts so far."""
        return {"history": self.history.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with them."""
        self.history.load_state_dict(state_dict["history"])

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Generate, keep, and write where TensorBoard is written."""
        assert isinstance(pl_module, LitGPT)
        if not trainer.loggers:
            return
        model = whole_model(trainer, pl_module)
        if model is None:
            return
        texts: list[list[Any]] = []
        given = self.prompts.shape[1]
        for temperature in TEMPERATURES:
            tokens = generate(model, self.prompts, SAMPLE_LENGTH, temperature=temperature, seed=0).numpy()
            texts += [[temperature, self.decode(row[:given]), self.decode(row[given:])] for row in tokens]
            for board in boards(trainer):
                written = as_markdown([(prompt, text) for _, prompt, text in texts[-len(tokens) :]])
                board.experiment.add_text(f"samples/temperature_{temperature:.1f}", written, trainer.global_step)
        self.history.add([trainer.global_step, texts])


def boards(trainer: L.Trainer) -> list[TensorBoardLogger]:
    """The loggers that write for TensorBoard."""
    return [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]


def to_boards(trainer: L.Trainer) -> Callable[[int, Summary], None]:
    """Write a summary for a step wherever TensorBoard is written."""

    def write(step: int, summary: Summary) -> None:
        for board in boards(trainer):
            board.experiment.file_writer.add_summary(summary, step)

    return write
