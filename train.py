"""Train a character-level GPT: config -> data -> model -> Trainer.

`python train.py` trains a small model on the source code of Python's standard library;
`python train.py --help` lists what can be changed.
"""

import hashlib
import io
import json
import logging
import math
import os
import platform
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from contextlib import contextmanager, nullcontext, redirect_stderr, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from base.files import remove_unfinished, write_text
from conf.defaults import typed_again
from conf.fields import InputError, one_line, printable, shown
from conf.overrides import (
    CONF,
    HOW,
    apply_literals,
    check_flags,
    check_overrides,
    leaves,
    presets,
    split_literals,
    typed_keys,
    usage,
)
from conf.progress import Progress
from conf.resume import check_unchanged, merge_resumed, merge_started, read_config, settings, untrusted
from conf.schema import Config, SearchConfig, to_dict, to_yaml
from conf.search import check_study, judge, plan_search, run_search, take_search
from conf.sweep import (
    Outcome,
    Runner,
    Trial,
    check_sweep,
    has_finished,
    make_trial,
    run_sweep,
    run_trials,
    varied_keys,
)
from gpt import job, runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from data.arrays import Text
    from gpt.config import ModelConfig
    from gpt.fit.module import LitGPT
    from gpt.fit.pictures import Pictures, Shown
    from gpt.fit.report import Speaker
    from gpt.model import GPT

STARTED = time.perf_counter() - time.process_time()  # of this process, which is where `minutes` counts from
REFUSAL = 5.0  # seconds that rank 0 has to say first what is wrong
SAMPLE_LENGTH = 500
SAMPLE_TEMPERATURE = 0.6
COLOURED = 320  # tokens of the passage whose cost is drawn
LEARNED = 25  # nats that a window of a text known by heart costs, until it is clear where it stands: 11 to 16 were seen


def cli() -> int:
    """Run from the command line; what a person typed wrong is answered in one line with exit status 2."""
    if sweep := os.environ.pop("CHARGPT_SWEEP", None):  # whose trial this is
        job.end_with(int(sweep))
    if "SLURM_JOB_ID" in os.environ and hasattr(signal, "SIGUSR1"):
        signal.signal(signal.SIGUSR1, start_again)
    try:
        return run_typed(sys.argv[1:])
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130


def start_again(number: int, _: Any) -> None:
    """SLURM's time is up before there is anything to save: have the job start again."""
    if job.rank() == 0:
        job.requeue()
    os._exit(128 + number)


