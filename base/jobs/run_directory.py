"""Find, name and check run directories, `runs/<name>/`. Does not load torch, so that errors appear at once."""

import errno
import hashlib
import itertools
import math
import os
import secrets
import shlex
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path

from base import processes, ranks
from base.errors import InputError, one_line
from base.jobs.summary import Summary

RUNS = Path(processes.from_here("runs"))


@dataclass(frozen=True)
class Run:
    """A run directory: `runs/<name>/` or, for a trial of a sweep, `runs/<sweep>/<trial>/`."""

    directory: Path

    def __str__(self) -> str:
        return str(self.directory)

    @property
    def name(self) -> str:
        """The value of `name=`: NAME or, for a trial of a sweep, SWEEP/TRIAL."""
        whole, inside = self.directory.resolve(), RUNS.resolve()
        return whole.relative_to(inside).as_posix() if inside in whole.parents[:2] else whole.name

    @property
    def summary(self) -> Summary:
        return Summary.read(self.directory / "summary.json")

    @property
    def bpc(self) -> float:
        """The validation bits per character of the best model, or infinity if they are not known."""
        bits = self.summary.val_bpc
        return math.inf if bits is None else bits

    @property
    def config(self) -> Path:
        return self.directory / "config.yaml"  # from when it exists, the directory is a run

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    def model(self, which: str) -> Path:
        return self.checkpoints / f"{which}.safetensors"

    @property
    def has_checkpoint(self) -> bool:
        return any(self.checkpoints.glob("*.ckpt"))

    @property
    def has_lost_checkpoints(self) -> bool:
        """Whether the run still has its best model but no checkpoint, so that resuming it would overwrite the model."""
        # A run that was killed after its first model and before its first checkpoint loses nothing.
        begun = self.summary.status in ("running", "failed")
        return self.model("best").exists() and not begun and not self.has_checkpoint

    @property
    def is_sweep(self) -> bool:
        return (self.directory / "sweep.csv").exists()

    @property
    def is_debug(self) -> bool:
        # The next debug run of this name replaces the run, and no command uses it as the newest.
        return self.directory.name.startswith("debug-")


def new_name(settings: str) -> str:
    """Return a generated name for a run: the time and a random suffix.

    In a job of SLURM or torchrun, the name is the job's id and a hash of `settings`, the configuration as text. So all
    processes of the job generate the same name, and a restarted job finds the directories of its runs.
    """
    identity = ranks.identity()
    if identity is not None:
        return f"{identity}_{hashlib.sha256(settings.encode()).hexdigest()[:6]}"
    if ranks.launched() not in (None, (1, 1)):
        raise InputError("name=null: processes on several machines need one directory; give name=…")
    return f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{secrets.token_hex(3)}"


def newest_first(*patterns: str) -> list[Run]:
    """Return the runs that contain a file matching one of `patterns`, the newest first."""
    if RUNS.is_dir():
        os.listdir(RUNS)  # raises if it cannot be read, which `glob` does not
    begun: dict[Run, float] = {}
    for depth, pattern in itertools.product(("*", "*/*"), patterns):
        for file in RUNS.glob(f"{depth}/{pattern}"):
            run = Run(file.parents[pattern.count("/")])
            with suppress(OSError):  # the running process has just removed the file
                begun[run] = max(begun.get(run, 0.0), file.stat().st_mtime)
    for run in begun:
        with suppress(TypeError, ValueError):
            begun[run] = datetime.fromisoformat(run.summary.begun).timestamp()  # type: ignore[arg-type]
    return sorted(begun, key=begun.__getitem__, reverse=True)


def with_models() -> list[Run]:
    return newest_first("checkpoints/*.ckpt", "checkpoints/*.safetensors")


def unfinished() -> list[Run]:
    """Return the runs that can be resumed and have not finished, without debug runs, the newest first."""
    runs = newest_first("config.yaml")
    return [run for run in runs if not run.is_debug and run.summary.status != "finished"]


def matching(pattern: str) -> list[Run]:
    """Return the runs that match a pattern such as `abl-*`, the newest first."""
    runs = newest_first("config.yaml")
    return [run for run in runs if any(fnmatchcase(run.name, each) for each in (pattern, f"{pattern}/*"))]


def find_sweep(name: str) -> Run | None:
    return next((each for each in (Run(Path(name)), Run(RUNS / name)) if each.is_sweep), None)


def trials_of(name: str) -> list[Run]:
    """Return the evaluated runs of a sweep, or those that match a pattern, sorted by path."""
    if sweep := find_sweep(name):
        trials = [Run(file.parent) for file in sweep.directory.glob("*/summary.json")]
    else:
        trials = [] if Path(name).exists() or (RUNS / name).exists() else matching(name)
    return sorted((trial for trial in trials if trial.bpc < math.inf), key=lambda trial: trial.directory)


