"""Estimate the memory of a run, and refuse one that needs more than there is, with the setting to lower."""

import math
import os
from contextlib import suppress
from pathlib import Path

from base.errors import InputError
from conf.schema import Config
from gpt.attention import MIN_BLOCK, is_explicit
from gpt.model_file import weight_shapes
from training.launch import Machine, rows_per_device

MEMORY_MAX = Path("/sys/fs/cgroup/memory.max")  # in a container, its limit
LOADED = 0.45 * 2**30  # bytes of PyTorch and Lightning
# A training step needs so many fp32 numbers (docs/experiments/memory.csv): per position and channel, what each layer
# stores for its backward pass and what one backward pass needs; per score of explicit attention, likewise; per logit.
CHANNEL, CHANNELS_ONCE, SCORE, SCORES_ONCE, LOGIT = 28, 20, 1, 2, 3
COMPILED, BF16_CHANNEL, BF16_SCORE = 0.66, 0.74, 0.5  # fractions of them


def check_memory(config: Config, vocabulary: int, machine: Machine) -> None:
    """Raise an `InputError` if a run needs more memory than the device has.

    Without this check, Linux might kill the run, or other programs, without a word.
    """
    there, model, rows = available(machine.device), config.model, rows_per_device(config.data, machine.devices)
    if machine.device == "cpu":
        there = there * (config.trainer.num_nodes / machine.devices) - LOADED
    weights = sum(math.prod(shape) for _, shape in weight_shapes(model, vocabulary))
    state = 4 * 4 * weights  # bytes: each weight has a gradient and at most two moments, in fp32
    row = step_memory(config, vocabulary, machine.device)
    if state > there:
        what = f"weights, gradients and optimizer need about {_gib(state)} of {_gib(there)} GiB"
        raise InputError(f"out of memory: {what}; lower model.dim={model.dim} or model.layers={model.layers}")
    if state + rows * row > there:
        key = f"data.micro_batch={rows}" if config.data.micro_batch else f"data.batch={config.data.batch}"
        fitting = [each for each in range(1, rows) if rows % each == 0 and state + each * row <= there]
        lower = f"use data.micro_batch={max(fitting)}" if fitting else f"lower model.context={model.context}"
        raise InputError(f"{key}: a step needs about {_gib(state + rows * row)} of {_gib(there)} GiB; {lower}")


def step_memory(config: Config, vocabulary: int, device: str) -> float:
    """Return the bytes that one sequence needs in a training step, in addition to the weights and the optimizer."""
    model, T = config.model, config.model.context
    keys = min(T, 2 * max(model.window or T, MIN_BLOCK))
    channels = (CHANNEL * model.layers + CHANNELS_ONCE) * T * model.dim * (COMPILED if config.compile == "true" else 1)
    explicit = is_explicit(model, T, keys, device, training=True)
    scores = (SCORE * model.layers + SCORES_ONCE) * model.heads * T * keys if explicit else 0
    if config.trainer.precision.startswith("bf16"):
        channels, scores = BF16_CHANNEL * channels, BF16_SCORE * scores
    return 4 * (channels + scores + LOGIT * T * vocabulary)


def available(device: str) -> float:
    """Return the number of bytes of memory that this process can use on a device, or infinity if it is unknown."""
    if device == "cuda":
        import torch

        return float(torch.cuda.mem_get_info()[1])
    try:
        import resource
    except ImportError:  # Windows
        return math.inf
    limits = [float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))]
    with suppress(OSError, ValueError):  # no such file, or "max"
        limits.append(float(MEMORY_MAX.read_text()))
    if (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        limits.append(float(limit))
    return min(limits)


def _gib(size: float) -> str:
    return f"{max(0.0, size) / 2**30:,.1f}"
