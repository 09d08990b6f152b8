"""The model: a decoder-only transformer over characters, with pre-norm blocks.

Shapes: B windows, T characters in a window, C = dim, V = size of the vocabulary.
Source: GPT-2 (Radford et al. 2019) for the layout and the initialisation; RWKV (arXiv:2305.13048) for the idea of a
token shift, which is applied only to the embeddings here.
"""

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.attention import Attention
from gpt.config import NORM_EPS, ModelConfig
from gpt.dropout import Dropout
from gpt.positions import position_tables


def make_norm(config: ModelConfig) -> nn.Module:
    """Return the normalisation layer that `config.norm` names: LayerNorm, or RMSNorm (arXiv:1910.07467)."""
    return NORMS[config.norm](config)


def relu2(x: Tensor) -> Tensor:
    """Return the square of max(x, 0) for each value of x (Primer, arXiv:2109.08668, section 3)."""
    return F.relu(x).square()


NORMS: dict[str, Callable[[ModelConfig], nn.Module]] = {
    "layernorm": lambda config: nn.LayerNorm(config.dim, eps=NORM_EPS, bias=config.bias),
    "rmsnorm": lambda config: nn.RMSNorm(config.dim, eps=NORM_EPS),
}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu2": relu2}


class MLP(nn.Module):
    """The feed-forward branch of a block: two linear layers with a non-linearity between them, then `convolve`.

    `convolve` is a causal depthwise convolution. Shapes: (B, T, C) -> (B, T, 4C) -> (B, T, C).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.dim, 4 * config.dim, bias=config.bias)
        self.down = nn.Linear(4 * config.dim, config.dim, bias=config.bias)
        # Vectors, not a matrix: the optimizers apply neither weight decay nor Muon to vectors.
        self.taps = nn.ParameterList(torch.zeros(config.dim) for _ in range(config.conv_taps - 1))
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the branch, before it is added to the residual stream: (B, T, C) -> (B, T, C).

        The linear layers transform each position on its own. The convolution then adds to each position the results of
        the `conv_taps - 1` positions before it, each multiplied by one learned factor per channel.
        """
        return convolve(self.down(self.activation(self.up(x))), self.taps)


def convolve(x: Tensor, taps: Iterable[Tensor]) -> Tensor:
    """Return the causal depthwise convolution of x along T: (B, T, C) -> (B, T, C).

    The factor of the current position is 1. `taps` contains the factors of the preceding positions: a tensor (C,) for
    the previous position, then one for the position before that, and so on.
    Source: Primer, arXiv:2109.08668, section 3, which convolves queries, keys and values instead.
    """
    mixed = x
    for back, factors in enumerate(taps, 1):
        mixed = mixed + factors * F.pad(x, (0, 0, back, 0))[:, : x.shape[1]]  # (B, T, C)
    return mixed


