"""What a model has learned, as plain arrays to draw."""

import torch
from torch import Tensor

from gpt.model import GPT, Block


@torch.no_grad()
def attention_maps(model: GPT, tokens: Tensor) -> Tensor:
    """What each place of a passage looks at, in every head.

    Args:
        model: the model; its mode does not matter, nothing is dropped.
        tokens: (T,) int64, at most a context of them.

    Returns:
        (layers, heads, T, T) float32 on the CPU: row t adds up to 1 over the columns 0 to t.
    """
    training = model.training
    model.eval()
    try:
        with torch.autocast(tokens.device.type, enabled=False):
            x = model.embed(tokens[None])  # (1, T, C)
            maps = []
            for block in model.blocks:
                assert isinstance(block, Block)
                q, k, _ = block.attention.queries_keys_values(block.norm1(x))  # (1, H, T, D)
                scores = (q @ k.mT * q.shape[-1] ** -0.5).float()  # (1, H, T, T)
                hidden = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)  # (T, T)
                maps.append(scores.masked_fill(hidden, -torch.inf).softmax(-1)[0])  # (H, T, T)
                x = block(x)  # (1, T, C)
    finally:
        model.train(training)
    return torch.stack(maps).cpu()  # (layers, H, T, T)
