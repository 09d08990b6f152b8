"""Training checkpoints (`.ckpt`), from which a run resumes: what Lightning saves, plus what `write_model` needs.

Resume only your own checkpoints; a stranger's model should be a model file, which is safe to open.
"""

import errno
import os
import shlex
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from base.errors import describe_os_error, is_out_of_memory, one_line
from base.files import atomic
from gpt import model_file
from gpt.checkpoint import model_state, without_folders
from gpt.model_file import FORMAT, CheckpointError, other_format

CHECKPOINT_FORMAT = 2  # increase it if an old checkpoint would continue as another run


def save(path: str | Path, contents: dict[str, Any], previous: Path | None = None) -> None:
    """Write a training checkpoint atomically, and rename an existing one to `previous`.

    Even if the process is killed, a complete checkpoint exists at `path` or at `previous`.
    """
    path = Path(path)
    with atomic(path) as temporary:
        with open(temporary, "wb") as file:
            try:
                torch.save(contents, file)
            except RuntimeError as error:  # how torch reports a failed write, such as a full disk
                raise error.__context__ if isinstance(error.__context__, OSError) else error from None
            file.flush()
            os.fsync(file.fileno())
        if previous and path.exists():
            os.replace(path, previous)


def read(path: str | Path) -> dict[str, Any]:
    """Return the contents of a training checkpoint, or raise `CheckpointError` if it is unusable.

    Out-of-memory and disk errors are raised unchanged, because the file may be intact.
    """
    if not Path(path).is_file():
        raise CheckpointError(f"{path}: no such checkpoint")
    try:
        with open(path, "rb") as file:
            with zipfile.ZipFile(file) as archive:  # torch does not verify checksums
                if damaged := archive.testzip():
                    raise ValueError(f"checksum of {damaged!r}")
            file.seek(0)
            contents = torch.load(file, map_location="cpu", weights_only=True)
    except PermissionError as error:
        raise CheckpointError(describe_os_error(error, path)) from None
    except Exception as error:  # zipfile and pickle raise many types on damaged files
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # EINVAL: a damaged file with a wrong offset
            error.filename = str(path)
            raise
        if is_out_of_memory(error):
            raise
        reason = one_line(error) or type(error).__name__
        raise CheckpointError(f"{path}: is damaged or not a checkpoint ({reason[:120]})") from error
    if not isinstance(contents, dict) or "format" not in contents:
        raise CheckpointError(f"{path}: is not a chargpt checkpoint")
    if contents["format"] != CHECKPOINT_FORMAT:
        start = shlex.quote(f"init_from={Path(path).parent.parent}")
        raise other_format(path, contents["format"], CHECKPOINT_FORMAT, f"{start} starts a new run from its model")
    return contents


def write_model(path: Path, contents: Mapping[str, Any]) -> None:
    """Write the model of a training checkpoint as a model file; with `callbacks=ema` its weights are the averages."""
    state = model_state(contents["state_dict"])
    if contents["model_config"]["tied"]:
        del state["head.weight"]
    data = contents["data"]
    described = {
        "format": FORMAT, "step": contents["global_step"], "text": without_folders(str(data["name"])),
        "texts": data["texts"],
        "documents": data["divided"],
        **{key: contents[key] for key in ("model_config", "vocabulary", "val_loss", "evaluation")},
    }  # fmt: skip
    model_file.write(path, state, described)


def is_finite(contents: Any) -> bool:
    """Return whether all tensors in nested dicts, lists and tuples are free of NaN and infinity."""
    if isinstance(contents, dict):
        contents = list(contents.values())
    if isinstance(contents, list | tuple):
        return all(is_finite(part) for part in contents)
    return not isinstance(contents, torch.Tensor) or bool(contents.isfinite().all())
