"""Start a run from a trained model (`init_from=`)."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from base.errors import InputError, printable
from base.jobs import run_directory

if TYPE_CHECKING:
    from gpt.model import GPT
    from gpt.tokenizer import Tokenizer


@dataclass(frozen=True)
class InitModel:
    """The trained model that a fresh run starts from."""

    path: Path
    model: "GPT"
    meta: dict[str, Any]

    @property
    def characters(self) -> str:
        """The characters of the model's vocabulary; empty if its tokens are bytes."""
        return self.meta["vocabulary"].get("characters", "")

    @property
    def texts_read(self) -> list[dict[str, Any]]:
        """The texts that this model was trained on, and before it the models from which its training started.

        Each is a dict with the keys of `gpt.model_file.TRAINED_ON`.
        """
        from gpt.model_file import texts_read  # loads NumPy

        return texts_read(self.meta)

    @property
    def groups(self) -> dict[str, dict[str, Any]]:
        """The settings of the run that this model determines: group of the configuration -> key -> value.

        They are all keys of `model`, and `data.tokenizer`.
        """
        return {"model": vars(self.model.config), "data": {"tokenizer": self.meta["vocabulary"]["kind"]}}

    def copy_into(self, model: "GPT", tokenizer: "Tokenizer") -> None:
        """Copy the weights of this model into `model`, that of the run.

        `tokenizer` is the tokenizer of the run, whose vocabulary contains the vocabulary of this model.
        """
        import torch

        from gpt.checkpoint import copy_weights

        ids = tokenizer.encode(self.characters) if self.characters else range(tokenizer.size)
        copy_weights(model, self.model, torch.as_tensor(ids))

    def describe(self, vocabulary: dict[str, Any]) -> str:
        """Return a line for the log: the file of this model, and the characters that it does not know.

        These are the characters in `vocabulary`, that of the run, which this model's vocabulary lacks.
        """
        new = "".join(sorted(set(vocabulary.get("characters", "")) - set(self.characters)))
        added = f", {len(new)} new characters {new[:20]!r}{'…' * (len(new) > 20)}" if new else ", the same vocabulary"
        return f"from       {printable(self.path)}, step {self.meta['step']}{added}"


def load_init_model(init_from: str) -> InitModel:
    """Load the model that `init_from=` names; raise an `InputError` if there is none or it cannot be used."""
    try:
        path = run_directory.find_model(init_from)
        from gpt.checkpoint import load_checkpoint  # loads torch, so only if there is a model

        return InitModel(path, *load_checkpoint(path))
    except InputError as error:
        raise InputError(f"init_from: {error}") from None
