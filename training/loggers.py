"""The loggers of a run. TensorBoard shows the curves of its validation in another colour."""

from collections.abc import Mapping
from typing import Any

import lightning as L
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger


class Curves(TensorBoardLogger):
    """Log what begins with `val/` in the directory `validation` of the run: TensorBoard has a colour for each."""

    def __init__(self, save_dir: str, purge_step: int | None = None) -> None:
        options: dict[str, Any] = {"name": "", "version": "", "default_hp_metric": False, "purge_step": purge_step}
        super().__init__(save_dir, **options)
        self.validation = TensorBoardLogger(save_dir, **options, sub_dir="validation")

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log values of a step, each in its directory."""
        writers = {False: self.experiment, True: self.validation.experiment}
        for tag, value in metrics.items():
            writers[tag.startswith("val/")].add_scalar(tag, value, step)

    def save(self) -> None:
        """Flush what was logged to the disk."""
        super().save()
        self.validation.experiment.flush()

    def finalize(self, status: str) -> None:
        """Close the event files."""
        super().finalize(status)
        self.validation.experiment.close()


class Csv(CSVLogger):
    """Log into the directory `csv` of the run."""

    def __init__(self, save_dir: str) -> None:
        super().__init__(save_dir, name="csv")


def boards(trainer: L.Trainer) -> list[TensorBoardLogger]:
    """Return the Trainer's TensorBoard loggers."""
    return [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
