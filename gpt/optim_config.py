"""Options of the optimizer, without torch, so that the command line starts fast."""

from dataclasses import dataclass
from typing import Any

from base.errors import InputError
from base.options import check, option


@dataclass(frozen=True)
class OptimConfig:
    """The optimizer and its learning-rate schedule (`gpt.optim.lr_at`)."""

    name: str = option(
        "muon", "optimizer; muon: Muon for the matrices of the blocks, AdamW for the rest",
        choices=("muon", "adamw"), on_resume="fixed",
    )  # fmt: skip
    lr: Any = option(
        6.0e-3, "peak learning rate of AdamW; auto: 0.006, or more in a run of few steps", auto=float, above=0
    )
    muon_lr: float = option(0.01, "peak learning rate of Muon, on the same schedule", above=0)
    muon_beta2: float = option(
        0.95, "decay of the second moment by which Muon normalises rows (NorMuon); 0: plain Muon", least=0, below=1
    )
    muon_every: int = option(
        2, "Muon updates each block every n steps, in turn, at n times its rate; 1: every step", least=1, most=64
    )
    min_lr: float = option(0.0, "final learning rate of AdamW", least=0)
    warmup: Any = option(50, "linear warm-up steps; auto: 50, or fewer in a run of few steps", auto=int, least=0)
    schedule: str = option("trapezoid", "learning-rate schedule after the warm-up", choices=("cosine", "trapezoid"))
    cooldown: float = option(
        0.5, "trapezoid: final fraction of all steps, in which the learning rate falls", least=0, most=1
    )
    weight_decay: float = option(0.1, "decoupled weight decay of matrices and embeddings", least=0)
    betas: list[float] = option([0.9, 0.99], "decay rates of AdamW's two moments", least=0, below=1)
    clip: float = option(1.0, "maximum gradient norm; 0: no clipping", least=0)

    def __post_init__(self) -> None:
        check(self, "optim")
        if len(self.betas) != 2:
            raise InputError(f"optim.betas={self.betas}: must be two numbers")
        if self.lr != "auto" and self.min_lr > self.lr:
            raise InputError(f"optim.min_lr={self.min_lr:g}: must be at most optim.lr={self.lr:g}")
