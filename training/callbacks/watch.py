"""The callback that generates sample texts at each validation and, in TensorBoard, plots attention."""

from typing import Any

import lightning as L
import numpy as np
from torch import Tensor

from conf.schema import WatchConfig
from data.passages import as_shown, prompts
from data.text import Text
from gpt.inference.generate import TEMPERATURE, generate
from gpt.model import GPT
from reports.tensorboard import as_markdown, plots
from training.loggers import boards

SAMPLE_LENGTH = 100  # tokens of each text during training


def written(
    model: GPT, text: Text, prompts: Tensor, length: int, seed: int
) -> tuple[np.ndarray, list[list[Any]]]:
    """Generate a continuation of each prompt, and return the new tokens and the decoded texts.

    `prompts` are (B, T0), the new tokens (B, length); a text is a list [temperature, prompt,
    continuation].
    """
    # (B, T0 + length)
    rows = generate(model, prompts, length, temperature=TEMPERATURE, seed=seed).numpy()
    prompt_length = prompts.shape[1]
    shown = [as_shown(text, row[:prompt_length], row[prompt_length:]) for row in rows]
    return rows[:, prompt_length:], [[TEMPERATURE, *parts] for parts in shown]


class Watch(L.Callback):
    """Generates sample texts at each validation and plots the model's attention within a passage of the text.

    The prompts, the random seed and the passage are the same at each validation, so that
    validations can be compared. The samples go to TensorBoard and into checkpoints, the plots only
    to TensorBoard. If the run has no logger, this callback does nothing.
    """

    def __init__(self, config: WatchConfig, text: Text) -> None:
        self.config = config
        self.text = text
        self.prompts = prompts(text)  # (B, T0)

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        if not trainer.loggers or not trainer.is_global_zero:
            return
        step = trainer.global_step
        model = pl_module.net
        length = self.config.sample_length or SAMPLE_LENGTH
        _, texts = written(model, self.text, self.prompts, length, seed=0)
        pl_module.history.samples.add([step, texts])
        for board in boards(trainer):
            board.experiment.add_text(
                "samples", as_markdown([(prompt, text) for _, prompt, text in texts]), step
            )
            if self.config.pictures:
                for tag, picture in plots(model, self.text):
                    board.experiment.add_image(tag, picture, step, dataformats="HWC")
