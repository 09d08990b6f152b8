"""The weights of a model for the decoder: NumPy arrays on a CPU, which need no PyTorch, or tensors on a GPU."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpt import model_file
from gpt.config import ModelConfig

if TYPE_CHECKING:
    from gpt.model import GPT

Array = Any  # numpy.ndarray or torch.Tensor


class Layer(NamedTuple):
    """The weight and bias of a linear layer or of a norm."""

    weight: Array  # (in, out), transposed from `nn.Linear`, or (1, C): with (C,), a text takes 2 % longer
    bias: Array | None  # (out,) or (C,)

    def __call__(self, x: Array) -> Array:
        """Return the output of the linear layer: (N, in) -> (N, out)."""
        y = x @ self.weight  # (N, out)
        return y if self.bias is None else y + self.bias


# of a block, in the order of the fields of `Block`
LAYERS = ("norm1", "attention.qkv", "attention.proj", "norm2", "mlp.up", "mlp.down")


class Block(NamedTuple):
    """The weights of a transformer block."""

    norm1: Layer
    qkv: Layer
    proj: Layer
    norm2: Layer
    up: Layer
    down: Layer
    taps: list[Array]  # K - 1 times (1, 1, C), for the same reason as a norm's (1, C)


class Weights:
    """The weights of a model from its state dict, which has only arrays or only tensors, float32 or float64.

    They are as in the state dict, except for the order of the channels of queries and keys.
    """

    def __init__(self, config: ModelConfig, state: Mapping[str, Array]) -> None:
        self.config = config
        self.state = dict(state)
        self.embedding = state["embedding.weight"]  # (V, C)
        self.dtype = self.embedding.dtype
        self.device = self.embedding.device
        # the library: the decoder calls only functions that have one name in both
        self.xp: Any = np
        if not isinstance(self.embedding, np.ndarray):
            import torch

            self.xp = torch
        # Of queries and keys, the two channels that are rotated together become adjacent: the
        # decoder multiplies them as one complex number, which saves 6 % of the time of one text. The
        # products of queries and keys do not depend on the order, and key_offset moves other channels.
        R = config.rotary_dims
        # (3, H, D), for each channel the row of `qkv.weight` that it had
        order = np.arange(3 * config.dim).reshape(3, config.heads, -1)
        pairs = np.arange(R).reshape(2, -1).T.reshape(-1)  # (R,): 0, R/2, 1, R/2 + 1, ...
        order[:2, :, :R] = order[:2, :, pairs]
        for name, value in state.items():
            if ".attention.qkv." in name:
                self.state[name] = value[order.reshape(-1)]  # (3C, C), or (3C,) of a bias
        self.blocks: list[Block] = []
        for i in range(config.layers):
            layers = [self.layer(f"blocks.{i}.{name}") for name in LAYERS]
            taps = [
                state[f"blocks.{i}.mlp.taps.{tap}"][None, None]
                for tap in range(config.conv_taps - 1)
            ]
            self.blocks.append(Block._make([*layers, taps]))
        self.norm = self.layer("norm")
        self.head = self.layer("embedding" if config.tied else "head")

    def layer(self, name: str) -> Layer:
        """Return the layer with a name of the model, such as `blocks.0.mlp.up`."""
        weight = self.state[f"{name}.weight"].swapaxes(0, -1)  # (in, out), or (C,) of a norm
        return Layer(self.xp.atleast_2d(weight), self.state.get(f"{name}.bias"))

    def to_array(self, values: Array) -> Array:
        """Return values as an array or tensor like the weights, in their precision."""
        return self.xp.asarray(values, dtype=self.dtype, device=self.device)

    def zeros(self, *shape: int) -> Array:
        return self.to_array(np.zeros(shape))


def load_weights(path: str | Path, device: str = "cpu") -> tuple[Weights, dict[str, Any]]:
    """Return the weights of a model file and its `Description`; on a CPU, torch is not loaded."""
    config, state, meta = model_file.read(path)
    if device == "cpu":
        return Weights(config, state), meta
    from gpt.checkpoint import build

    return weights_of(model_file.to_device(build(config, state), device)), meta


def weights_of(model: "GPT") -> Weights:
    """Return the weights of a model, NumPy arrays on a CPU: float64 stays, all other dtypes become float32."""
    import torch

    state: dict[str, Array] = {}
    for name, value in model.state_dict().items():
        if value.dtype != torch.float64:
            value = value.float()
        state[name] = value.numpy() if value.is_cpu else value
    return Weights(model.config, state)
