"""Open the text that a run was trained on, to score a split of it; store the test loss in summary.json."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from base import run_directory
from base.errors import InputError, printable
from base.files import write_text

if TYPE_CHECKING:
    from gpt.evaluation import Score


def split_of_run(model: Path, split: str) -> bytes:
    """Return the validation or test split of a model's run, in UTF-8; for a byte model the bytes of the text."""
    from conf.schema import from_yaml
    from data.open_text import open_text
    from gpt import checkpoint

    run = run_of(model)
    settings = run / "config.yaml"
    if not settings.is_file():
        raise InputError(f"--split {split}: {printable(model)} is not in a run directory; name the text file instead")
    config = from_yaml(settings.read_text("utf-8"))
    trained_on = checkpoint.read(run / "checkpoints/last.ckpt")["data"]
    text = open_text(config.data, config.model.context, extra_chars=str(trained_on.get("known", "")), as_before=True)
    if text.fingerprint != trained_on.get("fingerprint"):
        raise InputError(f"--split {split}: {text.name} has changed since {run} was trained, and so have its splits")
    tokens = getattr(text, split)
    if not len(tokens):
        raise InputError(f"--split {split}: {run} has an empty {split} split (data.split={config.data.split})")
    return tokens.tobytes() if text.tokenizer.vocabulary["kind"] == "byte" else text.tokenizer.decode(tokens).encode()


def save_test_score(model: Path, score: "Score") -> Path | None:
    """Store the test loss in summary.json if `model` is the best of a run; return the path, None if it is not."""
    run = run_of(model)
    summary = run_directory.summary_of(run)
    if model.name != run_directory.model_of(run, "best").name or not summary:
        return None
    summary |= {"test_loss": score.loss, "test_bpc": score.bpc}
    write_text(run / "summary.json", json.dumps(summary, indent=2) + "\n")
    return run / "summary.json"


def run_of(model: Path) -> Path:
    """Return the run directory RUN of a model file, such as RUN/checkpoints/best.safetensors."""
    return model.resolve().parent.parent
