"""Write the results of a run: evaluated models, samples, report.html and, also when it ends early, summary.json."""

import math
import platform
import shlex
import shutil
import statistics
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from lightning.pytorch.loggers import TensorBoardLogger

from base import ranks
from base.errors import InputError, one_line, public, without_folders
from base.files import atomic, write_text
from base.jobs.run_directory import Run, Summary
from base.log import log, to_file
from base.progress import Progress
from conf.keys import train_command, with_folders
from conf.schema import Config, to_yaml
from data.batches import num_evaluated, num_validated
from data.ngrams import baselines
from data.novelty import longest_copies, skipped
from data.passages import passage, prompts
from gpt import model_file
from gpt.checkpoint import build, model_state, read_training_checkpoint, write_model
from gpt.config import ModelConfig
from gpt.evaluation import Score, evaluate, measured, window_batches
from gpt.facts import describe_baselines, describe_copies
from gpt.inference.generate import TEMPERATURE
from gpt.model import GPT, untrained
from reports import log_lines
from reports.card import repeating
from reports.history import History
from reports.run_page import page
from training.callbacks.deadline import store_steps
from training.callbacks.watch import written
from training.errors import Diverged, Stopped
from training.loggers import public_settings
from training.module import LitGPT
from training.resume import ResumePoint

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


def evaluate_split(module: LitGPT, model: GPT, count: int, which: str) -> Score:
    """Return the score of a model on `count` tokens of the validation split, which are evenly spread over the split."""
    text = module.text.evaluated
    chosen = text.windows(module.config.model.context, most=count)
    with Progress(f"evaluating the {which} checkpoint", count) as progress:

        def windows() -> Iterator[tuple[Any, Any, Any]]:
            for inputs, targets, counted in window_batches(text, chosen):
                yield inputs, targets, counted
                progress.update(int(counted.sum()))

        return evaluate(model, text, windows())


def evaluate_models(
    run: Run, module: LitGPT, contents: dict[str, Any], count: int
) -> tuple[EvaluatedModel, EvaluatedModel]:
    """Evaluate the best and the last model on the validation split, write both model files, and return (best, last).

    The best model was chosen by validations during training, which may evaluate a smaller part of
    the split than the `count` tokens here. If the last model has a lower loss in this evaluation,
    it is returned and written as the best model, too. `contents` is the last checkpoint. If its
    validation was in this process and on as many tokens, it is not repeated.
    """
    step = contents["global_step"]
    score = None
    was_validated = contents["history"]["validated_step"] == step
    validated = num_validated(len(module.text.validation), module.config.data.val_tokens)
    if was_validated and count <= validated:
        score = module.score
    model_config = ModelConfig(**contents["model_config"])
    model = build(model_config, model_state(contents["state_dict"])).to(module.machine.device)
    last = EvaluatedModel(step, score or evaluate_split(module, model, count, "last"), model)
    write_model(run.model("last"), contents | module.scores(last.score))
    if contents["history"]["best_step"] != step:
        try:
            model_config, weights, meta = model_file.read(run.model("best"))
        except model_file.CheckpointError as error:
            log.info(f"evaluation skips {error}")
        else:
            model = build(model_config, weights).to(module.machine.device)
            score = evaluate_split(module, model, count, "best")
            if score.loss < last.score.loss:
                model_file.write(run.model("best"), weights, meta | module.scores(score))
                return EvaluatedModel(meta["step"], score, model), last
    # The last model is the best, or the only one that can be read.
    with atomic(run.model("best")) as temporary:
        shutil.copyfile(run.model("last"), temporary)
    return last, last


def finish(run: Run, module: LitGPT, point: ResumePoint) -> None:
    """Log how a run without steps left can be continued, and write its results if it has none.

    Raises `Diverged` if the results show it, like `write_results`.
    """
    run.remove_unfinished()
    config = module.config
    steps = config.trainer.max_steps
    if steps == "auto":  # it was killed before `write_results` stored the number
        steps = point.step
    if point.step > steps:
        raise InputError(
            f"trainer.max_steps={steps}: {run} has already trained for {point.step} steps; "
            f"trainer.max_steps={point.step} finishes it at this step"
        )
    summary = run.summary
    if summary.val_loss is not None and summary.status == "diverged":
        raise worse_than_guessing(summary.val_loss, config)
    more = []
    if point.history.stopped_early:
        more += ["callbacks=[]", "allow=[callbacks]"]
    longer = steps if steps > point.step else 2 * point.step
    more.append(f"trainer.max_steps={longer}")
    command = train_command(f"resume={run}", *more)
    log.info(f"{run} is finished: step {point.step} of {steps}; {command} continues it")
    if summary.val_loss is None and ranks.rank() == 0:
        to_file(run.directory / "train.log")
        write_text(run.config, to_yaml(config))
        write_results(run, module, point.take())


