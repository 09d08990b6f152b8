"""The loggers of a run. TensorBoard shows the curves of its validation in another colour."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from base import ranks
from base.files import sync

EVENTS = "events.out.tfevents."  # the name of an event file begins so, then comes the second in which it was made


class Curves(TensorBoardLogger):
    """Log what begins with `val/` in the directory `validation` of the run: TensorBoard has a colour for each."""

    def __init__(self, save_dir: str, purge_step: int | None = None) -> None:
        options: dict[str, Any] = {"name": "", "version": "", "default_hp_metric": False, "purge_step": purge_step}
        super().__init__(save_dir, **options)
        self.validation = TensorBoardLogger(save_dir, **options, sub_dir="validation")
        self.folders = Path(save_dir), Path(save_dir, "validation")
        if purge_step and ranks.rank() == 0:
            for folder in self.folders:
                date_back(folder)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log values of a step, each in its directory."""
        writers = {False: self.experiment, True: self.validation.experiment}
        for tag, value in metrics.items():
            writers[tag.startswith("val/")].add_scalar(tag, value, step)

    def save(self) -> None:
        """Flush what was logged to the disk, so that it survives a power cut."""
        super().save()
        self.validation.experiment.flush()
        if ranks.rank() == 0:
            for folder in self.folders:
                for path in (*folder.glob(f"{EVENTS}*"), folder):
                    sync(path)

    def finalize(self, status: str) -> None:
        """Close the event files."""
        super().finalize(status)
        self.validation.experiment.close()


def date_back(folder: Path) -> None:
    """Rename the event files of `folder` that are dated at or after this second, after the clock was set back.

    TensorBoard reads the files of a folder in the order of their names, and the resumed run must come last.
    """
    files, second = sorted(folder.glob(f"{EVENTS}*")), int(time.time())
    if files and files[-1].name >= f"{EVENTS}{second:010d}":
        for age, path in zip(range(len(files), 0, -1), files, strict=True):  # the oldest first: a kill keeps the order
            rest = path.name.removeprefix(EVENTS).partition(".")[2]
            path.rename(path.with_name(f"{EVENTS}{second - age:010d}.{rest}"))


class Csv(CSVLogger):
    """Log into the directory `csv` of the run."""

    def __init__(self, save_dir: str) -> None:
        super().__init__(save_dir, name="csv")


def boards(trainer: L.Trainer) -> list[TensorBoardLogger]:
    """Return the Trainer's TensorBoard loggers."""
    return [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
