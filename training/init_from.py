"""Start a run from a trained model (`init_from=`), and name one that fits a text."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from base.errors import InputError, printable
from base.jobs import run_directory

if TYPE_CHECKING:
    from data.text import Text
    from gpt.model import GPT
    from gpt.tokenizer import Tokenizer

DEMO = Path(__file__).parents[1] / "docs/demo/python.safetensors"


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
    def groups(self) -> dict[str, dict[str, Any]]:
        """The groups of the configuration that the model brings along."""
        return {"model": vars(self.model.config), "data": {"tokenizer": self.meta["vocabulary"]["kind"]}}

    def copy_into(self, model: "GPT", tokenizer: "Tokenizer") -> None:
        """Copy the weights into a run's model, whose vocabulary contains this model's."""
        import torch

        from gpt.checkpoint import copy_weights

        ids = tokenizer.encode(self.characters) if self.characters else range(tokenizer.size)
        copy_weights(model, self.model, torch.as_tensor(ids))

    def describe(self, vocabulary: dict[str, Any]) -> str:
        """Return a line that names the model and the characters that the run's `vocabulary` adds."""
        new = "".join(sorted(set(vocabulary.get("characters", "")) - set(self.characters)))
        added = f", {len(new)} new characters {new[:20]!r}{'…' * (len(new) > 20)}" if new else ", the same vocabulary"
        return f"from       {printable(self.path)}, step {self.meta['step']}{added}"


def load_init_model(init_from: str) -> InitModel:
    """Load the model of `init_from=`; raise an `InputError` if there is none or it cannot be used."""
    try:
        path = run_directory.find_model(init_from)
        from gpt.checkpoint import load_checkpoint  # loads torch, so only if there is a model

        return InitModel(path, *load_checkpoint(path))
    except InputError as error:
        raise InputError(f"init_from: {error}") from None


def model_to_start_from(text: "Text") -> Path | None:
    """Return the path of the model in docs/demo if it knows at least half of a text's characters.

    None if it was trained on this text.
    """
    from gpt.model_file import read_meta  # loads NumPy

    meta, wanted = read_meta(DEMO), set(text.tokenizer.vocabulary.get("characters", ""))
    known = wanted & set(meta["vocabulary"]["characters"])
    its_own = set(text.hashes) & set(meta["trained_on"]["sha256"])
    return Path(os.path.relpath(DEMO)) if known and 2 * len(known) >= len(wanted) and not its_own else None
