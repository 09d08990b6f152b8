"""Undocumented details of Lightning, seen in 2.6; tests/training/test_lightning_private.py checks them."""

from typing import Any


def steps_completed(checkpoint: dict[str, Any]) -> int:
    """Return the optimizer steps that Lightning has counted in a checkpoint, with manual optimization.

    Raises:
        KeyError: the layout is another.
    """
    return checkpoint["loops"]["fit_loop"]["epoch_loop.manual_optimization.optim_step_progress"]["total"]["completed"]
