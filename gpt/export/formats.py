"""List the export formats and import the function that writes each."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

FORMATS = {  # suffix of the file (empty for a folder), module of the writer, and how to load the file
    "onnx": (".onnx", "to_onnx", "onnxruntime.InferenceSession({!r}).run(None, {{'tokens': tokens}})"),
    "torch": (".pt2", "to_torch_program", "torch.export.load({!r}).module()(tokens)"),
    "hf": ("", "to_huggingface", "transformers.AutoModelForCausalLM.from_pretrained({!r})"),
    "web": (".html", "to_web_page", "open {!r} in a browser"),
}


def load_writer(name: str) -> Callable[..., Any]:
    """Import and return the function `write_NAME(model, meta, path)` of a format."""
    return getattr(import_module(f"gpt.export.{FORMATS[name][1]}"), f"write_{name}")
