"""Checkpoints: one self-contained file of plain data and tensors.

A file holds `format model_config vocabulary data state_dict global_step` and, to go on training, `conditions`
(what the bits of the run depend on) and what Lightning adds (`optimizer_states loops ...`). `torch.load` opens it
with its defaults; here it is opened by `gpt/archive.py`, which trusts nobody.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from base.files import atomic
from gpt import archive
from gpt.archive import CheckpointError
from gpt.model import GPT

KEEP = 2  # step-*.ckpt files of a run, beside best and last


def save(path: str | Path, contents: dict[str, Any]) -> None:
    """Write a checkpoint so that `path` is always either the old file or the whole new one.

    The bytes go to a temporary file in the same directory, reach the disk, and take the name at once.

    Raises:
        OSError: the file could not be written; the old one is untouched and nothing is left behind.
    """
    path = Path(path)
    try:
        with atomic(path) as temporary, open(temporary, "wb") as file:
            torch.save(_on_cpu(contents), file)
    except (OSError, RuntimeError) as error:  # torch reports a failed write, such as a full disk, as either
        raise OSError(f"{path}: could not be written: {str(error).splitlines()[0]}") from error


def _on_cpu(contents: dict[str, Any]) -> dict[str, Any]:
    """The same on the CPU, so that the file opens where there is no GPU; what shares memory still does."""
    if all(leaf.device.type == "cpu" for leaf in tree_leaves(contents) if isinstance(leaf, torch.Tensor)):
        return contents
    moved: dict[int, torch.UntypedStorage] = {}

    def move(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.device.type == "cpu":
            return tensor
        if storage._cdata not in moved:
            moved[storage._cdata] = storage.cpu()
        place = tensor.storage_offset(), tensor.size(), tensor.stride()
        return torch.empty(0, dtype=tensor.dtype).set_(moved[storage._cdata], *place)

    return tree_map_only(torch.Tensor, move, contents)


def link(source: str | Path, target: str | Path) -> None:
    """Give `source` the further name `target`, at once; a copy where the file system has no hard links."""
    target = Path(target)
    if target.exists() and os.path.samefile(source, target):
        return  # a rename between two names of one file would do nothing and leave both
    with atomic(target) as temporary:
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copyfile(source, temporary)


def read(path: str | Path) -> dict[str, Any]:
    """Open a checkpoint after checking that it is whole, plain and of a format this version knows.

    Raises:
        CheckpointError: missing, damaged, made to do harm, or not a chargpt checkpoint.
    """
    return archive.read(path, _tensor)


def _tensor(
    dtype: str, memory: bytearray, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> torch.Tensor:
    kind = getattr(torch, dtype)
    flat = torch.frombuffer(memory, dtype=kind) if memory else torch.empty(0, dtype=kind)
    # Copied to memory of torch's own, aligned as ever: some products round by where their numbers lie.
    return flat.as_strided(shape, strides, offset).clone()


def find_newest(directory: Path) -> tuple[Path | None, dict[str, Any], list[str]]:
    """Find the newest checkpoint of a run that is valid and can be gone on from.

    Args:
        directory: where the run keeps its checkpoints.

    Returns:
        Its path, None when there is none; its contents; a line for each newer one that was passed over.
    """
    files = sorted(filter(Path.exists, directory.glob("step-*.ckpt")), reverse=True)
    for name in ("last", "best"):  # further names of such files, or copies where the file system has no links
        named = directory / f"{name}.ckpt"
        if named.exists() and not any(named.samefile(file) for file in files):
            files.append(named)
    skipped: list[str] = []
    for file in files:
        try:
            contents = read(file)
            if not _can_go_on(contents):
                raise CheckpointError(f"{file}: holds a model, but not all that is needed to go on training")
            return file, contents, skipped
        except CheckpointError as error:
            skipped.append(str(error))
    return None, {}, skipped


def _can_go_on(contents: dict[str, Any]) -> bool:
    """Whether a checkpoint holds what training goes on from: all of it, of the step that it says."""
    try:
        (optimizer,) = contents["optimizer_states"]
        numbers = sum(len(group["params"]) for group in optimizer["param_groups"])
        taken = contents["loops"]["fit_loop"]["epoch_loop.manual_optimization.optim_step_progress"]["total"]
        callbacks = contents["callbacks"]
        return (
            taken["completed"] == contents["global_step"]
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
    """Have `last` and `best` name what they should where a process was killed before it could see to it.

    Args:
        newest: the newest checkpoint of a run.
        contents: what it holds.
    """
    link(newest, newest.with_name("last.ckpt"))
    best = step_path(newest.parent, contents["callbacks"]["Checkpoints"]["best_step"])
    if best.exists():
        link(best, newest.with_name("best.ckpt"))
    remove_older(newest)


def remove_older(newest: Path) -> None:
    """Of the files of a run's steps, keep `newest` and those before it that make up `KEEP`.

    Files of later steps are damaged ones, which the run was resumed before: they are written again in time.
    """
    steps = [file for file in sorted(newest.parent.glob("step-*.ckpt")) if file.name <= newest.name]
    for old in steps[:-KEEP]:
        old.unlink()


def is_finite(contents: Any) -> bool:
    """Whether all tensors in nested dicts and lists hold numbers only."""
    if isinstance(contents, dict):
        contents = list(contents.values())
    if isinstance(contents, list | tuple):
        return all(is_finite(part) for part in contents)
    return not isinstance(contents, torch.Tensor) or bool(contents.isfinite().all())


def load_checkpoint(path: str | Path) -> tuple[GPT, dict[str, Any]]:
    """Load a model for use.

    Args:
        path: a checkpoint file.

    Returns:
        The model on the CPU in evaluation mode, and all else the file holds: `vocabulary` (what
        `data.tokenizer.tokenizer_from` takes), `data`, `global_step`, `model_config` and so on.

    Raises:
        CheckpointError: missing, damaged, not a chargpt checkpoint, or its parts do not fit together.
    """
    return build(path, read(path))


def build(path: str | Path, meta: dict[str, Any]) -> tuple[GPT, dict[str, Any]]:
    """Make the model that the parts of a checkpoint describe, once they are known to fit together.

    Args:
        path: where they were read, for messages.
        meta: the parts; `state_dict` is removed.

    Returns:
        As `load_checkpoint`.

    Raises:
        CheckpointError: they do not fit together.
    """
    config, state = archive.weights(path, meta, lambda tensor: bool(tensor.isfinite().all()))
    with torch.device("meta"):  # no weights are drawn: torch's generator stays as it is
        model = GPT(config, len(state["embedding.weight"]))
    model.to_empty(device="cpu")  # which unties
    if config.tied:
        model.head.weight = model.embedding.weight
    model.load_state_dict(state)
    return model.eval(), meta
