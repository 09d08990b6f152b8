"""Load models from model files, and read and write training checkpoints (`.ckpt`), from which a run resumes.

Resume only your own checkpoints; a stranger's model should be a model file, which is safe to open.
"""

import errno
import os
import shlex
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from base.errors import describe_os_error, is_out_of_memory, one_line, without_folders
from base.files import atomic
from base.jobs.run_directory import find
from gpt import model_file
from gpt.config import ModelConfig
from gpt.model import GPT, untrained
from gpt.model_file import FORMAT, CheckpointError, other_format
from gpt.tokenizer import Tokenizer, tokenizer_from

PREFIX = "net."  # the model is the attribute `net` of the LightningModule
# Increase the format if an old checkpoint would continue as another run.
CHECKPOINT_FORMAT = 2
CHECKPOINT_FORMAT_OF_DOCUMENTS = 3  # of runs on documents, whose batches are others


def model_state(state_dict: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Return the weights in the state dict of a `GPT` or a `LitGPT` as fp32 NumPy arrays, by their names in `GPT`."""
    return {
        name.removeprefix(PREFIX): value.detach().float().cpu().numpy()
        for name, value in state_dict.items()
    }


def load(path: str | Path) -> tuple[GPT, Tokenizer]:
    """Return a trained model, on the CPU and in evaluation mode, and its tokenizer.

    Args:
        path: a model file, a run directory or a run's name.

    Raises:
        InputError: the file or run, which the message names, is missing or unusable.
    """
    model, meta = load_checkpoint(path)
    return model, tokenizer_from(meta["vocabulary"])


def load_checkpoint(path: str | Path) -> tuple[GPT, dict[str, Any]]:
    """Like `load`, but return the model and its `gpt.model_file.Description`."""
    config, state, meta = model_file.read(find(str(path), "model"))
    return build(config, state), meta


def build(config: ModelConfig, state: Mapping[str, np.ndarray]) -> GPT:
    """Return a `GPT` in evaluation mode with the weights of a model file."""
    model = untrained(config, len(state["embedding.weight"]))
    # load_state_dict needs seconds: its time is quadratic in the blocks
    for name, array in state.items():
        module, _, weight = name.rpartition(".")
        # a copy: the model shares no memory with `state`
        setattr(
            model.get_submodule(module),
            weight,
            torch.nn.Parameter(torch.from_numpy(array).clone()),
        )
    if config.tied:  # `state` has no head.weight
        model.head.weight = model.embedding.weight
    return model.eval()


def with_context(model: GPT, context: int) -> GPT:
    """Return a copy with another context length, and the same logits at the positions that both have.

    The copy is in training mode, and making it draws from torch's random generator.

    Raises:
        ValueError: the model has learned positions and `context` is greater than their number.
    """
    if model.config.positions == "learned" and context > model.config.context:
        # the caller puts the name of its option before this message
        raise ValueError(
            f"must be at most {model.config.context}, the number of learned positions"
        )
    other = GPT(replace(model.config, context=context), model.vocabulary).to(model.head.weight)
    same_tokens = torch.arange(model.vocabulary, device=model.head.weight.device)  # (V,)
    copy_weights(other, model, token_map=same_tokens)
    return other


@torch.no_grad()
def copy_weights(model: GPT, trained: GPT, token_map: torch.Tensor) -> None:
    """Copy the weights of `trained` into `model`; `token_map`, (V,) int64, is the new token of each trained one.

    `model` may have more tokens, another context and dropout, but not more learned positions. The
    rows of a new token are the means of the V copied rows, so its logit is the mean of the V
    logits, which stay as they were: n new tokens increase the loss on a text without them by at
    most ln(1 + n / V) nats per token. Source: Hewitt, Initializing New Word Embeddings for
    Pretrained Language Models (2021).
    """
    weights = trained.state_dict()
    for name, weight in model.state_dict().items():
        if name in ("embedding.weight", "head.weight"):
            weight[:] = weights[name].mean(0)
            weight[token_map] = weights[name]
        else:
            # the first of the learned positions, all of other weights
            weight[:] = weights[name][: len(weight)]


def save_training_checkpoint(
    path: str | Path, contents: dict[str, Any], previous: Path | None = None
) -> None:
    """Write a training checkpoint atomically, and rename an existing one to `previous`.

    Even if the process is killed, a complete checkpoint exists at `path` or at `previous`.
    """
    path = Path(path)
    with atomic(path) as temporary:
        with open(temporary, "wb") as file:
            try:
                torch.save(contents, file)
            except RuntimeError as error:  # how torch reports a failed write, such as a full disk
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise
            file.flush()
            os.fsync(file.fileno())
        if previous and path.exists():  # then `atomic` renames the new one to `path`
            os.replace(path, previous)


def read_training_checkpoint(path: str | Path) -> dict[str, Any]:
    """Return the contents of a training checkpoint, or raise `CheckpointError` if it is unusable.

    Out-of-memory and disk errors are raised unchanged, because the file may be intact.
    """
    if not Path(path).is_file():
        raise CheckpointError(f"{path}: no such checkpoint")
    try:
        with open(path, "rb") as file:
            with zipfile.ZipFile(file) as archive:  # torch does not verify checksums
                damaged = archive.testzip()
                if damaged:
                    raise ValueError(f"checksum of {damaged!r}")
            file.seek(0)
            contents = torch.load(file, map_location="cpu", weights_only=True)
    except PermissionError as error:
        raise CheckpointError(describe_os_error(error, path)) from None
    except Exception as error:  # zipfile and pickle raise many types on damaged files
        # EINVAL: a damaged file with a wrong offset
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            error.filename = str(path)
            raise
        if is_out_of_memory(error):
            raise
        reason = one_line(error) or type(error).__name__
        raise CheckpointError(
            f"{path}: is damaged or not a checkpoint ({reason[:120]})"
        ) from error
    if not isinstance(contents, dict) or "format" not in contents:
        raise CheckpointError(f"{path}: is not a chargpt checkpoint")
    expected = checkpoint_format(contents.get("data", {}).get("divided"))
    if contents["format"] != expected:
        start = shlex.quote(f"init_from={Path(path).parent.parent}")
        raise other_format(
            path, contents["format"], expected, f"{start} starts a new run from its model"
        )
    return contents


def checkpoint_format(divided: Mapping[str, Any] | None) -> int:
    """Return the format of a run's checkpoints; `divided` says how its text is divided into documents, if it is."""
    return CHECKPOINT_FORMAT if divided is None else CHECKPOINT_FORMAT_OF_DOCUMENTS


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