def run_typed(arguments: list[str]) -> int:
    """Run what was typed: one configuration, or with `-m` several, each in a process of its own."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a character is no reason to stop
    if {"-h", "--help"} & set(arguments):
        print(usage())
        return 0
    # Hydra then raises what went wrong instead of printing it.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    flags = [argument for argument in arguments if argument.startswith("-")]
    sweep = bool({"-m", "--multirun"} & set(flags))
    rest, literals = split_literals([argument for argument in arguments if not argument.startswith("-")])
    try:
        job.join()
        check_flags(flags)
        search, rest = take_search(rest)
        check_overrides(rest, literals, sweep, search=search is not None)
        if search:
            return begin_search(search, flags, rest, literals)
    except ValueError as error:
        return refuse(error)

    import hydra
    from hydra.core.config_store import ConfigStore
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    ConfigStore.instance().store("schema", node=Config)

    composed: list[tuple[DictConfig, list[str]]] = []

    @hydra.main(version_base="1.3", config_path="conf", config_name="train")
    def compose(config: DictConfig) -> None:
        composed.append((config, list(HydraConfig.get().overrides.task)))

    try:
        # Hydra leaves a file of its own for a sweep.
        with tempfile.TemporaryDirectory() if sweep else nullcontext() as folder:
            sys.argv[1:] = [*flags, *rest, *([f"hydra.sweep.dir='{folder}'"] if sweep else [])]
            with redirect_stderr(io.StringIO()):  # Hydra says what goes wrong in lines of its own, too
                compose()
        sys.argv[1:] = arguments  # Lightning starts its other processes with the command as it was typed
        typed = [
            Typed(apply_literals(OmegaConf.to_object(config), literals), typed_keys(given, literals), given)  # type: ignore[arg-type]
            for config, given in composed
        ]
        for key in ("workers", "launcher"):
            if not sweep and any(key in each.keys for each in typed):
                raise ConfigError(f"{key}: goes with -m, which makes several runs")
        planned = plan_sweep(rest, literals, typed) if sweep and typed else None
    except (HydraException, OmegaConfBaseException, InputError, ValueError) as error:
        return refuse(error)
    if planned:
        try:
            return run_sweep(*planned)
        except InputError as error:
            return refuse(error)
        except OSError as error:
            print(f"train.py: {one_line(error)}", file=sys.stderr)
            return 1
    return run_one(typed[0].config, typed[0].keys, STARTED) if typed else 0  # none where Hydra was to show it


def begin_search(config: SearchConfig, flags: list[str], rest: list[str], literals: dict[str, str | None]) -> int:
    """Check a search at both ends of its ranges before there is anything of it, and run it.

    Raises:
        ValueError: what is wrong, in one line.
    """
    import hydra
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    for flag in set(flags) - {"-m", "--multirun"}:
        raise ConfigError(f"{flag}: shows the settings of one run, and a search has many")
    search = plan_search(config, rest, literals)
    ConfigStore.instance().store("schema", node=Config)
    try:
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            composed = [hydra.compose("train", corner) for corner in search.corners()]
        ends = [apply_literals(OmegaConf.to_object(each), literals) for each in composed]  # type: ignore[arg-type]
        fingerprints = [check_world(end) for end in ends]
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(f"at one end of the ranges: {one_line(error)}") from None
    check_study(search, fingerprints[0])
    try:
        return run_search(search, fingerprints[0])
    except OSError as error:
        print(f"train.py: {one_line(error)}", file=sys.stderr)
        return 1


@dataclass(frozen=True)
class Typed:
    """What was typed, for one run.

    Attributes:
        config: the configuration that it makes.
        keys: the keys that it decides.
        overrides: it, without what is taken literally.
    """

    config: Config
    keys: list[str]
    overrides: list[str]


def plan_sweep(
    rest: list[str], literals: dict[str, str | None], typed: list[Typed]
) -> tuple[list[Trial], set[str], Runner]:
    """Check every trial of a sweep before there is anything of it.

    Returns:
        The trials, in order, the names of those that have finished before, and what runs the others.

    Raises:
        ValueError: what is wrong, in one line.
    """
    sweep, given = check_sweep(rest, literals)
    if any(override.startswith("debug=") for override in rest):
        raise ConfigError("debug: looks for faults in one run, and is not taken with -m")
    varied = varied_keys(rest)
    trials, finished, texts = {}, set(), set()
    for each in typed:
        config = each.config
        trial = make_trial(sweep, varied, [*each.overrides, *given])
        trials[trial.name] = trial
        if has_finished(trial, config, each.keys):
            finished.add(trial.name)
        start = config.init_from and (config.init_from, config.model)
        if (world := repr((config.data, config.model.context, config.trainer, start))) not in texts:
            texts.add(world)
            check_world(config, each.keys)
    workers, launcher = typed[0].config.workers, typed[0].config.launcher
    if not launcher:
        return list(trials.values()), finished, lambda left, ended: run_trials(left, workers, ended)

    from conf.launch import launch_trials, make_executor

    with tempfile.TemporaryDirectory() as folder:
        make_executor(Path(folder), launcher)  # raises what is wrong before there is a sweep

    def run(left: "Iterator[Trial]", ended: "Callable[[Trial, Outcome], None]") -> int | None:
        executor = make_executor(runs.RUNS / sweep / ".submitit" / "%j", launcher)  # SLURM's job
        return launch_trials(left, executor, ended)

    return list(trials.values()), finished, run


def check_world(config: Config, keys: "Sequence[str]" = ()) -> str | None:
    """See that what a run needs is there and fits: its text, its share of the batch, the model it starts from.

    Returns:
        The fingerprint of the text; None where it depends on the model that the run starts from.

    Raises:
        ValueError: it is not, in one line.
    """
    from data.arrays import open_text
    from data.corpus import open_corpus

    if isinstance(config.trainer.devices, int):
        rows_per_device(config, config.trainer.devices)
    if config.init_from is not None:  # which may bring a context of its own
        from gpt import model_file

        model, _, meta = model_file.read(runs.find_model(config.init_from))
        merge_started(config, list(keys), vars(model), meta["vocabulary"]["kind"])
        open_corpus(config.data)
        return None
    return open_text(config.data, config.model.context).fingerprint


def run_one(typed: Config, keys: list[str], started: float) -> int:
    """Run one configuration and turn how it ended into an exit status."""
    status = 1
    try:
        main(typed, keys, started)
        status = 0
    except InputError as error:
        status = refuse(error)
    except Exception as error:
        known = explain(error)
        if known is None:
            traceback.print_exc() if job.started_by_another_rank() else None  # before this process is ended
            raise
        status = known
    finally:
        runs.forget_name()
        runs.let_go()
        if status and job.started_by_another_rank() and "lightning" in sys.modules:
            from gpt.fit.durability import end_parent

            end_parent()
    return status


class ConfigError(InputError):
    """A configuration that cannot be run, in one line."""


def refuse(error: Exception) -> int:
    """Answer wrong input in one line, which of several processes the first writes."""
    where = ""
    if not isinstance(error, job.JobError) and job.launched() and job.rank():
        time.sleep(REFUSAL)  # what is wrong for all, rank 0 has said, and all are ended
        where = f"rank {job.rank()} on {platform.node()}: "
    print(f"train.py: {where}{one_line(error)}", file=sys.stderr)
    return 2


def explain(error: Exception) -> int | None:
    """Answer what went wrong in the world; None for a failure of our own."""
    if isinstance(error, OSError):
        print(f"train.py: {one_line(error)}", file=sys.stderr)
        return 1
    if "lightning" not in sys.modules:
        return None
    from gpt.fit.durability import Stopped
    from gpt.fit.module import Diverged

    if isinstance(error, Diverged | RunFailed):
        if job.first_here():  # it is much the same for all
            print(f"train.py: {error}", file=sys.stderr)
        return 1
    if not isinstance(error, Stopped):
        return None
    if error.number == getattr(signal, "SIGUSR1", None) and "SLURM_JOB_ID" in os.environ and job.rank() == 0:
        job.requeue()
    # What rank 0 leaves with counts; it must not be taken for one whose processes fail.
    return 0 if job.started_by_another_rank() else 128 + error.number


def resolve(typed: Config, keys: list[str]) -> tuple[Config, Path | None]:
    """Settle the configuration before anything heavy is loaded, and keep others out of a run that is resumed.

    Returns:
        The configuration to run and the run directory to go on in, None for a fresh run.
    """
    if typed.resume is None and job.restarted():  # SLURM types what was typed the first time
        typed.resume, typed.name = "auto", typed.name or runs.new_name(to_yaml(typed))
    if typed.resume is None:
        if typed.allow:
            raise ConfigError(f"allow={shown(typed.allow)}: goes with resume=, has no meaning without")
        if typed.name is not None and job.rank() == 0:
            runs.check_free(typed.name)
        return typed, None
    newest = typed.resume == "auto" and typed.name is None
    run = newest_to_go_on() if newest else runs.to_resume(typed.resume, typed.name)
    directory = run or runs.RUNS / str(typed.name)
    if directory.is_dir() and job.rank() == 0:
        runs.hold(directory)
    if run is None:
        return typed, None
    old = read_config(run)
    for key in untrusted(old):
        if key not in keys:
            raise ConfigError(
                f"{run / 'config.yaml'}: its {key} is not taken; if you trust it, add "
                f"{one_line(f'data.path={old.data.path}') if key == 'data.path' else f'{key}=…'} to the command"
            )
    return merge_resumed(old, typed, keys), run


def newest_to_go_on() -> Path:
    """Find the newest unfinished run that can go on, and say which newer ones cannot.

    Raises:
        RunError: there is none.
    """
    if job.started_by_another_rank():  # which has found it, and holds it
        return Path(os.environ["CHARGPT_RESUMED"])
    passed = []
    for run in runs.unfinished():
        from gpt.checkpoint import find_newest  # loads torch, which takes a second

        path, _, skipped = find_newest(run / "checkpoints")
        if job.rank() == 0 and runs.in_use(run):
            passed.append(f"{run}: another process is training there")
        elif not (run / "config.yaml").is_file():
            passed.append(f"{run}: has no config.yaml")
        elif path is None:
            passed.append(f"{run}: no checkpoint can be gone on from: {'; '.join(skipped)}")
        else:
            if job.rank() == 0:
                for line in passed:
                    print(f"resume: passes over {line}")
            os.environ["CHARGPT_RESUMED"] = str(run)  # inherited by the processes that Lightning starts
            return run
    raise runs.RunError(f"resume=auto: no unfinished run in {runs.RUNS}/{'; '.join(['', *passed])}")


def main(typed: Config, keys: list[str], started: float) -> float | None:
    """Train, evaluate and report one run.

    Returns:
        The validation loss of the best checkpoint in nats per token, over the whole split; None on
        processes other than the first.
    """
    config, resumed = resolve(typed, keys)
    share_out(config, keys)
    resume, allow, first_process = config.resume, config.allow, job.rank() == 0
    name = runs.name_of(resumed) if resumed else config.name or runs.new_name(to_yaml(config))
    run = resumed or runs.RUNS / name
    if resume == "auto" and first_process:
        what = f"going on in {run}" if resumed else f"{run} has nothing to go on from, starting afresh"
        print(f"resume: {printable(what)}")

    from data.arrays import open_text
    from data.corpus import DataError, cache_dir

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
            raise ConfigError(str(error)) from None
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
            raise ConfigError(str(error)) from None
        if differing:
            print(f"resume: goes on with {differing}: no longer bit for bit the run it would have been")
        clean_up(run, point)
    if point and (point.step >= config.trainer.max_steps or point.ended_by(config.callbacks)):
        way = "trainer.max_steps=N" if point.step >= config.trainer.max_steps else "callbacks=[] allow=[callbacks]"
        print(f"{run} is finished: step {point.step} of {config.trainer.max_steps}; {way} goes on")
        done = runs.summary_of(run)
        if done.get("val_loss") is None and first_process:  # stopped while the trained model was evaluated
            from gpt.fit.report import Speaker

            trained = as_trained(config, text, choices, point.step, point.contents["callbacks"]["Watch"])
            if point.pruned:
                write_summary(run, trained | {"status": "pruned"})
                return None
            return finish(run, config, text, Speaker(run / "train.log"), trained, None)
        return done.get("val_loss")
    return fit(run, config, keys, text, choices, start, point, fresh=resume is None, started=started)


def share_out(config: Config, keys: list[str]) -> None:
    """Put what torchrun or srun have started into the configuration, and see that the batch can be shared out.

    Raises:
        ConfigError: something else was typed, or nobody has started the processes of other machines.
    """
    trainer, launched = config.trainer, job.launched()
    if launched:
        for key, given, found in zip(
            ("devices", "num_nodes"), (trainer.devices, trainer.num_nodes), launched, strict=True
        ):
            if f"trainer.{key}" in keys and given not in ("auto", found):
                what = "processes on each machine" if key == "devices" else "machines"
                raise ConfigError(f"trainer.{key}={shown(given)}: was started with {found} {what}; leave it out")
        trainer.devices, trainer.num_nodes = launched
    elif trainer.num_nodes > 1:
        raise ConfigError(
            f"trainer.num_nodes={trainer.num_nodes}: start the program on every machine, with torchrun or srun "
            "(docs/cluster.md)"
        )
    if isinstance(trainer.devices, int):  # the rest is known once torch is asked
        rows_per_device(config, trainer.devices * trainer.num_nodes)


@dataclass(frozen=True)
class Choices:
    """What was chosen for this machine, each with the reason."""

    device: str
    devices: int  # over all machines
    why_precision: str
    compile: str  # as it was chosen; where that fails, `config` has what is done instead
    why_compiled: str


def choose(config: Config, text: "Text") -> Choices:
    """Settle what depends on the machine; what config.yaml keeps of it is written into `config`.

    Raises:
        ConfigError: this machine cannot do what was asked.
    """
    from gpt.fit.automatic import choose_compile, choose_precision, device_kind, expected_seconds, world_size

    try:
        device = device_kind(config.trainer.accelerator)
        precision, why_precision = choose_precision(config.trainer.precision, device)
        if device == "cpu" and isinstance(config.trainer.devices, list):
            raise ValueError(
                f"trainer.devices={shown(config.trainer.devices)}: numbers are for GPUs; a CPU takes how many"
            )
        seconds = 60 * config.minutes if config.minutes else expected_seconds(flops(config, text))
        compile, why_compiled = choose_compile(config.compile, device, seconds)
    except ValueError as error:
        raise ConfigError(error) from None
    devices = world_size(config.trainer.devices, config.trainer.num_nodes, device)
    rows_per_device(config, devices)  # raises where the batch cannot be shared out
    config.trainer.precision, config.compile = precision, compile
    return Choices(device, devices, why_precision, compile, why_compiled)


def conditions(config: Config, text: "Text", choices: Choices) -> dict[str, Any]:
    """All that the bits of a run depend on, by name, as plain data."""
    from gpt.fit.automatic import machine

    sharded = config.trainer.strategy == "fsdp" and choices.devices > 1
    vocabulary = hashlib.sha256(json.dumps(text.tokenizer.vocabulary).encode()).hexdigest()
    return settings(config) | {
        "text": f"{sum(text.characters.values())} characters {text.fingerprint[:12]}",
        "vocabulary": f"{text.tokenizer.size} tokens {vocabulary[:12]}",
        "world_size": f"{choices.devices} with fsdp" if sharded else choices.devices,
        **machine(choices.device),
    }


@dataclass(frozen=True)
class Start:
    """The trained model that a fresh run starts from."""

    path: Path
    model: "GPT"
    meta: dict[str, Any]

    @property
    def characters(self) -> str:
        """Those of its vocabulary; none where tokens are bytes."""
        return self.meta["vocabulary"].get("characters", "")


def load_start(init_from: str) -> Start:
    """Load the model that `init_from` means: a model file, a run directory or the name of a run.

    Raises:
        ConfigError: there is none, or it cannot be used.
    """
    try:
        path = runs.find_model(init_from)

        from gpt.checkpoint import load_checkpoint

        return Start(path, *load_checkpoint(path))
    except InputError as error:
        raise ConfigError(f"init_from: {error}") from None


@dataclass(frozen=True)
class Point:
    """Where a run goes on: a checkpoint that has been verified."""

    path: Path
    contents: dict[str, Any]

    @property
    def step(self) -> int:
        """Steps taken."""
        return self.contents["global_step"]

    @property
    def pruned(self) -> bool:
        """Whether the run was given up there, as a trial of a search."""
        return self.contents["callbacks"].get("Prune", {}).get("pruned") is True

    def ended_by(self, callbacks: dict[str, Any]) -> bool:
        """Whether one of these, such as early stopping, had ended the run there; by hand, a pruned one goes on."""
        over = self.contents["callbacks"]["Checkpoints"].get("over") is True
        by_hand = self.pruned and "CHARGPT_TRIAL" not in os.environ
        return over and not by_hand and self.contents["conditions"]["callbacks"] == callbacks


def clean_up(run: Path, point: Point | None) -> None:
    """Finish or remove what a process was killed in the middle of."""
    from gpt.checkpoint import restore_names

    remove_unfinished(run)
    remove_unfinished(run / "checkpoints")
    remove_unfinished(run / "projector")
    if point:
        restore_names(point.path, point.contents)


def find_point(run: Path, resume: str) -> Point:
    """Find the newest valid checkpoint of a run and say which newer ones are not.

    Raises:
        CheckpointError: there is none, or the one that was typed is damaged or not the newest.
    """
    from gpt.checkpoint import CheckpointError, find_newest, read

    for file in run.rglob("*"):  # files are written, cut off and removed there
        if file.is_symlink():
            raise CheckpointError(f"{file}: is a link to somewhere else")
    typed = read(resume) if resume.endswith(".ckpt") and not Path(resume).is_dir() else None
    path, contents, skipped = find_newest(run / "checkpoints")
    if path is None:
        raise CheckpointError(f"{run}: no checkpoint can be gone on from: {'; '.join(skipped)}")
    if typed and typed["global_step"] != contents["global_step"]:
        raise CheckpointError(f"resume={resume}: a run goes on from its newest checkpoint, resume={path}")
    if job.rank() == 0:
        for line in skipped:
            print(f"resume: passes over {line}")
        print(f"resume: from {printable(path)}, step {contents['global_step']}")
    return Point(path, contents)


def fit(
    run: Path,
    config: Config,
    keys: list[str],
    text: "Text",
    choices: Choices,
    start: Start | None,
    point: Point | None,
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

    from data.datamodule import VALIDATION_CHARACTERS, TextDataModule
    from data.passages import prompts
    from gpt.checkpoint import CheckpointError
    from gpt.fit.automatic import choose_recorder, keep_freed_memory
    from gpt.fit.board import append
    from gpt.fit.callbacks import Prune, Watch
    from gpt.fit.durability import (
        AtomicCheckpointIO,
        Checkpoints,
        SameStart,
        Stopped,
        StopSignals,
        cut_events,
        is_lost_process,
        make_environment,
        make_strategy,
    )
    from gpt.fit.module import Diverged, LitGPT
    from gpt.fit.pictures import Pictures, Samples
    from gpt.fit.profile import StepProfiler, make_profiler
    from gpt.fit.report import Speaker
    from gpt.fit.waits import Waits
    from gpt.model import init_from

    if job.started_by_another_rank():
        job.end_with(int(os.environ["CHARGPT_PARENT"]))
    else:
        job.adopt()
    quieten_lightning()
    first_process = job.rank() == 0
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
            raise ConfigError(f"trainer: {error}") from None

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


def introduce(
    say: "Speaker", run: Path, config: Config, text: "Text", choices: Choices, parameters: int, notes: list[str]
) -> None:
    """Say what will be trained, on what, and how it will be measured."""
    from data.datamodule import VALIDATION_CHARACTERS

    shape = config.model
    say(f"text       {text.name}: {describe(text)}")
    say(
        f"model      {shape.layers} layers, {shape.heads} heads, {shape.dim} wide, context {shape.context}"
        f"{f', window {shape.window}' if shape.window else ''}: "
        f"{parameters:,} parameters{f', dropout {shape.dropout:g}' if shape.dropout else ''}"
    )
    say(
        f"machine    {choices.device}, {config.trainer.precision} ({choices.why_precision}), "
        f"{'not ' if config.compile == 'false' else ''}compiled "
        f"({choices.why_compiled if config.compile == choices.compile else 'it failed'})"
    )
    part = min(VALIDATION_CHARACTERS, len(text.validation))
    which = "the whole split" if part == len(text.validation) else f"{part:,} evenly spaced characters of the split"
    say(f"validation {which}, disjoint windows of {shape.context}; the whole split again at the end")
    if config.data.overfit is not None:
        say(
            f"overfit    the first {len(text.validation):,} of the training text are validation and test, too: "
            f"known by heart, they cost less than {LEARNED / shape.context:.1g} nats each"
        )
    for note in notes:
        say(note)
    say(f"run        {run}: {config.trainer.max_steps} steps of {config.data.batch} windows, seed {config.seed}")


def describe_start(start: Start, vocabulary: dict[str, Any]) -> str:
    """What a run starts from in one line."""
    new = "".join(sorted(set(vocabulary.get("characters", "")) - set(start.characters)))
    added = f", {len(new)} new characters {new[:20]!r}{'…' * (len(new) > 20)}" if new else ", the same vocabulary"
    return f"from       {printable(start.path)}, step {start.meta['step']}{added}"


class RunFailed(Exception):
    """A run that could not go on, in one line."""


def way_on(run: Path, config: Config) -> str:
    """What is left of a run that has ended early, and the command that goes on with it."""
    from gpt.fit.report import python

    steps = sorted((run / "checkpoints").glob("step-*.ckpt"))
    if not steps:
        return "there is no checkpoint yet"
    command = shlex.join(["train.py", f"resume={run}", *typed_again(config)])
    return f"the newest checkpoint is {steps[-1]}: {python()} {command}"


@contextmanager
def naming_what_takes_memory(config: Config, vocabulary: int, devices: int) -> "Iterator[None]":
    """Answer memory that runs out with the key to lower, as a `ConfigError`."""
    from conf.commandline import is_out_of_memory
    from gpt.fit.report import out_of_memory

    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigError(out_of_memory(config.model, vocabulary, rows_per_device(config, devices))) from error


def untrained(config: Config, text: "Text") -> "GPT":
    """The model that a configuration describes, without its numbers."""
    import torch

    from gpt.model import GPT

    with torch.device("meta"):
        return GPT(config.model, text.tokenizer.size)


def flops(config: Config, text: "Text") -> float:
    """Floating-point operations of all steps of a run."""
    per_token = untrained(config, text).flops_per_token()
    return per_token * float(config.trainer.max_steps) * config.data.batch * config.model.context


def turn_dial(
    config: Config, keys: list[str], text: "Text", choices: Choices, make_module: "Callable[[], LitGPT]", started: float
) -> str:
    """Settle what `minutes` leaves open, in `config`: the preset, the batch, the steps, how often to validate.

    Returns:
        A line that says what was settled and from what.

    Raises:
        ConfigError: there is more than one device, or no time for a step.
    """
    import torch

    from data.datamodule import VALIDATION_CHARACTERS, TextDataModule
    from gpt.fit import pictures
    from gpt.fit.dial import DOUBLED_FROM, EVALUATED, Cost, Plan, Work, measure, plan

    minutes = config.minutes
    assert minutes is not None
    if choices.devices > 1:
        raise ConfigError(f"minutes={minutes:g}: is for one device; trainer.devices=1, or trainer.max_steps=N")

    def measured(model: "ModelConfig") -> Cost:
        config.model = model
        data = TextDataModule(text, config.data, model.context, config.seed)
        where = {key: getattr(config.trainer, key) for key in ("accelerator", "devices", "precision", "deterministic")}
        some = torch.from_numpy(text.train[: max(EVALUATED, model.context)].astype("int64"))
        return measure(make_module(), data, some, **where)

    def left() -> float:
        return started + 60 * minutes - time.perf_counter()

    validated = min(VALIDATION_CHARACTERS, len(text.validation))
    work = Work(
        validated=validated,
        finally_evaluated=len(text.validation) + len(text.test) + (validated if config.init_from is not None else 0),
        sampled_per_validation=len(pictures.TEMPERATURES) * pictures.SAMPLE_LENGTH if config.logger else 0,
        finally_sampled=SAMPLE_LENGTH,
    )
    first = ", after compiling them (about 20 seconds the first time)" if config.compile != "false" else ""
    print(f"minutes={minutes:g}: timing a few steps on this machine{first}", flush=True)

    def settle(models: "list[ModelConfig]") -> Plan:
        with Progress("timing"):
            return plan(
                left,
                models,
                measured,
                work,
                lambda model: config.data.batch * model.context,
                text.tokenizer.size,
                len(text.train),
                config.trainer.val_check_interval if "trainer.val_check_interval" in keys else None,
            )

    given = config.init_from is not None or any(key.startswith("model.") for key in keys)
    settled = settle([config.model] if given else presets())
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
    # Both are meant: optimizers are told that steps are recorded before the first is, and fp32 is fp32.
    warnings.filterwarnings("ignore", r"This instance was constructed with capturable=True")
    warnings.filterwarnings("ignore", r"TensorFloat32 tensor cores for float32 matrix multiplication available")
    # It is refused where weights are sharded, and there is nothing to configure elsewhere.
    warnings.filterwarnings("ignore", r"You're using the WeightAveraging callback with a model that overrides")
    # Whoever wants several tasks of SLURM types srun; one process needs none.
    warnings.filterwarnings("ignore", r"The `srun` command is available on your system but is not used")
    # Batches are gathered in one go: worker processes would slow them down.
    warnings.filterwarnings("ignore", r"The '\w+' does not have many workers", module="lightning")
    warnings.filterwarnings("ignore", r"Your `IterableDataset` has `__len__` defined", module="lightning")
    # Our checkpoint is resumed exactly because batch k is a function of (seed, k), not of the loader's state.
    warnings.filterwarnings(
        "ignore", r"You're resuming from a checkpoint that ended before the epoch", module="lightning"
    )


def hide_failed_writes(of: "threading.ExceptHookArgs") -> None:
    """Print what ends a thread, but for TensorBoard's writer: its next call raises the error in the main thread."""
    writer = type(of.thread).__module__ == "tensorboard.summary.writer.event_file_writer"
    if not (writer and issubclass(of.exc_type, OSError)):
        threading.__excepthook__(of)


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
        extra = "; pip install -c constraints.txt -e '.[wandb]'" if "wandb" in reason else ""
        raise ConfigError(f"{', '.join(entries)}: cannot be made: {reason}{extra}") from None


