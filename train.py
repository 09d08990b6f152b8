"""Train a character-level GPT: config -> data -> model -> Trainer.

`python train.py` trains a small model on the source code of Python's standard library;
`python train.py --help` lists what can be changed.
"""

import io
import json
import logging
import math
import os
import sys
import tempfile
import time
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conf.fields import shown
from conf.overrides import (
    apply_literals,
    check_overrides,
    leaves,
    merge_resumed,
    presets,
    split_literals,
    typed_keys,
    usage,
)
from conf.schema import Config, from_yaml, to_dict, to_yaml
from gpt import runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from data.arrays import Text
    from gpt.config import ModelConfig
    from gpt.fit.module import LitGPT
    from gpt.fit.report import Speaker

STARTED = time.perf_counter() - time.process_time()  # of this process, which is where `minutes` counts from
SAMPLE_LENGTH = 500
SAMPLE_TEMPERATURE = 0.6
PROMPT_LENGTH = 200  # tokens at most


def cli() -> int:
    """Run from the command line; what a person typed wrong is answered in one line with exit status 2."""
    try:
        return run_typed(sys.argv[1:])
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130


def run_typed(arguments: list[str]) -> int:
    """Run what was typed: one configuration, or with `-m` several, one after the other.

    Args:
        arguments: overrides and flags.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a character is no reason to stop
    if {"-h", "--help"} & set(arguments):
        print(usage())
        return 0
    # Hydra then raises what went wrong instead of printing it.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    flags = [argument for argument in arguments if argument.startswith("-")]
    rest, literals = split_literals([argument for argument in arguments if not argument.startswith("-")])
    try:
        check_overrides(rest, literals, sweep=bool({"-m", "--multirun"} & set(flags)))
    except ValueError as error:
        return refuse(error)

    import hydra
    from hydra.core.config_store import ConfigStore
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    ConfigStore.instance().store("schema", node=Config)

    trials: list[tuple[DictConfig, list[str]]] = []

    @hydra.main(version_base="1.3", config_path="conf", config_name="train")
    def compose(composed: DictConfig) -> None:
        trials.append((composed, list(HydraConfig.get().overrides.task)))

    try:
        with tempfile.TemporaryDirectory() as folder:  # where Hydra leaves a file of its own for a sweep
            sys.argv[1:] = [*flags, *rest, f"hydra.sweep.dir='{folder}'"]
            compose()
        sys.argv[1:] = arguments  # Lightning starts its other processes with the command as it was typed
        # Every combination is checked before the first one runs.
        typed = [
            (apply_literals(OmegaConf.to_object(composed), literals), typed_keys(overrides, literals))  # type: ignore[arg-type]
            for composed, overrides in trials
        ]
        if len(typed) > 1 and literals.get("name") is not None:
            raise ConfigError(f"name={literals['name']}: several runs cannot share a name; leave it out with -m")
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        return refuse(error)
    status = 0
    started = STARTED
    for config, keys in typed:
        status = max(status, run_trial(config, keys, started))
        started = time.perf_counter()
        if status >= 128:  # stopped by a signal, which means all of them
            break
    return status


def run_trial(typed: Config, keys: list[str], started: float) -> int:
    """Run one configuration and turn how it ended into an exit status."""
    try:
        main(typed, keys, started)
    except (ConfigError, runs.RunError) as error:
        return refuse(error)
    except Exception as error:
        status = explain(error)
        if status is None:
            raise
        return status
    finally:
        runs.forget_name()
    return 0


class ConfigError(ValueError):
    """A configuration that cannot be run, in one line."""


def refuse(error: Exception) -> int:
    """Answer wrong input in one line."""
    print(f"train.py: {' '.join(str(error).split())}", file=sys.stderr)
    return 2


def explain(error: Exception) -> int | None:
    """Answer what comes up later than the configuration; None for a failure of our own."""
    from data.corpus import DataError

    if isinstance(error, DataError):
        return refuse(error)
    if isinstance(error, OSError):
        print(f"train.py: {error}", file=sys.stderr)
        return 1
    if "lightning" not in sys.modules:
        return None
    from gpt.checkpoint import CheckpointError
    from gpt.fit.durability import Stopped
    from gpt.fit.module import Diverged

    if isinstance(error, CheckpointError):
        return refuse(error)
    if isinstance(error, Diverged):
        print(f"train.py: {error}", file=sys.stderr)
        return 1
    return 128 + error.number if isinstance(error, Stopped) else None


def resolve(typed: Config, keys: list[str]) -> tuple[Config, Path | None]:
    """Settle the configuration before anything heavy is loaded.

    Args:
        typed: the configuration as typed.
        keys: the keys that were typed.

    Returns:
        The configuration to run and the run directory to go on in, None for a fresh run.
    """
    if typed.resume is None:
        if typed.name is not None and runs.rank() == 0:
            runs.check_free(typed.name)
        return typed, None
    run = runs.to_resume(typed.resume, typed.name)
    if run is None:
        return typed, None
    try:
        return merge_resumed(from_yaml((run / "config.yaml").read_text("utf-8")), typed, keys), run
    except ValueError as error:
        raise ConfigError(str(error)) from None


def main(typed: Config, keys: list[str], started: float) -> float | None:
    """Train, evaluate and report one run.

    Args:
        typed: the configuration as typed.
        keys: the keys that were typed, which matter when a run is resumed.
        started: when this run began, on the clock of `time.perf_counter`.

    Returns:
        The validation loss of the best checkpoint in nats per token, over the whole split; None on
        processes other than the first.
    """
    fresh, allow = typed.resume is None, typed.allow
    config, resumed = resolve(typed, keys)
    first_process = runs.rank() == 0
    name = resumed.resolve().name if resumed else config.name or runs.new_name()
    run = resumed or runs.RUNS / name
    if config.resume == "auto" and first_process:
        print(f"resume: going on in {run}" if resumed else f"resume: {run} has nothing to go on from, starting afresh")

    from data.arrays import open_text
    from data.corpus import cache_dir

    # What is compiled once serves later runs; torch reads this later.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_dir(config.data).absolute() / "compiled"))
    # Inductor need not try out vector extensions that every compiler knows which can build for torch; what goes beyond
    # (AMX, VNNI, bf16) it still does. Trying everything in every process takes a good second.
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
    text = open_text(config.data, config.model.context)

    import lightning as L
    import torch
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    from data.datamodule import VALIDATION_CHARACTERS, TextDataModule
    from gpt.fit.automatic import choose_compile, choose_precision, device_kind, expected_seconds, keep_freed_memory
    from gpt.fit.callbacks import Samples, Watch
    from gpt.fit.durability import AtomicCheckpointIO, Checkpoints, Stopped, StopSignals
    from gpt.fit.module import LitGPT
    from gpt.fit.report import Speaker, python, versions

    quieten_lightning()
    try:
        device = device_kind(config.trainer.accelerator)
        precision, why_precision = choose_precision(config.trainer.precision, device)
        if device == "cpu" and isinstance(config.trainer.devices, list):
            raise ValueError(
                f"trainer.devices={shown(config.trainer.devices)}: numbers are for GPUs; a CPU takes how many"
            )
        seconds = 60 * config.minutes if config.minutes else expected_seconds(flops(config, text))
        compiled, why_compiled = choose_compile(config.compile, device, seconds)
    except ValueError as error:
        raise ConfigError(error) from None
    config.trainer.precision, config.compile = precision, str(compiled).lower()
    config.name, config.resume, config.allow = name, None, []
    step = step_to_go_on_from(run, text, config, allow) if resumed else 0
    if step is None:
        done = runs.summary_of(run)
        if done.get("val_loss") is None and first_process:  # stopped while the trained model was evaluated
            return finish(run, config, text, Speaker(run / "train.log"), done)
        return done.get("val_loss")

    tokenizer = text.tokenizer

    def make_module() -> LitGPT:
        return LitGPT(
            config.model,
            config.optim,
            vocabulary=tokenizer.vocabulary,
            characters=torch.from_numpy(tokenizer.characters_per_token),
            bytes=torch.from_numpy(tokenizer.bytes_per_token),
            data={"name": text.name, "fingerprint": text.fingerprint} | to_dict(config)["data"],
            max_steps=config.trainer.max_steps,
            micro_batch=config.data.micro_batch,
            seed=config.seed,
            compile=compiled,
        )

    keep_freed_memory()
    settled = ""
    if config.minutes is not None and not resumed:
        try:
            with naming_what_takes_memory(config, tokenizer.size, devices=1):
                settled = turn_dial(config, keys, text, device, make_module, started)
        except Stopped as stop:
            print(f"{stop}; there is no run yet", file=sys.stderr)
            raise
    module = make_module()
    say = Speaker(run / "train.log" if first_process else None)
    checkpoints = Checkpoints(run / "checkpoints")
    watch = Watch(say, config.data.batch * config.model.context, warn=config.minutes is None)
    callbacks = [*make(config.callbacks), Samples(start_of(text), tokenizer.decode), checkpoints]
    try:
        trainer = L.Trainer(
            **{key: value for key, value in vars(config.trainer).items() if value is not None},
            callbacks=[*callbacks, watch, StopSignals(checkpoints)],
            logger=make(after(step, run, config.logger) if resumed else config.logger, save_dir=str(run)),
            plugins=[AtomicCheckpointIO()],
            max_epochs=-1,
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
    except (MisconfigurationException, ValueError) as error:
        raise ConfigError(f"trainer: {error}") from None
    rows_per_device(config, trainer.world_size)  # raises where the batch cannot be shared out

    if first_process:
        make_directory(run, fresh)
        runs.write_text(run / "config.yaml", to_yaml(config))
        for logger in trainer.loggers:
            logger.log_hyperparams(dict(leaves(to_dict(config))))
        shape = config.model
        say(f"text       {text.name}: {describe(text)}")
        say(
            f"model      {shape.layers} layers, {shape.heads} heads, {shape.dim} wide, context {shape.context}: "
            f"{module.net.num_parameters():,} parameters{f', dropout {shape.dropout:g}' if shape.dropout else ''}"
        )
        say(
            f"machine    {device}, {precision} ({why_precision}), "
            f"{'compiled' if compiled else 'not compiled'} ({why_compiled})"
        )
        part = min(VALIDATION_CHARACTERS, len(text.validation))
        which = "the whole split" if part == len(text.validation) else f"{part:,} evenly spaced characters of the split"
        say(f"validation {which}, disjoint windows of {shape.context}; the whole split again at the end")
        if settled:
            say(settled)
        say(f"run        {run}: {config.trainer.max_steps} steps of {config.data.batch} windows, seed {config.seed}")

    summary: dict[str, Any] = {"status": "failed"}
    try:
        datamodule = TextDataModule(text, config.data, config.model.context, config.seed)
        checkpoint = runs.checkpoint_of(run) if resumed else None
        with naming_what_takes_memory(config, tokenizer.size, trainer.world_size):
            trainer.fit(module, datamodule, ckpt_path=checkpoint, weights_only=True)
        summary["status"] = "interrupted"  # until it has been evaluated, too
    except Stopped as stop:
        summary["status"] = "interrupted"
        say(f"{stop}; nothing is lost: {python()} train.py resume={run}")
        raise
    finally:
        summary |= {
            "steps": trainer.global_step,
            "characters": trainer.global_step * watch.characters_per_step,
            "seconds": watch.seconds,
            "characters_per_second": watch.characters_per_second(),
            "parameters": module.net.num_parameters(),
            "precision": precision,
            "device": device,
            "seed": config.seed,
            "versions": versions(),
        }
        if first_process:
            write_summary(run, summary)
    return finish(run, config, text, say, summary) if first_process else None


@contextmanager
def naming_what_takes_memory(config: Config, vocabulary: int, devices: int) -> "Iterator[None]":
    """Answer memory that runs out with the key to lower, as a `ConfigError`.

    Args:
        config: the configuration, as it is when that happens.
        vocabulary: number of tokens.
        devices: how many share the batch.
    """
    from gpt.fit.report import is_out_of_memory, out_of_memory

    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigError(out_of_memory(config.model, vocabulary, rows_per_device(config, devices))) from error


def flops(config: Config, text: "Text") -> float:
    """Floating-point operations of all steps of a run."""
    import torch

    from gpt.model import GPT

    with torch.device("meta"):
        per_token = GPT(config.model, text.tokenizer.size).flops_per_token()
    return per_token * float(config.trainer.max_steps) * config.data.batch * config.model.context


def turn_dial(
    config: Config, keys: list[str], text: "Text", device: str, make_module: "Callable[[], LitGPT]", started: float
) -> str:
    """Settle what `minutes` leaves open, in `config`: the preset, the batch, the steps, how often to validate.

    Args:
        config: the configuration; what was typed stays.
        keys: the keys that were typed.
        text: the encoded text.
        device: the kind of device.
        make_module: makes a model as `config` has it.
        started: when the time began, on the clock of `time.perf_counter`.

    Returns:
        A line that says what was settled and from what.

    Raises:
        ConfigError: there is more than one device, or no time for a step.
    """
    import torch

    from data.datamodule import VALIDATION_CHARACTERS, TextDataModule
    from gpt.fit.callbacks import SAMPLE_LENGTH as SAMPLED_PER_VALIDATION
    from gpt.fit.dial import DOUBLED_FROM, EVALUATED, Cost, Plan, Work, measure, plan

    minutes, devices = config.minutes, config.trainer.devices
    assert minutes is not None
    if devices == "auto":
        devices = torch.cuda.device_count() if device == "cuda" else 1
    count = len(devices) if isinstance(devices, list) else devices
    if count * config.trainer.num_nodes * int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(f"minutes={minutes:g}: is for one device; trainer.devices=1, or trainer.max_steps=N")

    def measured(model: "ModelConfig") -> Cost:
        config.model = model
        data = TextDataModule(text, config.data, model.context, config.seed)
        where = {key: getattr(config.trainer, key) for key in ("accelerator", "devices", "precision")}
        some = torch.from_numpy(text.train[: max(EVALUATED, model.context)].astype("int64"))
        return measure(make_module(), data, some, **where)

    def left() -> float:
        return started + 60 * minutes - time.perf_counter()

    work = Work(
        validated=min(VALIDATION_CHARACTERS, len(text.validation)),
        finally_evaluated=len(text.validation) + len(text.test),
        sampled_per_validation=SAMPLED_PER_VALIDATION if config.logger else 0,
        finally_sampled=SAMPLE_LENGTH,
    )
    first = ", after compiling them (about 20 seconds the first time)" if config.compile == "true" else ""
    print(f"minutes={minutes:g}: timing a few steps on this machine{first}", flush=True)

    def settle(choices: "list[ModelConfig]") -> Plan:
        return plan(
            left,
            choices,
            measured,
            work,
            lambda model: config.data.batch * model.context,
            text.tokenizer.size,
            len(text.train),
            config.trainer.val_check_interval if "trainer.val_check_interval" in keys else None,
        )

    settled = settle([config.model] if any(key.startswith("model.") for key in keys) else presets())
    if settled.steps >= DOUBLED_FROM and "data.batch" not in keys:
        config.data.batch *= 2
        settled = settle([settled.model])
    config.model = settled.model
    if settled.steps < 1:
        # In hundredths, rounded up; a machine that is busier next time may still refuse it.
        needed = math.ceil((60 * minutes - left() + work.seconds(settled.cost, 1)) / 0.6 + 1) / 100
        raise ConfigError(f"minutes={minutes:g}: is gone before the first step, must be above {needed:g}")
    config.trainer.max_steps = settled.steps
    if "trainer.val_check_interval" not in keys:
        config.trainer.val_check_interval = -(-settled.steps // settled.validations)
    return f"minutes    {minutes:g}: settled before the first step, for {1000 * settled.cost.step:.3g} ms a step"


def quieten_lightning() -> None:
    """Leave out what Lightning tells everyone; its warnings stay, but for those that do not hold here."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # Lightning 2.6.6 on torch 2.13; nothing that can be done here.
    warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated")
    # Batches are gathered in one go: worker processes would slow them down.
    warnings.filterwarnings("ignore", r"The '\w+' does not have many workers", module="lightning")
    warnings.filterwarnings("ignore", r"Your `IterableDataset` has `__len__` defined", module="lightning")
    # Our checkpoint is resumed exactly because batch k is a function of (seed, k), not of the loader's state.
    warnings.filterwarnings(
        "ignore", r"You're resuming from a checkpoint that ended before the epoch", module="lightning"
    )


