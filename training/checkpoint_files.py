"""The checkpoints of a run: the newest valid one, their names, which are kept."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from base.files import link
from gpt import model_file
from gpt.checkpoint import read, write_model
from gpt.model_file import CheckpointError
from training.lightning_private import steps_completed

KEEP = 2  # step-*.ckpt files of a run


def find_newest(directory: Path) -> tuple[Path | None, dict[str, Any], list[str]]:
    """Find the newest checkpoint of a run that is valid and can be gone on from.

    Returns:
        Its path, None when there is none; its contents; a line for each newer one that was passed over.
    """
    files = sorted(filter(Path.exists, directory.glob("step-*.ckpt")), reverse=True)
    last = directory / "last.ckpt"  # a further name of the newest, or a copy where the file system has no links
    if last.exists() and not any(last.samefile(file) for file in files):
        files.append(last)
    skipped: list[str] = []
    for file in files:
        try:
            contents = read(file)
            if not _can_go_on(contents):
                raise CheckpointError(f"{file}: does not hold all that is needed to resume training")
            return file, contents, skipped
        except CheckpointError as error:
            skipped.append(str(error))
    return None, {}, skipped


def _can_go_on(contents: dict[str, Any]) -> bool:
    """Whether a checkpoint holds what training goes on from: all of it, of the step that it says."""
    try:
        (optimizer,) = contents["optimizer_states"]
        numbers = sum(len(group["params"]) for group in optimizer["param_groups"])
        callbacks = contents["callbacks"]
        return (
            steps_completed(contents) == contents["global_step"]
            and len(optimizer["state"]) == numbers > 0
            and isinstance(contents["conditions"], dict)
            and isinstance(callbacks["Checkpoints"]["best_step"], int)
            and isinstance(callbacks["Watch"], dict)
        )
    except (KeyError, TypeError, ValueError):
        return False


def step_path(directory: Path, step: int) -> Path:
    """The file of a step's checkpoint."""
    return directory / f"step-{step:08d}.ckpt"


def restore_names(newest: Path, contents: dict[str, Any]) -> None:
    """Bring `last.ckpt` and the model files up to a checkpoint, where a process was killed before it could.

    Args:
        newest: the newest checkpoint of a run.
        contents: what it holds.
    """
    link(newest, newest.with_name("last.ckpt"))
    best = contents["callbacks"]["Checkpoints"]["best_step"]
    for name, step in (("last", contents["global_step"]), ("best", best)):
        path, older = newest.with_name(f"{name}.safetensors"), step_path(newest.parent, step)
        if _step_of(path) == step:
            continue
        with suppress(CheckpointError):  # an older one may be damaged
            if step == contents["global_step"]:
                write_model(path, contents)
            elif older.exists():
                write_model(path, read(older))
    remove_older(newest)


def _step_of(path: Path) -> int | None:
    """The step of a model file; None where there is none that can be read."""
    try:
        return model_file.read(path).meta["step"]
    except CheckpointError:
        return None


def remove_older(newest: Path) -> None:
    """Of the files of a run's steps, keep `newest` and those before it that make up `KEEP`.

    Files of later steps are damaged ones, which the run was resumed before: they are written again in time.
    """
    steps = [file for file in sorted(newest.parent.glob("step-*.ckpt")) if file.name <= newest.name]
    for old in steps[:-KEEP]:
        old.unlink()
