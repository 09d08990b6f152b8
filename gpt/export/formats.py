"""The export formats: file ending (none: a folder), how to load such a file, and its writer."""

from collections.abc import Callable
from typing import Any

FORMATS = {
    "onnx": (".onnx", "onnxruntime.InferenceSession({!r}).run(None, {{'tokens': tokens}})"),
    "torch": (".pt2", "torch.export.load({!r}).module()(tokens)"),
    "hf": ("", "transformers.AutoModelForCausalLM.from_pretrained({!r})"),
    "web": (".html", "open {!r} in a browser"),
}


def load_writer(name: str) -> Callable[..., Any]:
    """Import what a format needs, and return the function that writes a model."""
    write: Callable[..., Any]
    match name:
        case "onnx":
            from gpt.export.to_onnx import write_onnx as write
        case "torch":
            from gpt.export.to_torch_program import write_torch as write
        case "hf":
            from gpt.export.to_huggingface import write_hf as write
        case _:
            from gpt.export.to_web_page import write_web as write
    return write
