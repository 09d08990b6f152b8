"""Build report.html, the report of a finished run."""

import base64
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from base.jobs.run_directory import Summary
from gpt.analysis import attention_maps, by_character, spread_over
from gpt.evaluation import predictions, window_batches
from gpt.facts import baselines, duration, facts, figure, in_bits, rounded
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from gpt.windows import EvaluationText
from reports.history import History
from reports.page import render_page

MAX_HEADS = 64  # maximum heads whose attention is shown
NUM_ATTENDED = 64  # tokens of the passage whose attention is shown
NOT_COMPARED = "The samples were not compared with the training text, because it is too long."
MAX_PASSAGE = 1024  # maximum tokens of the passage that is coloured by surprisal


def page(
    about: dict[str, Any],
    summary: Summary,
    history: History,
    model: GPT,
    passage: Tensor,
    tokenizer: Tokenizer,
) -> str:
    """Return the page of a run and its best model; `passage` is 1 to context + 1 tokens of validation text, (T,).

    `about` has the name of the run and other facts, which the page shows as they are.
    """
    passage = passage[: MAX_PASSAGE + 1]  # the last one is only predicted, not read
    attended = passage[: min(NUM_ATTENDED, model.config.context)]
    text = EvaluationText(passage.numpy(), tokenizer.token_sizes)
    batches = window_batches(text, text.windows(model.config.context), in_order=True)
    predicted = predictions(model, batches)
    # in one piece
    (characters,) = by_character(predicted, text, tokenizer.decode, size=len(passage))
    unit = tokenizer.unit
    data = {
        **{key: about[key] for key in ("written", "command", "exact_command", "config")},
        "copied": about["copied"] or NOT_COMPARED,
        "baselines": baselines(summary),
        "curves": {
            "losses": history.losses.entries,  # [step, nats]
            "validations": [[step, loss] for step, loss, _ in history.validations.entries],
            "best": summary.best_step,
            "unit": unit,
        },
        "samples": history.samples.entries,
        "attention": attention(model, attended, tokenizer.names),
        "passage": {
            "letters": characters.text,
            "nats": characters.millinats.tolist(),  # thousandths of a nat
            "likely": list(characters.likely(tokenizer.names, digits=4)),
        },
    }
    known = dict(facts(summary, model.config, unit))
    measured = f"Exact: {known['measured on']}."
    if "last checkpoint" in known:
        measured += f" The last checkpoint has a {known['last checkpoint']}."
    shown = {key: about[key] for key in ("text", "notes", "verdict")}
    shown |= {"figures": figures(summary, known, unit), "measured": measured}
    return render_page("run_page", about["name"], data, **shown, unit=unit, made=known["machine"])


def figures(summary: Summary, known: dict[str, str], unit: str) -> list[list[str]]:
    """Return the tiles at the top of the page, each as [name, value, its unit, *notes]."""
    nats = summary.val_loss
    parameters = summary.parameters
    assert nats is not None and summary.seconds is not None and parameters
    size = f"{parameters:,}"
    if parameters >= 1e5:
        size = f"{rounded(parameters / 1e6, 3)} M"
    step = f"best checkpoint, step {summary.best_step:,}"
    return [
        ["Validation loss", figure(nats), f"nats per {unit}", f"({in_bits(nats)})", step],
        ["Training", *duration(summary.seconds), known["training"]],
        ["Model", size, "parameters", known["shape"]],
    ]


def attention(model: GPT, tokens: Tensor, names: Sequence[str]) -> dict[str, Any]:
    """Return the attention weights of up to `MAX_HEADS` heads, spread over the layers, for `tokens`, (T,) int64."""
    maps = attention_maps(model, tokens.to(model.embedding.weight.device))  # (layers, heads, T, T)
    chosen = spread_over(model.config.layers, model.config.heads, MAX_HEADS)
    layers, heads = zip(*chosen, strict=True)
    queries, keys = torch.tril_indices(len(tokens), len(tokens))  # 2 x (T (T + 1) / 2,)
    shown = maps[layers, heads]  # (shown, T, T)
    weights = shown[:, queries, keys]  # (shown, T (T + 1) / 2), without the masked ones
    shades = (weights.sqrt() * 255).round().byte()  # the square root keeps small weights distinct
    return {
        "tokens": [names[token] for token in tokens.tolist()],
        "heads": [f"L{layer}H{head}" for layer, head in chosen],
        "of": model.config.layers * model.config.heads,
        "weights": base64.b64encode(shades.numpy().tobytes()).decode(),
    }
