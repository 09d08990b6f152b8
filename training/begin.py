"""Begin a run, or find the run to resume: its name, its directory, and the configuration that its command asks for."""

import hashlib
import json
import os
import secrets
import shlex
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from base import ranks
from base.errors import InputError, one_line, public
from base.files import write_text
from base.jobs import run_lock
from base.jobs.run_directory import RUNS, Run, Summary, find
from base.log import log, to_file
from base.options import spell
from conf.compose import compose, compose_object, read_config
from conf.keys import with_folders
from conf.overrides import key_of
from conf.schema import PLUGINS, Config, to_yaml

if TYPE_CHECKING:
    import lightning as L

    from data.text import Text


def compose_command(arguments: Sequence[str]) -> Config:
    """Compose a command line, but of one that resumes a run only what names this run, because the rest changes it."""
    if "resume" in map(key_of, arguments):
        config: Config = compose_object(
            "train", [text for text in arguments if "." not in key_of(text)]
        )
        if config.resume is not None:
            return config
    return compose(arguments)


def find_run(arguments: Sequence[str], config: Config) -> tuple[Run, Config, bool]:
    """Return the run of a command line, its configuration, and whether it resumes: then the directory is locked.

    `config` is what `compose_command` returns. The configuration of a run that resumes is its
    config.yaml, changed by the arguments of the command line.
    """
    if config.resume is None:
        if not ranks.restarted():
            if config.allow:
                raise InputError(f"allow={spell(config.allow)}: only works with resume=")
            name = config.name or new_name(config)
            if ranks.rank() == 0:
                check_free(name, is_debug(arguments))
                check_writable(name)
            return Run(RUNS / name), config, False
        # A restart repeats the command line of the first start, so it continues the run that this
        # created. `new_name` returns the same name again, because it depends on job and settings.
        config = replace(config, resume="auto", name=config.name or new_name(config))
    assert config.resume is not None
    run = run_to_resume(config.resume, config.name)
    if run.directory.is_dir() and ranks.rank() == 0:
        run_lock.lock(run.directory)
    if not run.has_begun:
        config = replace(compose(arguments), resume=config.resume, name=config.name)
        return run, config, False
    resumed = compose_resumed(arguments, read_config(run.directory))
    return run, replace(resumed, resume=config.resume), True


def run_to_resume(resume: str, name: str | None) -> Run:
    """Return the run that `resume=` and `name=` ask to continue; with `auto`, the run `name` need not have begun."""
    if resume == "auto" and name is not None:
        setting = f"name={name}"
        run = _place(name)
    elif name is not None:
        raise InputError(
            f"name={name}: cannot be combined with resume={resume}, which continues in its own directory"
        )
    else:
        setting = f"resume={resume}"
        try:
            run = Run(find(None if resume == "auto" else resume, "checkpoint"))
        except InputError as error:
            raise InputError(f"resume={error}") from None
    status = run.summary.status
    # A run that was killed after its first model and before its first checkpoint loses nothing.
    was_killed = status in ("running", "failed")
    if run.model("best").exists() and not run.has_checkpoint and not was_killed:
        start = shlex.quote(f"init_from={run}")  # resuming would overwrite the model
        raise InputError(
            f"{setting}: has a model but no checkpoint; {start} starts another run from its model"
        )
    # A sweep notes in summary.json that a trial has failed, even if that was before its config.yaml.
    has_summary = (run.directory / "summary.json").exists()
    if has_summary and status != "failed" and not run.has_begun:
        raise InputError(f"{setting}: {run} has lost its config.yaml; use another name")
    return run


def compose_resumed(arguments: Sequence[str], stored: Config) -> Config:
    """Compose the configuration of a resumed run: the one in its config.yaml, `stored`, changed by the command line.

    A key that the command line, or a preset on it, sets to `auto` keeps the value that the run has
    chosen.
    """
    trainer = replace(stored.trainer, num_nodes="auto")
    if ranks.launched():
        # The present command decides the number of machines and, if it was started as several
        # processes, of devices.
        trainer = replace(trainer, devices="auto")
    base = replace(stored, resume=None, allow=[], trainer=trainer)
    # callbacks= and logger= replace the plug-ins of the run, rather than adding to them
    replaced: dict[str, Any] = {group: {} for group in PLUGINS if group in map(key_of, arguments)}
    return keep_choices(compose_object("resume", arguments, asdict(base) | replaced), base)


def keep_choices(config: Any, stored: Any) -> Any:
    """Return a configuration, or a group of it, with the stored value in place of each `auto`."""
    kept = dict[str, Any]()
    for field in fields(config):
        value = getattr(config, field.name)
        before = getattr(stored, field.name)
        if is_dataclass(value):
            kept[field.name] = keep_choices(value, before)
        elif field.name in PLUGINS:
            plugins = kept[field.name] = {}
            for name, options in value.items():
                if "auto" not in options.values():
                    plugins[name] = options
                elif name in before:  # otherwise the run has left it out
                    plugins[name] = before[name]
        elif value == "auto" and not field.metadata.get("verbatim"):  # a file may be called auto
            kept[field.name] = before
    return replace(config, **kept)


def is_debug(arguments: Sequence[str]) -> bool:
    """Return whether a preset of conf/debug names the run, rather than the user."""
    keys = list(map(key_of, arguments))
    return "debug" in keys and "name" not in keys


