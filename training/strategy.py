"""Lightning plug-ins: strategies for several devices (DDP, FSDP2) and the cluster environment."""

import copy
import os
import signal
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
from lightning.fabric.plugins.environments import ClusterEnvironment, LightningEnvironment, TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch.optim import Optimizer

from base import processes
from training.sharding import shard_like, whole

START_TIMEOUT = timedelta(minutes=10)  # for all ranks to start: some machines may be late
GRACE_SECONDS = 10.0  # seconds that a failed rank waits for rank 0 to end


class ShardedStrategy(ModelParallelStrategy):
    """FSDP2 over all devices, with checkpoints like those of a single device.

    Lightning's strategy would not read them with our `CheckpointIO`, and it identifies the optimizer's parameters
    differently.
    """

    lightning_restore_optimizer = True

    def __init__(self, devices: int, timeout: timedelta) -> None:
        super().__init__(devices, 1, save_distributed_checkpoint=False, timeout=timeout)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the whole weights on rank 0; all ranks must call this."""
        assert self.lightning_module is not None
        return self._gathered(self.lightning_module.state_dict())

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the whole state of the optimizer on rank 0; all ranks must call this."""
        return self._gathered(optimizer.state_dict())

    def _gathered(self, part: Any) -> Any:
        if isinstance(part, dict):
            part = copy.copy(part)  # the optimizer keeps its own
            for key in part:
                part[key] = self._gathered(part[key])
        elif isinstance(part, torch.Tensor):
            tensor = whole(part)
            # Only one whole tensor at a time is on the device. The copy drops the padding of uneven shards.
            return tensor.to("cpu", copy=True) if self.is_global_zero else None
        return part

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        return self.checkpoint_io.load_checkpoint(checkpoint_path)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        assert self.lightning_module is not None
        own = self.lightning_module.state_dict()
        state = {name: shard_like(tensor, own[name]) for name, tensor in checkpoint["state_dict"].items()}
        self.lightning_module.load_state_dict(state, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        for optimizer, contents in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            groups = optimizer.param_groups
            parameters = dict(enumerate(parameter for group in groups for parameter in group["params"]))
            for index, state in contents["state"].items():
                for key, tensor in state.items():
                    if tensor.ndim:  # the only scalar is the step count, which is not sharded
                        state[key] = shard_like(tensor, parameters[index])
        Strategy.load_optimizer_state_dict(self, checkpoint)


def make_environment() -> ClusterEnvironment:
    """Return the environment for torchrun or srun if they started this process; else Lightning starts the ranks."""
    return TorchElasticEnvironment() if processes.launched() else LightningEnvironment()


def make_strategy(strategy: str, devices: int) -> Any:
    """Return the Trainer's strategy for a number of devices."""
    if devices == 1:
        return "auto"
    return ShardedStrategy(devices, START_TIMEOUT) if strategy == "fsdp" else DDPStrategy(timeout=START_TIMEOUT)


def end_parent() -> None:
    """Wait up to `GRACE_SECONDS` for rank 0, the parent of this failed rank, to end; then kill it, as it may hang."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # so that ranks waiting for this one raise an error
    parent, until = os.getppid(), time.monotonic() + GRACE_SECONDS
    while os.getppid() == parent and time.monotonic() < until:
        time.sleep(0.1)
    if os.getppid() == parent:
        os.kill(parent, signal.SIGKILL)
