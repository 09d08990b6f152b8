"""Checkpoints: one self-contained file of plain data and tensors.

A file holds `format model_config vocabulary data state_dict global_step` and, to go on training, `conditions`
(what the bits of the run depend on) and what Lightning adds (`optimizer_states loops ...`). `torch.load` opens it
with its defaults, which run no code. Files from strangers are welcome: one is looked through before anything in it
is believed, and refused in one line.
"""

import os
import pickletools
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import torch

from conf.fields import InputError, one_line, printable
from gpt.config import ModelConfig
from gpt.model import GPT

FORMAT = 4
REQUIRED = {
    "format": int, "model_config": dict, "vocabulary": dict, "data": dict, "state_dict": dict, "global_step": int,
}  # fmt: skip
KEEP = 2  # step-*.ckpt files of a run, beside best and last
PREFIX = "net."  # the model is the attribute `net` of the module that Lightning fits
# What `torch.save` writes of plain data and tensors, and nothing else: the records of the archive, and the names in its
# pickle. Torch's own list of harmless names is longer; some of them take any amount of memory.
RECORD = re.compile(
    r"(?!\.)[^/\\:]+/(data\.pkl|byteorder|version|\.format_version|\.storage_alignment|\.data/serialization_id|data/\d+)"
)
NAME = re.compile(r"torch\._utils _rebuild_tensor_v2|collections OrderedDict|torch \w+Storage")
DEEPEST = 64  # levels of nesting
TABLES = 2**30  # bytes of tables that a model may compute for its positions


class CheckpointError(InputError):
    """A checkpoint that cannot be used, in one line."""

    def __init__(self, message: str) -> None:
        """Keep the line printable: names of files and what they hold may be anything."""
        super().__init__(printable(message))


def save(path: str | Path, contents: dict[str, Any]) -> None:
    """Write a checkpoint so that `path` is always either the old file or the whole new one.

    The bytes go to a temporary file in the same directory, reach the disk, and take the name at once.

    Raises:
        OSError: the file could not be written; the old one is untouched and nothing is left behind.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            torch.save(contents, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        # torch reports a failed write, such as a full disk, as a RuntimeError of its zip writer, too.
        if isinstance(error, OSError | RuntimeError):
            raise OSError(f"{path}: could not be written: {str(error).splitlines()[0]}") from error
        raise
    sync_directory(path.parent)


def link(source: str | Path, target: str | Path) -> None:
    """Give `source` the further name `target`, at once; a copy where the file system has no hard links."""
    target = Path(target)
    if target.exists() and os.path.samefile(source, target):
        return  # a rename between two names of one file would do nothing and leave both
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        try:
            os.link(source, temporary)
        except OSError:
            with open(source, "rb") as original, open(temporary, "wb") as file:
                shutil.copyfileobj(original, file)
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(target.parent)


def sync_directory(directory: Path) -> None:
    """Make a rename in `directory` survive a power cut; Windows does so by itself and cannot be asked."""
    if os.name == "posix":
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def read(path: str | Path) -> dict[str, Any]:
    """Open a checkpoint after checking that it is whole, plain and of a format this version knows.

    Raises:
        CheckpointError: missing, damaged, made to do harm, or not a chargpt checkpoint.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path}: no such checkpoint")
    try:
        # Both from one open file: what was looked through is what is loaded, whatever becomes of its name.
        with open(path, "rb") as file:
            size = _look_through(file)
            file.seek(0)
            contents = torch.load(file, map_location="cpu", weights_only=True)
        if isinstance(contents, dict):
            _check_plain(contents, size)
    except Exception as error:  # a damaged file can fail in any way that zipfile, pickle and torch know
        reason = one_line(error) or type(error).__name__
        raise CheckpointError(f"{path}: is damaged or no checkpoint ({reason[:120]})") from error
    if not isinstance(contents, dict):
        raise CheckpointError(f"{path}: is no chargpt checkpoint (holds a {type(contents).__name__})")
    wrong = [key for key, kind in REQUIRED.items() if not isinstance(contents.get(key), kind)]
    if wrong or contents["global_step"] < 0:
        raise CheckpointError(f"{path}: is no chargpt checkpoint (without {', '.join(wrong) or 'a step'})")
    if contents["format"] != FORMAT:
        raise CheckpointError(
            f"{path}: has format {contents['format']}, this version reads format {FORMAT}; use the one that wrote it"
        )
    return contents


