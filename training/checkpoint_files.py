"""Find the newest valid checkpoint of a run, restore the other names and remove old checkpoints."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from base.files import link
from gpt import model_file
from gpt.checkpoint import read, write_model
from gpt.model_file import CheckpointError
from training.lightning_private import steps_completed

KEEP = 2  # how many step-*.ckpt files of a run remain


def find_newest(directory: Path) -> tuple[Path | None, dict[str, Any], list[str]]:
    """Return the path and contents of the newest valid checkpoint, and an error line for each newer one.

    If none is valid, the path is None and the contents are {}.
    """
    files = sorted(filter(Path.exists, directory.glob("step-*.ckpt")), reverse=True)
    last = directory / "last.ckpt"  # a hard link to the newest, or a copy where the file system has no links
    if last.exists() and not any(last.samefile(file) for file in files):
        files.append(last)
    skipped: list[str] = []
    for file in files:
        try:
            contents = read(file)
            if not _is_complete(contents):
                raise CheckpointError(f"{file}: lacks what resuming needs (another version of Lightning?)")
            return file, contents, skipped
        except CheckpointError as error:
            skipped.append(str(error))
    return None, {}, skipped


def _is_complete(contents: dict[str, Any]) -> bool:
    """Whether a checkpoint holds all that resuming needs, with consistent step counts."""
    try:
        (optimizer,) = contents["optimizer_states"]
        count = sum(len(group["params"]) for group in optimizer["param_groups"])
        callbacks = contents["callbacks"]
        return (
            steps_completed(contents) == contents["global_step"]
            and len(optimizer["state"]) == count > 0
            and isinstance(contents["conditions"], dict)
            and isinstance(callbacks["Checkpoints"]["best_step"], int)
            and isinstance(callbacks["Watch"], dict)
        )
    except (KeyError, TypeError, ValueError):
        return False


def step_path(directory: Path, step: int) -> Path:
    """Return the path of the checkpoint after a step."""
    return directory / f"step-{step:08d}.ckpt"


def restore_names(newest: Path, contents: dict[str, Any]) -> None:
    """Make `last.ckpt` and the model files agree with the newest checkpoint, after a kill between two files."""
    link(newest, newest.with_name("last.ckpt"))
    best = contents["callbacks"]["Checkpoints"]["best_step"]
    for name, step in (("last", contents["global_step"]), ("best", best)):
        path, older = newest.with_name(f"{name}.safetensors"), step_path(newest.parent, step)
        with suppress(CheckpointError):  # the model file may be missing or damaged
            if model_file.read(path).meta["step"] == step:
                continue
        with suppress(CheckpointError):  # `older` may be damaged
            if step == contents["global_step"]:
                write_model(path, contents)
            elif older.exists():
                write_model(path, read(older))
    remove_older(newest)


def remove_older(newest: Path) -> None:
    """Keep `newest` and those before it, `KEEP` in all; later ones are damaged, and training will overwrite them."""
    steps = [file for file in sorted(newest.parent.glob("step-*.ckpt")) if file.name <= newest.name]
    for old in steps[:-KEEP]:
        old.unlink()
