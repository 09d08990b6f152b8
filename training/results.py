"""Write the results of a run: evaluated models, samples, report.html and, also when it ends early, summary.json."""

import platform
import shlex
import shutil
import statistics
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from base import processes, ranks
from base.errors import InputError, one_line, public, without_folders
from base.files import atomic, write_text
from base.jobs.run_directory import Run, Summary
from base.log import log, to_file
from base.progress import Progress
from conf.schema import to_yaml
from data.batches import num_evaluated, num_validated
from data.ngrams import baselines
from data.novelty import longest_copies, skipped
from data.passages import passage, prompts
from gpt import model_file
from gpt.checkpoint import build, model_state, read_training_checkpoint, write_model
from gpt.evaluation import Score, evaluate, measured, window_batches
from gpt.inference.generate import TEMPERATURE
from gpt.model import GPT, untrained
from reports import log_lines
from reports.card import repeating
from reports.history import History
from reports.run_page import page
from training.callbacks.display import Display
from training.callbacks.watch import written
from training.errors import Diverged, Stopped
from training.loggers import log_result
from training.module import LitGPT
from training.run_plan import RunPlan

FINAL_SAMPLE_LENGTH = 250  # tokens of each text at the end of a run
NUM_COMPARED = 20  # samples that are compared with the training text
# of a run that ended before `Deadline` chose its number of steps
NOT_COOLED = "a callback ended the run before its learning rate fell; with the command that sets these steps, it falls"
CODE = Path(__file__).parents[1]


class EvaluatedModel(NamedTuple):
    """A model of a run with its score on the validation split, as the tuple (step, score, model)."""

    step: int
    score: Score
    model: GPT


def evaluate_split(plan: RunPlan, model: GPT, count: int, which: str) -> Score:
    """Return the score of a model on `count` tokens of the validation split, which are evenly spread over the split."""
    text = plan.text.evaluated
    chosen = text.windows(plan.config.model.context, most=count)
    with Progress(f"evaluating the {which} checkpoint", count) as progress:

        def windows() -> Iterator[tuple[Any, Any, Any]]:
            for inputs, targets, counted in window_batches(text, chosen):
                yield inputs, targets, counted
                progress.update(int(counted.sum()))

        return evaluate(model, text, windows())


def evaluate_models(
    plan: RunPlan, contents: dict[str, Any], validated: Score | None, count: int
) -> tuple[EvaluatedModel, EvaluatedModel]:
    """Evaluate the best and the last model on the validation split, write both model files, and return (best, last).

    The best model was chosen by validations during training, which may evaluate a smaller part of
    the split than the `count` tokens here. If the last model has a lower loss in this evaluation,
    it is returned and written as the best model, too. `contents` is the last checkpoint, and
    `validated` the score of its validation, which is used if it was on as many tokens.
    """
    step = contents["global_step"]
    score = validated
    if count > num_validated(len(plan.text.validation), plan.config.data.val_tokens):
        score = None
    files = {name: plan.run.model(name) for name in ("last", "best")}
    device = plan.machine.device

    def scores(score: Score) -> dict[str, Any]:
        evaluation = measured(score, plan.config.model.context, plan.text.mode)
        return {"val_loss": score.loss, "evaluation": evaluation}

    model = build(
        model_file.model_config(contents["model_config"]), model_state(contents["state_dict"])
    ).to(device)
    last = EvaluatedModel(step, score or evaluate_split(plan, model, count, "last"), model)
    write_model(files["last"], contents | scores(last.score))
    if contents["history"]["best_step"] != step:
        try:
            model_config, weights, meta = model_file.read(files["best"])
        except model_file.CheckpointError as error:
            log.info(f"evaluation skips {error}")
        else:
            model = build(model_config, weights).to(device)
            best = EvaluatedModel(meta["step"], evaluate_split(plan, model, count, "best"), model)
            if best.score.loss < last.score.loss:
                model_file.write(files["best"], weights, meta | scores(best.score))
                return best, last
    # The last model is the best, or the only one that can be read.
    with atomic(files["best"]) as temporary:
        shutil.copyfile(files["last"], temporary)
    return last, last


