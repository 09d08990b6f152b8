"""Export to a `torch.export` program, which runs without this project's code."""

import json
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim, ExportedProgram

from gpt.export.parity import check_table, largest_difference
from gpt.model import GPT
from gpt.position_tables import position_tables


def trace(model: GPT) -> ExportedProgram:
    """Trace the model to a graph for any batch size and for lengths from 1 to the context."""
    config, context = model.config, model.config.context
    length = Dim("length", min=1, max=context) if context > 1 else Dim.STATIC
    example = torch.zeros(2, min(3, context), dtype=torch.int64)
    if config.positions in ("rotary", "sinusoidal"):
        check_table(model, config.rotary_dims or config.dim)
    # Cache the tables now: tables computed during tracing would be symbols without values.
    position_tables(config, context, example.device)
    with torch.no_grad():
        program = torch.export.export(
            model,
            (example,),
            dynamic_shapes={"tokens": {0: Dim("batch", min=1), 1: length}},
            # Without this the export fails: torch 2.11 cannot prove that 64 * length < 128 * length.
            prefer_deferred_runtime_asserts_over_guards=True,
        )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it contains paths of this machine
    return program


def write_torch(model: GPT, meta: dict[str, Any], path: Path) -> float:
    """Write a .pt2 file, whose extra files are `model_config`, `vocabulary` and `step`, in JSON."""
    described = {key: json.dumps(meta[key]) for key in ("model_config", "vocabulary", "step")}
    with open(path, "w+b") as file:  # an open file, because torch warns if a path does not end in .pt2
        torch.export.save(trace(model), file, extra_files=described)
        file.seek(0)
        return largest_difference(model, torch.export.load(file).module())
