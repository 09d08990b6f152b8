"""Write summary.json, also when training ends early, and select the settings that TensorBoard compares between runs."""

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
    """The contents of summary.json, in which unknown values are null. Losses are in nats per token."""

    status: str  # running, finished, interrupted, diverged or failed
    begun: str | None = None  # when the run was first started, as an ISO 8601 time in UTC
    text: str | None = None  # the name of the text
    text_sha256: str | None = None  # hash of the text's file or, if it has several files, of their names and hashes
    notes: list[str] | None = None  # remarks about the text
    val_loss: float | None = None  # validation loss of the best model
    val_bpc: float | None = None  # `val_loss` in bits per character
    val_bpb: float | None = None  # `val_loss` in bits per byte
    uniform_loss: float | None = None  # the validation loss if all tokens are equally likely, for comparison
    ngram_loss: float | None = None  # the validation loss of an n-gram model (`data.ngrams`), for comparison
    ngram_order: int | None = None  # the length n of the n-grams of `ngram_loss`
    # The longest passages that samples share with the training text: their `median` and `longest` length in tokens, and
    # the number of `samples`, their `length` in tokens and their `temperature`.
    copies: dict[str, Any] | None = None
    best_step: int | None = None  # the step of the best model
    last_val_loss: float | None = None  # validation loss of the last model
    test_loss: float | None = None  # loss on the test split, which `score.py --split test` adds
    test_bpc: float | None = None  # `test_loss` in bits per character
    evaluation: dict[str, Any] | None = None  # how the validation loss was measured, such as the context length
    steps: int | None = None  # number of optimizer steps taken
    # Number of tokens (characters or bytes) on which the model was trained, repetitions included.
    characters: int | None = None
    epochs: float | None = None  # how often the training text was read
    seconds: float | None = None  # duration of the training, including validations and checkpoints
    characters_per_second: float | None = None  # training speed in tokens per second
    mfu: float | None = None  # model FLOPs utilization, the fraction of the devices' peak FLOP/s
    init_from: str | None = None  # the trained model from which the run started
    parameters: int | None = None  # number of parameters of the model
    precision: str | None = None  # precision of the training, such as bf16-mixed
    device: str | None = None  # cuda, mps or cpu
    seed: int | None = None  # the random seed
    versions: dict[str, str] | None = None  # versions of Python, torch, Lightning and NumPy
    commit: str | None = None  # git commit of the code, with `-dirty` if the files differ from it
    validations: dict[int, float] | None = None  # the loss of each validation, by step

    def set_training(self, plan: RunPlan, step: int, record: TrainingRecord) -> None:
        """Set the fields about training, such as `steps` and `seconds`."""
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
        """Set the fields about the scores of the best and the last model on the validation split."""
        self.val_loss, self.val_bpc, self.val_bpb = best.loss, best.bpc, best.bpb
        self.best_step, self.last_val_loss = best_step, last.loss
        split = {"split_characters": plan.text.characters["validation"]}
        self.evaluation = measured(best, plan.config.model.context) | split


def commit() -> str | None:
    """Return the git commit of this code, with `-dirty` if its files differ from the commit."""
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
    """Context manager for training that writes summary.json, with the run's status, at the end or after an error.

    It yields the summary, whose fields about training are set when the context ends.
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
    """Write `summary` to summary.json in the run directory `run`, and set its field `begun`."""
    summary.begun = run_directory.summary_of(run).get("begun") or datetime.now(UTC).isoformat()
    write_text(run / "summary.json", json.dumps(asdict(summary), indent=2) + "\n")


def hyperparameters(config: Config) -> dict[str, Any]:
    """Return the settings that influence the result of a run, as key -> value, for TensorBoard's HPARAMS tab."""
    values = dict(leaves(to_dict(config))) | {"callbacks": list(config.callbacks)}
    kept = {*settings(config), *PATHS, "trainer.max_steps"}
    return {key: value for key, value in values.items() if key in kept and value not in (None, [])}
