"""The export formats: file ending (none: a folder), how to load such a file, and module."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

FORMATS = {
    "onnx": (".onnx", "onnxruntime.InferenceSession({!r}).run(None, {{'tokens': tokens}})", "to_onnx"),
    "torch": (".pt2", "torch.export.load({!r}).module()(tokens)", "to_torch_program"),
    "hf": ("", "transformers.AutoModelForCausalLM.from_pretrained({!r})", "to_huggingface"),
    "web": (".html", "open {!r} in a browser", "to_web_page"),
}


def load_writer(name: str) -> Callable[..., Any]:
    """Import the module of a format; return its function `write_NAME(model, meta, path)`."""
    return getattr(import_module(f"gpt.export.{FORMATS[name][2]}"), f"write_{name}")
