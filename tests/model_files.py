"""Model files of models that were never trained."""

from pathlib import Path
from typing import Any

from gpt.checkpoint import model_state
from gpt.config import ModelConfig
from gpt.model import GPT
from gpt.model_file import FORMAT, write
from tests.reference.models import fill, tiny

LETTERS = {"kind": "char", "characters": "abcdefghijk"}


def about(model: GPT, vocabulary: dict[str, Any] = LETTERS, **changes: Any) -> dict[str, Any]:
    """What a model file says of a model, with `changes`."""
    described = {
        "format": FORMAT, "model_config": vars(model.config), "vocabulary": vocabulary, "step": 17, "val_loss": None,
        "evaluation": None, "text": "book.txt",
    }  # fmt: skip
    return described | changes


def write_model_file(path: str | Path, model: GPT, vocabulary: dict[str, Any] = LETTERS, **changes: Any) -> Path:
    """Write a model file; the folders above it are made."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    state = model_state(model.state_dict())
    if model.config.tied:
        del state["head.weight"]
    write(path, state, about(model, vocabulary, **changes))
    return path


def filled(config: ModelConfig | None = None, vocabulary: int = 11, seed: int = 0) -> GPT:
    """A model whose weights are all drawn from N(0, 0.3)."""
    return fill(GPT(config or tiny(layers=1), vocabulary), seed).eval()
