"""The contents of summary.json, and the hyperparameters that TensorBoard compares."""

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from base.files import write_text
from conf.keys import HOW, leaves
from conf.resume import settings
from conf.schema import Config, to_dict
from gpt.evaluate import Score, measured
from training.machine import Runtime, untrained

if TYPE_CHECKING:
    from collections.abc import Mapping

    from data.text import Text


def as_trained(
    config: Config, text: "Text", choices: Runtime, step: int, counted: "Mapping[str, Any]"
) -> dict[str, Any]:
    """The part of summary.json that says what training took."""
    pass

    per_step = config.data.batch * config.model.context
    stepping, model, peak = counted["stepping"], untrained(config, text), counted.get("peak")
    speed = counted["stepped"] * per_step / stepping if stepping else None
    return {
        "steps": step,
        "characters": step * per_step,
        "seconds": counted["seconds"],
        "characters_per_second": speed,
        "mfu": speed * model.flops_per_token() / peak if speed and peak else None,
        "init_from": config.init_from,
        "parameters": model.num_parameters(),
        "precision": config.trainer.precision,
        "device": choices.device,
        "seed": config.seed,
        "versions": versions(),
    }


def write_summary(run: Path, summary: dict[str, Any]) -> None:
    """Write summary.json; what does not apply is null."""
    keys = (
        "status val_loss val_bpc val_bpb best_step last_val_loss test_loss test_bpc evaluation steps characters "
        "seconds characters_per_second mfu init_from parameters precision device seed versions"
    ).split()
    write_text(run / "summary.json", json.dumps({key: summary.get(key) for key in keys}, indent=2) + "\n")


def hyperparameters(config: Config) -> dict[str, Any]:
    """The settings of a run as one compares them with those of others: what its result depends on, where it is set."""
    values = dict(leaves(to_dict(config))) | {"callbacks": list(config.callbacks)}
    kept = {*settings(config), "trainer.max_steps", "data.path" if config.data.path else "data.corpus"} - HOW
    return {key: value for key, value in values.items() if key in kept and value not in (None, [])}


def versions() -> dict[str, str]:
    """The versions that a number depends on."""
    return {"python": platform.python_version()} | {name: version(name) for name in ("torch", "lightning", "numpy")}


def as_summary(best: Score, last: Score, test: Score | None, best_step: int, context: int) -> dict[str, Any]:
    """The part of summary.json that says how good the model is."""
    return {
        "val_loss": best.loss,
        "val_bpc": best.bpc,
        "val_bpb": best.bpb,
        "best_step": best_step,
        "last_val_loss": last.loss,
        "test_loss": test.loss if test else None,
        "test_bpc": test.bpc if test else None,
        "evaluation": measured(best, context),
    }
