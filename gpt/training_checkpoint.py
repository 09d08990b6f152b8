"""Training checkpoints (`.ckpt`), from which a run resumes.

A checkpoint is a dict of plain data and tensors. Its keys are `format model_config vocabulary data state_dict
global_step val_loss evaluation`, `conditions` (`training.machine.conditions`) and the ones that Lightning adds
(`optimizer_states loops ...`). Resume only your own checkpoints. A model from a stranger should be a model file
(`gpt/model_file.py`), because a model file is safe to open.
"""

import errno
import os
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from base.errors import describe_os_error, is_out_of_memory, one_line
from base.files import atomic
from gpt import model_file
from gpt.checkpoint import PREFIX, model_state, without_folders
from gpt.model_file import FORMAT, CheckpointError, model_config, other_format
from gpt.tokenizer import tokenizer_from

CHECKPOINT_FORMAT = 1  # increase it if an old checkpoint would continue as another run


@dataclass(frozen=True)
class TrainingRecord:
    """What Lightning's callbacks recorded during training.

    Attributes:
        losses: the training losses, each [step, nats per token].
        validations: the validation losses, each [step, nats per token, bits per character].
        samples: the texts that were generated at each validation: [step, [[temperature, prompt, text], ...]].
        seconds: duration of the training in seconds, including validations and checkpoints.
        stepping: seconds that the measured optimizer steps took, without validations and checkpoints.
        stepped: number of measured optimizer steps, without the first one, which is slow.
        peak: peak FLOP/s of all devices together; None if unknown.
        best_step: step of the lowest validation loss.
        over: whether training ended before max_steps, such as by early stopping.
    """

    losses: list[Any]
    validations: list[Any]
    samples: list[Any]
    seconds: float
    stepping: float
    stepped: int
    peak: float | None
    best_step: int
    over: bool

    @classmethod
    def of(cls, callbacks: Mapping[str, Any]) -> "TrainingRecord":
        """Return the record in `callbacks`, which maps the class name of each callback of Lightning to its state."""
        metrics, saves = callbacks["Metrics"], callbacks["Checkpoints"]
        return cls(
            losses=metrics["history"]["losses"]["entries"],
            validations=metrics["history"]["validations"]["entries"],
            samples=callbacks["Watch"]["history"]["entries"],
            **{key: metrics[key] for key in ("seconds", "stepping", "stepped", "peak")},
            best_step=saves["best_step"],
            over=saves["over"],
        )


def save(path: str | Path, contents: dict[str, Any], previous: Path | None = None) -> None:
    """Write a training checkpoint atomically.

    If writing raises `OSError`, an existing file at `path` is unchanged. If there was a file at `path`, a complete
    checkpoint exists at `path` or at `previous` even if the process is killed.

    Args:
        path: file to write.
        contents: the contents of the checkpoint, a dict of plain data and tensors.
        previous: path to which an existing file at `path` is renamed; None: it is replaced.
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
    """Return the contents of a training checkpoint, a dict of plain data and tensors.

    Out-of-memory and disk errors are raised unchanged, because the file may be intact.

    Raises:
        CheckpointError: the file is missing, unreadable, damaged or not a chargpt checkpoint.
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
        raise other_format(path, contents["format"], CHECKPOINT_FORMAT)
    try:
        check_parts(contents)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else one_line(error)
        raise CheckpointError(f"{path}: is damaged ({reason[:120]})") from None
    return contents


def check_parts(contents: Mapping[str, Any]) -> None:
    """Check that the contents of a checkpoint suffice to resume its run, and that they all belong to the same model.

    If an entry of `contents` is missing or does not fit, raise `LookupError`, `TypeError` or `ValueError`.
    """
    TrainingRecord.of(contents["callbacks"])
    contents["data"]["extra_chars"], contents["loops"]["fit_loop"], contents["lr_schedulers"]  # noqa: B018
    config, (optimizer,) = model_config(contents["model_config"]), contents["optimizer_states"]
    shapes = dict(config.shapes(tokenizer_from(contents["vocabulary"]).size))
    moved = [state["momentum" if "momentum" in state else "exp_avg"] for state in optimizer["state"].values()]
    updated = sum(len(group["params"]) for group in optimizer["param_groups"])
    if updated != len(shapes) or Counter(tuple(each.shape) for each in moved) - Counter(shapes.values()):
        raise ValueError("optimizer_states of another model")
    if config.tied:
        shapes["head.weight"] = shapes["embedding.weight"]
    state = {name.removeprefix(PREFIX): tuple(value.shape) for name, value in contents["state_dict"].items()}
    if state != shapes:
        raise ValueError("state_dict of another model")
    if not isinstance(contents["global_step"], int) or not isinstance(contents["conditions"], dict):
        raise TypeError("global_step or conditions of the wrong type")


def write_model(path: Path, contents: Mapping[str, Any]) -> None:
    """Write the model of a training checkpoint to `path` as a model file.

    `contents` are the contents of the checkpoint. If the run used `callbacks=ema`, both `state_dict` in the checkpoint
    and the model file contain the averaged weights.
    """
    state = model_state(contents["state_dict"])
    if contents["model_config"]["tied"]:
        del state["head.weight"]
    keys = ("model_config", "vocabulary", "val_loss", "evaluation")
    text = without_folders(str(contents["data"]["name"]))
    described = {"format": FORMAT, "step": contents["global_step"], "text": text}
    data = contents["data"]
    share = data.get("share", data["split"][0])  # a checkpoint of an older version may have no share
    trained_on = {"sha256": data["hashes"], "share": share, "split": data["split_hash"], "before": data["before"]}
    described |= {"trained_on": trained_on, "documents": data["divided"]}
    model_file.write(path, state, described | {key: contents[key] for key in keys})


def is_finite(contents: Any) -> bool:
    """Return whether all tensors in `contents` are free of NaN and infinity.

    `contents` consists of nested dicts, lists and tuples. Values in it that are not tensors are ignored.
    """
    if isinstance(contents, dict):
        contents = list(contents.values())
    if isinstance(contents, list | tuple):
        return all(is_finite(part) for part in contents)
    return not isinstance(contents, torch.Tensor) or bool(contents.isfinite().all())
