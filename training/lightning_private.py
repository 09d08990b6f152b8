"""Read undocumented fields of Lightning, as of 2.6."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import lightning as L


def steps_completed(checkpoint: dict[str, Any]) -> int:
    """Return Lightning's count of optimizer steps in a checkpoint of manual optimization."""
    return checkpoint["loops"]["fit_loop"]["epoch_loop.manual_optimization.optim_step_progress"]["total"]["completed"]


def validation_interval(trainer: "L.Trainer") -> int:
    """Return the number of steps between two validations, which Lightning derives from `val_check_interval`."""
    return trainer.val_check_batch  # type: ignore[return-value]
