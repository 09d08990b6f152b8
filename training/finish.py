"""After training: exact losses on whole splits, a sample, report.html, the last lines."""

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from base import run_directory
from base.errors import one_line
from base.files import write_text
from base.progress import Progress
from conf.schema import Config, to_yaml
from reports.terminal import describe
from training.callbacks.samples import FINAL_SAMPLE_LENGTH, FINAL_SAMPLE_TEMPERATURE
from training.summary import hyperparameters, write_summary

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from data.text import Text
    from gpt.model import GPT
    from reports.terminal import Speaker
    from training.callbacks.pictures import Pictures


def finish(
    run: Path,
    config: Config,
    text: "Text",
    say: "Speaker",
    summary: dict[str, Any],
    pictures: "Pictures | None",
) -> float:
    """Evaluate the models on whole splits, write summary.json and report.html, and show a sample.

    Returns:
        The validation loss of the best checkpoint.
    """
    import torch

    from base.files import link
    from data.batches import EVALUATION_BATCH, evaluation_windows
    from data.passages import occurrences, prompt
    from gpt import model_file
    from gpt.checkpoint import build, read
    from gpt.evaluate import Score, evaluate, measured
    from gpt.inference.generate import generate
    from gpt.model import GPT
    from reports.projector import write_projector
    from reports.tensorboard import append, log_result
    from reports.terminal import describe_score, describe_training, farewell
    from training.machine import device_kind
    from training.summary import as_summary

    context, tokenizer = config.model.context, text.tokenizer
    device = device_kind(config.trainer.accelerator)
    characters = torch.from_numpy(tokenizer.characters_per_token)
    bytes = torch.from_numpy(tokenizer.bytes_per_token)

    def measure(model: GPT, split: str, which: str) -> Score:
        tokens = getattr(text, split)
        with Progress(f"evaluating the {which} checkpoint on {split}", len(tokens)) as progress:

            def windows() -> "Iterator[tuple[Any, Any, Any]]":
                for each in evaluation_windows(tokens, context, max(1, EVALUATION_BATCH // context)):
                    yield each
                    progress.update(each[0].numel())

            return evaluate(model, windows(), int(tokens[0]), characters, bytes)

    callbacks = read(run / "checkpoints/last.ckpt")["callbacks"]
    losses = [loss for _, loss in callbacks["Watch"]["history"]["losses"]["entries"]]
    scores: dict[int, tuple[Score, GPT]] = {}
    for name in ("last", "best"):
        path = run_directory.model_of(run, name)
        try:
            shape, weights, meta = model_file.read(path)
        except model_file.CheckpointError as error:
            if name == "last":
                raise
            say(f"passes over {error}")
            continue
        step = meta["step"]
        if step not in scores:
            model = build(shape, weights).to(device)
            score = measure(model, "validation", name)
            scores[step] = score, model
            whole = {"val_loss": score.loss, "evaluation": measured(score, context)}
            model_file.write(path, weights, meta | whole)
    last_step = max(scores)
    best_step = min(scores, key=lambda step: scores[step][0].loss)
    best, model = scores[best_step]
    if best_step == last_step:  # a subset of the split may have preferred an earlier one
        link(run_directory.model_of(run, "last"), run_directory.model_of(run, "best"))
    test = measure(model, "test", "best") if len(text.test) else None

    say("")
    say(describe_score("validation", best, context, f"best checkpoint, step {best_step}"))
    if last_step != best_step:
        say(describe_score("", scores[last_step][0], context, f"last checkpoint, step {last_step}"))
    if test:
        say(describe_score("test", test, context, f"best checkpoint, step {best_step}"))
    for line in describe_training(losses, summary["characters_per_second"]):
        say(line)
    if "tensorboard" in config.logger:
        write_projector(run, model.embedding.weight, tokenizer.names, occurrences(text))
    summary |= {"status": "finished"} | as_summary(best, scores[last_step][0], test, best_step, context)
    begun = prompt(text)
    with Progress("writing a sample"):
        tokens = generate(model, begun, FINAL_SAMPLE_LENGTH, temperature=FINAL_SAMPLE_TEMPERATURE, seed=config.seed)[
            0
        ].numpy()
    going_on = tokenizer.decode(tokens[len(begun) :])
    sample = [FINAL_SAMPLE_TEMPERATURE, tokenizer.decode(begun.numpy()), going_on]
    reported = write_report(run, config, text, say, summary, callbacks, model, sample)
    if pictures:
        with Progress("drawing the last pictures"):
            pictures.finish(partial(append, run))
    results = {"best/val_loss": best.loss, "best/val_bpc": best.bpc} | ({"best/test_loss": test.loss} if test else {})
    log_result(run, hyperparameters(config), summary["steps"], results)
    write_summary(run, summary)  # last: a run that is stopped before is finished when it goes on
    farewell(say, run, going_on.strip("\n"), "tensorboard" in config.logger, reported)
    return best.loss


def write_report(
    run: Path,
    config: Config,
    text: "Text",
    say: "Speaker",
    summary: dict[str, Any],
    callbacks: "Mapping[str, Any]",
    model: "GPT",
    sample: list[Any],
) -> Path | None:
    """Write report.html; where that fails, the run has finished all the same, and it is said why.

    A run that goes on keeps the report of its former end until the next.

    Returns:
        The file, None where there is none.
    """
    import torch

    from conf.defaults import differences, overrides
    from data.passages import passage
    from reports.run_page import page
    from training.errors import Stopped

    path, tokenizer = run / "report.html", text.tokenizer
    try:
        about = {
            "name": run_directory.name_of(run),
            "text": f"{text.name}: {describe(text)}",
            "sample": sample,
            "differences": differences(config),
            "command": shlex.join(["python", "train.py", *overrides(config)]),
            "config": to_yaml(config),
        }
        tokens = passage(text, config.model.context + 1)
        starts = torch.from_numpy(tokenizer.characters_per_token)
        write_text(path, page(about, summary, callbacks, model, tokens, tokenizer.names, starts, tokenizer.decode))
    except Stopped:
        raise
    except Exception as error:
        say(f"report     could not be made: {type(error).__name__}: {one_line(error)}")
        return None
    return path
