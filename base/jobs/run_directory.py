"""Find, name and check run directories, `runs/<name>/`. Does not load torch, so that errors appear at once."""

import json
import math
import os
import shlex
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import get_type_hints

from base import processes, ranks
from base.errors import InputError, nearest
from base.files import remove_unfinished, write_text
from base.jobs import run_lock
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

    def write_summary(self, summary: Summary) -> None:
        """Replace summary.json, except for when the run was first started and whether it is a debug run."""
        before = self.summary
        begun = before.begun or datetime.now(UTC).isoformat()
        merged = replace(summary, begun=begun, debug=before.debug or summary.debug)
        write_text(self.directory / "summary.json", json.dumps(asdict(merged), indent=2) + "\n")

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
        if not fits(stored, list[str], {}) or not all("=" in argument for argument in stored):
            return None
        return stored

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    def model(self, which: str) -> Path:
        return self.checkpoints / f"{which}.safetensors"

    def remove_unfinished(self) -> None:
        """Remove what killed processes left."""
        for folder in (self.directory, self.checkpoints):
            remove_unfinished(folder)

    @property
    def has_checkpoint(self) -> bool:
        return any(self.checkpoints.glob("*.ckpt"))

    @property
    def has_begun(self) -> bool:
        return self.config.exists() or self.has_checkpoint

    @property
    def is_sweep(self) -> bool:
        return (self.directory / "sweep.csv").exists()

    @property
    def trials(self) -> list["Run"]:
        """The trials of a sweep that have begun or failed to."""
        return [Run(file.parent) for file in sorted(self.directory.glob("*/summary.json"))]


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


def matching(pattern: str) -> list[Run]:
    """Return the trials of a sweep, or the runs that match a pattern such as `abl-*`."""
    path = path_of(pattern)
    if Run(path).is_sweep:
        return Run(path).trials
    return [
        run
        for run in newest_first("config.yaml")
        if fnmatchcase(run.name, pattern) or fnmatchcase(run.name, f"{pattern}/*")
    ]


def find(name: str | None, need: str) -> Path:
    """Return what `name` means: a run in runs/ or, with a path such as `./first`, a file or folder elsewhere.

    Args:
        name: a run, its directory, or a file in it; None means the newest run.
        need: `model` for the model file, of a sweep that of its best trial, or `checkpoint` for the
            directory of a run that can be resumed; the newest is then the newest unfinished one.

    Raises:
        InputError: there is none.
    """
    if name is None and need == "model":
        for run in newest_first("checkpoints/*.safetensors"):
            if not run.summary.debug:
                return _model_in(run.directory)
        start = processes.command("python", "train.py")
        raise InputError(f"no run in {RUNS}/ yet; make one with `{start}`, or name a model file")
    if name is None:
        for run in newest_first("config.yaml"):
            summary = run.summary
            # With the same settings, a run that has diverged would diverge again.
            is_unfinished = not summary.debug and summary.status not in ("finished", "diverged")
            # Rank 0 locks the directory for all ranks, so the others do not ask.
            if is_unfinished and (ranks.rank() > 0 or not run_lock.in_use(run.directory)):
                return run.directory
        raise InputError(
            f"auto: no unfinished run in {RUNS}/ that is not in use; diverged runs are skipped"
        )
    path = path_of(name)
    if not os.path.exists(path):  # `Path.exists` may raise
        names = [run.name for run in newest_first("config.yaml")]
        raise InputError(
            f"{name}: no such {need}, nor a run in {RUNS.resolve()}/{nearest(name, names)}"
        )
    return _model_in(path) if need == "model" else _run_at(path, name)


def path_of(name: str) -> Path:
    """Return the path of a run, `runs/<name>`, if that exists, else the path `name`; `./<name>` is never a run."""
    run = RUNS / name
    if os.path.exists(run) and not name.startswith("."):
        return run
    return Path(name)


def _model_in(path: Path) -> Path:
    """Return the model file `path`, or that of a run, of a sweep's best trial, or beside a training checkpoint."""
    if path.is_file() and path.suffix != ".ckpt":
        return path
    if Run(path).is_sweep:
        best = min(Run(path).trials, key=lambda trial: trial.bpc, default=None)
        if best is None or best.bpc == math.inf:
            raise InputError(
                f"{path}: no trial of this sweep has finished yet; name one of its trials"
            )
        path = best.directory
    names = ["best.safetensors", "last.safetensors"]
    folder = path / "checkpoints"
    if path.is_file():  # a checkpoint, to which the last model is nearer
        folder = path.parent
        names.reverse()
    elif not folder.is_dir():
        folder = path
    files = [folder / name for name in names]
    for file in files:
        if file.is_file():
            return file
    raise InputError(f"{path}: has no model file ({' or '.join(map(str, files))})")


def _run_at(path: Path, name: str) -> Path:
    """Return the directory of the run to which `path`, a directory or a checkpoint in it, belongs."""
    is_checkpoint = path.suffix == ".ckpt" and not path.is_dir()
    if not (path.name and path.parent.name):  # `.` and `last.ckpt` name no parents
        path = path.resolve()
    run = Run(path.parent.parent if is_checkpoint else path)
    if run.is_sweep:
        raise InputError(
            f"{name}: is a sweep; repeat its command, or resume={run}/TRIAL for one trial"
        )
    if not run.config.exists():
        raise InputError(f"{name}: is not a run that can continue: {run.config} is missing")
    if is_checkpoint and path.parent.name != run.checkpoints.name:
        newest = shlex.quote(f"resume={run.checkpoints / 'last.ckpt'}")
        raise InputError(
            f"{name}: a run continues from its newest checkpoint, {newest}; to go back, copy the file there"
        )
    return run.directory
