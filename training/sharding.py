"""Shard the weights of a model over devices (FSDP2): each device has some rows of every tensor."""

import lightning as L
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from gpt.checkpoint import build, model_state
from gpt.model import GPT
from gpt.optim import Muon


def shard(model: GPT, mesh: DeviceMesh) -> None:
    """Shard each block by itself with FSDP2; forward passes gather the weights in fp32, which validation needs."""
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh, reshard_after_forward=True)


def whole(tensor: Tensor) -> Tensor:
    """Return the whole of a sharded tensor; all ranks must call this. Return any other tensor unchanged."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(tensor: Tensor, pattern: Tensor) -> Tensor:
    """Return this rank's shard of a tensor that every rank has, with the layout of `pattern`; no communication."""
    if not isinstance(pattern, DTensor):
        return tensor
    return distribute_tensor(tensor, pattern.device_mesh, pattern.placements, src_data_rank=None)


class ShardedMuon(Muon):
    """Muon for sharded matrices: each device gathers a whole matrix, orthogonalises it and updates its own rows."""

    whole = staticmethod(whole)
    shard_like = staticmethod(shard_like)


def whole_model(trainer: L.Trainer, model: GPT) -> GPT | None:
    """Return the unsharded model on rank 0, None on others; all ranks must call this."""
    if not isinstance(model, FSDPModule):
        return model if trainer.is_global_zero else None
    gathered = trainer.strategy.lightning_module_state_dict()
    return build(model.config, model_state(gathered)) if trainer.is_global_zero else None
