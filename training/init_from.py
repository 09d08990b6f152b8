"""Load the trained model that a fresh run starts from."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from base import run_directory
from base.errors import InputError, printable

if TYPE_CHECKING:
    from gpt.model import GPT


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
