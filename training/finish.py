"""Finish a trained run: evaluate its models, write a sample, summary.json and report.html, log the results."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from base import processes, run_directory
from base.errors import InputError, one_line
from base.files import link, write_text
from base.log import log, to_file
from base.progress import Progress
from conf.defaults import differences, overrides
from conf.schema import to_yaml
from data.batches import EVALUATION_BATCH, evaluation_windows, num_validated
from data.passages import occurrences, passage, prompt
from gpt import model_file
from gpt.checkpoint import build, read
from gpt.evaluation import Score, evaluate, measured
from gpt.inference.generate import generate
from gpt.model import GPT
from reports.run_page import page
from reports.tensorboard import append, log_result, write_projector
from reports.terminal import describe, describe_score, describe_training, farewell
from training.assemble import Callbacks
from training.callbacks.pictures import Pictures
from training.callbacks.samples import FINAL_SAMPLE_LENGTH, FINAL_SAMPLE_TEMPERATURE
from training.endings import Stopped
from training.machine import device_kind
from training.module import LitGPT
from training.run_plan import RunPlan
from training.summary import Summary, hyperparameters, write_summary


class EvaluatedModel(NamedTuple):
    """A model of a run with its score on the validation split."""

    step: int
    score: Score
    model: GPT


def evaluate_split(plan: RunPlan, model: GPT, count: int, which: str) -> Score:
    """Evaluate a model on `count` tokens of the validation split, with progress for `which` of the checkpoints."""
    tokens, tokenizer, context = plan.text.validation, plan.text.tokenizer, plan.config.model.context
    with Progress(f"evaluating the {which} checkpoint", count) as progress:

        def windows() -> Iterator[tuple[Any, Any, Any]]:
            for each in evaluation_windows(tokens, context, max(1, EVALUATION_BATCH // context), most=count):
                yield each
                progress.update(each[0].numel())

        return evaluate(model, windows(), int(tokens[0]), tokenizer.token_sizes)


def evaluate_models(plan: RunPlan, steps: int, scored: Mapping[int, Score]) -> tuple[EvaluatedModel, EvaluatedModel]:
    """Evaluate the best and the last model on the validation split; write the scores into their files.

    Training has chosen the best model by a part of the split. On the whole split the last one may be better, and is
    then returned and stored as the best, too. A run that has trained on fewer tokens than the split holds evaluates a
    part of it. `scored` has the scores that the last validation has computed already, by step.
    """
    device, found = device_kind(plan.config.trainer.accelerator), dict[int, EvaluatedModel]()
    context, data = plan.config.model.context, plan.config.data
    count = num_validated(len(plan.text.validation), steps * data.batch * context, last=True, most=data.val_tokens)
    for name in ("last", "best"):
        path = run_directory.model_of(plan.directory, name)
        try:
            shape, weights, meta = model_file.read(path)
        except model_file.CheckpointError as error:
            if name == "last":
                raise
            log.info(f"evaluation skips {error}")
            continue
        step = meta["step"]
        if step not in found:
            model = build(shape, weights).to(device)
            score = scored.get(step) or evaluate_split(plan, model, count, name)
            found[step] = EvaluatedModel(step, score, model)
            if step not in scored:
                scores = {"val_loss": score.loss, "evaluation": measured(score, context)}
                model_file.write(path, weights, meta | scores)
    last = found[max(found)]
    best = min(found.values(), key=lambda each: each.score.loss)
    if best is last:
        link(run_directory.model_of(plan.directory, "last"), run_directory.model_of(plan.directory, "best"))
    return best, last


def conclude(plan: RunPlan, callbacks: Callbacks, summary: Summary, module: LitGPT) -> float | None:
    """Finish a run after training; raise `Stopped` if a signal came in the last validation.

    Return the validation loss of the best checkpoint; None on ranks other than 0 and for a pruned run.
    """
    if callbacks.stops.received:
        raise Stopped(callbacks.stops.received, summary.steps)
    if summary.status == "pruned":
        log.info(f"pruned after step {summary.steps}: other trials of the search were better by then")
        callbacks.pictures.finish(partial(append, plan.directory))
        return None
    if processes.rank():
        return None
    ended = module.score if module.scored_step >= plan.config.trainer.max_steps else None
    loss = finish(plan, summary, callbacks.pictures, {module.scored_step: ended} if ended else {})
    if plan.config.trainer.profiler:
        log.info(f"profile    {plan.directory / 'trace.json'}")
    return loss


def finish_again(plan: RunPlan) -> float | None:
    """Finish a resumed run that has no steps left; return what `conclude` returns."""
    run, point = plan.directory, plan.resume_point
    assert point
    steps = plan.config.trainer.max_steps
    if point.step > steps:
        raise InputError(
            f"trainer.max_steps={steps}: {run} has taken {point.step} steps; {point.step} finishes it there"
        )
    way = f"trainer.max_steps={2 * point.step}" if point.step >= steps else "callbacks=[] allow=[callbacks]"
    command = f"{processes.command('python')} train.py {shlex.quote(f'resume={run}')} {way}"
    log.info(f"{run} is finished: step {point.step} of {steps}; {command} continues it")
    loss = run_directory.summary_of(run).get("val_loss")
    if loss is not None or processes.rank():
        return loss
    summary = Summary("pruned" if point.pruned else "interrupted")
    summary.set_training(plan, point.step, point.metrics)
    if point.pruned:
        write_summary(run, summary)
        return None
    to_file(run / "train.log")
    write_text(run / "config.yaml", to_yaml(plan.config))
    return finish(plan, summary, None, {})  # the run was stopped during its evaluation


def finish(plan: RunPlan, summary: Summary, pictures: Pictures | None, scored: Mapping[int, Score]) -> float:
    """Evaluate the models, write all results and return the validation loss of the best checkpoint.

    `summary` has its fields about training already; `pictures` may still be rendering.
    """
    run, config, text = plan.directory, plan.config, plan.text
    callbacks = read(run / "checkpoints/last.ckpt")["callbacks"]
    best, last = evaluate_models(plan, summary.steps or 0, scored)
    describe_result(plan, best, last)
    losses = [loss for _, loss in callbacks["Watch"]["history"]["losses"]["entries"]]
    for line in describe_training(losses, summary.characters_per_second, text.tokenizer.unit):
        log.info(line)
    if "tensorboard" in config.logger:
        write_projector(run, best.model.embedding.weight, text.tokenizer.names, occurrences(text))
    summary.status = "finished"
    summary.set_scores(best.score, last.score, best.step, plan)
    sample = write_sample(plan, best.model)
    reported = write_report(plan, summary, callbacks, best.model, sample)
    if pictures:
        with Progress("drawing the last pictures"):
            pictures.finish(partial(append, run))
    results = {"best/val_loss": best.score.loss, "best/val_bpc": best.score.bpc}
    log_result(run, hyperparameters(config), summary.steps or 0, results)
    write_summary(run, summary)  # last: if the run is stopped before this, resuming finishes it
    farewell(run, sample[2].strip("\n"), "tensorboard" in config.logger, reported)
    return best.score.loss


def describe_result(plan: RunPlan, best: EvaluatedModel, last: EvaluatedModel) -> None:
    """Log the exact losses, and how to score the splits that were not evaluated."""
    text, context = plan.text, plan.config.model.context
    log.info("")
    log.info(describe_score("validation", best.score, text, context, f"best checkpoint, step {best.step}"))
    if last is not best:
        log.info(describe_score("", last.score, text, context, f"last checkpoint, step {last.step}"))
    command = f"{processes.command('python')} score.py {shlex.quote(str(plan.directory))} --split"
    if best.score.tokens < len(text.validation):
        log.info(f"           all of it: {command} validation")
    if len(text.test):
        log.info(f"test       {command} test")


def write_sample(plan: RunPlan, model: GPT) -> list[Any]:
    """Continue a prompt from the validation text; return [temperature, prompt, text]."""
    given, decode, config = prompt(plan.text), plan.text.tokenizer.decode, plan.config
    length = config.watch.sample_length or FINAL_SAMPLE_LENGTH
    with Progress("writing a sample"):
        tokens = generate(model, given, length, temperature=FINAL_SAMPLE_TEMPERATURE, seed=config.seed)[0].numpy()
    return [FINAL_SAMPLE_TEMPERATURE, decode(given.numpy()), decode(tokens[len(given) :])]


def write_report(
    plan: RunPlan, summary: Summary, callbacks: Mapping[str, Any], model: GPT, sample: list[Any]
) -> Path | None:
    """Write report.html and return its path; log an error and return None, because the run itself has succeeded."""
    config, text, path = plan.config, plan.text, plan.directory / "report.html"
    try:
        about = {
            "name": run_directory.name_of(plan.directory),
            "text": f"{text.name}: {describe(text)}",
            "sample": sample,
            "differences": differences(config),
            "command": shlex.join(["python", "train.py", *overrides(config)]),
            "config": to_yaml(config),
        }
        tokens = passage(text, config.model.context + 1)
        write_text(path, page(about, asdict(summary), callbacks, model, tokens, text.tokenizer))
    except Stopped:
        raise
    except Exception as error:
        log.info(f"report     could not be made: {type(error).__name__}: {one_line(error)}")
        return None
    return path
