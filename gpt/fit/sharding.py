"""Fitting a model whose weights, gradients and optimizer state are spread over devices (FSDP2)."""

import copy
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
from lightning.pytorch.strategies import ModelParallelStrategy, Strategy
from torch.optim import Optimizer

from gpt.shards import shard_like, whole


class ShardedStrategy(ModelParallelStrategy):
    """Shards over all devices; its checkpoints are those of one device, and are read from there.

    `LitGPT.configure_model` says what is sharded. Lightning's own way of loading opens the file by itself, and its way
    of saving numbers the optimizer's parameters otherwise.
    """

    lightning_restore_optimizer = True

    def __init__(self, devices: int, timeout: timedelta) -> None:
        super().__init__(devices, 1, save_distributed_checkpoint=False, timeout=timeout)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The weights, whole; every device must call this, and the first has the result."""
        assert self.lightning_module is not None
        return self._gathered(self.lightning_module.state_dict())

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The optimizer's state, likewise."""
        return self._gathered(optimizer.state_dict())

    def _gathered(self, part: Any) -> Any:
        if isinstance(part, dict):
            part = copy.copy(part)  # the optimizer goes on with its own
            for key in part:
                part[key] = self._gathered(part[key])
        elif isinstance(part, torch.Tensor):
            tensor = whole(part)
            # One at a time is whole elsewhere. The copy leaves behind the rows that filled up uneven shards.
            return tensor.to("cpu", copy=True) if self.is_global_zero else None
        return part

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """What has been read and verified, on every device."""
        return self.checkpoint_io.load_checkpoint(checkpoint_path)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Take this device's shards of the weights."""
        assert self.lightning_module is not None
        own = self.lightning_module.state_dict()
        state = {name: shard_like(tensor, own[name]) for name, tensor in checkpoint["state_dict"].items()}
        self.lightning_module.load_state_dict(state, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Take this device's shards of the optimizer's state."""
        for optimizer, contents in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            groups = optimizer.param_groups
            parameters = dict(enumerate(parameter for group in groups for parameter in group["params"]))
            for index, state in contents["state"].items():
                for key, tensor in state.items():
                    if tensor.ndim:  # the number of steps is everyone's
                        state[key] = shard_like(tensor, parameters[index])
        Strategy.load_optimizer_state_dict(self, checkpoint)
