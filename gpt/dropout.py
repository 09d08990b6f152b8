"""Dropout that generates its random numbers cheaply on a CPU."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def dropout(x: Tensor, p: float) -> Tensor:
    """Set each value of x to 0 with probability p, and divide the others by 1 - p.

    PyTorch's dropout generates a float per value, which costs a CPU more than the matmuls around
    it. Here, on a CPU, four values share a random 64-bit number, 16 bits each, which rounds p to a
    multiple of 2^-16. Source: Srivastava et al. 2014
    (https://jmlr.org/papers/v15/srivastava14a.html), with the scaling in training.
    """
    if p == 0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, p)
    return x * _kept(x, p) * (1 / (1 - p))


# A custom operator, because the code that torch.compile generates for these dtypes is slow.
# torch.compile merges two calls with the same x and p into one, so a model must not apply dropout
# to one tensor twice.
@torch.library.custom_op(
    "chargpt::kept", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def _kept(x: Tensor, p: float) -> Tensor:
    """Return a random mask in the shape of x, uint8: 0 (drop) with probability p, otherwise 1."""
    count = x.numel()
    # (count / 4,), rounded up
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    # the shape of x; uniform in [-2^15, 2^15)
    bits = words.view(torch.int16)[:count].view(x.shape)
    dropped = min(round(p * 2**16), 2**16 - 1)  # of the 2^16 values of `bits`
    return (bits >= dropped - 2**15).view(torch.uint8)  # the shape of x


@_kept.register_fake
def _(x: Tensor, p: float) -> Tensor:
    return torch.empty(x.shape, dtype=torch.uint8)


class Dropout(nn.Dropout):
    """A layer that applies `dropout` in training and does nothing in evaluation."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x, with values set to 0 in training."""
        if not self.training:
            return x
        return dropout(x, self.p)
