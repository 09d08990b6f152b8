"""Find, name and check run directories, `runs/<name>/`. Does not load torch, so that errors appear at once."""

import hashlib
import json
import math
import os
import secrets
import shlex
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryFile
from typing import get_type_hints

from base import processes, ranks
from base.errors import InputError, nearest
from base.files import write_text
from base.options import fits

RUNS = Path("runs")


@dataclass(frozen=True)
class Summary:
    """The contents of summary.json, in which unknown values are null. Losses are in nats per token."""

    # running, finished, interrupted, diverged or failed; None: no readable file
    status: str | None = None
    begun: str | None = None  # when the run was first started, as an ISO 8601 time in UTC
    # Whether a preset of conf/debug has named the run: the next run of the preset replaces it, and
    # no command uses it as the newest.
    debug: bool = False
    text: str | None = None  # the name of the text
    # hash of the text's file or, if it has several files, of their names and hashes
    text_sha256: str | None = None
    notes: list[str] | None = None  # remarks about the text and the training
    val_loss: float | None = None  # validation loss of the best model
    val_bpc: float | None = None  # `val_loss` in bits per character
    val_bpb: float | None = None  # `val_loss` in bits per byte
    # the validation loss if all tokens are equally likely, for comparison
    uniform_loss: float | None = None
    # the validation loss of an n-gram model (`data.ngrams`), for comparison
    ngram_loss: float | None = None
    ngram_order: int | None = None  # the length n of the n-grams of `ngram_loss`
    # The longest passages that samples share with the training text: their `median` and `longest`
    # length in tokens, and the number of `samples`, their `length` in tokens and their
    # `temperature`.
    copies: dict | None = None
    best_step: int | None = None  # the step of the best model
    last_val_loss: float | None = None  # validation loss of the last model
    test_loss: float | None = None  # loss on the test split, which `score.py --split test` adds
    test_bpc: float | None = None  # `test_loss` in bits per character
    # how the validation loss was measured, such as the context length
    evaluation: dict | None = None
    steps: int | None = None  # number of optimizer steps taken
    # Number of tokens (characters or bytes) on which the model was trained, repetitions included.
    characters: int | None = None
    epochs: float | None = None  # how often the training text was read
    seconds: float | None = None  # duration of the training, including validations and checkpoints
    characters_per_second: float | None = None  # training speed in tokens per second
    mfu: float | None = None  # model FLOPs utilization, the fraction of the devices' peak FLOP/s
    init_from: str | None = None  # the trained model from which the run started
    parameters: int | None = None  # number of parameters of the model
    precision: str | None = None  # precision of the training, such as bf16-mixed
    device: str | None = None  # cuda, mps or cpu
    seed: int | None = None  # the random seed
    versions: dict | None = None  # versions of Python, torch, Lightning and NumPy
    commit: str | None = None  # git commit of the code, with `-dirty` if the files differ from it
    validations: dict | None = None  # the loss of each validation, by step

    @property
    def mode(self) -> str | None:
        """How the text was read for the validation loss: in `disjoint` windows, or in windows at `documents`."""
        return (self.evaluation or {}).get("mode")

    @classmethod
    def read(cls, path: Path) -> "Summary":
        """Read a summary; of a missing or damaged file, what cannot be read is None."""
        values = None
        with suppress(OSError, ValueError, RecursionError):
            if path.is_file():
                values = json.loads(path.read_text("utf-8"))
        if not isinstance(values, dict):
            return cls()
        hints = get_type_hints(cls)
        return cls(
            **{
                key: value
                for key, value in values.items()
                if key in hints and fits(value, hints[key], {})
            }
        )

    def write(self, path: Path) -> None:
        write_text(path, json.dumps(asdict(self), indent=2) + "\n")


