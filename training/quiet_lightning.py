"""Silence messages of Lightning and torch that do not apply here."""

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Hide Lightning's tips, and the warnings of Lightning and torch that do not apply here."""
    thread_failed, threading.excepthook = threading.excepthook, hide_failed_writes
    levels = {name: logging.getLogger(name).level for name in ("lightning.pytorch", "lightning.fabric")}
    try:
        with warnings.catch_warnings():
            _ignore_warnings()
            for name in levels:
                logging.getLogger(name).setLevel(logging.WARNING)
            yield
    finally:
        threading.excepthook = thread_failed
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _ignore_warnings() -> None:
    # Lightning 2.6.6 with torch 2.13.
    warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated")
    # Both are intended: `capturable` is set before the capture, and fp32 is not TF32.
    warnings.filterwarnings("ignore", r"This instance was constructed with capturable=True")
    warnings.filterwarnings("ignore", r"TensorFloat32 tensor cores for float32 matrix multiplication available")
    # The callback is refused with FSDP; elsewhere `configure_model` does nothing.
    warnings.filterwarnings("ignore", r"You're using the WeightAveraging callback with a model that overrides")
    # One process needs no srun.
    warnings.filterwarnings("ignore", r"The `srun` command is available on your system but is not used")
    # A batch is one gather: worker processes would be slower.
    warnings.filterwarnings("ignore", r"The '\w+' does not have many workers", module="lightning")
    warnings.filterwarnings("ignore", r"Your `IterableDataset` has `__len__` defined", module="lightning")
    # Batch k is a function of (seed, k), so the loader has no state to restore.
    warnings.filterwarnings("ignore", r"You're resuming from a checkpoint that ended before", module="lightning")


def hide_failed_writes(of: "threading.ExceptHookArgs") -> None:
    """Print an error of a thread, unless it is TensorBoard's writer: its next call raises in the main thread."""
    writer = type(of.thread).__module__ == "tensorboard.summary.writer.event_file_writer"
    if not (writer and issubclass(of.exc_type, OSError)):
        threading.__excepthook__(of)
