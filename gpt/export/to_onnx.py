"""Export the model's graph as ONNX."""

import json
import logging
import os
import warnings
from collections.abc import Callable
from math import isqrt
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from base.errors import InputError
from gpt.model import GPT
from gpt.positions import TABLES, position_tables

TOLERANCE = 1e-5  # largest allowed difference, relative to the largest logit
# of the weights: protobuf cannot write a larger file, which has a graph, too
MAX_BYTES = 2**31 - 2**24
# numbers in the position tables, unless the model has more weights: limits the memory of the
# export
MAX_TABLES = 2**20
MAX_COMPARED = 2**23  # attention scores per layer: limits the memory of the comparison


def trace(model: GPT) -> ExportedProgram:
    """Return the model as a `torch.export` program, for any batch size and for lengths from 1 to the context."""
    config = model.config
    context = config.context
    channels = config.rotary_dims or config.dim
    if config.positions in TABLES and context * channels > max(MAX_TABLES, model.num_parameters()):
        what = f"the position tables of {context:,} tokens would be larger than the model"
        raise InputError(f"model.context={context}: {what}; an ONNX file contains them")
    length: Any = Dim.STATIC
    if context > 1:
        length = Dim("length", min=1, max=context)
    # torch.export treats a size of 1 as a constant.
    example = torch.zeros(2, min(3, context), dtype=torch.int64)  # (batch, length)
    # Fill the cache of the tables first: tables computed during tracing would be symbols without
    # values.
    position_tables(config, context, example.device)
    with torch.no_grad():
        program = torch.export.export(
            model,
            (example,),
            dynamic_shapes={"tokens": {0: Dim("batch", min=1), 1: length}},
            # Without this the export fails: torch 2.11 cannot prove that 64 * length < 128 *
            # length.
            prefer_deferred_runtime_asserts_over_guards=True,
        )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it contains paths of this machine
    return program


@torch.no_grad()
def largest_difference(model: GPT, exported: Callable[[Tensor], Tensor]) -> float:
    """Return the largest difference of `exported`'s logits from the model's, divided by the largest logit.

    Both read random tokens in several batch sizes and lengths. A difference that is NaN or above
    `TOLERANCE` raises `InputError`.
    """
    generator = torch.Generator().manual_seed(0)
    longest = max(1, min(model.config.context, isqrt(MAX_COMPARED // model.config.heads)))
    differences = []
    for shape in ((1, 1), (1, longest), (2, (longest + 1) // 2)):
        tokens = torch.randint(model.vocabulary, shape, generator=generator)  # (batch, length)
        expected = model(tokens)  # (batch, length, V)
        difference = exported(tokens) - expected  # (batch, length, V)
        differences.append(difference.abs().max() / expected.abs().max())
    # Tensor.max returns NaN if any value is NaN; Python's max does not
    worst = float(torch.stack(differences).max())
    if not worst <= TOLERANCE:
        allowed = f"must be at most {TOLERANCE:g}; nothing was written"
        raise InputError(f"logits differ by {worst:.1e} of the largest, {allowed}")
    return worst


def write(model: GPT, meta: dict[str, Any], path: Path) -> str:
    """Write one .onnx file, with a part of `meta` as JSON in `metadata_props`, and return a line about its exactness.

    `path` is a temporary name: `export.py` renames it only if this function does not raise.
    The graph maps `tokens` (batch, length) int64 to `logits` (batch, length, vocabulary) fp32.
    """
    if 4 * model.num_parameters() > MAX_BYTES:
        raise InputError(
            f"one ONNX file can hold 2 GB, but the weights are {4e-9 * model.num_parameters():.1f} GB"
        )
    # onnxruntime reads this variable when it is imported
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnx
    import onnxruntime
    import onnxscript  # noqa: F401  torch's exporter needs it

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns that torchvision is missing
    with warnings.catch_warnings():  # the exporter calls deprecated functions of torch
        warnings.filterwarnings(
            "ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning
        )
        program = torch.onnx.export(
            trace(model),
            dynamo=True,
            input_names=["tokens"],
            output_names=["logits"],
            # only names: the shapes of the traced graph are dynamic
            dynamic_shapes=({0: "batch", 1: "length"},),
            verbose=False,
        )
    assert program is not None
    graph = program.model_proto  # torch builds a new graph at each access
    described = {key: json.dumps(meta[key]) for key in ("model_config", "vocabulary", "step")}
    onnx.helper.set_model_props(graph, described)
    onnx.save(graph, path)
    session = onnxruntime.InferenceSession(path)

    def exported(tokens: Tensor) -> Tensor:
        (logits,) = session.run(None, {"tokens": tokens.numpy()})  # (batch, length, V)
        return torch.from_numpy(logits)

    worst = largest_difference(model, exported)
    return f"logits differ by at most {worst:.1g} of the largest"
