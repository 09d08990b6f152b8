"""The GPT model, its optimizer, evaluation, text generation and export, in PyTorch without Lightning.

Read the files in this order. The lessons are in docs/lessons.

1. `config.py`: the options of the model and the optimizer.
2. `model.py`: `GPT`, `Block`, `MLP`. Lesson 3 builds blocks.
3. `attention.py`: multi-head attention. Lesson 1 builds one head, lesson 2 many, lesson 4 windows.
4. `positions.py`: position encodings. Lesson 3 derives them.
5. `optim.py`: Muon and the learning-rate schedule. docs/api.md trains with them.
6. `windows.py`: where a model reads a text; `evaluation.py`: its exact loss on the text.
7. `inference/decoder.py`: generation with a KV cache. Lesson 4 builds the cache.

Read the other files in any order: `dropout.py`, `tokenizer.py`, `analysis.py` (arrays to plot),
`scoring.py`, `checkpoint.py`, `model_file.py`, `export/` (other file formats), `facts.py` (what
logs and pages say about a model).
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
    """Import a public name when it is first used, so that `import gpt` does not load torch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"gpt.{_MODULES[name]}"), name)