def what_is_shown(text: "Text", context: int) -> "Shown":
    """Choose what pictures look at: lines of the validation text with many different characters, and what there is."""
    import numpy as np
    import torch

    from data.batches import evaluation_windows
    from data.passages import ATTENDED, lines_to_show
    from gpt.fit.pictures import Shown

    tokens, tokenizer, begin = text.validation, text.tokenizer, lines_to_show(text)
    passage = tokens[begin : begin + COLOURED].astype("int64")
    owners = np.maximum(tokenizer.characters_per_token[passage].cumsum() - 1, 0)
    windows = evaluation_windows(
        tokens[max(0, begin - context) : begin + COLOURED], context, 4, stride=max(1, context // 2)
    )
    return Shown(
        names=tokenizer.names,
        passage=torch.from_numpy(passage[: min(ATTENDED, context)]),
        characters=[tokenizer.decode(passage[owners == owner]) for owner in range(owners[-1] + 1)],
        owners=torch.from_numpy(owners),
        windows=list(windows),
    )


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
        runs.check_free(runs.name_of(run))
    runs.hold(run)
    if fresh and runs.is_debug(run.name):
        for left in set(run.iterdir()) - {run / ".lock"}:
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
    (run / "checkpoints").mkdir(exist_ok=True)
    clean_up(run, None)


def describe(text: "Text") -> str:
    """Sizes of the splits in one line."""
    sizes = [f"{len(getattr(text, split)):,} {split}" for split in ("train", "validation", "test")]
    unit = "characters" if text.tokenizer.vocabulary["kind"] == "char" else "bytes"
    return f"{', '.join(sizes)} {unit}, {text.tokenizer.size} distinct"


def as_trained(
    config: Config, text: "Text", choices: Choices, step: int, counted: "Mapping[str, Any]"
) -> dict[str, Any]:
    """The part of summary.json that says what training took."""
    from gpt.fit.report import versions

    per_step = config.data.batch * config.model.context
    stepping, model, peak = counted["stepping"], untrained(config, text), counted.get("peak")
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
        "device": choices.device,
        "seed": config.seed,
        "versions": versions(),
    }


