"""Say how much memory a training step needs, and what to lower when it is too much."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from base import processes, run_directory
from conf.merge import overrides
from gpt.config import ModelConfig
from training.launch import rows_per_device

if TYPE_CHECKING:
    from training.run_plan import RunPlan

GIB = 2**30


def needed(model: ModelConfig, vocabulary: int, windows: int) -> tuple[float, float]:
    """Return about how many bytes a step holds: for weights, gradients and optimizer; and for activations."""
    weights = sum(math.prod(shape) for _, shape in model.shapes(vocabulary))
    # Floats per token that the forward pass stores for the backward pass, by the shapes in gpt/model.py
    floats = model.layers * (20 * model.dim + 3 * model.heads * model.attention_window) + 3 * vocabulary
    return 4 * 4 * weights, 4 * windows * model.context * floats  # a weight has a gradient and at most two moments


def available(device: str) -> float:
    """Return how many bytes this process can have on a kind of device; infinity if that is unknown."""
    if device == "cuda":
        import torch

        return float(torch.cuda.mem_get_info()[1])
    sizes = [math.inf]
    with suppress(AttributeError, ValueError, OSError):  # Windows
        sizes.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(ImportError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        sizes += [limit] if limit != resource.RLIM_INFINITY else []
    return min(sizes)


def check_memory(plan: "RunPlan") -> None:
    """Raise a `MemoryError` if the weights alone are too large: Linux might end other programs before this one."""
    if needed(plan.config.model, plan.text.tokenizer.size, 0)[0] > available(plan.runtime.device):
        raise MemoryError


def smaller(model: ModelConfig, windows: int) -> Iterator[tuple[str, int, ModelConfig, int]]:
    """Yield changes that need less memory, as key, value, model and windows at a time; those that cost least first."""
    for part in range(windows - 1, 0, -1):
        if windows % part == 0:
            yield "data.micro_batch", part, model, part
    for halvings in range(1, max(1, model.context).bit_length()):
        context = model.context >> halvings
        yield "model.context", context, replace(model, context=context), windows
    for halvings in range(1, max(1, model.head_dim // 4).bit_length()):
        dim = (model.head_dim >> halvings) // 4 * 4 * model.heads
        yield "model.dim", dim, replace(model, dim=dim), windows


def advise(plan: "RunPlan") -> str:
    """Return the error line of a run for which memory has run out, with the command of one that would fit."""
    config, vocabulary = plan.config, plan.text.tokenizer.size
    model, windows = config.model, rows_per_device(config, plan.runtime.devices)
    state, activations = needed(model, vocabulary, windows)
    memory = available(plan.runtime.device)
    # Half, because these are estimates, and because what was tried has not fitted
    limit = min(memory, state + activations) / 2
    changes = [(key, value, sum(needed(less, vocabulary, part))) for key, value, less, part in smaller(model, windows)]
    least = min(changes, key=lambda change: change[2])
    key, value, need = next((change for change in changes if change[2] <= limit), least)
    has = f", and there are {_gib(memory)}" if memory < math.inf else ""
    return (
        f"out of memory: weights, gradients and optimizer need about {_gib(state)}, activations of {windows} windows "
        f"of {model.context} about {_gib(activations)}{has}; {key}={value} needs about {_gib(need)}: "
        f"{processes.command('python', 'train.py', *_again(plan, key), f'{key}={value}')}"
    )


def _gib(size: float) -> str:
    return f"{size / GIB:,.{1 if size < 10 * GIB else 0}f} GiB"


def _again(plan: "RunPlan", lowered: str) -> list[str]:
    """Return what was typed, or all settings of a resumed run, without the lowered one; a taken name is extended."""
    settings = {each.partition("=")[0]: each for each in overrides(plan.config)}
    typed = {key for key in settings if plan.resumed or {key, key.partition(".")[0]} & set(plan.typed)}
    again = [settings[key] for key in settings if key in typed - {lowered}]
    if plan.typed.get("minutes") is not None:
        again.append(f"minutes={plan.typed['minutes']:g}")
    if name := plan.typed.get("name"):
        taken = (run_directory.RUNS / name).exists()
        again.insert(0, f"name={name}-smaller" if taken else f"name={name}")
    return again
