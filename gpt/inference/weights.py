"""The weights of a model as the decoder uses them, in NumPy or torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpt import model_file
from gpt.config import NORM_EPS, ModelConfig
from gpt.positions import alibi_slopes, rotary_tables, sinusoidal_table

if TYPE_CHECKING:
    from gpt.model import GPT

Array = Any  # numpy.ndarray or torch.Tensor


class Linear(NamedTuple):
    """A linear layer: the weight is (in, out), transposed from `nn.Linear`; the bias is (out,) or None."""

    weight: Array
    bias: Array | None

    def __call__(self, x: Array) -> Array:
        """Apply the layer: (..., in) -> (..., out)."""
        y = x @ self.weight
        if self.bias is not None:
            y += self.bias
        return y


class Layer(NamedTuple):
    """The weights of a block, rearranged as in `Weights`.

    `taps` are the factors of the convolution after the MLP, (K, 1, C), or None without a convolution. Row 0, all ones,
    is for the current position, row 1 for the previous one.
    """

    qkv: Linear
    proj: Linear
    up: Linear
    down: Linear
    taps: Array | None


class Weights:
    """The weights of a model, rearranged so that a decoding step needs few operations.

    - The gain and bias of a norm are folded into the matrix that follows it.
    - All that is added to the residual stream is centred, so its mean is 0, and layer norm is the same as RMS norm.
      Linear layers are centred here; the decoder centres the output of a convolution.
    - The two channels that rotary positions rotate together are adjacent, to be viewed as one complex number.

    Args:
        config: the model's architecture.
        state: the model's state dict, of NumPy arrays or tensors, float32 or float64.
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
        self.slopes: Array = None
        match config.positions:
            case "learned":
                self.positions = self.centred(state["position_embedding.weight"])  # (T, C)
            case "alibi":
                self.slopes = self.numbers(alibi_slopes(config.heads)[:, None, None])  # (H, 1, 1)
            case other if other not in ("sinusoidal", "rotary", "none"):
                raise KeyError(other)

    def _after_norm(
        self, state: Mapping[str, Array], norm: str, name: str, order: Array = slice(None), scale: Array = 1
    ) -> Linear:
        """Return the linear layer `name` with the gain and bias of the norm before it folded into its weights.

        The outputs of the layer are put into the order of the indices in `order`, then multiplied by `scale`.
        """
        weight, bias = state[f"{name}.weight"], state.get(f"{name}.bias")
        if f"{norm}.bias" in state:
            shift = weight @ state[f"{norm}.bias"]
            bias = shift if bias is None else bias + shift
        weight = (weight * (state[f"{norm}.weight"] * self.root))[order].T * scale
        return Linear(self._contiguous(weight), None if bias is None else bias[order] * scale)

    def _linear(self, state: Mapping[str, Array], name: str, centred: bool) -> Linear:
        """Return the linear layer `name`; if `centred`, its weights are such that each output has the mean 0.

        It must be `centred` if its output is added to the residual stream without a convolution in between.
        """
        weight, bias = state[f"{name}.weight"].T, state.get(f"{name}.bias")
        if centred:
            weight, bias = self.centred(weight), None if bias is None else self.centred(bias)
        return Linear(self._contiguous(weight), bias)

    def _taps(self, state: Mapping[str, Array], name: str) -> Array | None:
        others = [state[f"{name}.taps.{tap}"] for tap in range(self.config.conv_taps - 1)]
        return self.xp.stack([others[0] * 0 + 1, *others])[:, None] if others else None  # (K, 1, C)

    def _channel_order_and_scale(self) -> tuple[Array, Array]:
        """Return how to rearrange the outputs of the layer q|k|v: their new order, (3C,), and factors, (3C,) or 1.

        The R rotary channels of queries and keys are in the order 0, R/2, 1, R/2 + 1, ... Queries and keys are both
        scaled by D^(-1/4), so that q . k has attention's factor 1 / sqrt(D). With QK-norm the scale here is 1,
        because `qk_scale` contains the factor.
        """
        H, D, R = self.config.heads, self.config.head_dim, self.config.rotary_dims
        order = np.arange(3 * self.config.dim).reshape(3, H, D)  # (3, H, D)
        pairs = order[:2, :, :R].reshape(2, H, 2, R // 2).swapaxes(2, 3)  # (2, H, R/2, 2)
        order[:2, :, :R] = pairs.reshape(2, H, R)  # (2, H, R)
        scale = np.repeat([D**-0.25, D**-0.25, 1.0], self.config.dim)  # (3C,)
        return self.to_array(order.reshape(-1)), 1 if self.config.qk_norm else self.numbers(scale)  # (3C,)

    def ring(self, slots: int) -> Array:
        """Return ALiBi's biases for the keys in a cache of N = `slots` slots, (H, 1, 2N); None without ALiBi.

        They are those at the distances 0, N - 1, ..., 1, 0, N - 1, ..., 1. The cache is a ring buffer, so whichever
        slot contains the newest key, the biases of all slots are a slice of this array.
        """
        return None if self.slopes is None else -self.slopes * self.numbers(-np.arange(2.0 * slots) % slots)

    def encoding(self, positions: np.ndarray) -> Array:
        """Return the encodings of positions (...): sinusoidal (..., C), or rotary as e^(i angle), (..., 1, 1, R/2)."""
        if self.config.rotary_dims:
            cos, sin = rotary_tables(positions[..., None, None], self.config.rotary_dims)
            return self.numbers(cos + 1j * sin)
        return self.centred(self.numbers(sinusoidal_table(positions, self.config.dim) / self.config.dim**0.5))

    def centred(self, x: Array) -> Array:
        """Return x, (..., C), with the mean of each vector subtracted; x itself if the model has RMS norms."""
        return x - (x @ self.average)[..., None] if self.centring else x

    def _contiguous(self, x: Array) -> Array:
        return np.ascontiguousarray(x) if self.numpy else x.contiguous()

    def zeros(self, *shape: int) -> Array:
        """Return zeros of the weights' dtype, on their device."""
        return self.to_array(np.zeros(shape, self.dtype))

    def numbers(self, values: np.ndarray) -> Array:
        """Return float64 or complex128 numbers in the weights' precision, on their device."""
        wide = self.dtype == np.float64
        kind = (np.complex128 if wide else np.complex64) if np.iscomplexobj(values) else self.dtype
        return self.to_array(values.astype(kind))

    def to_array(self, values: np.ndarray) -> Array:
        """Return a NumPy array as an array of the weights' library, on their device."""
        return values if self.numpy else self.xp.from_numpy(values).to(self.device)


def gelu(x: np.ndarray) -> np.ndarray:
    """Return torch's GELU of each value, because NumPy has no error function.

    So only models with `model.activation=gelu` import torch to decode on a CPU.
    """
    import torch

    return torch.nn.functional.gelu(torch.from_numpy(x)).numpy()


def load_weights(path: str | Path, device: str = "cpu") -> tuple[Weights, dict[str, Any]]:
    """Return the weights of a model file for the decoder, and the model's description (`gpt.model_file.FIELDS`).

    On a CPU the weights are NumPy arrays, and torch is not imported. On other devices they are torch tensors.

    Raises:
        InputError: as `gpt.model_file.read` and `gpt.model_file.to_device` raise it.
    """
    config, state, meta = model_file.read(path)
    if device != "cpu":
        import torch

        state = {name: model_file.to_device(torch.from_numpy(array), device) for name, array in state.items()}
    return Weights(config, state), meta


def weights_of(model: "GPT") -> Weights:
    """Return the weights of a model for the decoder.

    On a CPU they are NumPy arrays, on other devices torch tensors. float64 weights stay float64; other dtypes become
    float32.
    """
    import torch

    state = {key: value if value.dtype == torch.float64 else value.float() for key, value in model.state_dict().items()}
    if model.embedding.weight.device.type == "cpu":
        return Weights(model.config, {key: value.numpy() for key, value in state.items()})
    return Weights(model.config, state)