def to_resume(resume: str, name: str | None) -> Run | None:
    """Return the run that `resume=` and `name=` ask to continue, or None if a new run is to begin.

    If `resume` is `auto`, the result is the run `name`, or None if it has not begun. Otherwise `resume` is the
    directory or name of a run, or a checkpoint file of the run, and `name` must be None.
    """
    if resume == "auto":
        run = _place(str(name))
        _check_checkpoints(run, f"name={name}")
        if run.config.exists() or run.has_checkpoint:
            return run
        if (run.directory / "summary.json").exists():
            raise InputError(f"name={name}: {run} has lost its config.yaml; use another name")
        return None
    if name is not None:
        raise InputError(f"name={name}: cannot be combined with resume={resume}, which continues in its own directory")
    try:
        path = named_path(resume)
        found = path.exists()
        whole = path if path.name and path.parent.name else path.resolve()  # `.` and `last.ckpt` name no parents
    except (OSError, RuntimeError) as error:  # a name that is too long, a link to itself
        raise InputError(f"resume={resume}: {one_line(error)}") from None
    run = Run(whole.parent.parent if path.suffix == ".ckpt" and not path.is_dir() else whole)
    if not found:
        raise InputError(f"resume={resume}: no such checkpoint, nor a run in {RUNS}/{_known_runs()}")
    if run.is_sweep:
        raise InputError(f"resume={resume}: is a sweep; repeat its command, or resume={run}/TRIAL for one trial")
    if not run.config.exists():
        raise InputError(f"resume={resume}: is not a run that can continue: {run.config} is missing")
    _check_checkpoints(run, f"resume={resume}")
    return run


def named_path(name: str) -> Path:
    return _named(name, lambda path: path.is_file() if path.suffix == ".ckpt" else Run(path).config.exists())


def _named(name: str, fits: Callable[[Path], bool]) -> Path:
    """Return the path that `name` means: `name` itself, or `runs/<name>`.

    `fits` says whether a path is what the caller looks for, such as a model. Of the two paths, the one that fits is
    returned. If neither path fits, the result is `runs/<name>` if that exists, else `name`.
    """
    here, run = Path(name), RUNS / name
    if name.startswith(("./", "../")) or not run.exists() or (here.exists() and here.samefile(run)):
        return here
    if fits(here) and fits(run):
        raise InputError(f"{name}: could be ./{name} or the run {run}; write the one that you mean")
    return here if fits(here) else run


def check_writable() -> None:
    """Raise a `PermissionError` if no run can be created in the working directory."""
    if not os.access(RUNS if RUNS.exists() else ".", os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(RUNS))


def check_free(name: str) -> None:
    """Raise an `InputError` if a new run cannot be called `name`, for example because another run has this name."""
    run = _place(name)
    if run.config.exists() and not run.is_debug:
        found, continues = "exists", f"{shlex.quote(f'name={name}')} resume=auto"
        if run.summary.status == "finished":
            found = "is finished"
            continues = f"{shlex.quote(f'resume={run}')} trainer.max_steps={2 * (run.summary.steps or 1)}"
        raise InputError(f"name={name}: {run} {found}; {continues} continues it, another name starts afresh")
    if run.directory.is_dir() and not run.directory.is_symlink():
        # A process that was killed before it wrote config.yaml has left only these files.
        left_over = (path.name in (".lock", "train.log") or path.suffix == ".tmp" for path in run.directory.iterdir())
        if run.is_debug or all(left_over):
            return
    if os.path.lexists(run.directory):
        raise InputError(f"name={name}: {run} exists and is not a run; use another name")


def _place(name: str) -> Run:
    """Return the run `name`, unless its directory is a sweep or lies inside another run."""
    run = Run(RUNS / name)
    if run.is_sweep:
        raise InputError(f"name={name}: is a sweep; repeat its command, or name={name}/TRIAL for one trial")
    if "/" in name and Run(run.directory.parent).config.exists():
        raise InputError(f"name={name}: {run.directory.parent} is a run and cannot contain another run")
    return run


def _check_checkpoints(run: Run, setting: str) -> None:
    if run.has_lost_checkpoints:
        start = shlex.quote(f"init_from={run}")
        raise InputError(f"{setting}: has a model but no checkpoint; {start} starts another run from its model")


def find_model(name: str | None) -> Path:
    """Return the path of the model file that `name` means.

    `name` is a model file, a training checkpoint with a model file beside it, a run or a sweep. A run means its
    best model, and a sweep means the best model of its best trial. If `name` is None, the newest run is used.
    """
    if name is None:
        runs = [run for run in with_models() if not run.is_debug]
        if not runs:
            start = processes.command("python", "train.py")
            raise InputError(f"no run in {RUNS}/ yet; make one with `{start}`, or name a model file")
        return _first_model(runs[0].directory)
    try:
        path = _named(name, lambda path: Run(path).is_sweep or any(file.is_file() for file in _models(path)))
        if path.is_file() and path.suffix != ".ckpt":
            return path
        found = path.exists()
    except OSError as error:  # such as a name that is too long
        raise InputError(f"{name}: {error.strerror}") from None
    if not found:
        raise InputError(f"{name}: no such model, nor a run in {RUNS}/{_known_runs()}")
    if Run(path).is_sweep:
        best = min((Run(file.parent) for file in path.glob("*/summary.json")), key=lambda run: run.bpc, default=None)
        if best is None or best.bpc == math.inf:
            raise InputError(f"{path}: no trial of this sweep has finished yet; name one of its trials")
        path = best.directory
    return _first_model(path)


def _models(path: Path) -> list[Path]:
    """Return the model files that `path` may mean; the first that exists is the one."""
    if path.is_file():
        beside = [path.with_name("last.safetensors"), path.with_name("best.safetensors")]
        return [path] if path.suffix == ".safetensors" else beside
    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    return [folder / "best.safetensors", folder / "last.safetensors"]


def _first_model(path: Path) -> Path:
    found = next((file for file in _models(path) if file.is_file()), None)
    if found is None:
        command = processes.command("python", "train.py", f"resume={path}")
        way = f"; it has not been validated yet: {command} continues it" if Run(path).has_checkpoint else ""
        raise InputError(f"{path}: has no model file ({' or '.join(map(str, _models(path)))}){way}")
    return found


def _known_runs() -> str:
    names = [str(run) for run in with_models()[:3]]
    return f"; the newest are {', '.join(names)}" if names else ""
