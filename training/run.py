"""Train one run: settle its configuration, assemble its parts, fit, finish."""

import os
import sys
import threading
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from base import processes, run_directory
from base.errors import InputError, one_line, printable
from base.files import write_text
from base.progress import Progress
from conf.keys import leaves
from conf.plugins import make
from conf.resume import check_unchanged, merge_started
from conf.schema import Config, to_dict, to_yaml
from reports.picture_data import what_is_shown
from reports.terminal import describe_start, introduce
from training.budget import turn_dial
from training.devices import share_out
from training.errors import RunFailed
from training.finish import finish
from training.init_from import InitModel, load_start
from training.machine import Runtime, choose, conditions
from training.outcome import naming_what_takes_memory, way_on
from training.prepare_directory import clean_up, make_directory
from training.quiet_lightning import hide_failed_writes, quieten_lightning
from training.resume import ResumePoint, find_point, resolve
from training.study import judge
from training.summary import as_trained, write_summary

if TYPE_CHECKING:
    from data.text import Text


def main(typed: Config, keys: list[str], started: float) -> float | None:
    """Train, evaluate and report one run.

    Returns:
        The validation loss of the best checkpoint in nats per token, over the whole split; None on
        processes other than the first.
    """
    config, resumed = resolve(typed, keys)
    share_out(config, keys)
    resume, allow, first_process = config.resume, config.allow, processes.rank() == 0
    name = run_directory.name_of(resumed) if resumed else config.name or run_directory.new_name(to_yaml(config))
    run = resumed or run_directory.RUNS / name
    if resume == "auto" and first_process:
        what = f"going on in {run}" if resumed else f"{run} has nothing to go on from, starting afresh"
        print(f"resume: {printable(what)}")

    from data.corpus import DataError
    from data.downloads import cache_dir
    from data.open_text import open_text

    # What is compiled once serves later runs; torch reads this later.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_dir(config.data).absolute() / "compiled"))
    # Inductor need not try out vector extensions that every compiler knows which can build for torch; what goes beyond
    # (AMX, VNNI, bf16) it still does. Trying everything in every process takes a good second.
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
    with Progress("loading the model to start from"):
        start = load_start(config.init_from) if config.init_from is not None and not resumed else None
    if start:
        try:
            config = merge_started(config, keys, vars(start.model.config), start.meta["vocabulary"]["kind"])
        except ValueError as error:
            raise InputError(str(error)) from None
    with Progress("checking checkpoints"):
        point = find_point(run, str(resume)) if resumed else None
    before = point.contents["conditions"] if point else {}
    if config.compile == before.get("compile_asked") and "compile" not in allow:  # failed, see `LitGPT._fall_back`
        config.compile = before["compile"]
    try:
        known = point.contents["data"].get("known", "") if point else start.characters if start else ""
        as_before = resumed is not None and "text" not in allow
        text = open_text(config.data, config.model.context, known=str(known), as_before=as_before)
    except DataError as error:
        if resumed is None or "data.path" in keys:
            raise
        raise DataError(f"{error} (as {run / 'config.yaml'} has it; data.path= says where the text is now)") from None
    with Progress("loading PyTorch"):
        choices = choose(config, text)
    config.name, config.resume, config.allow = name, None, []
    if point and first_process:  # the other processes start after it, or are ended with it
        try:
            differing = check_unchanged(before, conditions(config, text, choices), allow)
        except ValueError as error:
            raise InputError(str(error)) from None
        if differing:
            print(f"resume: goes on with {differing}: no longer bit for bit the run it would have been")
        clean_up(run, point)
    if point and (point.step >= config.trainer.max_steps or point.ended_by(config.callbacks)):
        way = "trainer.max_steps=N" if point.step >= config.trainer.max_steps else "callbacks=[] allow=[callbacks]"
        print(f"{run} is finished: step {point.step} of {config.trainer.max_steps}; {way} goes on")
        done = run_directory.summary_of(run)
        if done.get("val_loss") is None and first_process:  # stopped while the trained model was evaluated
            from reports.terminal import Speaker

            trained = as_trained(config, text, choices, point.step, point.contents["callbacks"]["Watch"])
            if point.pruned:
                write_summary(run, trained | {"status": "pruned"})
                return None
            return finish(run, config, text, Speaker(run / "train.log"), trained, None)
        return done.get("val_loss")
    return fit(run, config, keys, text, choices, start, point, fresh=resume is None, started=started)


