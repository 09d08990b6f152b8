"""Hide messages of Lightning, torch and TensorBoard that do not concern the user of train.py."""

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

IGNORED = (  # the beginnings of warnings, as regular expressions
    # Said by the line `machine`, and a note about a GPU that PyTorch cannot use.
    "GPU available but not used",
    # Raised by Lightning 2.6.6 with torch 2.13.
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    # Intended: fp32 runs compute in fp32, not TF32.
    "TensorFloat32 tensor cores for float32 matrix multiplication available",
    # A run in a single process does not need srun.
    "The `srun` command is available on your system but is not used",
    # Building a batch is a single gather, so worker processes would be slower.
    r"The '\w+' does not have many workers",
    "Your `IterableDataset` has `__len__` defined",
    # Batch k is a function of (seed, k), so the loader has no state to restore.
    "You're resuming from a checkpoint that ended before",
)


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Context manager that hides Lightning's tips, harmless warnings, and failed writes in TensorBoard's threads."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    previous_hook = threading.excepthook
    threading.excepthook = hide_failed_writes
    try:
        with warnings.catch_warnings():
            for text in IGNORED:
                warnings.filterwarnings("ignore", text)
            yield
    finally:
        threading.excepthook = previous_hook


def hide_failed_writes(failure: "threading.ExceptHookArgs") -> None:
    """Print the error that has ended a thread, unless it is a failed write of TensorBoard."""
    is_writer = type(failure.thread).__module__ == "tensorboard.summary.writer.event_file_writer"
    if not (is_writer and issubclass(failure.exc_type, OSError)):
        threading.__excepthook__(failure)
