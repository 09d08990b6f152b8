"""Load a model from its file, change its context, and copy its weights into another model."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from base.errors import printable, redacted
from base.jobs import run_directory
from gpt import model_file
from gpt.config import ModelConfig
from gpt.model import GPT
from gpt.tokenizer import Tokenizer, tokenizer_from

PREFIX = "net."  # the model is the attribute `net` of the LightningModule


def model_state(state_dict: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Return the model's weights from the state dict of a `LitGPT`: name -> fp32 array.

    The names are those in `GPT`, without the prefix `net.`.
    """
    return {name.removeprefix(PREFIX): value.detach().float().cpu().numpy() for name, value in state_dict.items()}


def without_folders(name: str) -> str:
    """Return the name of a text without its folder or URL query, for files that may be sent to others.

    A name in brackets stands for several texts: "[a/b,c/d]" becomes "b, d".
    """
    if name.startswith("[") and name.endswith("]"):
        return ", ".join(map(without_folders, name[1:-1].split(",")))
    name = redacted(name)
    address = re.split(r"[?#]", name)[0] if "://" in name else name
    return printable(re.split(r"[/\\]", address.rstrip("/\\"))[-1])


def load(path: str | Path) -> tuple[GPT, Tokenizer]:
    """Return a model and its tokenizer; `path` is a run's name, a run directory or a model file."""
    model, meta = load_checkpoint(path)
    return model, tokenizer_from(meta["vocabulary"])


def load_checkpoint(path: str | Path) -> tuple[GPT, dict[str, Any]]:
    """Return a model and its description, a dict with the keys of `gpt.model_file.FIELDS`.

    `path` is a model file, a run directory or a run's name. The model is on the CPU, in evaluation mode.

    Raises:
        InputError: the file or run is missing or unusable; the message names it.
    """
    config, state, meta = model_file.read(run_directory.find_model(str(path)))
    return build(config, state), meta


def build(config: ModelConfig, state: Mapping[str, np.ndarray]) -> GPT:
    """Return a model in evaluation mode; `state` contains its weights by name, as in a model file."""
    with torch.device("meta"):  # no initialisation, so torch's generator is not advanced
        model = GPT(config, len(state["embedding.weight"]))
    for name, array in state.items():  # load_state_dict needs seconds: its time is quadratic in the blocks
        module, _, weight = name.rpartition(".")
        setattr(model.get_submodule(module), weight, torch.nn.Parameter(torch.from_numpy(array).clone()))
    if config.tied:
        model.head.weight = model.embedding.weight
    return model.eval()


def with_context(model: GPT, context: int) -> GPT:
    """Return a copy of the model with another context length, in tokens.

    At positions inside both contexts, the copy computes the same logits.

    Raises:
        ValueError: the positions are learned and the new context is longer.
    """
    if model.config.positions == "learned" and context > model.config.context:
        raise ValueError(f"must be at most {model.config.context}, the number of learned positions")
    other = GPT(replace(model.config, context=context), model.vocabulary).to(model.head.weight)
    copy_weights(other, model, torch.arange(model.vocabulary, device=model.head.weight.device))
    return other


@torch.no_grad()
def copy_weights(model: GPT, trained: GPT, token_map: torch.Tensor) -> None:
    """Copy the weights of the model `trained` into `model`, whose vocabulary contains that of `trained`.

    In a text without new tokens, the logits of the trained tokens stay the same. A new token's rows in embedding and
    head are the means of the trained rows, so the new token's logit is the mean of the trained logits. Therefore n new
    tokens beside V trained ones add at most ln(1 + n / V) nats per token to the loss of such a text.
    Source: Hewitt, Initializing New Word Embeddings for Pretrained Language Models (2021).

    Args:
        model: the model to change. It may have another vocabulary, dropout and context, but not more learned positions.
        trained: the model to copy from.
        token_map: (V,) int64, the token of `model` for each of the V tokens of `trained`.
    """
    weights = trained.state_dict()
    for name, weight in model.state_dict().items():
        if name in ("embedding.weight", "head.weight"):
            weight[:] = weights[name].mean(0)
            weight[token_map] = weights[name]
        else:
            weight[:] = weights[name][: len(weight)]  # the first of the learned positions, all of other weights
