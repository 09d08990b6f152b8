"""How a character's place in the window enters the model.

Learned and sinusoidal places are added to the embeddings; rotary ones turn queries and keys, ALiBi lowers the scores
of attention by distance. Without any, a causal model still sees which characters come before which, but not how far.
"""

from functools import cache

import torch
from torch import Tensor


def sinusoidal_table(cos: Tensor, sin: Tensor, dim: int) -> Tensor:
    """What is added at each place: channel 2i is sin(t * 10000^(-2i/C)), channel 2i + 1 its cosine.

    Source: Attention Is All You Need, arXiv:1706.03762, section 3.5.

    Args:
        cos: from `rotary_tables` for C channels, (T, C/2) rounded up: the angles are the same.
        sin: likewise.
        dim: number of channels C.

    Returns:
        (T, C).
    """
    return torch.stack((sin, cos), dim=-1).flatten(1)[:, :dim]  # (T, C)


def alibi_slopes(heads: int, device: torch.device | None = None) -> Tensor:
    """How much the scores of each head fall with every place of distance, for ALiBi.

    A geometric sequence: 2^(-8/H), 2^(-16/H), ..., 2^-8 where H is a power of two. Otherwise that of the power of two
    below, and then every other slope of the sequence for the power above.
    Source: Train Short, Test Long, arXiv:2108.12409, section 3, and the authors' code for other numbers of heads.

    Returns:
        (H,) float32.
    """
    below = 1 << (heads.bit_length() - 1)  # the largest power of two that is no more than H
    h = torch.arange(heads, device=device)
    return 2.0 ** (-8 * torch.where(h < below, (h + 1) / below, (2 * (h - below) + 1) / (2 * below)))


def rotary_tables(context: int, channels: int, base: float = 10_000.0) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angles t * base^(-2i/R) for place t and pair i.

    Source: RoFormer, arXiv:2104.09864, section 3.2.2.

    Args:
        context: number of places.
        channels: how many channels R of a head are turned; even.
        base: the slowest pair turns once in 2 pi * base^(1 - 2/R) places.

    Returns:
        Two float32 tensors of shape (context, R / 2). They are computed in float64, so that the same
        place has the same angle on every machine.
    """
    frequency = base ** (-torch.arange(0, channels, 2, dtype=torch.float64) / channels)
    angle = torch.arange(context, dtype=torch.float64)[:, None] * frequency  # (context, R/2)
    return angle.cos().float(), angle.sin().float()


def shared_tables(length: int, channels: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """`rotary_tables` on a device, one pair for all layers; longer ones are made as longer texts come."""
    cos, sin = _shared(1 << max(length - 1, 63).bit_length(), channels, device)
    return cos[:length], sin[:length]


@cache
def _shared(length: int, channels: int, device: torch.device) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):  # training may need them later
        cos, sin = rotary_tables(length, channels)
        return cos.to(device), sin.to(device)


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
