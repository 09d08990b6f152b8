"""Export to ONNX, for runtimes in other languages and on other devices."""

import json
import logging
import os
import warnings
from pathlib import Path
from typing import Any

import torch

from base.errors import InputError
from gpt.export.parity import largest_difference
from gpt.export.to_torch_program import trace
from gpt.model import GPT

MAX_WEIGHTS = 2**31 - 2**24  # bytes: the 2 GiB limit of a protobuf message, minus room for the graph


def write_onnx(model: GPT, meta: dict[str, Any], path: Path) -> float:
    """Write one .onnx file that maps `tokens` (batch, length) int64 to `logits` (batch, length, vocabulary) fp32.

    The file's `metadata_props` hold `model_config`, `vocabulary` and `step`, in JSON.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # onnxruntime reads this variable when it is imported
    import onnx
    import onnxruntime
    import onnxscript  # noqa: F401  torch's exporter needs it

    size = 4 * model.num_parameters()
    if size > MAX_WEIGHTS:
        raise InputError(f"one ONNX file holds 2 GB, the weights are {size / 1e9:.1f} GB; `--to torch` has no limit")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns that torchvision is missing
    with warnings.catch_warnings():  # the exporter calls deprecated functions of torch
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
        program = torch.onnx.export(
            trace(model),
            dynamo=True,
            input_names=["tokens"],
            output_names=["logits"],
            dynamic_shapes=({0: "batch", 1: "length"},),  # names only: the traced graph has dynamic shapes already
            verbose=False,
        )
    assert program is not None
    graph = program.model_proto  # torch builds a new graph at each access
    described = {key: json.dumps(meta[key]) for key in ("model_config", "vocabulary", "step")}
    onnx.helper.set_model_props(graph, described)
    onnx.save(graph, path)
    session = onnxruntime.InferenceSession(path)
    return largest_difference(model, lambda tokens: torch.from_numpy(session.run(None, {"tokens": tokens.numpy()})[0]))
