"""The loggers of a run: CSV, and TensorBoard, in which validation curves have another colour than training curves."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from base import ranks
from base.errors import public
from base.files import sync
from conf.schema import Config, by_key


class Curves(TensorBoardLogger):
    """A TensorBoard logger that writes metrics named `val/…` to the subdirectory `validation` of the run directory."""

    def __init__(self, save_dir: str, purge_step: int | None = None) -> None:
        options: dict[str, Any] = {
            "name": "",
            "version": "",
            "default_hp_metric": False,
            "purge_step": purge_step,
        }
        super().__init__(save_dir, **options)
        self.validation = TensorBoardLogger(save_dir, **options, sub_dir="validation")
        self.folders = Path(save_dir), Path(save_dir, "validation")

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log the metrics of a step: `val/…` to the subdirectory `validation`, all others to the run directory."""
        # The first use of an `experiment` creates its file, which hides the points after the
        # checkpoint of a resumed run. Both do so at once.
        training = self.experiment
        validation = self.validation.experiment
        for tag, value in metrics.items():
            writer = validation if tag.startswith("val/") else training
            writer.add_scalar(tag, value, step)

    def save(self) -> None:
        """Write all logged values to the disk and flush them, so that they survive a power cut."""
        super().save()
        self.validation.experiment.flush()
        if ranks.rank() == 0:
            for folder in self.folders:
                for path in (*folder.glob("events.out.tfevents.*"), folder):
                    sync(path)

    def finalize(self, status: str) -> None:
        """Close the event files. `status` is how the run ended, in Lightning's words, such as `success`."""
        super().finalize(status)
        self.validation.experiment.close()


class Csv(CSVLogger):
    """Lightning's CSV logger, which writes to the subdirectory `csv` of the run directory, `save_dir`."""

    def __init__(self, save_dir: str) -> None:
        super().__init__(save_dir, name="csv")


def boards(trainer: L.Trainer) -> list[TensorBoardLogger]:
    return [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]


def public_settings(config: Config) -> dict[str, Any]:
    """Return the settings of a run by key, without passwords in URLs."""
    return {
        key: public(value) if isinstance(value, str) else value
        for key, value in by_key(config).items()
    }
