"""The optimizer, its parameter groups and its learning rate."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from gpt.attention import Attention
from gpt.config import OptimConfig
from gpt.model import GPT
from gpt.torch_private import foreach_copy_, foreach_lerp_, foreach_mul_, foreach_sub_


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Split the parameters into those with weight decay (matrices, embeddings) and those without (scales, biases)."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]


def make_optimizer(
    model: GPT, config: OptimConfig, muon: "type[Muon] | None" = None, bf16_on_cpu: bool = False
) -> torch.optim.Optimizer:
    """Make the optimizer of `config` for all weights of the model.

    Args:
        model: before it is sharded.
        config: settings.
        muon: a subclass to use instead of `Muon`.
        bf16_on_cpu: see `Muon`.
    """
    first, second = config.betas
    if config.name == "adamw":
        groups = parameter_groups(model, config.weight_decay)
        return torch.optim.AdamW(groups, lr=config.lr, betas=(first, second), fused=True)
    for module in model.modules():  # set here: sharding replaces the parameters that the model was made with
        if isinstance(module, Attention):
            module.qkv.weight.stacked = 3  # type: ignore[attr-defined]
    matrices = [parameter for parameter in model.blocks.parameters() if parameter.ndim == 2]
    groups = [group | {"betas": (first, second)} for group in parameter_groups(model, config.weight_decay)]
    inside = {id(parameter) for parameter in matrices}
    groups[0]["params"] = [parameter for parameter in groups[0]["params"] if id(parameter) not in inside]
    hidden = {
        "params": matrices, "weight_decay": config.weight_decay, "lr": config.muon_lr, "muon": True,
        "beta2": config.muon_beta2,
    }  # fmt: skip
    return (muon or Muon)([group for group in [hidden, *groups] if group["params"]], config.lr, bf16_on_cpu)


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Move the singular values of each matrix near 1, by a quintic Newton-Schulz iteration: (N, R, C), with R <= C.

    Source: Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon), with its coefficients.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices / matrices.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)  # (N, R, C)
    for _ in range(steps):
        gram = x @ x.mT  # (N, R, R)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)  # (N, R, C)
    return x


def normalise_rows(update: Tensor, moment: Tensor, beta2: float) -> None:
    """Divide each row of an update by its running root mean square, then restore the update's norm. In place.

    `update` is (R, C). `moment`, (R, 1), is the running mean of the rows' sums of squares, with the decay `beta2`.
    Source: NorMuon, arXiv:2510.05491, algorithm 1, which sets the norm to a constant instead.
    """
    squares = torch.linalg.vector_norm(update, dim=1, keepdim=True).square()  # (R, 1)
    moment.lerp_(squares, 1 - beta2)
    inverse = moment.clamp_min(1e-20).reciprocal()  # (R, 1)
    norms = squares.sum() / (squares * inverse).sum().clamp_min(1e-20)  # before / after, both squared
    update.mul_((inverse * norms).sqrt())


class Muon(torch.optim.Optimizer):
    """Muon for parameter groups with `muon=True`, which hold matrices only, and AdamW for the others.

    Muon orthogonalises the momentum of each matrix before applying it. Matrices of one shape are stacked and go through
    the iteration together; a packed q|k|v counts as three matrices. If `beta2` is above 0, `normalise_rows` follows.
    The iteration needs no more precision than bf16. On a CPU it runs in fp32 unless `bf16_on_cpu`: a CPU that
    has to emulate bf16 takes 60 times as long.
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, bf16_on_cpu: bool = False) -> None:
        defaults = {"lr": lr, "betas": (0.9, 0.99), "weight_decay": 0.0, "momentum": 0.95, "muon": False, "eps": 1e-8}
        super().__init__(groups, defaults | {"beta2": 0.0})
        self.bf16_on_cpu = bf16_on_cpu

    def whole(self, tensor: Tensor) -> Tensor:
        """Return all rows of a tensor; a subclass for sharded tensors gathers the rows."""
        return tensor

    def shard_like(self, tensor: Tensor, pattern: Tensor) -> Tensor:
        """Return the rows of a whole tensor that the shard `pattern` has: without sharding, all of them."""
        return tensor

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters that have a gradient; Muon overwrites the gradients of its matrices."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                update = self._muon if group["muon"] else self._adamw
                update(group, parameters)
        return loss

    def _muon(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter]["momentum"] = torch.zeros_like(parameter)
                if group["beta2"]:
                    self.state[parameter]["moment"] = torch.zeros_like(parameter[:, :1])
        momenta = [self.state[parameter]["momentum"] for parameter in parameters]
        gradients = [p.grad for p in parameters if p.grad is not None]
        foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        foreach_lerp_(gradients, momenta, group["momentum"])  # Nesterov
        updates = [self.whole(gradient) for gradient in gradients]
        lr = group["lr"]  # a number, or a tensor in a CUDA graph
        stacks: dict[tuple[int, ...], list[tuple[Tensor, float]]] = {}
        for parameter, update in zip(parameters, updates, strict=True):
            for part in update.chunk(getattr(parameter, "stacked", 1)):  # a packed q|k|v is three matrices
                scale = max(1.0, part.shape[0] / part.shape[1]) ** 0.5
                wide = part.mT if part.shape[0] > part.shape[1] else part
                stacks.setdefault(tuple(wide.shape), []).append((wide, scale))
        for shape, stack in stacks.items():
            device = stack[0][0].device
            dtype = torch.bfloat16 if self.bf16_on_cpu or device.type != "cpu" else torch.float32
            stacked = torch.empty(len(stack), *shape, dtype=dtype, device=device)  # (N, R, C)
            foreach_copy_(list(stacked), [wide for wide, _ in stack])
            for result, (wide, _) in zip(orthogonalise(stacked), stack, strict=True):
                wide.copy_(result)  # into its update
            foreach_mul_([wide for wide, _ in stack], [scale for _, scale in stack])
        if group["beta2"]:
            for parameter, update in zip(parameters, updates, strict=True):
                moment = self.state[parameter]["moment"]
                gathered = self.whole(moment)
                normalise_rows(update, gathered, group["beta2"])
                moment.copy_(self.shard_like(gathered, moment))
        foreach_mul_(updates, lr)
        foreach_mul_(parameters, 1 - lr * group["weight_decay"])
        foreach_sub_(parameters, [self.shard_like(u, p) for u, p in zip(updates, parameters, strict=True)])

    def _adamw(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        states = [self.state[parameter] for parameter in parameters]
        means, squares, steps = ([state[key] for state in states] for key in ("exp_avg", "exp_avg_sq", "step"))
        beta1, beta2 = group["betas"]
        settings = {key: group[key] for key in ("lr", "weight_decay", "eps")}
        settings |= {"beta1": beta1, "beta2": beta2, "fused": True, "amsgrad": False, "maximize": False}
        adamw(parameters, gradients, means, squares, [], steps, **settings)


def lr_at(step: int, config: OptimConfig, max_steps: int) -> float:
    """Return the learning rate of optimizer step `step` (from 0) of `max_steps`: a pure function, so resuming is exact.

    Warm-up: linear, (step + 1) / (warmup + 1) of lr.
    Cosine: half a cosine from lr at the end of the warm-up to min_lr at max_steps (SGDR, arXiv:1608.03983).
    Trapezoid: lr, then linear to min_lr over the last fraction `cooldown` of all steps.
    Where warm-up and decay overlap in a short run, the smaller of the two holds.
    """
    rising = config.lr * min(1.0, (step + 1) / (config.warmup + 1))
    if config.schedule == "cosine":
        done = (step - config.warmup) / max(1, max_steps - config.warmup)
        fraction = 0.5 * (1 + math.cos(math.pi * min(max(done, 0.0), 1.0)))
    else:
        left = (max_steps - step) / max(1.0, config.cooldown * max_steps)
        fraction = min(max(left, 0.0), 1.0)
    return min(rising, config.min_lr + (config.lr - config.min_lr) * fraction)
