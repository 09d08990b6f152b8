"""The contents of summary.json, and the hyperparameters that TensorBoard compares."""

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from base.files import write_text
from conf.keys import HOW, leaves
from conf.resume import settings
from conf.schema import Config, to_dict
from gpt.evaluation import Score, measured
from training.machine import untrained
from training.run_plan import RunPlan


@dataclass(frozen=True)
class Summary:
    """The fields of summary.json, null where unknown.

    Losses are in nats per token; bpc and bpb in bits per character and per byte.
    """

    status: str
    val_loss: float | None = None
    val_bpc: float | None = None
    val_bpb: float | None = None
    best_step: int | None = None
    last_val_loss: float | None = None
    test_loss: float | None = None
    test_bpc: float | None = None
    evaluation: dict[str, Any] | None = None
    steps: int | None = None
    characters: int | None = None
    seconds: float | None = None
    characters_per_second: float | None = None
    mfu: float | None = None
    init_from: str | None = None
    parameters: int | None = None
    precision: str | None = None
    device: str | None = None
    seed: int | None = None
    versions: dict[str, str] | None = None


def write_summary(run: Path, values: Mapping[str, Any]) -> None:
    """Write summary.json from the known fields of `Summary`."""
    write_text(run / "summary.json", json.dumps(asdict(Summary(**values)), indent=2) + "\n")


def as_trained(plan: RunPlan, step: int, counted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `Summary` about training.

    Args:
        plan: of the run.
        step: steps taken.
        counted: the state of the callback `Metrics`.
    """
    config = plan.config
    per_step = config.data.batch * config.model.context
    stepping, model, peak = counted["stepping"], untrained(config, plan.text), counted.get("peak")
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
        "device": plan.runtime.device,
        "seed": config.seed,
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "lightning", "numpy")},
        },
    }


def hyperparameters(config: Config) -> dict[str, Any]:
    """Return the settings that the result depends on, for TensorBoard's comparison of runs."""
    values = dict(leaves(to_dict(config))) | {"callbacks": list(config.callbacks)}
    kept = {*settings(config), "trainer.max_steps", "data.path" if config.data.path else "data.corpus"} - HOW
    return {key: value for key, value in values.items() if key in kept and value not in (None, [])}


def as_summary(best: Score, last: Score, test: Score | None, best_step: int, context: int) -> dict[str, Any]:
    """Return the fields of `Summary` about the model's scores."""
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
