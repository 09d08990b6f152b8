"""The optimizer, its parameter groups and its learning rate."""

import math
from typing import Any

import torch
from torch import nn

from gpt.config import OptimConfig


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Split the parameters in those that decay (matrices, embeddings) and those that do not (scales, biases)."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW (arXiv:1711.05101) over the two groups of `parameter_groups`, in its fused form."""
    first, second = config.betas
    groups = parameter_groups(model, config.weight_decay)
    return torch.optim.AdamW(groups, lr=config.lr, betas=(first, second), fused=True)


def lr_at(step: int, config: OptimConfig, max_steps: int) -> float:
    """Learning rate of optimizer step `step` (from 0) of `max_steps`: a pure function, so resuming is exact.

    Warm-up: a linear climb, (step + 1) / (warmup + 1) of lr.
    Cosine: half a cosine from lr at the end of the warm-up to min_lr at max_steps (SGDR, arXiv:1608.03983).
    Trapezoid: lr, then a straight line over the last `cooldown` of all steps to min_lr.
    Where warm-up and fall overlap in a short run, the smaller of the two holds.
    """
    climb = config.lr * min(1.0, (step + 1) / (config.warmup + 1))
    if config.schedule == "cosine":
        done = (step - config.warmup) / max(1, max_steps - config.warmup)
        share = 0.5 * (1 + math.cos(math.pi * min(max(done, 0.0), 1.0)))
    else:
        left = (max_steps - step) / max(1.0, config.cooldown * max_steps)
        share = min(max(left, 0.0), 1.0)
    return min(climb, config.min_lr + (config.lr - config.min_lr) * share)
