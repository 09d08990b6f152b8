"""Training checkpoints (`.ckpt`), which a run is resumed from, and the models that are made of them.

A checkpoint holds `format model_config vocabulary data state_dict global_step val_loss evaluation`, `conditions` (what
the bits of the run depend on) and what Lightning adds (`optimizer_states loops ...`), all of it plain data and tensors.
It is for one's own runs: models, which may come from anyone, are read by `gpt/model_file.py`.
"""

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from base import run_directory
from base.errors import one_line, printable
from base.files import atomic
from gpt import model_file
from gpt.config import ModelConfig
from gpt.model import GPT
from gpt.model_file import FORMAT, CheckpointError

PREFIX = "net."  # the model is the attribute `net` of the module that Lightning fits
REQUIRED = {
    "format": int, "model_config": dict, "vocabulary": dict, "data": dict, "state_dict": dict, "global_step": int,
}  # fmt: skip


def save(path: str | Path, contents: dict[str, Any]) -> None:
    """Write a checkpoint so that `path` is always either the old file or the whole new one.

    The bytes go to a temporary file in the same directory, reach the disk, and take the name at once.

    Raises:
        OSError: the file could not be written; the old one is untouched and nothing is left behind.
    """
    path = Path(path)
    try:
        with atomic(path) as temporary, open(temporary, "wb") as file:
            torch.save(contents, file)
    except (OSError, RuntimeError) as error:  # torch reports a failed write, such as a full disk, as either
        raise OSError(f"{path}: could not be written: {str(error).splitlines()[0]}") from error


def read(path: str | Path) -> dict[str, Any]:
    """Read a training checkpoint after checking that it is whole and of the format this version knows.

    Raises:
        CheckpointError: missing, damaged or not a chargpt checkpoint.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path}: no such checkpoint")
    try:
        with open(path, "rb") as file:
            with zipfile.ZipFile(file) as archive:  # torch does not look at checksums
                if damaged := archive.testzip():
                    raise ValueError(f"checksum of {damaged!r}")
            file.seek(0)
            contents = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can fail in any way that zipfile and pickle know
        reason = one_line(error) or type(error).__name__
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


def write_model(path: Path, contents: Mapping[str, Any]) -> None:
    """Write the model of a training checkpoint as a model file.

    Args:
        path: the model file.
        contents: of the checkpoint; under EMA its `state_dict` is the average.
    """
    state = model_state(contents["state_dict"])
    if contents["model_config"]["tied"]:
        del state["head.weight"]
    model_file.write(path, state, about(contents))


def model_state(state_dict: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """The weights in the state of a Lightning module, under their names in `GPT`, as fp32 arrays."""
    return {name.removeprefix(PREFIX): value.detach().float().cpu().numpy() for name, value in state_dict.items()}


def about(contents: Mapping[str, Any]) -> dict[str, Any]:
    """What a model file says of the model of a training checkpoint."""
    return {
        "format": FORMAT,
        "model_config": contents["model_config"],
        "vocabulary": contents["vocabulary"],
        "step": contents["global_step"],
        "val_loss": contents["val_loss"],
        "evaluation": contents["evaluation"],
        "text": last_component(str(contents["data"]["name"])),
    }


def last_component(name: str) -> str:
    """What others may know of where a text lies: no folder, no query of an address; of a list, of each part."""
    if name.startswith("[") and name.endswith("]"):
        return ", ".join(map(last_component, name[1:-1].split(",")))
    address = re.split(r"[?#]", name)[0] if "://" in name else name
    return printable(re.split(r"[/\\]", address.rstrip("/\\"))[-1])


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
        path: a model file, or what `base.run_directory.find_model` takes for one, such as a run.

    Returns:
        The model on the CPU in evaluation mode, and what describes it: `vocabulary` (what
        `data.tokenizer.tokenizer_from` takes), `step`, `val_loss` and so on; see `gpt.model_file.FIELDS`.

    Raises:
        InputError: there is none.
        CheckpointError: damaged, not a chargpt model, or its parts do not fit together.
    """
    config, state, meta = model_file.read(run_directory.find_model(str(path)))
    return build(config, state), meta


def build(config: ModelConfig, state: Mapping[str, np.ndarray]) -> GPT:
    """Make a model of given weights, in evaluation mode.

    Args:
        config: shape and parts of the model.
        state: name -> array of each weight; `head.weight` may be missing where it is tied.
    """
    with torch.device("meta"):  # no weights are drawn: torch's generator stays as it is
        model = GPT(config, len(state["embedding.weight"]))
    for name, array in state.items():  # load_state_dict takes seconds where blocks are many: time grows with n^2
        module, _, weight = name.rpartition(".")
        setattr(model.get_submodule(module), weight, torch.nn.Parameter(torch.from_numpy(array).clone()))
    if config.tied:
        model.head.weight = model.embedding.weight
    return model.eval()
