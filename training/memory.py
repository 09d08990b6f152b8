"""Refuse a model that cannot fit into memory, and say which settings to lower after an out-of-memory error."""

import math
import os

from base.errors import InputError
from gpt.config import ModelConfig

LOWER = "out of memory: lower data.micro_batch, data.batch, model.context or model.dim"  # for the activations of a step


def check_memory(model: ModelConfig, vocabulary: int, device: str) -> None:
    """Raise an `InputError` if weights, gradients and optimizer state need more memory than the device has.

    Without this check, Linux might kill other programs before the run itself fails.
    """
    from gpt.model_file import weight_shapes  # loads NumPy

    there = available(device)
    weights = sum(math.prod(shape) for _, shape in weight_shapes(model, vocabulary))
    needed = 4 * 4 * weights  # bytes: each weight has a gradient and at most two moments, in fp32
    if needed > there:
        what = f"weights, gradients and optimizer need about {needed / 2**30:,.1f} of {there / 2**30:,.1f} GiB"
        raise InputError(f"out of memory: {what}; lower model.dim={model.dim} or model.layers={model.layers}")


def available(device: str) -> float:
    """Return the number of bytes of memory that this process can use on a device, or infinity if it is unknown."""
    if device == "cuda":
        import torch

        return float(torch.cuda.mem_get_info()[1])
    try:
        import resource
    except ImportError:  # Windows
        return math.inf
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return physical if limit == resource.RLIM_INFINITY else min(physical, limit)
