"""Find the run to resume and its newest valid checkpoint, and refuse changes that would alter its results."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from base import processes, ranks
from base.errors import InputError, printable
from base.files import remove_unfinished
from base.jobs import run_directory, run_lock
from base.log import log
from base.options import spell
from conf.compose import compose_resumed, read_config
from conf.overrides import Command
from conf.resume_rules import check_unchanged, is_fixed, settings
from conf.schema import Config, to_yaml

if TYPE_CHECKING:
    from gpt.training_checkpoint import TrainingRecord


def find_run(command: Command, config: Config) -> tuple[Config, Path | None]:
    """Find and lock the run to resume, and return its configuration, changed by the command line, and its directory."""
    restart = dict[str, Any]()
    if config.resume is None and ranks.restarted():  # a restart repeats the command line of the first start
        restart = {"resume": "auto", "name": config.name or run_directory.new_name(to_yaml(config))}
        config = replace(config, **restart)
    if config.resume is None:
        if config.allow:
            raise InputError(f"allow={spell(config.allow)}: only works with resume=")
        run_directory.check_writable()
        if config.name is not None and ranks.rank() == 0:
            run_directory.check_free(config.name)
        return config, None
    newest = config.resume == "auto" and config.name is None
    run = newest_unfinished(command) if newest else run_directory.to_resume(config.resume, config.name)
    directory = run or run_directory.RUNS / str(config.name)
    if directory.is_dir() and ranks.rank() == 0:
        run_lock.lock(directory)
    if run is None:
        return config, None
    try:
        stored = read_config(run)
    except InputError as error:
        start = shlex.quote(f"init_from={run}")
        raise InputError(f"{error}; if another version made this run, {start} starts from its model") from None
    (given,) = command.runs()
    return replace(compose_resumed(given, stored), **restart), run


def newest_unfinished(command: Command) -> Path:
    """Return the directory of the newest unfinished run that can be resumed."""
    skipped: list[str] = []
    for run in run_directory.unfinished():
        reason = ""
        if ranks.rank() == 0 and run_lock.in_use(run):
            reason = "another process is training there"
        elif not (run / "config.yaml").is_file():
            reason = "has checkpoints but no config.yaml"
        elif run_directory.lacks_checkpoints(run):
            reason = "has a model but no checkpoint"
        else:
            reason = why_not(run, command)
        if not reason:
            for line in skipped:
                log.info(f"resume: skips {line}")
            return run
        skipped.append(f"{run}: {reason}")
    named = "; ".join(skipped)
    why = f"no run can be continued; {named}" if named else f"no unfinished run in {run_directory.RUNS}/"
    raise InputError(f"resume=auto: {why}")


def why_not(run: Path, command: Command) -> str:
    """Return why the run in the directory `run` cannot be resumed, or "" if it can.

    Reasons are damaged files, a missing text, or an edited config.yaml that does not fit the checkpoint. A text at a
    URL is not opened, because the network may be back by the time the run needs it. If `command`, the parsed command
    line, sets a key of `data`, the run's text is not opened, either.
    """
    from data.corpus import of_run, open_corpus  # loads the readers of tables and archives

    try:
        config = read_config(run)
    except InputError as error:
        return str(error)
    if not command.sets("data") and "://" not in "".join(filter(None, config.data.places().values())):
        try:
            open_corpus(of_run(config.data))
        except InputError as error:
            again = processes.command("python", "train.py", f"resume={run}")
            return f"{error}; if the text has moved, {again} data.path=FILE continues it"
    point, damaged = find_newest(run / "checkpoints")
    if point is None:
        return f"has no usable checkpoint ({'; '.join(damaged)})" if damaged else ""
    ours = {key: value for key, value in settings(config).items() if is_fixed(key)}
    theirs = {key: point.conditions.get(key, value) for key, value in ours.items()}
    differing = [key for key in ours if ours[key] != theirs[key]]
    wrong = [f"{key}={spell(ours[key])} (its checkpoint has {spell(theirs[key])})" for key in differing]
    return f"{run / 'config.yaml'}: {', '.join(wrong)}" if wrong else ""


class ResumePoint:
    """A valid checkpoint from which a run resumes."""

    def __init__(self, path: Path, contents: dict[str, Any], record: "TrainingRecord") -> None:
        self.path, self.step, self.record = path, contents["global_step"], record
        self.conditions, self.extra_chars = contents["conditions"], contents["data"]["extra_chars"]
        self.texts_read = contents["data"]["before"]
        self._contents: dict[str, Any] | None = contents

    def take(self) -> dict[str, Any]:
        """Return the contents of the checkpoint and drop the reference to them, so that they do not stay in memory.

        This method can be called only once.
        """
        contents, self._contents = self._contents, None
        assert contents
        return contents


def find_newest(directory: Path) -> tuple[ResumePoint | None, list[str]]:
    """Return the newest valid checkpoint in `directory`, and a list of messages about newer, damaged checkpoints."""
    from gpt.model_file import CheckpointError
    from gpt.training_checkpoint import TrainingRecord, read  # loading torch takes a second

    skipped: list[str] = []
    for file in (directory / "last.ckpt", directory / "previous.ckpt"):
        try:
            if file.exists():
                contents = read(file)
                return ResumePoint(file, contents, TrainingRecord.of(contents["callbacks"])), skipped
        except CheckpointError as error:
            skipped.append(str(error))
    return None, skipped


def find_point(run: Path, resume: str) -> ResumePoint | None:
    """Return the newest valid checkpoint of a run, or None if the run has no checkpoint yet."""
    from gpt.model_file import CheckpointError

    point, skipped = find_newest(run / "checkpoints")
    if point is None and skipped:
        raise CheckpointError(f"{run}: has no usable checkpoint ({'; '.join(skipped)})")
    if point is None:
        log.info(f"resume: {printable(run)} has no checkpoint yet, starting at step 0")
        return None
    path = run_directory.named_path(resume)
    if path.suffix == ".ckpt" and not path.is_dir() and not point.path.samefile(path):
        reason = "; ".join(skipped) or f"resume={resume}: is not the newest checkpoint"
        newest = shlex.quote(f"resume={point.path}")
        raise CheckpointError(f"{reason}; a run continues from its newest checkpoint, {newest}")
    for line in skipped:
        log.info(f"resume: skips {line}")
    log.info(f"resume: from {printable(point.path)}, step {point.step}")
    return point


def check_resumed(run: Path, now: Mapping[str, Any], point: ResumePoint | None, allow: list[str]) -> None:
    """Check that a resumed run will match an uninterrupted one, then remove unfinished files."""
    before = point.conditions if point else {**now, **settings(read_config(run))}
    if differing := check_unchanged(before, now, allow, run):
        log.info(f"resume: continues with {differing}, so it will not match the original run bit for bit")
    remove_leftovers(run)


def remove_leftovers(run: Path) -> None:
    """Remove the unfinished files of killed processes from the run directory `run`."""
    for folder in (run, run / "checkpoints"):
        remove_unfinished(folder)
