"""Opening a checkpoint file without torch: sampling starts in a fraction of the time that torch takes to load.

Files from strangers are welcome: one is looked through before anything in it is believed, only plain data and tensors
are made of it, and the rest is refused in one line.
"""

import io
import math
import os
import pickle
import pickletools
import re
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from conf.fields import InputError, one_line, printable
from gpt.config import ModelConfig

FORMAT = 4
REQUIRED = {
    "format": int, "model_config": dict, "vocabulary": dict, "data": dict, "state_dict": dict, "global_step": int,
}  # fmt: skip
PREFIX = "net."  # the model is the attribute `net` of the module that Lightning fits
# What `torch.save` writes of plain data and tensors, and nothing else: the records of the archive, and the names in its
# pickle.
RECORD = re.compile(
    r"(?!\.)[^/\\:]+/(data\.pkl|byteorder|version|\.format_version|\.storage_alignment|\.data/serialization_id|data/\d+)"
)
NAME = re.compile(r"torch\._utils _rebuild_tensor_v2|collections OrderedDict|torch \w+Storage")
STORAGES = {
    "Double": ("float64", 8), "Float": ("float32", 4), "Half": ("float16", 2), "BFloat16": ("bfloat16", 2),
    "Long": ("int64", 8), "Int": ("int32", 4), "Short": ("int16", 2), "Char": ("int8", 1), "Byte": ("uint8", 1),
    "Bool": ("bool", 1),
}  # fmt: skip
DEEPEST = 64  # levels of nesting
TABLES = 2**30  # bytes of tables that a model may compute for its positions

# Makes a tensor of (type, bytes, offset, shape, strides), the last three in numbers of that type.
Maker = Callable[[str, bytearray, int, tuple[int, ...], tuple[int, ...]], Any]


class CheckpointError(InputError):
    """A checkpoint that cannot be used, in one line."""

    def __init__(self, message: str) -> None:
        """Keep the line printable: names of files and what they hold may be anything."""
        super().__init__(printable(message))


