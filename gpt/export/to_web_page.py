"""Export to one HTML file that generates text in a browser, without a server or a network.

The page is plain HTML, CSS and JavaScript from the folder `web_page/`, in which `gpt.js` computes the logits.
"""

import base64
import math
from collections.abc import Sequence
from copy import deepcopy
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from base.html import embedded, fill
from base.progress import count
from gpt.evaluation import EVALUATION_BATCH, Score, evaluate, evaluation_windows
from gpt.model import GPT
from gpt.tokenizer import tokenizer_from

TEMPLATE = Path(__file__).with_name("web_page") / "index.html"


def write_web(
    model: GPT,
    meta: dict[str, Any],
    path: Path,
    passages: Sequence[str] | None = None,
    bf16: str | None = None,
    title: str | None = None,
) -> None:
    """Write an HTML page that contains a model and generates text with it.

    Args:
        model: the model, which is not changed.
        meta: its description, which `load_checkpoint` returns.
        path: file to write.
        passages: texts for the game, in which the visitor guesses the next character; None or empty: the page has no
            game.
        bf16: a phrase for the page that says how much the rounding of the weights to bf16 changes the loss. If it is
            given, the page stores the weights in bf16, otherwise in fp32.
        title: heading and title of the page; None: both name the training text.
    """
    unit = tokenizer_from(meta["vocabulary"]).unit
    described = {
        "config": vars(model.config),
        "vocabulary": meta["vocabulary"],
        "size": model.vocabulary,
        "tensors": [(name, tensor.numel()) for name, tensor in model.named_parameters()],
        "precision": "fp32" if bf16 is None else "bf16",
        "name": meta["text"],
        "about": about(model, meta),
        "unit": unit,
        "facts": facts(model, meta) + ([] if bf16 is None else [bf16]),
        "passages": passages,
        "title": title,
        "end": meta["documents"]["end"] if meta["documents"] else "",
    }
    page = fill(
        TEMPLATE,
        title=escape(f"{title or meta['text']} · chargpt"),
        unit=unit,
        Units=f"{unit}s".title(),
        model=embedded(described),
        weights=base64.b64encode(b"".join(encoded(each, bf16 is not None) for each in model.parameters())).decode(),
    )
    path.write_text(page, encoding="utf-8", newline="\n")


def encoded(tensor: Tensor, bf16: bool) -> bytes:
    """Return the values of a tensor as little-endian bytes: fp32 or, if `bf16` is true, rounded to the nearest bf16."""
    values = tensor.detach().cpu().float()
    if bf16:
        return values.bfloat16().view(torch.int16).numpy().astype("<i2").tobytes()  # NumPy has no bf16
    return values.numpy().astype("<f4").tobytes()


@torch.no_grad()
def rounded(model: GPT) -> GPT:
    """Return a copy of the model with its weights rounded to bf16 precision, although their dtype stays fp32."""
    copy = deepcopy(model)
    for weight in copy.parameters():
        weight.copy_(weight.bfloat16())
    return copy


def about(model: GPT, meta: dict[str, Any]) -> str:
    """Return one sentence that describes the model to a visitor of the page, without a full stop.

    The sentence states the number of weights, the steps and the text of the training and, if known, the loss on
    held-out text. `meta` is the description of the model that `load_checkpoint` returns.
    """
    weights, loss = model.num_parameters(), meta["val_loss"]
    size = f"{weights / 1e6:.2g} million weights" if weights >= 1e5 else count(weights, "weight")
    trained = f"A GPT with {size}, trained for {count(meta['step'], 'step')} on {meta['text']}"
    unit = tokenizer_from(meta["vocabulary"]).unit
    return trained if loss is None else f"{trained}; {loss:.2f} nats per {unit} on held-out text"


def facts(model: GPT, meta: dict[str, Any]) -> list[str]:
    """Return the model's details as short phrases: its shape, context, vocabulary size and exact validation loss.

    The validation loss is left out if it is unknown. `meta` is the description of the model that `load_checkpoint`
    returns.
    """
    config, unit = model.config, tokenizer_from(meta["vocabulary"]).unit
    loss = meta["val_loss"]
    return [
        f"{count(config.layers, 'layer')}, {count(config.heads, 'head')}, {config.dim} wide",
        f"context {config.context}" + (f", window {config.window}" if config.window else ""),
        f"{model.vocabulary:,} {unit}s",
        *([] if loss is None else [f"validation loss {loss:.4f} nats ({loss / math.log(2):.4f} bits) per {unit}"]),
    ]


def scores_in_bf16(model: GPT, tokens: np.ndarray, sizes: np.ndarray, most: int) -> list[Score]:
    """Return two scores of a model: with its weights in fp32, and with its weights rounded to bf16.

    Args:
        model: the model, which is not changed.
        tokens: the tokens of the text to score, one-dimensional.
        sizes: the tokenizer's `token_sizes`, (V, 2).
        most: maximum number of tokens to score. Both scores count the same tokens.
    """
    batch = max(1, EVALUATION_BATCH // model.config.context)
    scores = []
    for each in (model, rounded(model)):
        windows = evaluation_windows(tokens, model.config.context, batch, most=most)
        scores.append(evaluate(each, windows, int(tokens[0]), sizes))
    return scores
