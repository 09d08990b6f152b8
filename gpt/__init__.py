"""The model and everything done with one, in pure torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpt.checkpoint import load_checkpoint
    from gpt.config import ModelConfig
    from gpt.evaluation import evaluate
    from gpt.inference.generate import generate
    from gpt.model import GPT

__all__ = ["GPT", "ModelConfig", "evaluate", "generate", "load_checkpoint"]
_MODULES = {
    "GPT": "model", "ModelConfig": "config", "evaluate": "evaluation", "generate": "inference.generate",
    "load_checkpoint": "checkpoint",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a name, and torch, on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"gpt.{_MODULES[name]}"), name)