def step_to_go_on_from(run: Path, text: "Text", config: Config, allow: list[str]) -> int | None:
    """The step of a run's checkpoint, None when it has none left; refuses a text that is not the one it was trained on.

    Raises:
        CheckpointError: the checkpoint is damaged, or the text has changed.
    """
    from gpt.checkpoint import CheckpointError, read

    saved = read(runs.checkpoint_of(run))
    if saved["vocabulary"] != text.tokenizer.vocabulary:
        raise CheckpointError(f"data.path: the text has other characters than the one that {run} was trained on")
    if saved["data"]["fingerprint"] != text.fingerprint and "data.path" not in allow:
        raise CheckpointError(
            f"data.path: the text is not the one that {run} was trained on ({saved['data']['name']}); "
            "allow=[data.path] goes on all the same"
        )
    if saved["global_step"] < config.trainer.max_steps:
        return saved["global_step"]
    print(f"{run} is finished: step {saved['global_step']} of {config.trainer.max_steps}; trainer.max_steps=N goes on")
    return None


def after(step: int, run: Path, loggers: dict[str, Any]) -> dict[str, Any]:
    """Have TensorBoard's files go on after `step`: what a killed process logged beyond it does not count."""
    newest = max((int(path.name.split(".")[3]) for path in run.glob("events.out.tfevents.*")), default=0)
    time.sleep(max(0.0, min(newest + 1 - time.time(), 1.0)))  # files are read in the order of their second
    return {
        name: entry | ({"purge_step": step + 1} if entry["_target_"].endswith(".TensorBoardLogger") else {})
        for name, entry in loggers.items()
    }


