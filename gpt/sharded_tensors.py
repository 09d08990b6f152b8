"""Tensors that are spread over devices (FSDP), each of which keeps some of the rows."""

from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def whole(tensor: Tensor) -> Tensor:
    """Gather a tensor that is spread over devices, all of which must ask for it; any other is what it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(tensor: Tensor, pattern: Tensor) -> Tensor:
    """Spread a tensor, the same on every device, as `pattern` of the same shape is: nothing is sent."""
    if not isinstance(pattern, DTensor):
        return tensor
    return distribute_tensor(tensor, pattern.device_mesh, pattern.placements, src_data_rank=None)