@dataclass(frozen=True)
class Run:
    """A run directory: `runs/<name>/` or, for a trial of a sweep, `runs/<sweep>/<trial>/`."""

    directory: Path

    def __str__(self) -> str:
        return str(self.directory)

    @property
    def name(self) -> str:
        """The value of `name=`: NAME or, for a trial of a sweep, SWEEP/TRIAL."""
        whole = self.directory.resolve()
        runs = RUNS.resolve()
        if runs in whole.parents[:2]:
            return whole.relative_to(runs).as_posix()
        return whole.name

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
    def overrides(self) -> Path:
        return self.directory / "overrides.yaml"  # a list in JSON, which is YAML, too

    @property
    def arguments(self) -> list[str] | None:
        """The arguments of the commands that trained the run; None if the file is missing or damaged."""
        try:
            stored = json.loads(self.overrides.read_text("utf-8"))
        except (OSError, ValueError):
            return None
        is_list = isinstance(stored, list) and all(
            isinstance(argument, str) and "=" in argument for argument in stored
        )
        return stored if is_list else None

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    def model(self, which: str) -> Path:
        return self.checkpoints / f"{which}.safetensors"

    @property
    def has_checkpoint(self) -> bool:
        return any(self.checkpoints.glob("*.ckpt"))

    @property
    def is_sweep(self) -> bool:
        return (self.directory / "sweep.csv").exists()

    @property
    def is_debug(self) -> bool:
        return self.summary.debug


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


def newest_first(pattern: str) -> list[Run]:
    """Return the runs that contain a file matching `pattern`, the newest first."""
    begun: dict[Run, float] = {}  # seconds since 1970
    for file in (*RUNS.glob(f"*/{pattern}"), *RUNS.glob(f"*/*/{pattern}")):
        run = Run(file.parents[pattern.count("/")])  # above the folders in `pattern`
        with suppress(OSError):  # the running process has just removed the file
            begun[run] = max(begun.get(run, 0.0), file.stat().st_mtime)
    for run in begun:
        # Without a summary, the time of its newest file remains.
        with suppress(TypeError, ValueError):
            begun[run] = datetime.fromisoformat(run.summary.begun).timestamp()  # type: ignore[arg-type]
    return sorted(begun, key=begun.__getitem__, reverse=True)


def nearest_run(name: str) -> str:
    """Return the end of an error line that names the run with the most similar name, if one is similar."""
    return nearest(name, [run.name for run in newest_first("config.yaml")])


def matching(pattern: str) -> list[Run]:
    """Return the runs that match a pattern such as `abl-*`, the newest first."""
    runs = newest_first("config.yaml")
    return [
        run
        for run in runs
        if fnmatchcase(run.name, pattern) or fnmatchcase(run.name, f"{pattern}/*")
    ]


def trials_of(name: str) -> list[Run]:
    """Return the evaluated runs of a sweep, or those that match a pattern, sorted by path."""
    path = named(name)
    if Run(path).is_sweep:
        trials = [Run(file.parent) for file in path.glob("*/summary.json")]
    elif path.exists():
        return []  # a run or a file, so not a pattern
    else:
        trials = matching(name)
    evaluated = [trial for trial in trials if trial.bpc < math.inf]
    return sorted(evaluated, key=lambda trial: trial.directory)


def to_resume(resume: str, name: str | None) -> Run | None:
    """Return the run that `resume=` and `name=` ask to continue, or None if the run `name` has not begun.

    `resume` is `auto`, or else the directory, the name or a checkpoint file of a run, and `name`
    must be None.
    """
    if resume == "auto":
        run = _place(str(name))  # is set: without it, the caller looks for the newest run
        _check_checkpoints(run, f"name={name}")
        if run.config.exists() or run.has_checkpoint:
            return run
        if (run.directory / "summary.json").exists():
            raise InputError(f"name={name}: {run} has lost its config.yaml; use another name")
        return None
    if name is not None:
        raise InputError(
            f"name={name}: cannot be combined with resume={resume}, which continues in its own directory"
        )
    path = named(resume)
    if not os.path.exists(path):
        raise InputError(
            f"resume={resume}: no such checkpoint, nor a run in {RUNS}/{nearest_run(resume)}"
        )
    is_checkpoint = path.suffix == ".ckpt" and not path.is_dir()
    if not (path.name and path.parent.name):  # `.` and `last.ckpt` name no parents
        path = path.resolve()
    run = Run(path.parent.parent if is_checkpoint else path)
    if run.is_sweep:
        raise InputError(
            f"resume={resume}: is a sweep; repeat its command, or resume={run}/TRIAL for one trial"
        )
    if not run.config.exists():
        raise InputError(
            f"resume={resume}: is not a run that can continue: {run.config} is missing"
        )
    if is_checkpoint and path.parent.name != run.checkpoints.name:
        newest = shlex.quote(f"resume={run.checkpoints / 'last.ckpt'}")
        raise InputError(
            f"resume={resume}: a run continues from its newest checkpoint, {newest}; to go back, copy the file there"
        )
    _check_checkpoints(run, f"resume={resume}")
    return run


