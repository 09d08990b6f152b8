"""One self-contained HTML page on a finished run, to open, print and mail: `run_page.html` with data in it."""

import base64
import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from base.html import embedded
from base.progress import clock
from data.tokenizer import Tokenizer
from gpt.analysis import attention_maps, by_character, costs, letters
from gpt.config import ModelConfig
from gpt.evaluation import predictions
from gpt.model import GPT
from reports.html_template import ASSETS, MAX_MILLIBITS, fill

MAX_HEADS = 64  # heads at most whose attention is shown
NUM_ATTENDED = 64  # tokens of the passage that they look at
MAX_PASSAGE = 1024  # tokens of the passage that is coloured
NUM_TOP = 5  # how many of the most likely characters are named


def page(
    about: Mapping[str, Any],
    summary: Mapping[str, Any],
    callbacks: Mapping[str, Any],
    model: GPT,
    passage: Tensor,
    tokenizer: Tokenizer,
) -> str:
    """Make the page.

    Args:
        about: `name text sample differences command config`: of the run, its text in one line, what it wrote in the end
            as `[temperature, prompt, text]`, `[key, value, default]` of each setting that was changed, the command
            that makes it again, and its config.yaml.
        summary: what summary.json says.
        callbacks: what the last checkpoint keeps of `Metrics` (key Watch) and `Samples`.
        model: of the best checkpoint.
        passage: tokens of the validation text, (T,) int64 with 1 <= T <= context + 1.
        tokenizer: of the text.
    """
    passage = passage[: MAX_PASSAGE + 1]
    unit = "character" if all(tokenizer.token_sizes[:, 0].tolist()) else "byte"
    data = {
        "name": about["name"],
        "text": about["text"],
        "figures": figures(summary, model.config, unit),
        "measured": measured(summary),
        "made": made(summary),
        "curves": curves(callbacks, summary, unit),
        "samples": callbacks["Samples"]["history"]["entries"],
        "sample": about["sample"],
        "attention": attention(model, passage[: min(NUM_ATTENDED, model.config.context)], tokenizer.names),
        "passage": surprise(model, passage, tokenizer),
        "differences": about["differences"],
        "command": about["command"],
        "config": about["config"],
    }
    return fill(ASSETS / "run_page.html", title=html.escape(about["name"]), data=embedded(data))


# -- Figures ---------------------------------------------------------------------------------------
def figures(summary: Mapping[str, Any], config: ModelConfig, unit: str) -> list[list[str]]:
    """What stands at the top of the page: a name, a number, and what else there is to say of it."""

    def losses(name: str, nats: float, bits: float, what: str) -> list[str]:
        shown = f"{bits:.4f}" if math.isfinite(bits) else "–"  # bytes of which none begins a character
        return [name, shown, "bits per character", f"{nats:.4f} nats per {unit}", what]

    found = [
        losses("Validation", summary["val_loss"], summary["val_bpc"], f"best checkpoint, step {summary['best_step']:,}")
    ]
    if summary["test_loss"] is not None:
        found.append(losses("Test", summary["test_loss"], summary["test_bpc"], "best checkpoint"))
    speed = summary["characters_per_second"]
    found.append(
        [
            "Training",
            clock(summary["seconds"]),
            "minutes" if summary["seconds"] < 3599.5 else "hours",
            f"{summary['characters']:,} {unit}s" + (f", {speed:,.0f} a second" if speed else ""),
            f"{summary['steps']:,} steps",
        ]
    )
    found.append(
        [
            "Model",
            f"{summary['parameters'] / 1e6:.3g} M" if summary["parameters"] >= 1e5 else f"{summary['parameters']:,}",
            "parameters",
            f"{counted(config.layers, 'layer')}, {counted(config.heads, 'head')}, {config.dim} wide",
            f"context {config.context}",
        ]
    )
    return found


