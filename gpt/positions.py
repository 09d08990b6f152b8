"""How a character's place in the window enters the model."""

import torch
from torch import Tensor


def rotary_tables(context: int, head_dim: int, base: float = 10_000.0) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angles t * base^(-2i/D) for place t and pair i.

    Source: RoFormer, arXiv:2104.09864, section 3.2.2.

    Args:
        context: number of places.
        head_dim: width D of a head; even.
        base: the slowest pair turns once in about 2 pi * base places.

    Returns:
        Two float32 tensors of shape (context, D / 2). They are computed in float64, so that the same
        place has the same angle on every machine.
    """
    frequency = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.arange(context, dtype=torch.float64)[:, None] * frequency  # (context, D/2)
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pair (x_i, x_{i + D/2}) of each place by its angle, so that q . k depends on distance alone.

    Source: RoFormer, arXiv:2104.09864, equation 34, with the two members of a pair half a head apart.

    Args:
        x: queries or keys, (B, H, T, D).
        cos: cosines from `rotary_tables`, (T, D / 2).
        sin: sines, likewise.
    """
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    first, second = x.chunk(2, dim=-1)  # 2 x (B, H, T, D/2)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)  # (B, H, T, D)
