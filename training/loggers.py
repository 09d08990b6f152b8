"""The loggers that write for TensorBoard."""

from collections.abc import Callable

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.compat.proto.summary_pb2 import Summary


def boards(trainer: L.Trainer) -> list[TensorBoardLogger]:
    """The loggers that write for TensorBoard."""
    return [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]


def to_boards(trainer: L.Trainer) -> Callable[[int, Summary], None]:
    """Write a summary for a step wherever TensorBoard is written."""

    def write(step: int, summary: Summary) -> None:
        for board in boards(trainer):
            board.experiment.file_writer.add_summary(summary, step)

    return write
