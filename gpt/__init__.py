"""The model and everything done with one, in pure torch.

Read the files in this order. The lessons are in docs/lessons:

1. `config.py`: what can be chosen.
2. `model.py`: `GPT`, `Block`, `MLP`. Lesson 3 builds blocks.
3. `attention.py`: the layer. Lesson 1 builds one head, lesson 2 many.
4. `positions.py`: position encodings. Lesson 3 derives them.
5. `attention_kernels.py`: how attention is computed. Lesson 2 builds it in full, lesson 4 with windows.
6. `optim.py`: Muon and the learning rate. docs/api.md trains with it.
7. `evaluation.py`: the loss of a text.
8. `inference/decoder.py`: generation with a KV cache. Lesson 4 builds the cache.

The rest stands alone: `dropout.py`, `analysis.py` (for plots), `checkpoint.py` and `model_file.py` (files), `export/`
(other formats).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpt.checkpoint import load
    from gpt.config import ModelConfig
    from gpt.evaluation import evaluate
    from gpt.inference.generate import generate
    from gpt.model import GPT

__all__ = ["GPT", "ModelConfig", "evaluate", "generate", "load"]
_MODULES = {
    "GPT": "model", "ModelConfig": "config", "evaluate": "evaluation", "generate": "inference.generate",
    "load": "checkpoint",
}  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Import a name, and torch, on first use."""
    if name == "LitGPT":
        raise ImportError("the Lightning module is training.module.LitGPT; gpt.load(path) reads a trained model")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"gpt.{_MODULES[name]}"), name)