def write_summary(run: Path, summary: dict[str, Any]) -> None:
    """Write summary.json; what does not apply is null."""
    keys = (
        "status val_loss val_bpc val_bpb best_step last_val_loss test_loss test_bpc evaluation steps characters "
        "seconds characters_per_second mfu init_from parameters precision device seed versions"
    ).split()
    write_text(run / "summary.json", json.dumps({key: summary.get(key) for key in keys}, indent=2) + "\n")


def hyperparameters(config: Config) -> dict[str, Any]:
    """The settings of a run as one compares them with those of others: what its result depends on, where it is set."""
    values = dict(leaves(to_dict(config))) | {"callbacks": list(config.callbacks)}
    kept = {*settings(config), "trainer.max_steps", "data.path" if config.data.path else "data.corpus"} - HOW
    return {key: value for key, value in values.items() if key in kept and value not in (None, [])}


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

    from data.batches import evaluation_windows
    from data.datamodule import EVALUATION_BATCH
    from data.passages import occurrences, prompt
    from gpt import model_file
    from gpt.checkpoint import build, link, read
    from gpt.evaluate import Score, evaluate, measured
    from gpt.fit.automatic import device_kind
    from gpt.fit.board import append, log_result
    from gpt.fit.projector import write_projector
    from gpt.fit.report import as_summary, describe_score, describe_training, farewell
    from gpt.generate import generate
    from gpt.model import GPT

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
        path = runs.model_of(run, name)
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
        link(runs.model_of(run, "last"), runs.model_of(run, "best"))
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
        tokens = generate(model, begun, SAMPLE_LENGTH, temperature=SAMPLE_TEMPERATURE, seed=config.seed)[0].numpy()
    going_on = tokenizer.decode(tokens[len(begun) :])
    sample = [SAMPLE_TEMPERATURE, tokenizer.decode(begun.numpy()), going_on]
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
    from gpt.fit.durability import Stopped
    from gpt.fit.page import page

    path, tokenizer = run / "report.html", text.tokenizer
    try:
        about = {
            "name": runs.name_of(run),
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


if __name__ == "__main__":
    sys.exit(cli())
