"""Undocumented details of Lightning, seen in 2.6."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import lightning as L


def steps_completed(checkpoint: dict[str, Any]) -> int:
    """Return the optimizer steps that Lightning has counted in a checkpoint, with manual optimization.

    Raises:
        KeyError: the layout is another.
    """
    return checkpoint["loops"]["fit_loop"]["epoch_loop.manual_optimization.optim_step_progress"]["total"]["completed"]


def validation_interval(trainer: "L.Trainer") -> int:
    """Return the steps between two validations, as `trainer.val_check_interval` has been understood."""
    return trainer.val_check_batch  # type: ignore[return-value]