def fit(
    run: Path,
    config: Config,
    keys: list[str],
    text: "Text",
    choices: Runtime,
    start: InitModel | None,
    point: ResumePoint | None,
    *,
    fresh: bool,
    started: float,
) -> float | None:
    """Train a run to its end, and evaluate it.

    Returns:
        As `main` does.
    """
    with Progress("loading Lightning"):
        import lightning as L
        import torch
        from lightning.fabric.utilities.exceptions import MisconfigurationException

    from data.batches import VALIDATION_CHARACTERS
    from data.datamodule import TextDataModule
    from data.passages import prompts
    from gpt.checkpoint import CheckpointError
    from gpt.transfer import init_from
    from reports.tensorboard import append, cut_events
    from reports.terminal import Speaker
    from training.callbacks.checkpoints import Checkpoints
    from training.callbacks.metrics import Watch
    from training.callbacks.pictures import Pictures
    from training.callbacks.prune import Prune
    from training.callbacks.same_start import SameStart
    from training.callbacks.samples import Samples
    from training.callbacks.stop_signals import StopSignals
    from training.callbacks.waiting import Waits
    from training.checkpoint_io import AtomicCheckpointIO
    from training.errors import Diverged, Stopped, is_lost_process
    from training.machine import choose_recorder, keep_freed_memory
    from training.module import LitGPT
    from training.profiler import StepProfiler, make_profiler
    from training.strategy import make_environment, make_strategy

    if processes.started_by_another_rank():
        processes.end_with(int(os.environ["CHARGPT_PARENT"]))
    else:
        processes.adopt()
    quieten_lightning()
    first_process = processes.rank() == 0
    tokenizer = text.tokenizer
    looked_into = config.trainer.profiler is not None or config.trainer.detect_anomaly
    before = point.contents["conditions"] if point else {}
    asked = {"compile_asked": before["compile_asked"]} if "compile_asked" in before else {}

    def fell_back(compile: str, line: str | None) -> None:
        config.compile = compile
        if line is None:
            write_text(run / "config.yaml", to_yaml(config)) if first_process else None
        elif say.log is None:  # while `minutes` are settled
            print(line, flush=True)
        else:
            say(line)

    def make_module() -> LitGPT:
        module = LitGPT(
            config.model,
            config.optim,
            vocabulary=tokenizer.vocabulary,
            characters=torch.from_numpy(tokenizer.characters_per_token),
            bytes=torch.from_numpy(tokenizer.bytes_per_token),
            data={"name": text.name, "fingerprint": text.fingerprint, "known": text.known} | to_dict(config)["data"],
            conditions=conditions(config, text, choices) | asked,
            max_steps=config.trainer.max_steps,
            micro_batch=config.data.micro_batch,
            seed=config.seed,
            compile=config.compile != "false",
            record=choose_recorder(config.compile, choices.devices, looked_into),
            fell_back=fell_back,
        )
        if start:
            places = tokenizer.encode(start.characters) if start.characters else range(tokenizer.size)
            init_from(module.net, start.model, torch.as_tensor(places))
        return module

    keep_freed_memory()
    checkpoints = Checkpoints(run / "checkpoints")
    stops = StopSignals(checkpoints)
    say = Speaker(None)
    pictures: Pictures | None = None
    thread_failed, threading.excepthook = threading.excepthook, hide_failed_writes
    try:
        notes = [describe_start(start, tokenizer.vocabulary)] if start else []
        if config.minutes is not None and not point:
            with naming_what_takes_memory(config, tokenizer.size, devices=1):
                notes.append(turn_dial(config, keys, text, choices, make_module, started))
        with naming_what_takes_memory(config, tokenizer.size, choices.devices):
            module = make_module()
        say = Speaker(run / "train.log" if first_process else None)
        same = SameStart(
            conditions(config, text, choices) | {"run": run.name, "step": point.step if point else 0},
            config.trainer.timeout,
        )
        waits = Waits(min(VALIDATION_CHARACTERS, len(text.validation)) // choices.devices)
        watch = Watch(
            say,
            config.data.batch * config.model.context,
            len(text.train) / text.characters["train"],
            warn=config.minutes is None,
        )
        prune = []
        if (number := os.environ.get("CHARGPT_TRIAL")) is not None:
            steps = config.trainer.val_check_interval, config.trainer.max_steps
            prune = [Prune(judge(run.parent, int(number), *steps))]
        elif point:  # a trial that someone goes on with by hand is no longer asked about
            point.contents["callbacks"].pop("Prune", None)
        samples = Samples(prompts(text), tokenizer.decode)
        pictures = Pictures(config.watch, what_is_shown(text, config.model.context), say)
        callbacks = [*make(config.callbacks), *prune, pictures, samples, checkpoints]
        profiler, profile = None, run / "trace.json"
        if config.trainer.profiler == "pytorch" and first_process:
            callbacks = [StepProfiler(profile, say), *callbacks]
        elif config.trainer.profiler and first_process:
            profiler, profile = make_profiler(config.trainer.profiler, run)
        if not fresh and first_process:
            cut_events(run, point.step if point else -1)
        arguments = vars(config.trainer) | {
            "strategy": make_strategy(config.trainer.strategy, choices.devices),
            "profiler": profiler,
        }
        try:
            trainer = L.Trainer(
                **{key: value for key, value in arguments.items() if key != "timeout"},
                callbacks=[waits, same, watch, *callbacks, stops],
                logger=make(config.logger, save_dir=str(run)),
                plugins=[AtomicCheckpointIO(point.contents if point else None), make_environment()],
                max_epochs=-1,
                check_val_every_n_epoch=None,
                inference_mode=False,  # what FSDP gathers in a validation serves training, too
                num_sanity_val_steps=-1 if start else 0,  # all of them: how good it is before the first step
                use_distributed_sampler=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
        except (MisconfigurationException, ValueError) as error:
            raise InputError(f"trainer: {error}") from None

        if first_process:
            make_directory(run, fresh)
            write_text(run / "config.yaml", to_yaml(config))
            write_summary(run, {"status": "running"})
            for logger in trainer.loggers:
                logger.log_hyperparams(dict(leaves(to_dict(config))))
            introduce(say, run, config, text, choices, module.net.num_parameters(), notes)

        summary: dict[str, Any] = {"status": "failed"}
        try:
            waits.show("waiting for the other processes" if choices.devices > 1 else "setting up")
            datamodule = TextDataModule(text, config.data, config.model.context, config.seed)
            with naming_what_takes_memory(config, tokenizer.size, choices.devices):
                trainer.fit(module, datamodule, ckpt_path=point.path if point else None, weights_only=True)
        except Stopped:
            summary["status"] = "interrupted"
            raise
        except Diverged:
            summary["status"] = "diverged"
            raise
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            if stops.received:  # torch gives what is raised while it copies weights another name
                summary["status"] = "interrupted"
                raise Stopped(stops.received) from None
            elsewhere = isinstance(error, InputError) or is_lost_process(error)
            if point is None or watch.first is not None or elsewhere:
                raise
            reason = f"{type(error).__name__}: {one_line(error)}"[:200]
            raise CheckpointError(f"{point.path}: does not fit this run ({reason})") from error
        else:
            # Until it has been evaluated; what a search gives up is not.
            summary["status"] = "pruned" if any(each.pruned for each in prune) else "interrupted"
        finally:
            waits.end()
            summary |= as_trained(config, text, choices, trainer.global_step, watch.state_dict())
            # Where this cannot be written, what has ended the run is the error to tell.
            with suppress(OSError) if summary["status"] == "failed" else nullcontext():
                if first_process:
                    write_summary(run, summary)
        if stops.received:  # in the last validation, which has saved
            raise Stopped(stops.received, trainer.global_step)
        if summary["status"] == "pruned":
            say(f"pruned after step {trainer.global_step}: other trials of the search were better by then")
            pictures.finish(partial(append, run))
            return None
        if not first_process:
            return None
        loss = finish(run, config, text, say, summary, pictures)
        if config.trainer.profiler:
            say(f"profile    {profile}")
        return loss
    except Stopped as stop:
        say(f"{stop}; {way_on(run, config)}")
        if say.log is None and first_process:
            print(f"{stop}; there is no run yet", file=sys.stderr)
        raise
    except Diverged as error:
        say(f"{error}; {way_on(run, config)}")
        raise Diverged(f"{error}; {way_on(run, config)}") from None
    except RuntimeError as error:
        if not is_lost_process(error):
            raise
        raise RunFailed(f"another process of this run has died or is silent; {way_on(run, config)}") from error
    finally:
        if pictures:
            pictures.end()
        stops.give_back()
        threading.excepthook = thread_failed