def write_results(run: Run, module: LitGPT, contents: dict[str, Any]) -> None:
    """Evaluate the models of a run, generate samples, and write model files, summary.json and report.html.

    `contents` is the last checkpoint. Raises `Diverged` at the end if the losses show it.
    """
    text = module.text
    history = History.of(contents["history"])
    step = contents["global_step"]
    # Another callback may have ended a run with `minutes` before its steps were chosen.
    if module.config.trainer.max_steps == "auto":
        interval = math.ceil(step / max(1, history.validations.seen))
        store_steps(run, module, step, interval)
    config = module.config
    tokens_seen = step * config.data.batch * config.model.context
    evaluated = num_evaluated(len(text.validation), tokens_seen, config.data.val_tokens)
    best, last = evaluate_models(run, module, contents, evaluated)
    samples, copies = write_samples(module, best.model)
    log_lines.show_samples(samples)
    log_lines.show_scores(run, config, text, best[:2], last[:2])
    with Progress("counting n-grams"):
        uniform, ngram, order = baselines(text, config.model.context, evaluated)
    split_size = {"split_characters": text.characters["validation"]}
    summary = summarize(
        module, "finished", last.step, history, copies=copies, best_step=best.step, last_val_loss=last.score.loss,
        val_loss=best.score.loss, val_bpc=best.score.bpc, val_bpb=best.score.bpb,
        evaluation=measured(best.score, config.model.context, text.mode) | split_size,
        uniform_loss=uniform, ngram_loss=ngram, ngram_order=order,
    )  # fmt: skip
    diverged = log_lines.has_diverged(summary, history.losses.entries)
    if diverged:
        summary = replace(summary, status="diverged")
    log.info(f"baselines  {describe_baselines(summary, text.tokenizer.unit)}")
    for sentence in log_lines.verdict(run, summary, history.losses.entries):
        log.info(f"           {sentence}")
    report = write_report(run, module, summary, history, best.model, samples)
    if "tensorboard" in config.logger:
        board = TensorBoardLogger(str(run), name="", version="", default_hp_metric=False)
        # for the page HPARAMS
        board.log_hyperparams(public_settings(config), {"val/best_loss": best.score.loss})
        board.finalize("success")
    run.write_summary(summary)  # last: if the run is stopped before this, resuming finishes it
    log_lines.conclude(run, config, report)
    if diverged:
        raise worse_than_guessing(best.score.loss, config)


def worse_than_guessing(val_loss: float, config: Config) -> Diverged:
    # ruined: its checkpoints, too, so the advice is a new run
    return Diverged(f"the validation loss is {val_loss:,.4g} nats", config.optim, ruined=True)


def write_samples(module: LitGPT, model: GPT) -> tuple[list[list[Any]], dict[str, Any] | None]:
    """Return samples of a model, and how much `NUM_COMPARED` other samples copy from the training text.

    A sample is a list [temperature, prompt, continuation]. The copies are None if the text is too
    long to be searched.
    """
    text = module.text
    seed = module.config.seed
    starts = prompts(text)  # (B, T0)
    length = module.config.watch.sample_length or FINAL_SAMPLE_LENGTH
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
    run: Run,
    module: LitGPT,
    summary: Summary,
    history: History,
    model: GPT,
    samples: list[list[Any]],
) -> Path | None:
    """Write report.html into the run directory and return its path.

    If writing the report fails, the error is only logged and None is returned, because the run
    itself has succeeded.
    """
    config = module.config
    text = module.text
    path = run.directory / "report.html"
    try:
        about = {
            "name": run.name,
            "text": f"{without_folders(text.name)}: {'; '.join(log_lines.describe(text))}",
            "notes": summary.notes,
            "written": samples,
            "copied": summary.copies and describe_copies(summary.copies, text.tokenizer.unit),
            "verdict": log_lines.verdict(run, summary, history.losses.entries),
            "command": shlex.join(["python", "train.py", *(run.arguments or ())]),
            "exact_command": shlex.join(
                ["python", "train.py", *map(public, with_folders(repeating(config)))]
            ),
            "config": public(to_yaml(config)),
        }
        tokens = passage(text, config.model.context + 1)
        write_text(path, page(about, summary, history, model, tokens, text.tokenizer))
    except Exception as error:
        log.info(f"report     could not be written: {type(error).__name__}: {one_line(error)}")
        return None
    return path


def summarize(module: LitGPT, status: str, step: int, history: History, **results: Any) -> Summary:
    """Return the summary of a run after `step` steps; `results` are the fields about its evaluated models."""
    config = module.config
    text = module.text
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
        device=module.machine.device,
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
def recording(run: Run, module: LitGPT) -> Iterator[None]:
    """Context manager for training and evaluation that writes summary.json if an error or a signal ends them.

    After a signal, it also writes the model file of the last checkpoint.
    """
    last = run.checkpoints / "last.ckpt"
    try:
        yield
    except BaseException as error:
        if ranks.rank() == 0:
            status = {Stopped: "interrupted", Diverged: "diverged"}.get(type(error), "failed")
            if run.summary.val_loss is None:  # otherwise `write_results` has written it
                summary = summarize(module, status, module.global_step, module.history)
                # What has ended the run is raised rather than a failure to write this.
                with suppress(OSError):
                    run.write_summary(summary)
            if status == "interrupted" and last.exists():
                write_model(run.model("last"), read_training_checkpoint(last))
        raise