def _look_through(file: Any) -> int:
    """Check all of a file that can be checked without loading it.

    Returns:
        The size of its pickle in bytes.

    Raises:
        ValueError: it is not what `torch.save` writes of plain data, or has changed since.
        zipfile.BadZipFile: it is no zip file, or a damaged one.
    """
    size = os.fstat(file.fileno()).st_size
    with zipfile.ZipFile(file) as archive:
        records = archive.infolist()
        names = {record.filename for record in records}
        if archive.comment or len(names) < len(records) or len({name.partition("/")[0] for name in names}) > 1:
            raise ValueError("not one archive")
        for record in records:
            # torch.load takes a record that is marked as a directory for an empty one: weights from nowhere.
            if not RECORD.fullmatch(record.filename) or record.external_attr or record.compress_type:
                raise ValueError(f"record {record.filename!r}")
        if sum(record.file_size for record in records) > size:
            raise ValueError("records larger than the file")
        if damaged := archive.testzip():  # torch.load does not compare checksums
            raise ValueError(f"checksum of {damaged!r}")
        pickle = archive.read(next((name for name in names if name.endswith("/data.pkl")), "data.pkl"))
    for code, argument, _ in pickletools.genops(pickle):
        if code.name in ("GLOBAL", "INST") and not NAME.fullmatch(str(argument)):
            raise ValueError(f"asks for {argument!r}")
    return len(pickle)


def _check_plain(contents: dict, size: int) -> None:
    """Check that contents are dicts, lists, text, numbers and tensors, no more of them than `size` bytes can hold.

    Raises:
        ValueError: they are not.
    """
    waiting, count = [(contents, 0)], 0
    while waiting:
        value, depth = waiting.pop()
        count += 1
        # A list that holds itself, or another many times over, has more parts than any file.
        if count > 4 * size or depth > DEEPEST:
            raise ValueError("parts that hold each other")
        if isinstance(value, dict):
            if not all(isinstance(key, str | int) for key in value) or value.keys() & {"_instantiator", "_class_path"}:
                raise ValueError("keys that are no plain data")
            waiting += ((part, depth + 1) for part in value.values())
        elif isinstance(value, list | tuple):
            waiting += ((part, depth + 1) for part in value)
        elif isinstance(value, torch.Tensor):
            if value.layout != torch.strided or value.nbytes > value.untyped_storage().nbytes():
                raise ValueError("a tensor larger than its numbers")
        elif not (value is None or isinstance(value, str | float | bool)):
            if not isinstance(value, int) or abs(value) >= 2**63:
                raise ValueError(f"a {type(value).__name__}")
    if "hyper_parameters" in contents:  # where Lightning finds names to import
        raise ValueError("hyper_parameters, which no checkpoint of this project has")


def find_newest(directory: Path) -> tuple[Path | None, dict[str, Any], list[str]]:
    """Find the newest checkpoint of a run that is valid and can be gone on from.

    Args:
        directory: where the run keeps its checkpoints.

    Returns:
        Its path, None when there is none; its contents; a line for each newer one that was passed over.
    """
    files = sorted(filter(Path.exists, directory.glob("step-*.ckpt")), reverse=True)
    for name in ("last", "best"):  # further names of such files, or copies where the file system has no links
        named = directory / f"{name}.ckpt"
        if named.exists() and not any(named.samefile(file) for file in files):
            files.append(named)
    skipped: list[str] = []
    for file in files:
        try:
            contents = read(file)
            if not _can_go_on(contents):
                raise CheckpointError(f"{file}: holds a model, but not all that is needed to go on training")
            return file, contents, skipped
        except CheckpointError as error:
            skipped.append(str(error))
    return None, {}, skipped


def _can_go_on(contents: dict[str, Any]) -> bool:
    """Whether a checkpoint holds what training goes on from: all of it, of the step that it says."""
    try:
        (optimizer,) = contents["optimizer_states"]
        numbers = sum(len(group["params"]) for group in optimizer["param_groups"])
        taken = contents["loops"]["fit_loop"]["epoch_loop.manual_optimization.optim_step_progress"]["total"]
        callbacks = contents["callbacks"]
        return (
            taken["completed"] == contents["global_step"]
            and len(optimizer["state"]) == numbers > 0
            and isinstance(contents["conditions"], dict)
            and isinstance(callbacks["Checkpoints"]["best_step"], int)
            and isinstance(callbacks["Watch"], dict)
        )
    except (KeyError, TypeError, ValueError):
        return False


