"""The trained model from which a new run starts (`init_from=`)."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from base.errors import InputError, printable
from base.jobs import run_directory

if TYPE_CHECKING:
    import numpy as np

    from gpt.config import ModelConfig
    from gpt.model import GPT
    from gpt.tokenizer import Tokenizer


@dataclass(frozen=True)
class InitModel:
    """A trained model from which a new run starts (`init_from=`)."""

    path: Path  # the model file
    config: "ModelConfig"
    weights: "dict[str, np.ndarray]"
    meta: dict[str, Any]  # the metadata of the model file, such as the vocabulary and the step

    @property
    def characters(self) -> str:
        """The characters of the model's vocabulary as one string, or "" if the model's tokens are bytes."""
        return self.meta["vocabulary"].get("characters", "")

    @property
    def groups(self) -> dict[str, dict[str, Any]]:
        """The settings that a run must have to start from this model, as configuration group -> key -> value."""
        return {"model": vars(self.config), "data": {"tokenizer": self.meta["vocabulary"]["kind"]}}

    def copy_into(self, model: "GPT", tokenizer: "Tokenizer") -> None:
        """Copy the weights of this trained model into the model of a run."""
        import torch

        from gpt.checkpoint import build, copy_weights

        ids = tokenizer.encode(self.characters) if self.characters else range(tokenizer.size)
        copy_weights(model, build(self.config, self.weights), torch.as_tensor(ids))

    def describe(self, vocabulary: dict[str, Any]) -> str:
        """Return a line for the log: the file and the step of this trained model, and characters that are new to it."""
        new = "".join(sorted(set(vocabulary.get("characters", "")) - set(self.characters)))
        added = f", {len(new)} new characters {new[:20]!r}{'…' * (len(new) > 20)}" if new else ", the same vocabulary"
        return f"from       {printable(self.path)}, step {self.meta['step']}{added}"


def load_init_model(init_from: str) -> InitModel:
    """Load the trained model that `init_from` names: a run or a model file."""
    try:
        path = run_directory.find_model(init_from)
        from gpt.model_file import read

        return InitModel(path, *read(path))
    except InputError as error:
        raise InputError(f"init_from: {error}") from None
