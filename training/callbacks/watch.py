"""Show at each validation what the model does: texts that it writes and, in TensorBoard, pictures of it."""

from typing import Any

import lightning as L
import numpy as np

from conf.schema import WatchConfig
from data.passages import as_shown, prompts
from data.text import Text
from gpt.inference.generate import generate
from gpt.model import GPT
from reports.pictures import plots
from reports.tensorboard import as_markdown
from training.bounded_series import BoundedSeries
from training.loggers import boards

FINAL_SAMPLE_LENGTH = 500
FINAL_SAMPLE_TEMPERATURE = 0.6
TEMPERATURES = (0.6, 1.0)
SAMPLE_LENGTH = 100  # tokens of each text during training
MAX_SAVED = 20  # max validations whose texts a checkpoint holds


class Watch(L.Callback):
    """Continue the same prompts with the same seed, and plot attention and surprisal of the same passage."""

    def __init__(self, config: WatchConfig, text: Text) -> None:
        self.config, self.text, self.prompts = config, text, prompts(text)  # prompts (B, T0)
        self.history = BoundedSeries(MAX_SAVED)  # of [step, [[temperature, prompt, text], ...]]

    def state_dict(self) -> dict[str, Any]:
        return {"history": vars(self.history)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.history = BoundedSeries(**state_dict["history"])

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        if not trainer.loggers or not trainer.is_global_zero:
            return
        step, model = trainer.global_step, pl_module.net
        texts = self._write(model)
        self.history.add([step, texts])
        for board in boards(trainer):
            for heat in TEMPERATURES:
                shown = as_markdown([(prompt, text) for temperature, prompt, text in texts if temperature == heat])
                board.experiment.add_text(f"samples/temperature_{heat:.1f}", shown, step)
            for tag, picture in plots(model, self.text, self.config.heads(), step) if self.config.pictures else ():
                board.experiment.add_image(tag, np.asarray(picture), step, dataformats="HWC")

    def _write(self, model: GPT) -> list[list[Any]]:
        """Continue each prompt at each of `TEMPERATURES`; return [temperature, prompt, text] for each."""
        texts, given = [], self.prompts.shape[1]
        for heat in TEMPERATURES:
            length = self.config.sample_length or SAMPLE_LENGTH
            rows = generate(model, self.prompts, length, temperature=heat, seed=0).numpy()
            texts += [[heat, *as_shown(self.text, row[:given], row[given:])] for row in rows]
        return texts
