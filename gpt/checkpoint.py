"""Training checkpoints (`.ckpt`), for resuming a run, and the models made from them and from other models.

A checkpoint is a dict of plain data and tensors: `format model_config vocabulary data state_dict global_step val_loss
evaluation`, `conditions` (`training.machine.conditions`) and what Lightning adds (`optimizer_states loops ...`). Resume
only your own checkpoints; `gpt/model_file.py` reads models from strangers.
"""

import errno
import os
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from base import run_directory
from base.errors import describe_os_error, is_out_of_memory, one_line, printable
from base.files import atomic
from gpt import model_file
from gpt.config import ModelConfig
from gpt.model import GPT
from gpt.model_file import FORMAT, CheckpointError, other_format
from gpt.tokenizer import Tokenizer, tokenizer_from

CHECKPOINT_FORMAT = 1  # raise it when an old checkpoint would continue as another run
PREFIX = "net."  # the model is the attribute `net` of the LightningModule


@dataclass(frozen=True)
class TrainingRecord:
    """What the callbacks recorded during training: `losses` and `validations` as [step, nats, ...].

    `samples` are [step, [[temperature, prompt, text], ...]]; `seconds` include validations and checkpoints, `stepping`
    only the `stepped` steps that were timed. `peak` is the device's FLOP/s, None if unknown.
    """

    losses: list[Any]
    validations: list[Any]
    samples: list[Any]
    seconds: float
    stepping: float
    stepped: int
    peak: float | None
    best_step: int
    over: bool  # whether training ended before max_steps, such as by early stopping

    @classmethod
    def of(cls, callbacks: Mapping[str, Any]) -> "TrainingRecord":
        """Read the callbacks' states, which a checkpoint stores under the names of their classes."""
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
    """Write a checkpoint atomically; rename an old file of that name to `previous`.

    If the writing raises `OSError`, the old file is untouched. Once the new file is complete, a kill leaves at least
    one of the two names.
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
    """Read a training checkpoint; raise `CheckpointError` if it is missing, damaged or not chargpt's.

    A lack of memory and an error of the disk are raised as they are: the file may be whole.
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
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # EINVAL: a seek to where a damaged file points
            error.filename = str(path)
            raise
        if is_out_of_memory(error):
            raise
        reason = one_line(error) or type(error).__name__
        raise CheckpointError(f"{path}: is damaged or no checkpoint ({reason[:120]})") from error
    if not isinstance(contents, dict) or "format" not in contents:
        raise CheckpointError(f"{path}: is no chargpt checkpoint")
    if contents["format"] != CHECKPOINT_FORMAT:
        raise other_format(path, contents["format"], CHECKPOINT_FORMAT)
    return contents


def write_model(path: Path, contents: Mapping[str, Any]) -> None:
    """Write the model of a training checkpoint as a model file; with EMA, the checkpoint holds averaged weights."""
    state = model_state(contents["state_dict"])
    if contents["model_config"]["tied"]:
        del state["head.weight"]
    keys = ("model_config", "vocabulary", "val_loss", "evaluation")
    text = last_component(str(contents["data"]["name"]))
    described = {"format": FORMAT, "step": contents["global_step"], "text": text}
    described["trained_on"] = {"sha256": contents["data"]["documents"], "share": contents["data"]["split"][0]}
    model_file.write(path, state, described | {key: contents[key] for key in keys})


def model_state(state_dict: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Return the weights of a LightningModule's state under their names in `GPT`, as fp32 arrays."""
    return {name.removeprefix(PREFIX): value.detach().float().cpu().numpy() for name, value in state_dict.items()}


def last_component(name: str) -> str:
    """Return a text's name without its folder or URL query; "[a/b,c/d]" is a list of texts and becomes "b, d"."""
    if name.startswith("[") and name.endswith("]"):
        return ", ".join(map(last_component, name[1:-1].split(",")))
    address = re.split(r"[?#]", name)[0] if "://" in name else name
    return printable(re.split(r"[/\\]", address.rstrip("/\\"))[-1])


def is_finite(contents: Any) -> bool:
    """Return whether no tensor in nested dicts and lists holds NaN or infinity."""
    if isinstance(contents, dict):
        contents = list(contents.values())
    if isinstance(contents, list | tuple):
        return all(is_finite(part) for part in contents)
    return not isinstance(contents, torch.Tensor) or bool(contents.isfinite().all())


def load(path: str | Path) -> tuple[GPT, Tokenizer]:
    """Load a model and its tokenizer from a run's name, a run directory or a model file; see `load_checkpoint`."""
    model, meta = load_checkpoint(path)
    return model, tokenizer_from(meta["vocabulary"])


def load_checkpoint(path: str | Path) -> tuple[GPT, dict[str, Any]]:
    """Load a model and its `gpt.model_file.FIELDS`, from a model file or from a run (`base.run_directory.find_model`).

    The model is on the CPU, in evaluation mode. An `InputError` says which file or run is missing or unusable.
    """
    config, state, meta = model_file.read(run_directory.find_model(str(path)))
    return build(config, state), meta


def build(config: ModelConfig, state: Mapping[str, np.ndarray]) -> GPT:
    """Make a model in evaluation mode from the weights in a model file."""
    with torch.device("meta"):  # no initialisation, so torch's generator is not advanced
        model = GPT(config, len(state["embedding.weight"]))
    for name, array in state.items():  # load_state_dict takes seconds: its time is quadratic in the number of blocks
        module, _, weight = name.rpartition(".")
        setattr(model.get_submodule(module), weight, torch.nn.Parameter(torch.from_numpy(array).clone()))
    if config.tied:
        model.head.weight = model.embedding.weight
    return model.eval()


def with_context(model: GPT, context: int) -> GPT:
    """Copy a model and change its context; logits at positions inside both contexts stay the same.

    Raises:
        ValueError: a longer context with learned positions.
    """
    if model.config.positions == "learned" and context > model.config.context:
        raise ValueError(f"must be at most {model.config.context}, the number of learned positions")
    other = GPT(replace(model.config, context=context), model.vocabulary).to(model.head.weight)
    copy_weights(other, model, torch.arange(model.vocabulary, device=model.head.weight.device))
    return other


@torch.no_grad()
def copy_weights(model: GPT, trained: GPT, token_map: torch.Tensor) -> None:
    """Copy the weights of a trained model, whose vocabulary is a part of this model's.

    In a text of trained tokens, the logits of trained tokens stay the same. A new token's rows in embedding and head
    are the means of the trained rows, so the new token's logit is the mean of the trained logits. n new tokens beside
    V trained ones add at most ln(1 + n / V) nats to the loss of such a text.
    Source: Hewitt, Initializing New Word Embeddings for Pretrained Language Models (2021).

    Args:
        model: may differ in vocabulary, dropout and context, but must not have more learned positions.
        trained: the trained model.
        token_map: (V,) int64, the token of `model` for each of the V tokens of `trained`.
    """
    weights = trained.state_dict()
    for name, weight in model.state_dict().items():
        if name in ("embedding.weight", "head.weight"):
            weight[:] = weights[name].mean(0)
            weight[token_map] = weights[name]
        else:
            weight[:] = weights[name][: len(weight)]  # the first of the learned positions, all of other weights
