"""To a program of `torch.export`, which runs without this project's code."""

import json
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim, ExportedProgram

from gpt.export.parity import check_tables, largest_difference
from gpt.model import GPT


def trace(model: GPT) -> ExportedProgram:
    """The model as a graph of operations, for any batch size and any length from 1 to context."""
    config, context = model.config, model.config.context
    length = Dim("length", min=1, max=context) if context > 1 else Dim.STATIC
    example = torch.zeros(2, min(3, context), dtype=torch.int64)
    if config.positions in ("rotary", "sinusoidal"):
        check_tables(model, config.rotary_dims or config.dim)
        model.tables = tuple(table.clone() for table in model.position_tables(context))  # no part of longer ones
    model.position_tables(context)  # what is first made while tracing has no values
    try:
        with torch.no_grad():
            program = torch.export.export(
                model,
                (example,),
                dynamic_shapes={"tokens": {0: Dim("batch", min=1), 1: length}},
                # torch 2.11 asks of every length whether 64 times it is less than 128 times it, and refuses to go on.
                prefer_deferred_runtime_asserts_over_guards=True,
            )
    finally:
        model.tables = ()
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # would tell whoever gets the file where things lie on this machine
    return program


def write_torch(model: GPT, meta: dict[str, Any], path: Path) -> float:
    """Write a .pt2 file, with `model_config`, `vocabulary` and `step` as JSON among its extra files.

    Returns:
        The largest difference of its logits, see `largest_difference`.
    """
    described = {key: json.dumps(meta[key]) for key in ("model_config", "vocabulary", "step")}
    with open(path, "w+b") as file:  # of a path, torch says that it should end in .pt2
        torch.export.save(trace(model), file, extra_files=described)
        file.seek(0)
        return largest_difference(model, torch.export.load(file).module())