class Block(nn.Module):
    """A transformer block: attention, then an MLP, each added to its input as x + branch(norm(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm1 = make_norm(config)
        self.attention = Attention(config)
        self.norm2 = make_norm(config)
        self.mlp = MLP(config)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, tables: tuple[Tensor, ...] | None = None) -> Tensor:
        """Return x with the output of both branches added: (B, T, C) -> (B, T, C).

        `tables` is the result of `position_tables` for T positions. If it is None, attention calls `position_tables`.
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
        self.norm = make_norm(config)
        self.head = nn.Linear(config.dim, vocabulary, bias=False)
        if config.tied:
            self.head.weight = self.embedding.weight
        if not self.head.weight.is_meta:
            init_weights(self)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next token at each position: (B, T) int64 -> (B, T, V), with 1 <= T <= context.

        `logits[:, t]` depends only on `tokens[:, : t + 1]`.

        Raises:
            ValueError: `tokens` has the wrong number of dimensions, dtype or length or, on a CPU, contains a token
                outside the vocabulary.
        """
        self._check(tokens)
        x = self.embed(tokens)  # (B, T, C)
        # The tables are looked up here, so that compiled blocks receive them as inputs.
        tables = position_tables(self.config, tokens.shape[1], x.device)
        for block in self.blocks:
            x = block(x, tables)  # (B, T, C)
        return self.head(self.norm(x))  # (B, T, V)

    def sinusoids(self, length: int) -> Tensor:
        """Return the sinusoidal encodings of the first T = `length` positions, divided by sqrt(C): (T, C).

        Section 3.4 of arXiv:1706.03762 multiplies the embeddings by sqrt(C) instead, which trains worse: the loss
        after 300 steps is 1.699 instead of about 1.57.
        """
        return position_tables(self.config, length, self.embedding.weight.device)[0] / self.config.dim**0.5

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the input of the first block: (B, T) int64 -> (B, T, C).

        This is the token embedding of each position plus, if `config.token_shift` is true, the scaled embedding of the
        previous token and, for learned or sinusoidal positions, the position encoding. Dropout is applied to the sum.
        """
        x = self.embedding(tokens)  # (B, T, C)
        if self.config.token_shift:
            x = x + self.shift * F.pad(x, (0, 0, 1, -1))  # (B, T, C)
        if self.config.positions == "learned":
            x = x + self.position_embedding.weight[: tokens.shape[1]]  # (B, T, C)
        if self.config.positions == "sinusoidal":
            x = x + self.sinusoids(tokens.shape[1]).to(x.dtype)  # (B, T, C)
        return self.dropout(x)

    def num_parameters(self) -> int:
        """Return the number of weights in the model, counting the head and the embedding once if they are tied."""
        return sum(parameter.numel() for parameter in self.parameters())

    def flops_per_token(self) -> int:
        """Return the floating-point operations per token, forward and backward, for windows of `context` tokens.

        Each weight of a matrix costs 6 operations, but embeddings cost nothing, because they are only looked up. The
        attention of each block adds 12 * S * C operations, with S = `attention_window`. This includes the masked half
        of the scores, because it is computed, too.
        Source: PaLM, arXiv:2204.02311, appendix B.
        """
        weights = sum(p.numel() for p in self.blocks.parameters() if p.ndim >= 2) + self.head.weight.numel()
        return 6 * weights + 12 * self.config.layers * self.config.attention_window * self.config.dim

    def _check(self, tokens: Tensor) -> None:
        if tokens.ndim != 2 or tokens.dtype != torch.int64:
            raise ValueError(f"tokens: must be (B, T) int64, not {tuple(tokens.shape)} {tokens.dtype}")
        if not 1 <= tokens.shape[1] <= self.config.context:
            raise ValueError(f"tokens: {tokens.shape[1]} per window, must be 1 to {self.config.context} (the context)")
        # Reading the values would synchronise with a GPU at every step and break a compiled graph. On a CPU it is
        # cheap.
        if tokens.device.type == "cpu" and not torch.compiler.is_compiling() and tokens.numel():
            self.check_values(tokens)

    def check_values(self, tokens: Tensor) -> None:
        """Raise `ValueError` if `tokens`, an int64 tensor of any shape, contains a token outside the vocabulary."""
        low, high = map(int, tokens.aminmax())
        if low < 0 or high >= self.vocabulary:
            wrong = low if low < 0 else high
            raise ValueError(f"tokens: {wrong} is outside the vocabulary, must be 0 to {self.vocabulary - 1}")


@torch.no_grad()
def init_weights(model: GPT) -> None:
    """Initialise the weights of a model in place, as GPT-2 does.

    Matrices and embeddings are normal with std 0.02, the gains of norms are 1, and all other vectors are 0. In each
    block, the two matrices whose output is added to the residual stream have std 0.02 / sqrt(2 * layers) instead, so
    that the variance of the stream does not grow with depth.
    """
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2:
            residual = name.endswith(("attention.proj.weight", "mlp.down.weight"))
            parameter.normal_(0, 0.02 / (2 * model.config.layers) ** 0.5 if residual else 0.02)
        elif name.endswith("bias") or name == "shift" or ".taps." in name:
            parameter.zero_()
        else:
            parameter.fill_(1)