def new_name(config: object) -> str:
    """Return a generated name for a run, such as the time and a random suffix."""
    identity = ranks.identity()
    is_alone = ranks.launched() in (None, (1, 1))  # one process on one machine
    if identity is not None:
        step = os.environ.get("SLURM_STEP_ID", "")
        name = f"{identity}_{hashlib.sha256((repr(config) + step).encode()).hexdigest()[:6]}"
        # All processes of the job generate the same name, and a restarted job finds its runs. A
        # command that is repeated in the same allocation gets another name.
        if not is_alone or ranks.restarted() or not (RUNS / name).exists():
            return name
    if not is_alone:
        raise InputError(
            "name=null: processes on several machines need one directory; give name=…"
        )
    return f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{secrets.token_hex(3)}"


def check_free(name: str, debug: bool) -> None:
    """Raise an `InputError` if a new run cannot be called `name`, for example because another run has this name.

    A `debug` run may replace an earlier one.
    """
    run = _place(name)
    if debug and run.summary.debug:
        return
    check_not_begun(run)
    if run.directory.is_dir():
        # A process that was killed before it wrote config.yaml has left only these files.
        early = (".lock", "train.log", run.overrides.name)
        others = [path for path in run.directory.iterdir() if path.name not in early]
        if all(path.suffix == ".tmp" for path in others):
            return
    if os.path.lexists(run.directory):
        raise InputError(f"name={name}: {run} exists and is not a run; use another name")


def check_not_begun(run: Run) -> None:
    """Raise an `InputError` if the run has begun."""
    if run.config.exists():
        continues = f"{shlex.quote(f'name={run.name}')} resume=auto"
        raise InputError(
            f"name={run.name}: {run} exists; {continues} continues it, another name starts afresh"
        )


def _place(name: str) -> Run:
    """Return the run `name`, unless its directory is a sweep or lies inside another run."""
    run = Run(RUNS / name)
    if run.is_sweep:
        raise InputError(
            f"name={name}: is a sweep; repeat its command, or name={name}/TRIAL for one trial"
        )
    if "/" in name and Run(run.directory.parent).config.exists():
        raise InputError(
            f"name={name}: {run.directory.parent} is a run and cannot contain another run"
        )
    return run


def check_writable(name: str) -> None:
    """Raise an `InputError` if the directory of a new run or sweep cannot be created, before slow work begins."""
    directory = RUNS / name
    existing = next(
        folder for folder in (directory, *directory.parents) if os.path.lexists(folder)
    )
    try:
        with TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise InputError(
            f"{directory}: cannot be created: {existing}: {error.strerror or error}"
        ) from None


def open_directory(
    run: Run,
    config: Config,
    text: "Text",
    arguments: Sequence[str],
    resumed: bool,
    loggers: "Iterable[L.pytorch.loggers.Logger]",
) -> None:
    """Create and lock the directory of a run, and write its settings there: from then on it is a run.

    `arguments` are those of the command, `config` is what was made of them, and `resumed` says
    whether they continue an earlier run.
    """
    from reports.card import repeating  # these load PyTorch and Lightning
    from training.loggers import public_settings

    directory = run.directory
    debug = not resumed and is_debug(arguments)
    is_new = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    # if two processes start runs of the same name, only one gets the directory
    run_lock.lock(directory)
    if debug and run.summary.debug:
        for entry in set(directory.iterdir()) - {directory / ".lock"}:
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        log.info(f"debug      replaces the earlier run in {run}")
    elif not resumed:  # another process may have begun this run before the lock
        check_not_begun(run)
    to_file(directory / "train.log")
    run.remove_unfinished()
    for logger in loggers:
        try:
            logger.log_hyperparams(public_settings(config))
        except OSError:  # such as a full disk, which is no fault of the logger
            raise
        # whatever the library of a logger raises, such as W&B without a key
        except Exception as error:
            if is_new:
                shutil.rmtree(directory)
            raise InputError(
                f"logger: {type(logger).__name__} cannot start: {one_line(error)}"
            ) from None
    earlier = list[str]()
    if resumed:
        earlier = run.arguments or repeating(read_config(directory))
    both = [public(argument) for argument in joined(earlier, arguments)]
    write_text(run.overrides, json.dumps(both, ensure_ascii=False, indent=1))
    write_text(run.config, to_yaml(config))  # from here on the directory is a run
    run.checkpoints.mkdir(exist_ok=True)
    run.write_summary(
        Summary(status="running", debug=debug, text=text.name, text_sha256=text.sha256)
    )


def joined(earlier: Sequence[str], new: Sequence[str]) -> list[str]:
    """Return the arguments that repeat, under another name, a run which a command with `new` arguments has resumed."""
    not_kept = ("name", "resume", "allow")
    added = with_folders(argument for argument in new if key_of(argument) not in not_kept)
    keys = set(map(key_of, added))
    kept = []
    for argument in earlier:
        key = key_of(argument)
        is_replaced = key in keys or key.partition(".")[0] in keys
        if key == "minutes" and "trainer.max_steps" in keys:  # which replaces the chosen steps
            is_replaced = True
        if argument.startswith("--config-dir="):  # may be there several times
            is_replaced = argument in added
        if not is_replaced:
            kept.append(argument)
    return [*kept, *added]
