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

    weight: Array  # (in, out), transposed from `nn.Linear`, or (C,)
    bias: Array | None  # (out,) or (C,)

    def __call__(self, x: Array) -> Array:
        """Return the output of the linear layer: (N, in) -> (N, out)."""
        y = x @ self.weight  # (N, out)
        return y if self.bias is None else y + self.bias


class Block(NamedTuple):
    """The weights of a transformer block."""

    norm1: Layer
    qkv: Layer
    proj: Layer
    norm2: Layer
    up: Layer
    down: Layer
    taps: list[Array]  # K - 1 times (C,)


class Weights:
    """The weights of a model from its state dict, which has only arrays or only tensors, float32 or float64.

    They are as in the state dict, except for the order of the channels of queries and keys, see
    `adjacent_pairs`.
    """

    def __init__(self, config: ModelConfig, state: Mapping[str, Array]) -> None:
        def layer(name: str) -> Layer:
            weight = self.state[f"{name}.weight"]  # (out, in), or (C,) of a norm
            if weight.ndim == 2:
                weight = weight.T  # (in, out)
            return Layer(weight, self.state.get(f"{name}.bias"))

        self.config = config
        self.state = dict(state)
        self.embedding = state["embedding.weight"]  # (V, C)
        self.dtype = np.dtype(str(self.embedding.dtype).removeprefix("torch."))
        self.numpy = isinstance(self.embedding, np.ndarray)
        self.device = self.embedding.device
        # the library: the decoder calls only functions that have one name in both
        self.xp: Any = np
        if not self.numpy:
            import torch

            self.xp = torch
        order = self.to_array(adjacent_pairs(config))  # (3C,)
        for name, value in state.items():
            if ".attention.qkv." in name:
                self.state[name] = value[order]  # (3C, C), or (3C,) of a bias
        self.blocks: list[Block] = []
        for i in range(config.layers):
            name = f"blocks.{i}"
            block = Block(
                norm1=layer(f"{name}.norm1"),
                qkv=layer(f"{name}.attention.qkv"),
                proj=layer(f"{name}.attention.proj"),
                norm2=layer(f"{name}.norm2"),
                up=layer(f"{name}.mlp.up"),
                down=layer(f"{name}.mlp.down"),
                taps=[state[f"{name}.mlp.taps.{tap}"] for tap in range(config.conv_taps - 1)],
            )
            self.blocks.append(block)
        self.norm = layer("norm")
        self.head = layer("embedding" if config.tied else "head")

    def to_array(self, values: np.ndarray) -> Array:
        """Return values as an array or tensor like the weights, float64 in their precision."""
        if values.dtype == np.float64:
            values = values.astype(self.dtype)
        if self.numpy:
            return values
        return self.xp.from_numpy(values).to(self.device)

    def zeros(self, *shape: int) -> Array:
        return self.to_array(np.zeros(shape))


def adjacent_pairs(config: ModelConfig) -> np.ndarray:
    """Return an order, (3C,), of the outputs of `qkv` in which the two channels that are rotated together are adjacent.

    The decoder multiplies them as one complex number, which saves 7 % of the time of one text. The
    products of queries and keys do not depend on the order.
    """
    R = config.rotary_dims
    order = np.arange(3 * config.dim).reshape(3, config.heads, -1)  # (3, H, D)
    pairs = np.arange(R).reshape(2, R // 2).T.reshape(-1)  # (R,): 0, R/2, 1, R/2 + 1, ...
    order[:2, :, :R] = order[:2, :, pairs]
    return order.reshape(-1)  # (3C,)


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