def step_path(directory: Path, step: int) -> Path:
    """The file of a step's checkpoint."""
    return directory / f"step-{step:08d}.ckpt"


def restore_names(newest: Path, contents: dict[str, Any]) -> None:
    """Have `last` and `best` name what they should where a process was killed before it could see to it.

    Args:
        newest: the newest checkpoint of a run.
        contents: what it holds.
    """
    link(newest, newest.with_name("last.ckpt"))
    best = step_path(newest.parent, contents["callbacks"]["Checkpoints"]["best_step"])
    if best.exists():
        link(best, newest.with_name("best.ckpt"))
    remove_older(newest)


def remove_older(newest: Path) -> None:
    """Of the files of a run's steps, keep `newest` and those before it that make up `KEEP`.

    Files of later steps are damaged ones, which the run was resumed before: they are written again in time.
    """
    steps = [file for file in sorted(newest.parent.glob("step-*.ckpt")) if file.name <= newest.name]
    for old in steps[:-KEEP]:
        old.unlink()


def remove_unfinished(directory: Path) -> None:
    """Remove what killed processes had not finished writing in `directory`; nobody else may be writing there."""
    for temporary in directory.glob(".*.tmp"):
        temporary.unlink(missing_ok=True)


def is_finite(contents: Any) -> bool:
    """Whether all tensors in nested dicts and lists hold numbers only."""
    if isinstance(contents, dict):
        contents = list(contents.values())
    if isinstance(contents, list | tuple):
        return all(is_finite(part) for part in contents)
    return not isinstance(contents, torch.Tensor) or bool(contents.isfinite().all())


def load_checkpoint(path: str | Path) -> tuple[GPT, dict[str, Any]]:
    """Load a model for use.

    Args:
        path: a checkpoint file.

    Returns:
        The model on the CPU in evaluation mode, and all else the file holds: `vocabulary` (what
        `data.tokenizer.tokenizer_from` takes), `data`, `global_step`, `model_config` and so on.

    Raises:
        CheckpointError: missing, damaged, not a chargpt checkpoint, or its parts do not fit together.
    """
    meta = read(path)
    state = {str(key).removeprefix(PREFIX): value for key, value in meta.pop("state_dict").items()}
    try:
        if not is_finite(state):
            raise ValueError("weights that are no numbers")
        model = GPT(_fitting(meta["model_config"], state), len(state["embedding.weight"]))
        model.load_state_dict(state)
        _check_vocabulary(meta["vocabulary"], model.vocabulary)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = one_line(error)
        raise CheckpointError(
            f"{path}: weights, model_config and vocabulary do not fit together ({reason[:160]})"
        ) from error
    return model.eval(), meta


def _fitting(config: dict[str, Any], state: dict[str, Any]) -> ModelConfig:
    """The configuration, once the weights are known to be those of its model: only then is memory taken for one.

    Raises:
        KeyError, TypeError, ValueError: they are not.
    """
    checked = ModelConfig(**config)
    layers = 1 + max((int(key.split(".")[1]) for key in state if re.match(r"blocks\.\d{1,4}\.", key)), default=-1)
    if layers != checked.layers:
        raise ValueError(f"weights of {layers} layers for layers={checked.layers}")
    with torch.device("meta"):
        model = GPT(checked, len(state["embedding.weight"]))
    for key, value in model.state_dict().items():
        given = state.get(key)
        if not isinstance(given, torch.Tensor) or given.shape != value.shape or not given.is_floating_point():
            shape = tuple(given.shape) if isinstance(given, torch.Tensor) else None
            raise ValueError(f"{key} is {shape}, must be {tuple(value.shape)}")
    if sum(buffer.nbytes for buffer in model.buffers()) > TABLES:
        raise ValueError(f"context={checked.context} needs tables of more than {TABLES >> 30} GiB")
    return checked


def _check_vocabulary(vocabulary: dict[str, Any], size: int) -> None:
    """Check that a vocabulary is one of `size` tokens, whose numbers mean what they did in training.

    Raises:
        ValueError: it is not.
    """
    match vocabulary:
        case {"kind": "byte"}:
            count = 256
        case {"kind": "char", "characters": str(characters)}:
            if list(characters) != sorted(set(characters)) or any("\ud800" <= each <= "\udfff" for each in characters):
                raise ValueError("a vocabulary that is not sorted, distinct characters")
            count = len(characters)
        case _:
            raise ValueError("no vocabulary")
    if count != size:
        raise ValueError(f"a vocabulary of {count} for a model of {size}")