def make(entries: dict[str, Any], **arguments: Any) -> list[Any]:
    """Make Lightning's own callbacks or loggers from their `_target_` and arguments.

    Raises:
        ConfigError: the class or a package it needs is missing, or an argument is wrong.
    """
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate

    try:
        return [instantiate(entry, **arguments) for entry in entries.values()]
    except (InstantiationException, ModuleNotFoundError, TypeError) as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        extra = "; pip install -e .[wandb]" if "wandb" in reason else ""
        raise ConfigError(f"{', '.join(entries)}: cannot be made: {reason}{extra}") from None


def start_of(text: "Text") -> Any:
    """A prompt for samples, which go on from it: whole lines in the middle of the validation text, (T0,) int64."""
    import torch

    middle = len(text.validation) // 2
    passage = text.validation[middle : middle + PROMPT_LENGTH]
    breaks = [place for place in range(len(passage)) if text.tokenizer.decode(passage[place : place + 1]) == "\n"]
    if len(breaks) > 1:
        passage = passage[breaks[0] + 1 : breaks[-1] + 1]
    return torch.from_numpy(passage.astype("int64"))


def rows_per_device(config: Config, devices: int) -> int:
    """Windows per forward and backward on one device.

    Raises:
        ConfigError: the batch cannot be shared out evenly.
    """
    batch, micro_batch = config.data.batch, config.data.micro_batch
    if batch % devices or batch // devices % (micro_batch or 1):
        parts = f"{devices} devices" + (f" x data.micro_batch={micro_batch}" if micro_batch else "")
        raise ConfigError(f"data.batch={batch}: must be a multiple of {parts}")
    return micro_batch or batch // devices


