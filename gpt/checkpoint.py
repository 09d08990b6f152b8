"""Checkpoints: one self-contained file of plain data and tensors.

A file holds `format model_config vocabulary data state_dict global_step` and, to go on training, what
Lightning adds (`optimizer_states loops ...`). `torch.load` opens it with its defaults, which run no code.
"""

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from gpt.config import ModelConfig
from gpt.model import GPT

FORMAT = 3
REQUIRED = {
    "format": int, "model_config": dict, "vocabulary": dict, "data": dict, "state_dict": dict, "global_step": int,
}  # fmt: skip
PREFIX = "net."  # the model is the attribute `net` of the module that Lightning fits


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, in one line."""


def save(path: str | Path, contents: dict[str, Any]) -> None:
    """Write a checkpoint so that `path` is always either the old file or the whole new one.

    The bytes go to a temporary file in the same directory, reach the disk, and take the name at once.

    Raises:
        OSError: the file could not be written; the old one is untouched and nothing is left behind.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            torch.save(contents, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        # torch reports a failed write, such as a full disk, as a RuntimeError of its zip writer, too.
        if isinstance(error, OSError | RuntimeError):
            raise OSError(f"{path}: could not be written: {str(error).splitlines()[0]}") from error
        raise
    sync_directory(path.parent)


def link(source: str | Path, target: str | Path) -> None:
    """Give `source` the further name `target`, at once; a copy where the file system has no hard links."""
    target = Path(target)
    if target.exists() and os.path.samefile(source, target):
        return  # a rename between two names of one file would do nothing and leave both
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(source, temporary)
    except OSError:
        with open(temporary, "wb") as file:
            file.write(Path(source).read_bytes())
            file.flush()
            os.fsync(file.fileno())
    os.replace(temporary, target)
    sync_directory(target.parent)


def sync_directory(directory: Path) -> None:
    """Make a rename in `directory` survive a power cut; Windows does so by itself and cannot be asked."""
    if os.name == "posix":
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def read(path: str | Path) -> dict[str, Any]:
    """Open a checkpoint after checking that it is whole and of a format this version knows.

    Raises:
        CheckpointError: missing, damaged, or not a chargpt checkpoint.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path}: no such checkpoint")
    try:
        with zipfile.ZipFile(path) as archive:  # torch.load does not compare checksums
            # A record marked as a directory would be taken for an empty one: weights from nowhere.
            marked = next((record.filename for record in archive.infolist() if record.external_attr), None)
            damaged = marked or archive.testzip()
        if damaged:
            raise zipfile.BadZipFile(f"checksum of {damaged!r}")
        contents = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, ValueError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{path}: is damaged or no checkpoint ({reason[:120]})") from error
    if not isinstance(contents, dict):
        raise CheckpointError(f"{path}: is no chargpt checkpoint (holds a {type(contents).__name__})")
    wrong = [key for key, kind in REQUIRED.items() if not isinstance(contents.get(key), kind)]
    if wrong:
        raise CheckpointError(f"{path}: is no chargpt checkpoint (without {', '.join(wrong)})")
    if contents["format"] != FORMAT:
        raise CheckpointError(
            f"{path}: has format {contents['format']}, this version reads format {FORMAT}; use the one that wrote it"
        )
    return contents


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
    meta = read(path)
    state = {key.removeprefix(PREFIX): value for key, value in meta.pop("state_dict").items()}
    try:
        model = GPT(ModelConfig(**meta["model_config"]), len(state["embedding.weight"]))
        model.load_state_dict(state)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{path}: weights and model_config do not fit together ({reason[:160]})") from error
    return model.eval(), meta