def measured(summary: Mapping[str, Any]) -> str:
    """How the losses were measured, and what the last checkpoint has where it is not the best."""
    of = summary["evaluation"]
    split = f"all {of['characters']:,} characters of the validation split"
    said = f"Exact: {split}, in {of['mode']} windows of {of['context']}."
    if summary["last_val_loss"] != summary["val_loss"]:
        said += f" The last checkpoint has {summary['last_val_loss']:.4f} nats."
    return said


def made(summary: Mapping[str, Any]) -> str:
    """What else the numbers depend on, in one line."""
    versions = ", ".join(f"{name} {version}" for name, version in summary["versions"].items())
    start = f", started from {summary['init_from']}" if summary["init_from"] else ""
    return f"{summary['device']}, {summary['precision']}, seed {summary['seed']}{start}; {versions}"


def counted(number: int, what: str) -> str:
    """How many there are, in words."""
    return f"{number} {what}{'' if number == 1 else 's'}"


# -- How it learned --------------------------------------------------------------------------------
def curves(callbacks: Mapping[str, Any], summary: Mapping[str, Any], unit: str) -> dict[str, Any]:
    """Losses by step: `losses` as [step, nats], `validations` as [step, nats, bits per character]."""
    history = callbacks["Watch"]["history"]
    validations = history["validations"]["entries"]
    return {
        "losses": history["losses"]["entries"],
        "validations": [[step, loss, bits if math.isfinite(bits) else None] for step, loss, bits in validations],
        "best": summary["best_step"],
        "unit": unit,
    }


# -- What it has learned ---------------------------------------------------------------------------
def attention(model: GPT, tokens: Tensor, names: Sequence[str]) -> dict[str, Any]:
    """What each place of a passage looks at, in all heads or, of very many, some of all layers.

    Args:
        model: the model.
        tokens: (T,) int64, at most a context.
        names: each token as text.

    Returns:
        `tokens` as text, `heads` by name, `of` how many, and their `weights`: for each head the rows of the lower
        triangle, each weight w as the byte round(255 √w), which tells small ones apart; in base64.
    """
    maps = attention_maps(model, tokens.to(model.embedding.weight.device))  # (layers, heads, T, T)
    total = maps.shape[0] * maps.shape[1]
    shown = torch.linspace(0, total - 1, min(total, MAX_HEADS)).round().long()
    places = torch.tril_indices(len(tokens), len(tokens))
    weights = maps.flatten(0, 1)[shown][:, places[0], places[1]]  # (heads, T (T + 1) / 2)
    return {
        "tokens": [names[token] for token in tokens.tolist()],
        "heads": [f"L{head // maps.shape[1]}H{head % maps.shape[1]}" for head in shown.tolist()],
        "of": total,
        "weights": base64.b64encode((weights.sqrt() * 255).round().byte().numpy().tobytes()).decode(),
    }


def surprise(model: GPT, tokens: Tensor, tokenizer: Tokenizer) -> dict[str, Any]:
    """What each character of a passage costs, read as a text of its own, and what was likely in its place.

    Args:
        model: the model.
        tokens: (T,) int64, at most a context and one more.
        tokenizer: of the text.

    Returns:
        `letters`, one code point for each character; `bits` in thousandths; `likely` as lists of [name, probability].
    """
    window = (tokens[None, :-1], tokens[None, 1:], torch.ones(1, len(tokens) - 1, dtype=torch.bool))  # each (1, T - 1)
    predicted = predictions(model, [window] if len(tokens) > 1 else [])
    starts = torch.from_numpy(tokenizer.token_sizes[:, 0])  # (V,) whether a token begins a character
    (found,) = by_character(costs(predicted, int(tokens[0]), model.vocabulary, NUM_TOP), starts, len(tokens))
    rows = zip(found.top.tolist(), found.probabilities.tolist(), strict=True)
    return {
        "letters": letters(found, tokenizer.decode),
        "bits": (found.nats / math.log(2) * 1000).round().clamp(max=MAX_MILLIBITS).int().tolist(),
        "likely": [
            [[tokenizer.names[token], round(chance, 4)] for token, chance in zip(*row, strict=True) if chance > 0]
            for row in rows
        ],
    }
