"""The export formats, and the function that writes each."""

from collections.abc import Callable
from typing import Any

FORMATS = {  # ending of the file (none: a folder), and how to load it
    "onnx": (".onnx", "onnxruntime.InferenceSession({!r}).run(None, {{'tokens': tokens}})"),
    "torch": (".pt2", "torch.export.load({!r}).module()(tokens)"),
    "hf": ("", "transformers.AutoModelForCausalLM.from_pretrained({!r})"),
    "web": (".html", "open {!r} in a browser"),
}


def load_writer(name: str) -> Callable[..., Any]:
    """Return the function `write_NAME(model, meta, path)` of a format; its packages are loaded only now."""
    if name == "onnx":
        from gpt.export.to_onnx import write_onnx

        return write_onnx
    if name == "torch":
        from gpt.export.to_torch_program import write_torch

        return write_torch
    if name == "hf":
        from gpt.export.to_huggingface import write_hf

        return write_hf
    from gpt.export.to_web_page import write_web

    return write_web
