"""Options of the model and the optimizer, without torch, so that the command line starts fast."""

import math
from dataclasses import dataclass
from typing import Any

from base.errors import InputError
from base.options import check, option

NORM_EPS = 1e-5  # of layer norm and RMS norm


@dataclass(frozen=True)
class ModelConfig:
    """The architecture of a `GPT`: `python train.py --help=all` prints what each option means.

    The defaults are those of `model=tiny`. `layers`, `heads`, `dim` and `dropout` may be `auto`
    only in a run's configuration, until the run chooses numbers.

    Raises:
        InputError: a value is out of its range, or `dim`, `heads` and `positions` do not fit
            together.
    """

    layers: Any = option(4, "number of transformer blocks", auto=int, least=1, most=4096)
    heads: Any = option(
        2, "attention heads per block; must divide model.dim", auto=int, least=1, most=4096
    )
    dim: Any = option(128, "model width", auto=int, least=1, most=2**17)
    context: int = option(256, "context length in tokens", least=1, most=2**20)
    dropout: Any = option(
        0.0,
        "dropout on embeddings, attention and residual branches; auto: 0, or more if training repeats the text often",
        auto=float, least=0, below=1, on_resume="allow",
    )  # fmt: skip
    bias: bool = option(False, "biases in linear layers and layer norms")
    norm: str = option(
        "layernorm", "normalisation before each branch", choices=("layernorm", "rmsnorm")
    )
    activation: str = option("relu2", "non-linearity of the MLP", choices=("gelu", "relu2"))
    positions: str = option(
        "rotary", "position encoding", choices=("learned", "sinusoidal", "rotary", "none")
    )
    window: int | None = option(
        None,
        "attention window in tokens, including the current one; null: the whole context",
        least=1,
        most=2**20,
    )
    qk_norm: bool = option(True, "apply RMS norm to the queries and keys of each head")
    key_offset: bool = option(
        True, "half of each key's channels come from the previous position, not rotary-encoded"
    )
    token_shift: bool = option(
        True, "add the previous token's embedding, scaled by a learned factor per channel"
    )
    conv_taps: int = option(
        3,
        "kernel size of the causal depthwise convolution after the MLP; 1: no convolution",
        least=1,
        most=16,
    )
    tied: bool = option(False, "tie the output head to the token embedding")
    attention: str = option(
        "auto",
        "attention kernel; auto: explicit (matmuls) to train on a CPU with fewer than 1024 tokens, else PyTorch's sdpa",
        choices=("auto", "explicit", "sdpa"),
        on_resume="allow",
    )

    def __post_init__(self) -> None:
        check(self, "model")
        if self.heads == self.dim == "auto":
            return
        # One that is `auto` counts as its default.
        heads = ModelConfig.heads if self.heads == "auto" else self.heads
        dim = ModelConfig.dim if self.dim == "auto" else self.dim
        head_multiple = 1  # what the channels of a head must be a multiple of
        # Rotary positions rotate pairs of channels, with key_offset only in half of each head.
        if self.positions == "rotary":
            head_multiple = 4 if self.key_offset else 2
        dim_multiple = heads * head_multiple
        if dim % dim_multiple == 0:
            return
        size = ""
        if dim % heads == 0:
            size = f" into heads of a multiple of {head_multiple} channels for positions=rotary"
        # numbers of heads with at least 8 channels each: narrower heads are allowed, not suggested
        fitting = [
            str(n) for n in range(1, dim + 1) if dim % (n * head_multiple) == 0 and dim // n >= 8
        ]
        wider = -(-dim // dim_multiple) * dim_multiple  # the next width that suits `heads`
        fitting.append(f"model.dim={wider}")
        raise InputError(
            f"model.heads={heads}: must divide model.dim={dim}{size}; try {', '.join(fitting)}"
        )

    @property
    def head_dim(self) -> int:
        """Channels of one attention head."""
        return self.dim // self.heads

    @property
    def rotary_dims(self) -> int:
        """Channels per head that rotary positions rotate; 0 for other positions.

        With `key_offset` this is only half of them, so that a query can match the other half at
        any distance.
        """
        if self.positions != "rotary":
            return 0
        return self.head_dim // 2 if self.key_offset else self.head_dim

    @property
    def attention_window(self) -> int:
        """Maximum number of positions that a position attends to, including itself: the length of a full KV cache."""
        return min(self.window or self.context, self.context)

    @property
    def absolute(self) -> bool:
        """Whether positions exist only for the first `context` tokens of a text (learned, sinusoidal)."""
        return self.positions in ("learned", "sinusoidal")

    def first_needed(self, length: int) -> int:
        """Return the index of the first token of a text of `length` tokens that can influence the text after it."""
        T = self.context
        if self.absolute:
            # Where T tokens are stored and another comes, only the last T // 2 are kept
            # (`Decoder.read`).
            forgotten = T - T // 2  # by each restart
            restarts = math.ceil(max(0, length - T) / forgotten)
            return restarts * forgotten
        # Each block reaches back attention_window - 1 positions by attention, 1 by offset keys and
        # conv_taps - 1 by the convolution. The token shift reaches back 1 more, and the last token
        # itself counts, too: layers * (attention_window + conv_taps - 1) + 2 tokens.
        reach = self.attention_window + self.conv_taps - 1
        return max(0, length - self.layers * reach - 2)


@dataclass(frozen=True)
class OptimConfig:
    """The optimizer and its learning-rate schedule (`gpt.optim.lr_at`)."""

    name: str = option(
        "muon", "optimizer; muon: Muon for the matrices of the blocks, AdamW for the rest",
        choices=("muon", "adamw"), on_resume="fixed",
    )  # fmt: skip
    lr: Any = option(
        6.0e-3,
        "peak learning rate of AdamW; auto: 0.006; with minutes=, more in few steps, less in many with dropout",
        auto=float,
        above=0,
    )
    muon_lr: Any = option(
        0.01,
        "peak learning rate of Muon, on the same schedule; auto: 0.01; with minutes=, less in many steps with dropout",
        auto=float,
        above=0,
    )
    muon_beta2: float = option(
        0.95,
        "decay of the second moment by which Muon normalises rows (NorMuon); 0: plain Muon",
        least=0,
        below=1,
    )
    muon_every: int = option(
        2,
        "Muon updates each block every n steps, in turn, at n times its rate; 1: every step",
        least=1,
        most=64,
        on_resume="fixed",
    )
    min_lr: float = option(0.0, "final learning rate of AdamW", least=0)
    warmup: Any = option(
        50,
        "linear warm-up steps; auto: 50; with minutes=, fewer in a run of few steps",
        auto=int,
        least=0,
    )
    schedule: str = option(
        "trapezoid", "learning-rate schedule after the warm-up", choices=("cosine", "trapezoid")
    )
    cooldown: float = option(
        0.5,
        "trapezoid: final fraction of all steps, in which the learning rate falls",
        least=0,
        most=1,
    )
    weight_decay: Any = option(
        0.1,
        "decoupled weight decay of matrices and embeddings; auto: 0.1, or 0.2 to 0.3 if the run chooses a dropout",
        auto=float,
        least=0,
    )
    betas: list[float] = option(
        [0.9, 0.99], "decay rates of AdamW's two moments", least=0, below=1
    )
    clip: float = option(1.0, "maximum gradient norm; 0: no clipping", least=0)

    def __post_init__(self) -> None:
        check(self, "optim")
        if len(self.betas) != 2:
            raise InputError(f"optim.betas={self.betas}: must be two numbers")
        if self.lr != "auto" and self.min_lr > self.lr:
            raise InputError(f"optim.min_lr={self.min_lr:g}: must be at most optim.lr={self.lr:g}")
