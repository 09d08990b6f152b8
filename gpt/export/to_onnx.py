"""Export to ONNX, for runtimes in other languages and on other devices."""

import json
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from base.errors import InputError
from gpt.export.parity import largest_difference
from gpt.export.to_torch_program import trace
from gpt.model import GPT

MAX_WEIGHTS = 2**31 - 2**24  # bytes: the limit of a protobuf message, less the graph


def write_onnx(model: GPT, meta: dict[str, Any], path: Path) -> float:
    """Write one .onnx file: `tokens` (batch, length) int64 -> `logits` (batch, length, V).

    Its `metadata_props` hold `model_config`, `vocabulary` and `step` as JSON. Returns the `largest_difference` of its
    logits in onnxruntime.

    Raises:
        InputError: the weights are larger than an ONNX file can be.
    """
    # onnxruntime reads this when it is imported; it would report every session.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnx
    import onnxruntime
    import onnxscript  # noqa: F401  torch's exporter needs it

    size = 4 * model.num_parameters()
    if size > MAX_WEIGHTS:
        raise InputError(f"one ONNX file holds 2 GB, the weights are {size / 1e9:.1f} GB; `--to torch` has no limit")
    with quiet():
        program = torch.onnx.export(
            trace(model),
            dynamo=True,
            input_names=["tokens"],
            output_names=["logits"],
            dynamic_shapes=({0: "batch", 1: "length"},),  # the graph has them; here they get their names
            verbose=False,
        )
    assert program is not None
    graph = program.model_proto
    described = {key: json.dumps(meta[key]) for key in ("model_config", "vocabulary", "step")}
    onnx.helper.set_model_props(graph, described)
    onnx.save(graph, path)
    session = onnxruntime.InferenceSession(path)
    return largest_difference(model, lambda tokens: torch.from_numpy(session.run(None, {"tokens": tokens.numpy()})[0]))


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporter's warnings about missing torchvision and its own deprecated calls."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
            yield
    finally:
        logger.setLevel(level)
