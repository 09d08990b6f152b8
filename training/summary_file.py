"""Write summary.json, also when training ends early, and select the settings that TensorBoard compares."""

import json
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from base import ranks
from base.files import write_text
from base.jobs import run_directory
from conf.keys import leaves
from conf.resume_rules import PATHS, settings
from conf.schema import Config, to_dict
from gpt.evaluation import Score, measured
from gpt.training_checkpoint import TrainingRecord, read, write_model
from training.errors import Diverged, Stopped
from training.machine import untrained
from training.run_plan import RunPlan

if TYPE_CHECKING:
    import lightning as L

CODE = Path(__file__).parents[1]


@dataclass
class Summary:
    """The fields of summary.json; unknown ones are null.

    `text_sha256` is the hash of the text's file or, for several, of their names and hashes. `notes` describe the text.
    Losses are in nats per token, bpc and bpb in bits per character and per byte. For comparison, `guessing_loss` is the
    loss if all tokens are equally likely, and `counting_loss` that of n-grams of length `counting_order`
    (`data.ngrams`). `copies` describes the longest passages that samples of the best model share with the training
    text: `median` and `longest` in tokens, of `samples` texts of `length` tokens at `temperature`. `validations` maps
    the step of each validation to its loss, for the page of a sweep. `commit` is the git commit of the code, with
    `-dirty` if its files differ from it. `score.py --split test` adds `test_loss` and `test_bpc`.
    """

    status: str
    begun: str | None = None
    text: str | None = None
    text_sha256: str | None = None
    notes: list[str] | None = None
    val_loss: float | None = None
    val_bpc: float | None = None
    val_bpb: float | None = None
    guessing_loss: float | None = None
    counting_loss: float | None = None
    counting_order: int | None = None
    copies: dict[str, Any] | None = None
    best_step: int | None = None
    last_val_loss: float | None = None
    test_loss: float | None = None
    test_bpc: float | None = None
    evaluation: dict[str, Any] | None = None
    steps: int | None = None
    characters: int | None = None
    epochs: float | None = None
    seconds: float | None = None
    characters_per_second: float | None = None
    mfu: float | None = None
    init_from: str | None = None
    parameters: int | None = None
    precision: str | None = None
    device: str | None = None
    seed: int | None = None
    versions: dict[str, str] | None = None
    commit: str | None = None
    validations: dict[int, float] | None = None

    def set_training(self, plan: RunPlan, step: int, record: TrainingRecord) -> None:
        """Set the fields about the training, which has taken `step` steps and recorded `record`."""
        config = plan.config
        per_step = config.data.batch * config.model.context
        model = untrained(config.model, plan.text.tokenizer.size)
        speed = record.stepped * per_step / record.stepping if record.stepping else None
        self.steps, self.characters, self.seconds = step, step * per_step, record.seconds
        self.epochs = self.characters / len(plan.text.train)
        self.characters_per_second = speed
        self.mfu = speed * model.flops_per_token() / record.peak if speed and record.peak else None
        self.text, self.text_sha256, self.notes = plan.text.name, plan.text.sha256, list(plan.text.notes)
        self.init_from, self.precision, self.seed = config.init_from, config.trainer.precision, config.seed
        self.parameters, self.device = model.num_parameters(), plan.machine.device
        self.versions = {"python": platform.python_version()}
        self.versions |= {name: version(name) for name in ("torch", "lightning", "numpy")}
        self.commit = commit()
        self.validations = {step: loss for step, loss, _ in record.validations}

    def set_scores(self, best: Score, last: Score, best_step: int, plan: RunPlan) -> None:
        """Set the fields about the scores of the best and the last model on the validation split.

        `best_step` is the step of the best model.
        """
        self.val_loss, self.val_bpc, self.val_bpb = best.loss, best.bpc, best.bpb
        self.best_step, self.last_val_loss = best_step, last.loss
        split = {"split_characters": plan.text.characters["validation"]}
        self.evaluation = measured(best, plan.config.model.context) | split


def commit() -> str | None:
    """Return the git commit of this code, with `-dirty` if files differ; None outside a repository or without git."""
    git = ["git", "-C", str(CODE), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}  # write nothing, not even a refreshed index
    try:
        return subprocess.run(
            git, env=environment, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


@contextmanager
def recording(plan: RunPlan, metrics: Any, trainer: "L.Trainer") -> Iterator[Summary]:
    """In this context the run trains; when it ends, by an error or not, write summary.json with the status of the run.

    Yield the summary. Its fields about the training are set when the context ends. `metrics` is the callback `Metrics`.
    """
    summary = Summary("failed")
    last = plan.directory / "checkpoints/last.ckpt"
    try:
        yield summary
        summary.status = "interrupted"  # "finished" only after the evaluation
    except Stopped:
        summary.status = "interrupted"
        if last.exists() and ranks.rank() == 0:
            write_model(run_directory.model_of(plan.directory, "last"), read(last))
        raise
    except Diverged:
        summary.status = "diverged"
        raise
    finally:
        metrics.hide()
        states = {callback.state_key: callback.state_dict() for callback in trainer.callbacks}  # type: ignore[attr-defined]
        summary.set_training(plan, trainer.global_step, TrainingRecord.of(states))
        # If an error has ended the run, raise it rather than a failure to write the summary.
        with suppress(OSError) if summary.status == "failed" else nullcontext():
            if ranks.rank() == 0:
                write_summary(plan.directory, summary)


def write_summary(run: Path, summary: Summary) -> None:
    """Write summary.json into the directory `run`; if the run is resumed, `begun` stays the time of its first start."""
    summary.begun = run_directory.summary_of(run).get("begun") or datetime.now(UTC).isoformat()
    write_text(run / "summary.json", json.dumps(asdict(summary), indent=2) + "\n")


def hyperparameters(config: Config) -> dict[str, Any]:
    """Return the settings that influence the result, by key, for TensorBoard's HPARAMS tab."""
    values = dict(leaves(to_dict(config))) | {"callbacks": list(config.callbacks)}
    kept = {*settings(config), *PATHS, "trainer.max_steps"}
    return {key: value for key, value in values.items() if key in kept and value not in (None, [])}
