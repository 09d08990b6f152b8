"""The callback that averages the weights (`callbacks=ema`)."""

from typing import Any

from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor


class MovingAverage(WeightAveraging):
    """Validates, samples and saves an average of the weights, over about the last 5 % of the steps so far (`share`).

    The decay of update n is n / (n + 1 / `share`), however many steps there will be, so the weights
    of the first steps vanish from the average.
    Source: the power-law averages of Karras et al., arXiv:2312.02696.
    """

    def __init__(self, share: float) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"share={share:g}: must be above 0 and at most 1")
        super().__init__(use_buffers=False, avg_fn=self.averaged)  # buffers are constant
        self.share = share

    def averaged(self, average: Tensor, current: Tensor, updates: Tensor | int) -> Tensor:
        """Return the average after one more update, the first of which has only copied the weights."""
        decay = float(updates) / (float(updates) + 1 / self.share)
        return decay * average + (1 - decay) * current

    def on_validation_epoch_end(self, *_: Any) -> None:
        """Do not restore the weights yet: `Watch` samples from the average, too."""

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        super().on_validation_epoch_end(trainer, pl_module)  # restores the weights