def read(path: str | Path, make: Maker) -> dict[str, Any]:
    """Open a checkpoint after checking that it is whole, plain and of a format this version knows.

    Args:
        path: a checkpoint file.
        make: makes a tensor of a part of the file; see `Maker`.

    Raises:
        CheckpointError: missing, damaged, made to do harm, or not a chargpt checkpoint.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path}: no such checkpoint")
    if path.suffix == ".safetensors":
        raise CheckpointError(f"{path}: first make a checkpoint of it: export.py {path} --from safetensors OUT.ckpt")
    try:
        # One open file: what is looked through is what is loaded, whatever becomes of its name.
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            pickled = _look_through(archive, os.fstat(file.fileno()).st_size)
            contents = _Plain(pickled, archive, make).load()
        if isinstance(contents, dict):
            check_plain(contents, len(pickled))
    except Exception as error:  # a damaged file can fail in any way that zipfile and pickle know
        reason = one_line(error) or type(error).__name__
        raise CheckpointError(f"{path}: is damaged or no checkpoint ({reason[:120]})") from error
    check_parts(path, contents)
    return contents


def check_parts(path: str | Path, contents: Any) -> None:
    """Check that what was read from a file has the parts of a checkpoint, of the format that this version knows.

    Raises:
        CheckpointError: it has not.
    """
    if not isinstance(contents, dict):
        raise CheckpointError(f"{path}: is no chargpt checkpoint (holds a {type(contents).__name__})")
    wrong = [key for key, kind in REQUIRED.items() if not isinstance(contents.get(key), kind)]
    if wrong or contents["global_step"] < 0:
        raise CheckpointError(f"{path}: is no chargpt checkpoint (without {', '.join(wrong) or 'a step'})")
    if contents["format"] != FORMAT:
        raise CheckpointError(
            f"{path}: has format {contents['format']}, this version reads format {FORMAT}; use the one that wrote it"
        )


def _look_through(archive: zipfile.ZipFile, size: int) -> bytes:
    """Check all of a file that can be checked without loading it.

    Returns:
        Its pickle.

    Raises:
        ValueError: it is not what `torch.save` writes of plain data, or has changed since.
    """
    records = archive.infolist()
    names = {record.filename for record in records}
    if archive.comment or len(names) < len(records) or len({name.partition("/")[0] for name in names}) > 1:
        raise ValueError("not one archive")
    for record in records:
        if not RECORD.fullmatch(record.filename) or record.external_attr or record.compress_type:
            raise ValueError(f"record {record.filename!r}")
    if sum(record.file_size for record in records) > size:
        raise ValueError("records larger than the file")
    if damaged := archive.testzip():
        raise ValueError(f"checksum of {damaged!r}")
    pickled = archive.read(next((name for name in names if name.endswith("/data.pkl")), "data.pkl"))
    for code, argument, _ in pickletools.genops(pickled):
        if code.name in ("GLOBAL", "INST") and not NAME.fullmatch(str(argument)):
            raise ValueError(f"asks for {argument!r}")
        if code.name in ("PUT", "LONG_BINPUT") and int(argument or 0) > len(pickled):  # takes memory for all below it
            raise ValueError(f"{argument} things to remember")
    return pickled


class _Plain(pickle.Unpickler):
    """Makes plain data and tensors of what `torch.save` has pickled; names beyond `NAME` are refused."""

    def __init__(self, pickled: bytes, archive: zipfile.ZipFile, make: Maker) -> None:
        super().__init__(io.BytesIO(pickled))
        self.archive, self.make = archive, make
        self.folder = archive.namelist()[0].partition("/")[0]
        self.storages: dict[str, tuple[str, int, bytearray]] = {}
        order = f"{self.folder}/byteorder"
        if order in archive.namelist() and archive.read(order) != sys.byteorder.encode():
            raise ValueError("written on a machine with another order of bytes")

    def find_class(self, module: str, name: str) -> Any:
        if not NAME.fullmatch(f"{module} {name}"):
            raise ValueError(f"asks for '{module} {name}'")
        if name == "OrderedDict":
            return OrderedDict
        return self.rebuild if name == "_rebuild_tensor_v2" else name.removesuffix("Storage")

    def persistent_load(self, pid: Any) -> tuple[str, int, bytearray]:
        what, kind, key, _, count = pid
        if what != "storage" or kind not in STORAGES:
            raise ValueError(f"asks for a {what} of {kind}")
        dtype, width = STORAGES[kind]
        if key not in self.storages:
            self.storages[key] = dtype, width, bytearray(self.archive.read(f"{self.folder}/data/{key}"))
        storage = self.storages[key]
        if storage[0] != dtype or len(storage[2]) != count * width:
            raise ValueError(f"{count} numbers of {dtype} in {len(storage[2])} bytes")
        return storage

    def rebuild(self, storage: tuple, offset: int, shape: tuple, strides: tuple, *_: Any) -> Any:
        dtype, width, memory = storage
        numbers = (offset, *shape, *strides)
        if len(shape) != len(strides) or not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError("a tensor of no shape")
        last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        count = math.prod(shape)
        if count and (last + 1) * width > len(memory) or count * width > len(memory):
            raise ValueError("a tensor larger than its numbers")
        return self.make(dtype, memory, offset, shape, strides)


def check_plain(contents: dict, size: int) -> None:
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
        elif not (value is None or isinstance(value, str | float | bool) or hasattr(value, "shape")):
            if not isinstance(value, int) or abs(value) >= 2**63:
                raise ValueError(f"a {type(value).__name__}")
    if "hyper_parameters" in contents:  # where Lightning finds names to import
        raise ValueError("hyper_parameters, which no checkpoint of this project has")


def weights(
    path: str | Path, contents: dict[str, Any], finite: Callable[[Any], bool]
) -> tuple[ModelConfig, dict[str, Any]]:
    """Take the weights out of the contents of a checkpoint, once they are known to be those of its model.

    Args:
        path: the checkpoint's, for messages.
        contents: of the file; `state_dict` is removed.
        finite: whether a tensor holds numbers only.

    Returns:
        The shape of the model, and its state dict.

    Raises:
        CheckpointError: the parts do not fit together.
    """
    state = {str(key).removeprefix(PREFIX): value for key, value in contents.pop("state_dict").items()}
    try:
        config = ModelConfig(**contents["model_config"])
        size = vocabulary_size(contents["vocabulary"])
        _check_shapes(config.shapes(size), state)
        if not all(finite(value) for value in state.values()):
            raise ValueError("weights that are no numbers")
        tables = {"rotary": 8 * config.layers * config.head_dim, "sinusoidal": 4 * config.dim}
        if config.context * tables.get(config.positions, 0) > TABLES:
            raise ValueError(f"context={config.context} needs tables of more than {TABLES >> 30} GiB")
    except (KeyError, TypeError, ValueError) as error:
        reason = one_line(error)
        raise CheckpointError(
            f"{path}: weights, model_config and vocabulary do not fit together ({reason[:160]})"
        ) from error
    return config, state


def vocabulary_size(vocabulary: dict[str, Any]) -> int:
    """How many tokens a vocabulary has.

    Raises:
        ValueError: it is none: its characters must be sorted and distinct, or tokens would mean others.
    """
    match vocabulary:
        case {"kind": "byte"}:
            return 256
        case {"kind": "char", "characters": str(characters)}:
            if list(characters) != sorted(set(characters)) or any("\ud800" <= each <= "\udfff" for each in characters):
                raise ValueError("a vocabulary that is not sorted, distinct characters")
            return len(characters)
    raise ValueError("no vocabulary")


def _check_shapes(shapes: Iterable[tuple[str, tuple[int, ...]]], state: dict[str, Any]) -> None:
    """Check that weights are those that a model has.

    Raises:
        ValueError: one is missing, too many, of another shape or not of floating-point numbers.
    """
    names = set()
    for name, shape in shapes:
        names.add(name)
        given = getattr(state.get(name), "shape", None)
        if given is None or tuple(given) != shape or "float" not in str(state[name].dtype):
            raise ValueError(f"{name} is {None if given is None else tuple(given)}, must be {shape}")
    if more := set(state) - names:
        raise ValueError(f"{min(more)} is no weight of such a model")