def check_name(name: str) -> None:
    """Raise an `InputError` unless `name` is NAME or, for a trial of a sweep, SWEEP/TRIAL."""
    parts = name.split("/")
    is_name = len(parts) <= 2
    for part in parts:
        if part.startswith(".") or "\\" in part or not part.isprintable():
            is_name = False
        if not 0 < len(os.fsencode(part)) <= 200:
            is_name = False
    if not is_name:
        raise InputError(
            f"name={name[:40]!r}: must be a name of 1 to 200 bytes in runs/, or SWEEP/TRIAL"
        )


def named(name: str) -> Path:
    """Return the path that `name` means: `runs/<name>` if that exists, else `name`; `./<name>` is never a run."""
    run = RUNS / name
    if os.path.exists(run) and not name.startswith("."):  # `Path.exists` may raise
        return run
    return Path(name)


def check_not_begun(name: str) -> None:
    """Raise an `InputError` if there is a run `name`."""
    run = Run(RUNS / name)
    if run.config.exists():
        continues = f"{shlex.quote(f'name={name}')} resume=auto"
        raise InputError(
            f"name={name}: {run} exists; {continues} continues it, another name starts afresh"
        )


def check_free(name: str, debug: bool) -> None:
    """Raise an `InputError` if a new run cannot be called `name`, for example because another run has this name.

    A `debug` run may replace an earlier one.
    """
    run = _place(name)
    if debug and run.is_debug:
        return
    if debug and run.config.exists():
        raise InputError(
            f"{run} exists: another run has the name of this preset; rename or remove it"
        )
    check_not_begun(name)
    if run.directory.is_dir() and not run.directory.is_symlink():
        # A process that was killed before it wrote config.yaml has left only these files.
        early = (".lock", "train.log", run.overrides.name)
        others = [path for path in run.directory.iterdir() if path.name not in early]
        if all(path.suffix == ".tmp" for path in others):
            return
    if os.path.lexists(run.directory):
        raise InputError(f"name={name}: {run} exists and is not a run; use another name")


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


def _check_checkpoints(run: Run, setting: str) -> None:
    """Raise an `InputError` if the run has its best model but no checkpoint: resuming would overwrite the model."""
    # A run that was killed after its first model and before its first checkpoint loses nothing.
    if (
        run.model("best").exists()
        and not run.has_checkpoint
        and run.summary.status not in ("running", "failed")
    ):
        start = shlex.quote(f"init_from={run}")
        raise InputError(
            f"{setting}: has a model but no checkpoint; {start} starts another run from its model"
        )


def find_model(name: str | None) -> Path:
    """Return the path of the model that `name` means: a file, or the best model of a run or of a sweep's best trial.

    `name` may also be a training checkpoint with a model file beside it, or None for the newest
    run.
    """
    if name is None:
        runs = [run for run in newest_first("checkpoints/*.safetensors") if not run.is_debug]
        if not runs:
            start = processes.command("python", "train.py")
            raise InputError(
                f"no run in {RUNS}/ yet; make one with `{start}`, or name a model file"
            )
        return _first_model(runs[0].directory)
    path = named(name)
    if not os.path.exists(path):
        raise InputError(f"{name}: no such model, nor a run in {RUNS}/{nearest_run(name)}")
    if path.is_file() and path.suffix != ".ckpt":
        return path
    if Run(path).is_sweep:
        best = min(trials_of(name), key=lambda trial: trial.bpc, default=None)
        if best is None:
            raise InputError(
                f"{path}: no trial of this sweep has finished yet; name one of its trials"
            )
        path = best.directory
    return _first_model(path)


def _first_model(path: Path) -> Path:
    """Return the model file beside a checkpoint `path`, or the best model in a folder `path`."""
    names = ["best.safetensors", "last.safetensors"]
    if path.is_file():  # a checkpoint, to which the last model is nearer
        files = [path.with_name(name) for name in reversed(names)]
    else:
        checkpoints = path / "checkpoints"
        folder = checkpoints if checkpoints.is_dir() else path
        files = [folder / name for name in names]
    for file in files:
        if file.is_file():
            return file
    raise InputError(f"{path}: has no model file ({' or '.join(map(str, files))})")
