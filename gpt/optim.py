"""The optimizers, their parameter groups and the learning-rate schedule."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from gpt.attention import Attention
from gpt.config import OptimConfig
from gpt.model import GPT

# Muon's momentum: two moving averages of the gradient, by their decays, and the share of the second
FAST, SLOW, SLOW_SHARE = 0.85, 0.98, 0.56
NESTEROV = 0.95  # the share of the momentum in an update; the rest is the gradient


def make_optimizer(model: GPT, config: OptimConfig, bf16: bool = False) -> torch.optim.Optimizer:
    """Return the optimizer that `config.name` names for all weights of the model. Call `set_rates` before each step.

    With `bf16`, Muon's matrix products are in bf16: for devices that have it.

    Weight decay applies to matrices and embeddings, but not to vectors such as gains and biases.
    """
    betas = tuple(config.betas)
    by_muon = config.name == "muon"
    matrices = {
        parameter for parameter in model.blocks.parameters() if by_muon and parameter.ndim == 2
    }
    others = [parameter for parameter in model.parameters() if parameter not in matrices]
    groups: list[dict[str, Any]] = [
        {
            "params": [p for p in others if p.ndim >= 2],
            "weight_decay": config.weight_decay,
            "betas": betas,
        },
        {"params": [p for p in others if p.ndim < 2], "weight_decay": 0.0, "betas": betas},
    ]
    if not by_muon:
        return torch.optim.AdamW(groups, lr=config.lr, fused=True)
    for module in model.modules():
        if isinstance(module, Attention):
            # `Muon` reads this: queries, keys and values are three matrices.
            module.qkv.weight.stacked = 3  # type: ignore[attr-defined]
    muon_groups: list[dict[str, Any]] = []
    # `set_rates` lets the groups be due in turn. With more turns than blocks, some are empty.
    for turn in range(config.muon_every):
        blocks = model.blocks[turn :: config.muon_every]
        group = {
            "params": [p for p in blocks.parameters() if p in matrices],
            "turn": turn,
            "weight_decay": config.weight_decay,
            "lr": config.muon_lr,
            "muon": True,
            "beta2": config.muon_beta2,
        }
        muon_groups.append(group)
    return Muon([group for group in [*muon_groups, *groups] if group["params"]], config.lr, bf16)


def set_rates(
    groups: list[dict[str, Any]], step: int, config: OptimConfig, max_steps: int | None
) -> None:
    """Set the learning rates of an optimizer's `param_groups` for step `step`: `lr_at`, with Muon's in proportion.

    With `config.muon_every` = n, each step updates every n-th block, in turn, at n times Muon's
    rate; the groups of the other blocks are not `due`.
    """
    for group in groups:
        group["lr"] = lr_at(step, config, max_steps)
        if group.get("muon"):
            group["lr"] *= config.muon_lr / config.lr * config.muon_every
            group["due"] = step % config.muon_every == group["turn"]


def orthogonalise(matrices: Tensor) -> Tensor:
    """Move the singular values of N matrices near 1, and keep the vectors: (N, R, C) -> (N, R, C), with R <= C.

    By five quintic Newton-Schulz iterations. Source: Muon (Jordan et al. 2024,
    https://kellerjordan.github.io/posts/muon), with its coefficients.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    norms = matrices.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)  # (N, 1, 1)
    x = matrices / norms  # (N, R, C)
    for _ in range(5):
        gram = x @ x.mT  # (N, R, R)
        # (N, R, R): b gram + c gram^2
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)  # (N, R, C): a x + polynomial x
    return x


def normalise_rows(update: Tensor, moment: Tensor, beta2: float) -> None:
    """Divide each row of `update`, (R, C), by the root of its moment, then restore the norm of `update`, in place.

    `moment`, (R, 1), is a moving average with decay `beta2` of each row's sum of squares, which is
    updated first. Source: NorMuon, arXiv:2510.05491, algorithm 1, which rescales `update` to a
    constant norm instead.
    """
    squares = torch.linalg.vector_norm(update, dim=1, keepdim=True).square()  # (R, C) -> (R, 1)
    moment.lerp_(squares, 1 - beta2)  # (R, 1)
    inverse = moment.clamp_min(1e-20).reciprocal()  # (R, 1)
    squared_norm = squares.sum()  # (), of `update`
    # (), of `update` with its rows divided
    divided_squared_norm = (squares * inverse).sum().clamp_min(1e-20)
    restoring = squared_norm / divided_squared_norm  # ()
    factors = (inverse * restoring).sqrt()  # (R, 1)
    update.mul_(factors)  # (R, C)


