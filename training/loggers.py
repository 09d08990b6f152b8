"""The loggers of a run: CSV, and TensorBoard, in which validation curves have another colour than training curves."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from base import ranks
from base.files import sync

EVENTS = "events.out.tfevents."  # prefix of an event file's name; its creation time in seconds follows


class Curves(TensorBoardLogger):
    """A TensorBoard logger that writes metrics named `val/…` to the subdirectory `validation` of the run directory."""

    def __init__(self, save_dir: str, purge_step: int | None = None) -> None:
        options: dict[str, Any] = {"name": "", "version": "", "default_hp_metric": False, "purge_step": purge_step}
        super().__init__(save_dir, **options)
        self.validation = TensorBoardLogger(save_dir, **options, sub_dir="validation")
        self.folders = Path(save_dir), Path(save_dir, "validation")
        if purge_step and ranks.rank() == 0:
            for folder in self.folders:
                date_back(folder)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log the metrics of a step: `val/…` to the subdirectory `validation`, all others to the run directory."""
        writers = {False: self.experiment, True: self.validation.experiment}
        for tag, value in metrics.items():
            writers[tag.startswith("val/")].add_scalar(tag, value, step)

    def save(self) -> None:
        """Write all logged values to the disk and flush them, so that they survive a power cut."""
        super().save()
        self.validation.experiment.flush()
        if ranks.rank() == 0:
            for folder in self.folders:
                for path in (*folder.glob(f"{EVENTS}*"), folder):
                    sync(path)

    def finalize(self, status: str) -> None:
        """Close the event files. `status` is how the run ended, in Lightning's words, such as `success`."""
        super().finalize(status)
        self.validation.experiment.close()


def date_back(folder: Path) -> None:
    """Rename TensorBoard's event files in `folder` to earlier dates if the newest is dated now or in the future.

    TensorBoard reads the event files of a folder in the order of their names, which contain their dates, and must read
    the file of a resumed run last. If the clock was set back since the files were written, the order would be wrong.
    """
    files, second = sorted(folder.glob(f"{EVENTS}*")), int(time.time())
    if files and files[-1].name >= f"{EVENTS}{second:010d}":
        for age, path in zip(range(len(files), 0, -1), files, strict=True):  # oldest first: a kill keeps the order
            rest = path.name.removeprefix(EVENTS).partition(".")[2]
            path.rename(path.with_name(f"{EVENTS}{second - age:010d}.{rest}"))


class Csv(CSVLogger):
    """Lightning's CSV logger, which writes to the subdirectory `csv` of the run directory, `save_dir`."""

    def __init__(self, save_dir: str) -> None:
        super().__init__(save_dir, name="csv")


def boards(trainer: L.Trainer) -> list[TensorBoardLogger]:
    return [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
