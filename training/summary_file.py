"""Write summary.json, also when training ends early."""

import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from base import ranks
from base.jobs.run_directory import Run
from base.jobs.summary import Summary
from gpt.model import untrained
from gpt.training_checkpoint import TrainingRecord, read, write_model
from training.errors import Diverged, Stopped
from training.run_plan import RunPlan

if TYPE_CHECKING:
    import lightning as L

CODE = Path(__file__).parents[1]


def summarize(plan: RunPlan, status: str, step: int, record: TrainingRecord, **results: Any) -> Summary:
    """Return the summary of a run after `step` steps; `results` are the fields about its evaluated models."""
    config, text = plan.config, plan.text
    tokens = config.data.batch * config.model.context
    model = untrained(config.model, text.tokenizer.size)
    speed = record.stepped * tokens / record.stepping if record.stepping else None
    versions = {name: version(name) for name in ("torch", "lightning", "numpy")}
    return Summary(
        status=status,
        text=text.name,
        text_sha256=text.sha256,
        notes=list(text.notes),
        steps=step,
        characters=step * tokens,
        epochs=step * tokens / len(text.train),
        seconds=record.seconds,
        characters_per_second=speed,
        mfu=speed * model.flops_per_token() / record.peak if speed and record.peak else None,
        init_from=config.init_from,
        parameters=model.num_parameters(),
        precision=config.trainer.precision,
        device=plan.machine.device,
        seed=config.seed,
        versions={"python": platform.python_version()} | versions,
        commit=commit(),
        validations={step: loss for step, loss, _ in record.validations},
        **results,
    )


def commit() -> str | None:
    """Return the git commit of this code, with `-dirty` if its files differ from the commit."""
    git = ["git", "--no-optional-locks", "-C", str(CODE)]  # writes nothing, not even a refreshed index
    git += ["describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


@contextmanager
def recording(plan: RunPlan, metrics: Any, trainer: "L.Trainer") -> Iterator[None]:
    """Context manager for training that writes summary.json, with the run's status, at the end or after an error."""
    status, last = "failed", plan.run.checkpoints / "last.ckpt"
    try:
        yield
        status = "interrupted"  # "finished" only after the evaluation
    except Stopped:
        status = "interrupted"
        if last.exists() and ranks.rank() == 0:
            write_model(plan.run.model("last"), read(last))
        raise
    except Diverged:
        status = "diverged"
        raise
    finally:
        metrics.hide()
        states = {callback.state_key: callback.state_dict() for callback in trainer.callbacks}  # type: ignore[attr-defined]
        summary = summarize(plan, status, trainer.global_step, TrainingRecord.of(states))
        # If an error has ended the run, raise it rather than a failure to write the summary.
        with suppress(OSError) if status == "failed" else nullcontext():
            if ranks.rank() == 0:
                write_summary(plan.run, summary)


def write_summary(run: Run, summary: Summary) -> None:
    begun = run.summary.begun or datetime.now(UTC).isoformat()
    replace(summary, begun=begun).write(run.directory / "summary.json")