class Muon(torch.optim.Optimizer):
    """Updates parameter groups with `muon=True`, which contain only matrices, by Muon and all others by AdamW.

    Muon orthogonalises the momentum of each matrix, in one batch per shape; a weight with `stacked
    = 3` (queries, keys and values) is three matrices. `normalise_rows` follows if the group's
    `beta2` is above 0. Of a group that is not `due`, only the momentum is updated. It is a mixture
    of a fast and a slow moving average (https://github.com/KellerJordan/modded-nanogpt/pull/340),
    here from the first step on.

    Args:
        groups: the parameter groups, as for any PyTorch optimizer.
        lr: learning rate of groups that do not set `lr`.
        bf16: orthogonalise in bf16, which is precise enough, but up to 60 times slower where it
            must be emulated.
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, bf16: bool = False) -> None:
        defaults = {
            "lr": lr,
            "betas": (0.9, 0.99),
            "weight_decay": 0.0,
            "muon": False,
            "eps": 1e-8,
            "beta2": 0.0,
            "due": True,
        }
        super().__init__(groups, defaults)
        self.bf16 = bf16

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters that have a gradient; Muon overwrites the gradients of its matrices."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                update = self._muon if group["muon"] else self._adamw
                update(group, parameters)
        return loss

    def _muon(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        for parameter in parameters:  # a matrix, (rows, columns)
            state = self.state[parameter]
            # A resumed run may be older than these two, or begin to normalise.
            if "fast" not in state:
                state["fast"] = torch.zeros_like(parameter)  # (rows, columns)
                state["slow"] = torch.zeros_like(parameter)  # (rows, columns)
            if group["beta2"] and "moment" not in state:
                state["moment"] = torch.zeros_like(parameter[:, :1])  # (rows, 1)

        # From here on, the gradients become the updates, in place.
        # (rows, columns) each
        updates = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for parameter, update in zip(parameters, updates, strict=True):
            fast, slow = self.state[parameter]["fast"], self.state[parameter]["slow"]
            fast.lerp_(update, 1 - FAST)  # (rows, columns)
            slow.lerp_(update, 1 - SLOW)  # (rows, columns)
            momentum = torch.lerp(fast, slow, SLOW_SHARE)  # (rows, columns)
            update.lerp_(momentum, NESTEROV)  # (rows, columns)
        if not group["due"]:
            return
        self._orthogonalise_all(parameters, updates)

        decay = 1 - group["lr"] * group["weight_decay"]
        for parameter, update in zip(parameters, updates, strict=True):
            if group["beta2"]:
                normalise_rows(update, self.state[parameter]["moment"], group["beta2"])
            update.mul_(group["lr"])  # (rows, columns)
            parameter.mul_(decay).sub_(update)  # (rows, columns)

    def _orthogonalise_all(self, parameters: list[Tensor], updates: list[Tensor]) -> None:
        """Orthogonalise the update of each parameter in place, and scale it by sqrt(max(1, rows / columns))."""
        # Matrices of the same shape, each with its scale: views of the updates, at least as wide
        # as high.
        stacks: dict[tuple[int, ...], list[tuple[Tensor, float]]] = {}
        for parameter, update in zip(parameters, updates, strict=True):
            # (rows / stacked, columns)
            for part in update.chunk(getattr(parameter, "stacked", 1)):
                rows, columns = part.shape
                scale = max(1.0, rows / columns) ** 0.5
                wide = part.mT if rows > columns else part  # (R, C), with R <= C
                stacks.setdefault(tuple(wide.shape), []).append((wide, scale))
        for stack in stacks.values():
            stacked = torch.stack([wide for wide, _ in stack])  # (N, R, C)
            dtype = torch.bfloat16 if self.bf16 else torch.float32
            results = orthogonalise(stacked.to(dtype))  # (N, R, C)
            for result, (wide, scale) in zip(results, stack, strict=True):
                wide.copy_(result).mul_(scale)  # (R, C)

    def _adamw(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        means = [self.state[parameter]["exp_avg"] for parameter in parameters]
        squares = [self.state[parameter]["exp_avg_sq"] for parameter in parameters]
        steps = [self.state[parameter]["step"] for parameter in parameters]
        beta1, beta2 = group["betas"]
        adamw(
            parameters,
            gradients,
            means,
            squares,
            [],
            steps,
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            fused=True,
            amsgrad=False,
            maximize=False,
        )


def lr_at(step: int, config: OptimConfig, max_steps: int | None) -> float:
    """Return AdamW's learning rate for optimizer step `step`, counted from 0, in a training of `max_steps` steps.

    Warm-up: linear, (step + 1) / (warmup + 1) of lr. Cosine: half a cosine from lr at the end of
    the warm-up to min_lr at max_steps (SGDR, arXiv:1608.03983). Trapezoid: constant at lr, then
    linear to min_lr over the last fraction `cooldown` of all steps. If warm-up and decay overlap
    in a short run, the smaller of the two rates applies. `max_steps=None`, which only a trapezoid
    allows, means that the decay has not begun yet.
    """
    rising = config.lr * min(1.0, (step + 1) / (config.warmup + 1))
    if max_steps is None:
        fraction = 1.0
    elif config.schedule == "cosine":
        done = (step - config.warmup) / max(1, max_steps - config.warmup)
        fraction = 0.5 * (1 + math.cos(math.pi * min(max(done, 0.0), 1.0)))
    else:
        left = (max_steps - step) / max(1.0, config.cooldown * max_steps)
        fraction = min(max(left, 0.0), 1.0)
    return min(rising, config.min_lr + (config.lr - config.min_lr) * fraction)
