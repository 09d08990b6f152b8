"""The export formats: file ending, use and writer of each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Format:
    """An export format.

    Attributes:
        suffix: the end of its file's name; empty for a folder.
        use: how to load it, with the name in place of `{!r}`.
        load_writer: import what the format needs, and return the function that writes a model.
    """

    suffix: str
    use: str
    load_writer: Callable[[], Callable[..., Any]]


def _onnx() -> Callable[..., Any]:
    from gpt.export.to_onnx import write_onnx

    return write_onnx


def _torch() -> Callable[..., Any]:
    from gpt.export.to_torch_program import write_torch

    return write_torch


def _hf() -> Callable[..., Any]:
    from gpt.export.to_huggingface import write_hf

    return write_hf


def _web() -> Callable[..., Any]:
    from gpt.export.to_web_page import write_web

    return write_web


FORMATS = {
    "onnx": Format(".onnx", "onnxruntime.InferenceSession({!r}).run(None, {{'tokens': tokens}})", _onnx),
    "torch": Format(".pt2", "torch.export.load({!r}).module()(tokens)", _torch),
    "hf": Format("", "transformers.AutoModelForCausalLM.from_pretrained({!r})", _hf),
    "web": Format(".html", "open {!r} in a browser", _web),
}
