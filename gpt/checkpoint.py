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
    """Return the weights in the state dict of a `GPT` or a `LitGPT` as fp32 NumPy arrays, by their names in `GPT`."""
    return {name.removeprefix(PREFIX): value.detach().float().cpu().numpy() for name, value in state_dict.items()}


def without_folders(name: str) -> str:
    """Return the file name of a text's path, URL or list ("[a/b,c/d]": "b, d"), because models are sent to others."""
    if name.startswith("[") and name.endswith("]"):
        return ", ".join(map(without_folders, name[1:-1].split(",")))
    name = redacted(name)
    address = re.split(r"[?#]", name)[0] if "://" in name else name
    return printable(re.split(r"[/\\]", address.rstrip("/\\"))[-1])


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
    config, state, meta = model_file.read(run_directory.find_model(str(path)))
    return build(config, state), meta


def build(config: ModelConfig, state: Mapping[str, np.ndarray]) -> GPT:
    """Return a `GPT` in evaluation mode with the weights of a model file."""
    with torch.device("meta"):  # no initialisation, so torch's generator is not advanced
        model = GPT(config, len(state["embedding.weight"]))
    for name, array in state.items():  # load_state_dict needs seconds: its time is quadratic in the blocks
        module, _, weight = name.rpartition(".")
        setattr(model.get_submodule(module), weight, torch.nn.Parameter(torch.from_numpy(array).clone()))
    if config.tied:
        model.head.weight = model.embedding.weight
    return model.eval()


def with_context(model: GPT, context: int) -> GPT:
    """Return a copy with another context length, and the same logits at the positions that both have.

    Raises:
        ValueError: the model has learned positions and `context` is greater than their number.
    """
    if model.config.positions == "learned" and context > model.config.context:
        raise ValueError(f"must be at most {model.config.context}, the number of learned positions")
    other = GPT(replace(model.config, context=context), model.vocabulary).to(model.head.weight)
    copy_weights(other, model, torch.arange(model.vocabulary, device=model.head.weight.device))
    return other


@torch.no_grad()
def copy_weights(model: GPT, trained: GPT, token_map: torch.Tensor) -> None:
    """Copy the weights of `trained` into `model`; `token_map`, (V,) int64, is the new token of each trained one.

    `model` may have more tokens, another context and dropout, but not more learned positions. The rows of a new token
    are the means of the V copied rows, so its logit is the mean of the V logits, which stay as they were: n new tokens
    increase the loss on a text without them by at most ln(1 + n / V) nats per token.
    Source: Hewitt, Initializing New Word Embeddings for Pretrained Language Models (2021).
    """
    weights = trained.state_dict()
    for name, weight in model.state_dict().items():
        if name in ("embedding.weight", "head.weight"):
            weight[:] = weights[name].mean(0)
            weight[token_map] = weights[name]
        else:
            weight[:] = weights[name][: len(weight)]  # the first of the learned positions, all of other weights
