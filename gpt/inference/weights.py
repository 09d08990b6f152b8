"""The weights of a model, rearranged for the decoder, in NumPy or torch.

Shapes: C = dim, V = vocabulary, H heads of size D, R rotary dimensions, T = context, K = taps of the convolution.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpt import model_file
from gpt.config import NORM_EPS, ModelConfig
from gpt.positions import rotary_tables, sinusoidal_table

if TYPE_CHECKING:
    from gpt.model import GPT

Array = Any  # numpy.ndarray or torch.Tensor


class Linear(NamedTuple):
    """A linear layer whose weight, (in, out), is transposed from `nn.Linear`."""

    weight: Array
    bias: Array | None

    def __call__(self, x: Array) -> Array:
        y = x @ self.weight  # (..., out)
        if self.bias is not None:
            y += self.bias
        return y


class Layer(NamedTuple):
    """The weights of a transformer block, rearranged as `Weights` describes."""

    qkv: Linear
    proj: Linear
    up: Linear
    down: Linear
    taps: Array | None  # (K, 1, C): ones for the current position, then those of the previous one, etc.


class Weights:
    """The weights of a model, rearranged so that a decoding step needs few operations.

    - The gain and bias of a norm are folded into the matrix that follows the norm.
    - With layer norm, everything that is added to the residual stream has its mean subtracted: in the weights, or by
      the decoder after a convolution. The mean of the stream is then 0, and layer norm is the same as RMS norm.
    - The two channels that rotary positions rotate together are adjacent, so that they can be viewed as one complex
      number.

    `state` is the model's state dict, of NumPy arrays or tensors, float32 or float64.
    """

    def __init__(self, config: ModelConfig, state: Mapping[str, Array]) -> None:
        self.config = config
        embedding = state["embedding.weight"]
        self.numpy = isinstance(embedding, np.ndarray)
        if self.numpy:
            self.xp: Any = np
            self.vecdot: Any = np.vecdot
            self.gelu: Any = gelu
        else:
            import torch

            self.xp, self.vecdot, self.gelu = torch, torch.linalg.vecdot, torch.nn.functional.gelu
        self.dtype = np.dtype(str(embedding.dtype).removeprefix("torch."))
        self.device = None if self.numpy else embedding.device
        self.cuda = not self.numpy and embedding.is_cuda
        self.zero = self.zeros()
        self.centring = {"layernorm": True, "rmsnorm": False}[config.norm]
        self.encoded = {"rotary": True, "sinusoidal": True, "learned": False, "none": False}[config.positions]
        self.average = self.numbers(np.full(config.dim, 1 / config.dim))  # (C,)
        self.root = config.dim**0.5  # sqrt(C) of RMS norm: folded into the weights, because `Decoder._norm` omits it
        D = config.head_dim
        # With QK-norm, queries and keys are divided by D^(1/4) * sqrt(mean square + eps). NumPy is twice as fast
        # with arrays as with Python's numbers.
        constants = (config.dim * NORM_EPS, D**-0.5, D**0.5 * float(np.finfo(self.dtype).eps))
        self.norm_eps, self.qk_scale, self.qk_eps = (self.numbers(np.array(number)) for number in constants)
        # Scores are then at most sqrt(2 D), because with key_offset the halves of a key come from two normalised keys.
        # If that is below 60, exponentials of scores do not overflow, so the decoder need not subtract the maximum.
        self.bounded = config.qk_norm and (2 * D) ** 0.5 < 60

        order, scale = self._channel_order_and_scale()
        self.layers = [
            Layer(
                self._after_norm(state, f"{block}.norm1", f"{block}.attention.qkv", order, scale),
                self._linear(state, f"{block}.attention.proj", centred=True),
                self._after_norm(state, f"{block}.norm2", f"{block}.mlp.up"),
                self._linear(state, f"{block}.mlp.down", centred=config.conv_taps == 1),
                self._taps(state, f"{block}.mlp"),
            )
            for block in (f"blocks.{i}" for i in range(config.layers))
        ]
        self.head = self._after_norm(state, "norm", "embedding" if config.tied else "head")
        self.embedding = self.centred(embedding)  # (V, C)
        if config.token_shift:
            # The last row is zeros, for the first token of a text, whose previous token is -1.
            shifted = self.centred(embedding * state["shift"])
            self.shifted = self.xp.concatenate((shifted, 0 * shifted[:1]))  # (V + 1, C)
        if config.positions == "learned":
            self.positions = self.centred(state["position_embedding.weight"])  # (T, C)

    def _after_norm(
        self, state: Mapping[str, Array], norm: str, name: str, order: Array = slice(None), scale: Array = 1
    ) -> Linear:
        """Return the linear layer `name` with the norm before it folded in, its outputs reordered and then scaled."""
        weight, bias = state[f"{name}.weight"], state.get(f"{name}.bias")
        if f"{norm}.bias" in state:
            shift = weight @ state[f"{norm}.bias"]
            bias = shift if bias is None else bias + shift
        weight = (weight * (state[f"{norm}.weight"] * self.root))[order].T * scale
        return Linear(self._contiguous(weight), None if bias is None else bias[order] * scale)

    def _linear(self, state: Mapping[str, Array], name: str, centred: bool) -> Linear:
        """Return the linear layer `name`; if `centred`, the mean of each output vector is 0."""
        weight, bias = state[f"{name}.weight"].T, state.get(f"{name}.bias")
        if centred:
            weight, bias = self.centred(weight), None if bias is None else self.centred(bias)
        return Linear(self._contiguous(weight), bias)

    def _taps(self, state: Mapping[str, Array], name: str) -> Array | None:
        others = [state[f"{name}.taps.{tap}"] for tap in range(self.config.conv_taps - 1)]
        return self.xp.stack([others[0] * 0 + 1, *others])[:, None] if others else None  # (K, 1, C)

    def _channel_order_and_scale(self) -> tuple[Array, Array]:
        """Return indices and factors, (3C,) each, that rearrange the outputs for queries, keys and values.

        The R rotary channels of a query or key get the order 0, R/2, 1, R/2 + 1, ... D^(-1/4) for queries and keys
        puts the factor 1 / sqrt(D) of attention into q . k; with QK-norm `qk_scale` does.
        """
        H, D, R = self.config.heads, self.config.head_dim, self.config.rotary_dims
        order = np.arange(3 * self.config.dim).reshape(3, H, D)  # (3, H, D)
        pairs = order[:2, :, :R].reshape(2, H, 2, R // 2).swapaxes(2, 3)  # (2, H, R/2, 2)
        order[:2, :, :R] = pairs.reshape(2, H, R)  # (2, H, R)
        scale = np.repeat([D**-0.25, D**-0.25, 1.0], self.config.dim)  # (3C,)
        return self.to_array(order.reshape(-1)), 1 if self.config.qk_norm else self.numbers(scale)  # (3C,)

    def encoding(self, positions: np.ndarray) -> Array:
        """Return e^(i angle) for rotary positions, (..., 1, 1, R/2), else sinusoids as in `GPT.embed`, (..., C)."""
        if self.config.rotary_dims:
            cos, sin = rotary_tables(positions[..., None, None], self.config.rotary_dims)
            return self.numbers(cos + 1j * sin)
        return self.centred(self.numbers(sinusoidal_table(positions, self.config.dim) / self.config.dim**0.5))

    def centred(self, x: Array) -> Array:
        # RMS norms need no mean of 0.
        return x - (x @ self.average)[..., None] if self.centring else x  # (..., C)

    def _contiguous(self, x: Array) -> Array:
        return np.ascontiguousarray(x) if self.numpy else x.contiguous()

    def zeros(self, *shape: int) -> Array:
        return self.to_array(np.zeros(shape, self.dtype))

    def numbers(self, values: np.ndarray) -> Array:
        """Return float64 or complex128 values in the precision, library and device of the weights."""
        wide = self.dtype == np.float64
        kind = (np.complex128 if wide else np.complex64) if np.iscomplexobj(values) else self.dtype
        return self.to_array(values.astype(kind))

    def to_array(self, values: np.ndarray) -> Array:
        return values if self.numpy else self.xp.from_numpy(values).to(self.device)


def gelu(x: np.ndarray) -> np.ndarray:
    """Return torch's GELU, because NumPy has no error function: the only activation for which sampling loads torch."""
    import torch

    return torch.nn.functional.gelu(torch.from_numpy(x)).numpy()


def load_weights(path: str | Path, device: str = "cpu") -> tuple[Weights, dict[str, Any]]:
    """Return the weights of a model file, on a CPU without loading torch, and its `Description`."""
    config, state, meta = model_file.read(path)
    if device != "cpu":
        import torch

        state = {name: model_file.to_device(torch.from_numpy(array), device) for name, array in state.items()}
    return Weights(config, state), meta


def weights_of(model: "GPT") -> Weights:
    """Return the weights of a model, on NumPy on a CPU: float64 stays, all other dtypes become float32."""
    import torch

    state = {key: value if value.dtype == torch.float64 else value.float() for key, value in model.state_dict().items()}
    if model.embedding.weight.device.type == "cpu":
        return Weights(model.config, {key: value.numpy() for key, value in state.items()})
    return Weights(model.config, state)
