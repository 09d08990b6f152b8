"""The model: a decoder-only transformer over characters, with pre-norm blocks, as GPT-2 (Radford et al. 2019).

Shapes: B windows, T characters in a window, C = dim, V = size of the vocabulary.
"""

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.attention import Attention
from gpt.config import NORM_EPS, ModelConfig
from gpt.dropout import Dropout
from gpt.positions import position_tables

NORMS: dict[str, Callable[[ModelConfig], nn.Module]] = {
    "layernorm": lambda config: nn.LayerNorm(config.dim, eps=NORM_EPS, bias=config.bias),
    "rmsnorm": lambda config: nn.RMSNorm(config.dim, eps=NORM_EPS),  # arXiv:1910.07467
}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "relu2": lambda x: F.relu(x).square(),  # Primer, arXiv:2109.08668, section 3
}


class MLP(nn.Module):
    """The feed-forward branch of a block, (B, T, C) -> (B, T, 4C) -> (B, T, C), then a causal convolution."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.dim, 4 * config.dim, bias=config.bias)
        self.down = nn.Linear(4 * config.dim, config.dim, bias=config.bias)
        # No tap for the current position, whose factor is 1. Vectors, because the optimizers apply
        # neither weight decay nor Muon to them.
        self.taps = nn.ParameterList(torch.zeros(config.dim) for _ in range(config.conv_taps - 1))
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the branch: (B, T, C) -> (B, T, C)."""
        h = self.activation(self.up(x))  # (B, T, 4C)
        return convolve(self.down(h), self.taps)  # (B, T, C)


def convolve(x: Tensor, taps: Iterable[Tensor]) -> Tensor:
    """Return the causal depthwise convolution of x along T: (B, T, C) -> (B, T, C).

    The current position has the factor 1. `taps` are the factors (C,) of the previous position,
    the one before, etc. Source: Primer, arXiv:2109.08668, section 3, which convolves queries, keys
    and values instead.
    """
    mixed = x
    for back, factors in enumerate(taps, 1):
        earlier = F.pad(x, (0, 0, back, 0))[:, : x.shape[1]]  # (B, T, C), `back` positions later
        mixed = mixed + factors * earlier  # (B, T, C)
    return mixed


class Block(nn.Module):
    """A transformer block: attention, then an MLP, each added to its input as x + branch(norm(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm1 = NORMS[config.norm](config)
        self.attention = Attention(config)
        self.norm2 = NORMS[config.norm](config)
        self.mlp = MLP(config)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, tables: tuple[Tensor, ...] | None = None) -> Tensor:
        """Add both branches to the residual stream: (B, T, C) -> (B, T, C).

        `tables` are the `position_tables` of T positions; None: the attention computes them.
        """
        x = x + self.dropout(self.attention(self.norm1(x), tables))
        return x + self.dropout(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    """A causal language model over a vocabulary of V = `vocabulary` tokens: (B, T) int64 -> logits (B, T, V)."""

    def __init__(self, config: ModelConfig, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = vocabulary
        self.embedding = nn.Embedding(vocabulary, config.dim)
        if config.token_shift:
            self.shift = nn.Parameter(torch.zeros(config.dim))
        if config.positions == "learned":
            self.position_embedding = nn.Embedding(config.context, config.dim)
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = NORMS[config.norm](config)
        self.head = nn.Linear(config.dim, vocabulary, bias=False)
        if config.tied:
            self.head.weight = self.embedding.weight
        if not self.head.weight.is_meta:  # weights on the meta device have no values
            init_weights(self)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next token at each position: (B, T) int64 -> (B, T, V), with 1 <= T <= context.

        Raises:
            ValueError: `tokens` has a wrong shape, dtype or length or, on a CPU, a token outside
                the vocabulary.
        """
        self._check(tokens)
        return self.logits(tokens, position_tables(self.config, tokens.shape[1], tokens.device))

    def logits(self, tokens: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        """Return the same as `forward` without checks, to be compiled: `tables` are the `position_tables`."""
        x = self.embed(tokens, tables)  # (B, T, C)
        for block in self.blocks:
            x = block(x, tables)  # (B, T, C)
        return self.head(self.norm(x))  # (B, T, V)

    def embed(self, tokens: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        """Return the input of the first block, with the token shift of RWKV, arXiv:2305.13048: (B, T) -> (B, T, C)."""
        x = self.embedding(tokens)  # (B, T, C)
        if self.config.token_shift:
            previous = F.pad(x, (0, 0, 1, -1))  # (B, T, C), zeros at the first position
            x = x + self.shift * previous  # (B, T, C)
        if self.config.positions == "learned":
            x = x + self.position_embedding.weight[: tokens.shape[1]]  # (B, T, C)
        if self.config.positions == "sinusoidal":
            # (B, T, C); divided, it trains better
            x = x + (tables[0] / self.config.dim**0.5).to(x.dtype)
        return self.dropout(x)

    def num_parameters(self) -> int:
        """Return the number of weights; a tied head counts once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def flops_per_token(self) -> int:
        """Return the floating-point operations per token, forward and backward, for windows of `context` tokens.

        A weight of a matrix product costs 6 (2 forward, 4 backward), a looked-up embedding 0, and
        attention 12 * S * C per block with S = `attention_window`, including masked scores.
        Source: PaLM, arXiv:2204.02311, appendix B.
        """
        matrices = [parameter for parameter in self.blocks.parameters() if parameter.ndim >= 2]
        weights = sum(matrix.numel() for matrix in [*matrices, self.head.weight])
        return (
            6 * weights + 12 * self.config.layers * self.config.attention_window * self.config.dim
        )

    def _check(self, tokens: Tensor) -> None:
        if tokens.ndim != 2 or tokens.dtype != torch.int64:
            raise ValueError(
                f"tokens: must be (B, T) int64, not {tuple(tokens.shape)} {tokens.dtype}"
            )
        if not 1 <= tokens.shape[1] <= self.config.context:
            raise ValueError(
                f"tokens: {tokens.shape[1]} per window, must be 1 to {self.config.context} (the context)"
            )
        # On a GPU, reading the values would synchronise at every step; in a compiled graph it
        # would break the graph. An empty batch has no smallest value.
        if tokens.device.type == "cpu" and not torch.compiler.is_compiling() and tokens.numel():
            self.check_values(tokens)

    def check_values(self, tokens: Tensor) -> None:
        """Raise `ValueError` if `tokens`, of any shape, contains a token outside the vocabulary."""
        low, high = map(int, tokens.aminmax())
        if low < 0 or high >= self.vocabulary:
            wrong = low if low < 0 else high
            raise ValueError(
                f"tokens: {wrong} is outside the vocabulary, must be 0 to {self.vocabulary - 1}"
            )


@torch.no_grad()
def init_weights(model: GPT) -> None:
    """Initialise the weights in place, as GPT-2 does: matrices normal with std 0.02, gains 1, other vectors 0."""
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2:
            std = 0.02
            # Smaller where the output is added to the residual stream, whose variance would grow
            # with the number of additions, 2 per block.
            if name.endswith(("attention.proj.weight", "mlp.down.weight")):
                std /= (2 * model.config.layers) ** 0.5
            parameter.normal_(0, std)
        elif name.endswith("bias") or name == "shift" or ".taps." in name:
            parameter.zero_()
        else:
            parameter.fill_(1)


def untrained(config: ModelConfig, vocabulary: int) -> GPT:
    """Return a model whose weights have no values, to fill them or to count parameters and FLOPs."""
    with torch.device("meta"):  # no initialisation, so torch's generator is not advanced
        return GPT(config, vocabulary)
