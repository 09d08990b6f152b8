"""The weights of a model, rearranged for the decoder, in NumPy or torch.

Shapes: C = dim, V = vocabulary, H heads of size D, R rotary dimensions, T = context, K = taps of
the convolution.
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

    weight: Array  # (in, out)
    bias: Array | None  # (out,)

    def __call__(self, x: Array) -> Array:
        y = x @ self.weight  # (..., out)
        if self.bias is not None:
            y += self.bias
        return y


class Layer(NamedTuple):
    """The weights of a transformer block, rearranged as `Weights` describes."""

    qkv: Linear  # (C, 3C)
    proj: Linear  # (C, C)
    up: Linear  # (C, 4C)
    down: Linear  # (4C, C)
    # (K, 1, C): ones for the current position, then those of the previous one, etc.
    taps: Array | None


class Weights:
    """The weights of a model, rearranged so that a decoding step needs few operations.

    - The gain and bias of a norm are folded into the matrix that follows the norm.
    - With layer norm, everything that is added to the residual stream has its mean subtracted: in the weights, or by
      the decoder after a convolution. The mean of the stream is then 0, and layer norm is the same
      as RMS norm.
    - The two channels that rotary positions rotate together are adjacent, so that they can be viewed as one complex
      number.

    `state` is the model's state dict, of NumPy arrays or tensors, float32 or float64.
    """

    def __init__(self, config: ModelConfig, state: Mapping[str, Array]) -> None:
        self.config = config
        embedding = state["embedding.weight"]  # (V, C)
        self.numpy = isinstance(embedding, np.ndarray)
        if self.numpy:
            self.xp: Any = np
            self.vecdot: Any = np.vecdot
            self.gelu: Any = gelu
        else:
            import torch

            self.xp = torch
            self.vecdot = torch.linalg.vecdot
            self.gelu = torch.nn.functional.gelu
        self.dtype = np.dtype(str(embedding.dtype).removeprefix("torch."))
        self.device = None if self.numpy else embedding.device
        self.cuda = not self.numpy and embedding.is_cuda
        self.zero = self.zeros()  # of ReLU
        self.centring = {"layernorm": True, "rmsnorm": False}[config.norm]
        self.average = self.numbers(np.full(config.dim, 1 / config.dim))  # (C,), of a mean
        # sqrt(C) of RMS norm: folded into the weights, because `Decoder._norm` omits it
        self.root = config.dim**0.5
        D = config.head_dim
        # NumPy is twice as fast with arrays as with Python's numbers.
        # RMS norm divides by sqrt(sum of squares + norm_eps).
        self.norm_eps = self.numbers(np.array(config.dim * NORM_EPS))  # ()
        # QK-norm divides by D^(1/4) sqrt(mean square + eps) = sqrt(qk_scale * sum of squares + qk_eps).
        eps = float(np.finfo(self.dtype).eps)
        self.qk_scale = self.numbers(np.array(D**-0.5))  # ()
        self.qk_eps = self.numbers(np.array(D**0.5 * eps))  # ()
        # Scores are then at most sqrt(2 D), because with key_offset the halves of a key come from
        # two normalised keys. If that is below 60, exponentials of scores do not overflow, so the
        # decoder need not subtract the maximum.
        self.bounded = config.qk_norm and (2 * D) ** 0.5 < 60

        order, scale = self._channel_order_and_scale()  # (3C,), and (3C,) or one number
        self.layers: list[Layer] = []
        for i in range(config.layers):
            block = f"blocks.{i}"
            layer = Layer(
                qkv=self._after_norm(
                    state, f"{block}.norm1", f"{block}.attention.qkv", order, scale
                ),
                proj=self._linear(state, f"{block}.attention.proj", centred=True),
                up=self._after_norm(state, f"{block}.norm2", f"{block}.mlp.up"),
                down=self._linear(state, f"{block}.mlp.down", centred=config.conv_taps == 1),
                taps=self._taps(state, f"{block}.mlp"),
            )
            self.layers.append(layer)
        self.head = self._after_norm(state, "norm", "embedding" if config.tied else "head")
        self.embedding = self.centred(embedding)  # (V, C)
        if config.token_shift:
            shifted = self.centred(embedding * state["shift"])  # (V, C)
            # The last row is for the first token of a text, whose previous token is -1.
            zeros = 0 * shifted[:1]  # (1, C)
            self.shifted = self.xp.concatenate((shifted, zeros))  # (V + 1, C)
        if config.positions == "learned":
            self.positions = self.centred(state["position_embedding.weight"])  # (T, C)

    def _after_norm(
        self,
        state: Mapping[str, Array],
        norm: str,
        name: str,
        order: Array = slice(None),
        scale: Array = 1,
    ) -> Linear:
        """Return the linear layer `name` with the norm before it folded in, its outputs reordered and then scaled."""
        weight = state[f"{name}.weight"]  # (out, C)
        bias = state.get(f"{name}.bias")  # (out,)
        if f"{norm}.bias" in state:
            shift = weight @ state[f"{norm}.bias"]  # (out,)
            bias = shift if bias is None else bias + shift  # (out,)
        gain = state[f"{norm}.weight"] * self.root  # (C,)
        weight = (weight * gain)[order]  # (out, C)
        weight = weight.T * scale  # (out, C) -> (C, out)
        if bias is not None:
            bias = bias[order] * scale  # (out,)
        return Linear(self._contiguous(weight), bias)

    def _linear(self, state: Mapping[str, Array], name: str, centred: bool) -> Linear:
        """Return the linear layer `name`; if `centred`, the mean of each output vector is 0."""
        weight = state[f"{name}.weight"].T  # (out, in) -> (in, out)
        bias = state.get(f"{name}.bias")  # (out,)
        if centred:
            weight = self.centred(weight)  # (in, out)
            if bias is not None:
                bias = self.centred(bias)  # (out,)
        return Linear(self._contiguous(weight), bias)

    def _taps(self, state: Mapping[str, Array], name: str) -> Array | None:
        """Return the taps of the convolution in the MLP `name`, (K, 1, C), or None without one."""
        # (C,) each
        earlier = [state[f"{name}.taps.{tap}"] for tap in range(self.config.conv_taps - 1)]
        if not earlier:
            return None
        current = earlier[0] * 0 + 1  # (C,) ones
        taps = self.xp.stack([current, *earlier])  # (K, C)
        return taps[:, None]  # (K, 1, C)

    def _channel_order_and_scale(self) -> tuple[Array, Array]:
        """Return indices and factors, (3C,) each, that rearrange the outputs for queries, keys and values.

        The R rotary channels of a query or key get the order 0, R/2, 1, R/2 + 1, ... D^(-1/4) for
        queries and keys puts the factor 1 / sqrt(D) of attention into q . k; with QK-norm,
        `qk_scale` does and the factor is 1.
        """
        C = self.config.dim
        H = self.config.heads
        D = self.config.head_dim
        R = self.config.rotary_dims
        order = np.arange(3 * C).reshape(3, H, D)  # (3, H, D)
        halves = order[:2, :, :R].reshape(2, H, 2, R // 2)  # (2, H, 2, R/2)
        pairs = halves.swapaxes(2, 3)  # (2, H, R/2, 2)
        order[:2, :, :R] = pairs.reshape(2, H, R)  # (2, H, R)
        indices = self.to_array(order.reshape(-1))  # (3C,)
        if self.config.qk_norm:
            return indices, 1  # (3C,), ()
        scale = np.repeat([D**-0.25, D**-0.25, 1.0], C)  # (3C,)
        return indices, self.numbers(scale)  # 2 x (3C,)

    def encoding(self, positions: np.ndarray) -> Array:
        """Return e^(i angle) for rotary positions, (..., 1, 1, R/2), else sinusoids as in `GPT.embed`, (..., C)."""
        if self.config.rotary_dims:
            positions = positions[..., None, None]  # (..., 1, 1)
            cos, sin = rotary_tables(positions, self.config.rotary_dims)  # 2 x (..., 1, 1, R/2)
            return self.numbers(cos + 1j * sin)  # (..., 1, 1, R/2)
        table = sinusoidal_table(positions, self.config.dim) / self.config.dim**0.5  # (..., C)
        return self.centred(self.numbers(table))  # (..., C)

    def centred(self, x: Array) -> Array:
        """Subtract the mean of each vector, unless the norms are RMS norms: (..., C) -> (..., C)."""
        if not self.centring:
            return x
        mean = (x @ self.average)[..., None]  # (..., 1)
        return x - mean  # (..., C)

    def _contiguous(self, x: Array) -> Array:
        if self.numpy:
            return np.ascontiguousarray(x)
        return x.contiguous()

    def zeros(self, *shape: int) -> Array:
        return self.to_array(np.zeros(shape, self.dtype))

    def numbers(self, values: np.ndarray) -> Array:
        """Return float64 or complex128 values in the precision, library and device of the weights."""
        dtype = self.dtype
        if np.iscomplexobj(values):
            dtype = np.result_type(self.dtype, np.complex64)  # complex128 for float64
        return self.to_array(values.astype(dtype))

    def to_array(self, values: np.ndarray) -> Array:
        if self.numpy:
            return values
        return self.xp.from_numpy(values).to(self.device)


def gelu(x: np.ndarray) -> np.ndarray:
    """Return torch's GELU, because NumPy has no error function: the only activation for which sampling loads torch."""
    import torch

    return torch.nn.functional.gelu(torch.from_numpy(x)).numpy()


def load_weights(path: str | Path, device: str = "cpu") -> tuple[Weights, dict[str, Any]]:
    """Return the weights of a model file, on a CPU without loading torch, and its `Description`."""
    config, state, meta = model_file.read(path)
    if device != "cpu":
        import torch

        state = {
            name: model_file.to_device(torch.from_numpy(array), device)
            for name, array in state.items()
        }
    return Weights(config, state), meta


def weights_of(model: "GPT") -> Weights:
    """Return the weights of a model, on NumPy on a CPU: float64 stays, all other dtypes become float32."""
    import torch

    on_cpu = model.embedding.weight.device.type == "cpu"
    state: dict[str, Array] = {}
    for name, value in model.state_dict().items():
        if value.dtype != torch.float64:
            value = value.float()
        state[name] = value.numpy() if on_cpu else value
    return Weights(model.config, state)