def write_missing(plan: RunPlan) -> None:
    """Log how a run without steps left can be continued, and write its results if it has none.

    Raises `Diverged` if the results show it, like `write_results`.
    """
    run, point = plan.run, plan.resume_point
    assert point
    if plan.config.trainer.max_steps == "auto":  # the run ended before `Deadline` chose the number
        plan = plan.ended_by_callback(point.step, point.history)
    steps = plan.config.trainer.max_steps
    if point.step > steps:
        raise InputError(
            f"trainer.max_steps={steps}: {run} has already trained for {point.step} steps; "
            f"trainer.max_steps={point.step} finishes it at this step"
        )
    summary = run.summary
    if summary.val_loss is not None and summary.status == "diverged":
        raise worse_than_guessing(summary.val_loss)
    more = []
    if point.history.stopped_early:
        more += ["callbacks=[]", "allow=[callbacks]"]
    longer = steps if steps > point.step else 2 * point.step
    more.append(f"trainer.max_steps={longer}")
    command = processes.command("python", "train.py", f"resume={run}", *more)
    log.info(f"{run} is finished: step {point.step} of {steps}; {command} continues it")
    if summary.val_loss is not None or ranks.rank():
        return
    to_file(run.directory / "train.log")
    write_text(run.config, to_yaml(plan.config))
    write_results(plan, point.take())


def write_results(plan: RunPlan, contents: dict[str, Any], validated: Score | None = None) -> None:
    """Evaluate the models of a run, generate samples, and write model files, summary.json and report.html.

    `contents` and `validated` are those of `evaluate_models`. Raises `Diverged` at the end if the
    losses show it.
    """
    run = plan.run
    config = plan.config
    history = History.of(contents["history"])
    tokens_seen = contents["global_step"] * config.data.batch * config.model.context
    evaluated = num_evaluated(len(plan.text.validation), tokens_seen, config.data.val_tokens)
    best, last = evaluate_models(plan, contents, validated, evaluated)
    samples, copies = write_samples(plan, best.model)
    log_lines.show_samples(samples)
    log_lines.show_scores(run, config, plan.text, best[:2], last[:2])
    with Progress("counting n-grams"):
        uniform, ngram, order = baselines(plan.text, config.model.context, evaluated)
    split_size = {"split_characters": plan.text.characters["validation"]}
    summary = summarize(
        plan, "finished", last.step, history, copies=copies, best_step=best.step, last_val_loss=last.score.loss,
        val_loss=best.score.loss, val_bpc=best.score.bpc, val_bpb=best.score.bpb,
        evaluation=measured(best.score, config.model.context, plan.text.mode) | split_size,
        uniform_loss=uniform, ngram_loss=ngram, ngram_order=order,
    )  # fmt: skip
    diverged = log_lines.has_diverged(summary, history.losses.entries)
    if diverged:
        summary = replace(summary, status="diverged")
    log.info(f"baselines  {log_lines.describe_baselines(summary, plan.text.tokenizer.unit)}")
    for sentence in log_lines.verdict(run, summary, history.losses.entries):
        log.info(f"           {sentence}")
    report = write_report(plan, summary, history, best.model, samples)
    if "tensorboard" in config.logger:
        log_result(run.directory, config, best.score.loss)
    write_summary(run, summary)  # last: if the run is stopped before this, resuming finishes it
    log_lines.conclude(run, config, report)
    if diverged:
        raise worse_than_guessing(best.score.loss)


def worse_than_guessing(val_loss: float) -> Diverged:
    # ruined: its checkpoints, too, so the advice is a new run
    return Diverged(f"the validation loss is {val_loss:,.4g} nats", ruined=True)


def write_samples(plan: RunPlan, model: GPT) -> tuple[list[list[Any]], dict[str, Any] | None]:
    """Return samples of a model, and how much `NUM_COMPARED` other samples copy from the training text.

    A sample is a list [temperature, prompt, continuation]. The copies are None if the text is too
    long to be searched.
    """
    text = plan.text
    seed = plan.config.seed
    starts = prompts(text)  # (B, T0)
    length = plan.config.watch.sample_length or FINAL_SAMPLE_LENGTH
    with Progress("writing samples"):
        _, samples = written(model, text, starts, length, seed)
        if skipped(text.train, text.tokenizer.unit):
            return samples, None
        short = min(length, FINAL_SAMPLE_LENGTH)
        same_prompt = starts[:1].expand(NUM_COMPARED, -1)  # (NUM_COMPARED, T0)
        tokens, _ = written(model, text, same_prompt, short, seed)
    sizes = [copy.length for copy in longest_copies(list(tokens), text.train)]
    copies = {
        "median": statistics.median(sizes),
        "longest": max(sizes),
        "samples": len(sizes),
        "length": short,
    }
    return samples, copies | {"temperature": TEMPERATURE}