def make_directory(run: Path, fresh: bool) -> None:
    """Make the run's directory; of two processes that want the same name, one gets it."""
    try:
        run.mkdir(parents=True, exist_ok=not fresh)
    except FileExistsError:
        runs.check_free(run.name)
    (run / "checkpoints").mkdir(exist_ok=True)


def describe(text: "Text") -> str:
    """Sizes of the splits in one line."""
    sizes = [f"{len(getattr(text, split)):,} {split}" for split in ("train", "validation", "test")]
    unit = "characters" if text.tokenizer.vocabulary["kind"] == "char" else "bytes"
    return f"{', '.join(sizes)} {unit}, {text.tokenizer.size} distinct"


def write_summary(run: Path, summary: dict[str, Any]) -> None:
    """Write summary.json; what does not apply is null."""
    keys = (
        "status val_loss val_bpc val_bpb best_step last_val_loss test_loss test_bpc evaluation steps characters "
        "seconds characters_per_second parameters precision device seed versions"
    ).split()
    runs.write_text(run / "summary.json", json.dumps({key: summary.get(key) for key in keys}, indent=2) + "\n")


def finish(run: Path, config: Config, text: "Text", say: "Speaker", summary: dict[str, Any]) -> float:
    """Evaluate the checkpoints on whole splits, write summary.json, and show a sample.

    Returns:
        The validation loss of the best checkpoint.
    """
    import torch

    from data.batches import evaluation_windows
    from data.datamodule import EVALUATION_BATCH
    from gpt.checkpoint import link, load_checkpoint
    from gpt.evaluate import Score, evaluate
    from gpt.fit.automatic import device_kind
    from gpt.fit.report import as_summary, describe_score, farewell
    from gpt.generate import generate
    from gpt.model import GPT

    context, tokenizer = config.model.context, text.tokenizer
    device = device_kind(config.trainer.accelerator)
    characters = torch.from_numpy(tokenizer.characters_per_token)
    bytes = torch.from_numpy(tokenizer.bytes_per_token)

    def measure(model: GPT, tokens: Any) -> Score:
        windows = evaluation_windows(tokens, context, max(1, EVALUATION_BATCH // context))
        return evaluate(model, windows, int(tokens[0]), characters, bytes)

    scores = {}
    for name in ("last", "best"):
        model, meta = load_checkpoint(runs.checkpoint_of(run, name))
        step = meta["global_step"]
        if step not in scores:
            scores[step] = (measure(model.to(device), text.validation), model)
    last_step = max(scores)
    best_step = min(scores, key=lambda step: scores[step][0].loss)
    best, model = scores[best_step]
    if best_step == last_step:  # a subset of the split may have preferred an earlier one
        link(runs.checkpoint_of(run, "last"), runs.checkpoint_of(run, "best"))
    test = measure(model, text.test) if len(text.test) else None

    say("")
    say(describe_score("validation", best, context, f"best checkpoint, step {best_step}"))
    if last_step != best_step:
        say(describe_score("", scores[last_step][0], context, f"last checkpoint, step {last_step}"))
    if test:
        say(describe_score("test", test, context, f"best checkpoint, step {best_step}"))
    write_summary(
        run, summary | {"status": "finished"} | as_summary(best, scores[last_step][0], test, best_step, context)
    )
    prompt = start_of(text)
    sample = generate(model, prompt, SAMPLE_LENGTH, temperature=SAMPLE_TEMPERATURE, seed=config.seed)
    farewell(say, run, tokenizer.decode(sample[0, len(prompt) :].numpy()).strip("\n"))
    return best.loss


if __name__ == "__main__":
    sys.exit(cli())
