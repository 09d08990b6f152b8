"""What this project knows of Lightning's insides, in one place; seen in Lightning 2.6.

tests/training/test_lightning_private.py fails when it is no longer so.
"""

from typing import Any


def steps_completed(checkpoint: dict[str, Any]) -> int:
    """Return the optimizer steps that Lightning has counted in a checkpoint.

    Under manual optimization `global_step` is that of the loop below; its layout in a checkpoint is not documented.

    Raises:
        KeyError: the layout is another.
    """
    return checkpoint["loops"]["fit_loop"]["epoch_loop.manual_optimization.optim_step_progress"]["total"]["completed"]
