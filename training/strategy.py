"""Lightning plug-ins: strategies for several devices (DDP, FSDP2), the cluster environment, checkpoint files."""

import copy
import os
import signal
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.environments import ClusterEnvironment, LightningEnvironment, TorchElasticEnvironment
from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer

from base import processes
from gpt.checkpoint import build, is_finite, model_state, read, save, write_model
from gpt.model import GPT
from gpt.sharded_tensors import shard_like, whole
from training.errors import Diverged
from training.module import LitGPT


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


START_TIMEOUT = timedelta(minutes=10)  # that processes have to find each other, some on machines that start later
GRACE_SECONDS = 10.0  # seconds that a process gives the one that started it to end by itself


def make_environment() -> ClusterEnvironment:
    """Where Lightning learns which process it is: from torchrun's variables, or it starts the others itself."""
    return TorchElasticEnvironment() if processes.launched() else LightningEnvironment()


def make_strategy(strategy: str, devices: int) -> Any:
    """How so many devices work together."""
    if devices == 1:
        return "auto"
    return ShardedStrategy(devices, START_TIMEOUT) if strategy == "fsdp" else DDPStrategy(timeout=START_TIMEOUT)


def end_parent() -> None:
    """End the process that started this one, which has failed, unless it ends by itself: it may hang."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # whoever waits for this process is told
    parent, until = os.getppid(), time.monotonic() + GRACE_SECONDS
    while os.getppid() == parent and time.monotonic() < until:
        time.sleep(0.1)
    if os.getppid() == parent:
        os.kill(parent, signal.SIGKILL)


def whole_model(trainer: L.Trainer, module: LitGPT) -> GPT | None:
    """The model as one has it on one device, on the first process; None on others. All must call this."""
    if not isinstance(module.net, FSDPModule):
        return module.net if trainer.is_global_zero else None
    gathered = trainer.strategy.lightning_module_state_dict()
    return build(module.model_config, model_state(gathered)) if trainer.is_global_zero else None


class AtomicCheckpointIO(CheckpointIO):
    """Lets Lightning read and write through `gpt.checkpoint`: whole files only, no code run on loading.

    Args:
        resumed: contents of the checkpoint that the run goes on from, which have been read and verified.
    """

    def __init__(self, resumed: dict[str, Any] | None = None) -> None:
        self.resumed = resumed

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write `checkpoint`, and before it its model as `last.safetensors`: each is always a whole file.

        Raises:
            Diverged: not all of it are numbers, so it is not written.
        """
        if not is_finite(checkpoint):
            raise Diverged(f"step {checkpoint['global_step']} has left weights that are no numbers: not saved")
        write_model(Path(path).with_name("last.safetensors"), checkpoint)
        save(path, checkpoint)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read and verify a checkpoint."""
        contents, self.resumed = self.resumed, None
        return read(path) if contents is None else contents

    def remove_checkpoint(self, path: Any) -> None:
        """Delete a checkpoint."""
        Path(path).unlink(missing_ok=True)
