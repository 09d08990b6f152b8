"""Silence messages of Lightning and torch that do not apply here."""

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Leave out what Lightning tells everyone, and those of its warnings that do not hold here."""
    thread_failed, threading.excepthook = threading.excepthook, hide_failed_writes
    try:
        with warnings.catch_warnings():
            ignore_warnings()
            yield
    finally:
        threading.excepthook = thread_failed


def ignore_warnings() -> None:
    """Filter out warnings that do not hold here."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # Lightning 2.6.6 on torch 2.13; nothing that can be done here.
    warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated")
    # Both are meant: optimizers are told that steps are recorded before the first is, and fp32 is fp32.
    warnings.filterwarnings("ignore", r"This instance was constructed with capturable=True")
    warnings.filterwarnings("ignore", r"TensorFloat32 tensor cores for float32 matrix multiplication available")
    # It is refused where weights are sharded, and there is nothing to configure elsewhere.
    warnings.filterwarnings("ignore", r"You're using the WeightAveraging callback with a model that overrides")
    # Whoever wants several tasks of SLURM types srun; one process needs none.
    warnings.filterwarnings("ignore", r"The `srun` command is available on your system but is not used")
    # Batches are gathered in one go: worker processes would slow them down.
    warnings.filterwarnings("ignore", r"The '\w+' does not have many workers", module="lightning")
    warnings.filterwarnings("ignore", r"Your `IterableDataset` has `__len__` defined", module="lightning")
    # Our checkpoint is resumed exactly because batch k is a function of (seed, k), not of the loader's state.
    warnings.filterwarnings(
        "ignore", r"You're resuming from a checkpoint that ended before the epoch", module="lightning"
    )


def hide_failed_writes(of: "threading.ExceptHookArgs") -> None:
    """Print what ends a thread, but for TensorBoard's writer: its next call raises the error in the main thread."""
    writer = type(of.thread).__module__ == "tensorboard.summary.writer.event_file_writer"
    if not (writer and issubclass(of.exc_type, OSError)):
        threading.__excepthook__(of)