def write_report(
    plan: RunPlan, summary: Summary, history: History, model: GPT, samples: list[list[Any]]
) -> Path | None:
    """Write report.html into the run directory and return its path.

    If writing the report fails, the error is only logged and None is returned, because the run
    itself has succeeded.
    """
    config = plan.config
    text = plan.text
    path = plan.run.directory / "report.html"
    try:
        about = {
            "name": plan.run.name,
            "text": f"{without_folders(text.name)}: {'; '.join(log_lines.describe(text))}",
            "notes": summary.notes,
            "written": samples,
            "copied": summary.copies
            and log_lines.describe_copies(summary.copies, text.tokenizer.unit),
            "verdict": log_lines.verdict(plan.run, summary, history.losses.entries),
            "command": shlex.join(["python", "train.py", *(plan.run.arguments or ())]),
            "exact_command": shlex.join(["python", "train.py", *map(public, repeating(config))]),
            "config": public(to_yaml(config)),
        }
        tokens = passage(text, config.model.context + 1)
        write_text(path, page(about, summary, history, model, tokens, text.tokenizer))
    except Exception as error:
        log.info(f"report     could not be written: {type(error).__name__}: {one_line(error)}")
        return None
    return path


def summarize(plan: RunPlan, status: str, step: int, history: History, **results: Any) -> Summary:
    """Return the summary of a run after `step` steps; `results` are the fields about its evaluated models."""
    config = plan.config
    text = plan.text
    tokens_per_step = config.data.batch * config.model.context
    model = untrained(config.model, text.tokenizer.size)
    speed = mfu = None  # unknown before a step was timed
    if history.step_seconds:
        speed = history.timed_steps * tokens_per_step / history.step_seconds
        if history.peak_flops:
            mfu = speed * model.flops_per_token() / history.peak_flops
    notes = list(text.notes)
    if history.stopped_early and step == config.trainer.max_steps:
        notes.append(NOT_COOLED)
    versions = {name: version(name) for name in ("torch", "lightning", "numpy")}
    return Summary(
        status=status,
        text=text.name,
        text_sha256=text.sha256,
        notes=notes,
        steps=step,
        characters=step * tokens_per_step,
        epochs=step * tokens_per_step / len(text.train),
        seconds=history.elapsed(),
        characters_per_second=speed,
        mfu=mfu,
        init_from=config.init_from,
        parameters=model.num_parameters(),
        precision=config.trainer.precision,
        device=plan.machine.device,
        seed=config.seed,
        versions={"python": platform.python_version()} | versions,
        commit=commit(),
        validations={step: loss for step, loss, _ in history.validations.entries},
        **results,
    )


def commit() -> str | None:
    """Return the git commit of this code, with `-dirty` if its files differ from the commit."""
    # writes nothing, not even a refreshed index
    git = ["git", "--no-optional-locks", "-C", str(CODE)]
    git += ["describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        return subprocess.run(
            git, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


@contextmanager
def recording(plan: RunPlan, module: LitGPT, display: Display) -> Iterator[None]:
    """Context manager for training that writes summary.json, with the run's status, at the end or after an error.

    After a signal, it also writes the model file of the last checkpoint. It closes the `display`
    in any case.
    """
    status = "failed"  # after any error but those below
    last = plan.run.checkpoints / "last.ckpt"
    try:
        yield
        status = "interrupted"  # "finished" only after the evaluation
    except Stopped:
        status = "interrupted"
        if last.exists() and ranks.rank() == 0:
            write_model(plan.run.model("last"), read_training_checkpoint(last))
        raise
    except Diverged:
        status = "diverged"
        raise
    finally:
        display.close()
        summary = summarize(plan, status, module.global_step, module.history)
        # If an error has ended the run, raise it rather than a failure to write the summary.
        with suppress(OSError) if status == "failed" else nullcontext():
            if ranks.rank() == 0:
                write_summary(plan.run, summary)


def write_summary(run: Run, summary: Summary) -> None:
    before = run.summary
    begun = before.begun or datetime.now(UTC).isoformat()
    debug = before.debug or summary.debug
    replace(summary, begun=begun, debug=debug).write(run.directory / "summary.json")
