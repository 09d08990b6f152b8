"""How a character's place in the window enters the model."""

import torch
from torch import Tensor


def rotary_tables(context: int, channels: int, base: float = 10_000.0) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angles t * base^(-2i/R) for place t and pair i.

    Source: RoFormer, arXiv:2104.09864, section 3.2.2.

    Args:
        context: number of places.
        channels: how many channels R of a head are turned; even.
        base: the slowest pair turns once in about 2 pi * base places.

    Returns:
        Two float32 tensors of shape (context, R / 2). They are computed in float64, so that the same
        place has the same angle on every machine.
    """
    frequency = base ** (-torch.arange(0, channels, 2, dtype=torch.float64) / channels)
    angle = torch.arange(context, dtype=torch.float64)[:, None] * frequency  # (context, R/2)
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pair (x_i, x_{i + R/2}) of each place by its angle, so that q . k depends on distance alone.

    The first R channels are turned, further ones stay as they are.
    Source: RoFormer, arXiv:2104.09864, equation 34, with the two members of a pair R/2 apart (GPT-NeoX's layout).

    Args:
        x: queries or keys, (B, H, T, D).
        cos: cosines from `rotary_tables`, (T, R / 2).
        sin: sines, likewise.
    """
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    half = cos.shape[-1]
    first, second, rest = x.split((half, half, x.shape[-1] - 2 * half), dim=-1)  # (B, H, T, R/2) twice, the rest
    return torch.cat((first * cos - second * sin, first * sin + second * cos, rest), dim=-1)  # (B, H, T, D)
