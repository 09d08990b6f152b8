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
    """Return the weights in a state dict as NumPy arrays: name -> fp32 array.

    `state_dict` comes from a `GPT`, or from a `LitGPT`, the LightningModule that contains a `GPT`. The prefix `net.`
    of the names in a `LitGPT` is removed.
    """
    return {name.removeprefix(PREFIX): value.detach().float().cpu().numpy() for name, value in state_dict.items()}


def without_folders(name: str) -> str:
    """Return only the file name from the path or URL of a text, so that files which store it can be shared.

    Folders and the query of a URL are left out. If `name` is a list in brackets, the file names of all texts in the
    list are returned: "[a/b,c/d]" becomes "b, d".
    """
    if name.startswith("[") and name.endswith("]"):
        return ", ".join(map(without_folders, name[1:-1].split(",")))
    name = redacted(name)
    address = re.split(r"[?#]", name)[0] if "://" in name else name
    return printable(re.split(r"[/\\]", address.rstrip("/\\"))[-1])


def load(path: str | Path) -> tuple[GPT, Tokenizer]:
    """Return a trained model and its tokenizer.

    The model is on the CPU, in evaluation mode. `path` is a model file, a run directory or a run's name. If the model
    cannot be loaded, raise `InputError`.
    """
    model, meta = load_checkpoint(path)
    return model, tokenizer_from(meta["vocabulary"])


def load_checkpoint(path: str | Path) -> tuple[GPT, dict[str, Any]]:
    """Return a trained model and its description.

    The model is on the CPU, in evaluation mode. The description is a dict with the keys of `gpt.model_file.FIELDS`,
    such as `vocabulary` and `step`. `path` is a model file, a run directory or a run's name.

    Raises:
        InputError: the file or run, which the message names, is missing or unusable.
    """
    config, state, meta = model_file.read(run_directory.find_model(str(path)))
    return build(config, state), meta


def build(config: ModelConfig, state: Mapping[str, np.ndarray]) -> GPT:
    """Return a `GPT` in evaluation mode with the weights in `state`: name -> fp32 array, as in a model file.

    If the head is tied to the embedding, `state` has no `head.weight`.
    """
    with torch.device("meta"):  # no initialisation, so torch's generator is not advanced
        model = GPT(config, len(state["embedding.weight"]))
    for name, array in state.items():  # load_state_dict needs seconds: its time is quadratic in the blocks
        module, _, weight = name.rpartition(".")
        setattr(model.get_submodule(module), weight, torch.nn.Parameter(torch.from_numpy(array).clone()))
    if config.tied:
        model.head.weight = model.embedding.weight
    return model.eval()


def with_context(model: GPT, context: int) -> GPT:
    """Return a copy of the model whose context length is `context` tokens.

    At each position that lies within both context lengths, the copy computes the same logits as the model.

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
    """Copy the weights of `trained` into `model`, whose vocabulary has the V tokens of `trained` and possibly new ones.

    In a text without new tokens, the logits of the V tokens stay the same. In the embedding and the head, the row of a
    new token is the mean of the V copied rows, so the new token's logit is the mean of the V logits. Therefore n new
    tokens increase the loss on a text without new tokens by at most ln(1 + n / V) nats per token.
    Source: Hewitt, Initializing New Word Embeddings for Pretrained Language Models (2021).

    Args:
        model: the model to change. Its vocabulary, dropout and context may differ from those of `trained`, but it must
            not have more learned positions.
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
