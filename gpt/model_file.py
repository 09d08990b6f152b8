"""Model files: trained weights as safetensors, described by JSON in the metadata; no torch, so sampling starts fast.

A stranger's file is safe to open: `read` checks the header against the described model before it
allocates memory. Source of the format: safetensors (https://github.com/huggingface/safetensors),
README, "Format".
"""

import hashlib
import json
import math
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NotRequired, TypedDict, get_type_hints

import numpy as np

from base.errors import InputError, describe_os_error, one_line, printable
from base.files import atomic
from base.options import fits
from gpt.config import ModelConfig
from gpt.tokenizer import tokenizer_from

FORMAT = 1  # increase it if an old model file would mean something else
MAX_END = 100  # characters of an end mark
MAX_HEADER = 2**23  # bytes: 1.5 times what the deepest model needs
MAX_METADATA = 2**20  # characters: more than a vocabulary of 65,536 and all settings need


class TextRead(TypedDict):
    """A text that a model was trained on."""

    sha256: str  # hash of the text's file or, if it has several files, of their names and hashes
    split: str  # hash of the text and of how it was split, "" if nothing was held out
    # hashes of the texts of its training files (`data.seen`); absent: unknown
    files: NotRequired[list[str]]


class Documents(TypedDict):
    """How the training text was divided into documents (`data.documents.DocumentRule`)."""

    kind: str
    end: str
    name: str


class Evaluation(TypedDict):
    """How `val_loss` was measured (`gpt.evaluation.measured`)."""

    mode: str
    context: int
    stride: int
    characters: int


class Description(TypedDict):
    """What a model file says about its model, beside the `sha256` of the weights."""

    format: int
    model_config: dict[str, Any]
    vocabulary: dict[str, Any]
    step: int
    val_loss: float | None  # nats per token; None: saved between two validations
    evaluation: Evaluation | None
    text: str  # name of the training text, without its folder
    texts: list[TextRead]  # the training text, then those of the models that training started from
    documents: Documents | None


FIELDS = get_type_hints(Description)
INTEGERS = {"least": 0, "below": 2**63}  # the range of each whole number


class CheckpointError(InputError):
    """Raised for a model file or checkpoint that cannot be used, with a message of one line."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class Model(NamedTuple):
    """The contents of a model file."""

    config: ModelConfig
    # name -> float32 array of each weight, without `head.weight` if it is tied
    state: dict[str, np.ndarray]
    meta: dict[str, Any]  # a `Description`


def write(path: Path, state: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
    """Write a model file atomically from the weights that `weight_shapes` lists and a `Description`."""
    from safetensors.numpy import save

    weights = {name: np.ascontiguousarray(array, "<f4") for name, array in state.items()}
    described = {field: meta[field] for field in FIELDS} | {"sha256": digest(weights)}
    packed = save(weights, {"chargpt": json.dumps(described, ensure_ascii=False)})
    with atomic(path) as temporary:
        temporary.write_bytes(packed)


def digest(state: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of the little-endian fp32 bytes of all weights, in the order of their names."""
    sha = hashlib.sha256()
    for name in sorted(state):
        sha.update(state[name].astype("<f4", copy=False).data)
    return sha.hexdigest()


def read(path: str | Path) -> Model:
    """Return the contents of a model file, safely even if the file comes from a stranger.

    Raises:
        CheckpointError: the file is missing, unreadable, damaged or in another format, or its
            weights do not match its description.
        OSError: the disk failed, so the file may be intact.
    """
    from safetensors.numpy import load

    # The file is not memory-mapped: if it was shortened while it is read, a signal would end the
    # process.
    with _opened(path) as file:
        config, described, shapes = _read_header(file, path)
        header_size = file.tell()  # the weights begin where the header ends
        weights_size = 4 * sum(map(math.prod, shapes.values()))  # bytes
        file.seek(0)
        # one byte more, so that a longer file is refused
        state = load(file.read(header_size + weights_size + 1))
        # safetensors parses the header itself, so what it has read is checked, too.
        check_header(
            {name: {"dtype": "F32", "shape": state[name].shape} for name in state}, shapes
        )
        if digest(state) != described.get("sha256"):
            raise ValueError("the weights are not those that were written")
        if not all(np.isfinite(array).all() for array in state.values()):
            raise ValueError("weights that are NaN or infinite")
    return Model(config, state, {field: described[field] for field in FIELDS})


def read_description(path: str | Path) -> tuple[ModelConfig, dict[str, Any]]:
    """Return the architecture and the `Description` in a model file without reading its weights; raises as `read`."""
    with _opened(path) as file:
        config, described, _ = _read_header(file, path)
    return config, {field: described[field] for field in FIELDS}


@contextmanager
def _opened(path: str | Path) -> Iterator[BinaryIO]:
    """Open a model file, and raise the errors of `read` for what is wrong with it."""
    from safetensors import SafetensorError

    if not Path(path).is_file():
        raise CheckpointError(f"{path}: no such model file")
    try:
        with open(path, "rb") as file:
            yield file
    except CheckpointError:
        raise
    except PermissionError as error:
        raise CheckpointError(describe_os_error(error, path)) from None
    except OSError as error:
        error.filename = str(path)
        raise
    except (
        SafetensorError, AttributeError, LookupError, TypeError, ValueError, RecursionError, struct.error
    ) as error:  # fmt: skip
        raise CheckpointError(
            f"{path}: is damaged or not a model file ({one_line(error)[:160]})"
        ) from error


def _read_header(
    file: BinaryIO, path: str | Path
) -> tuple[ModelConfig, dict[str, Any], dict[str, tuple[int, ...]]]:
    """Read a file up to its weights; return the architecture, what the file says, and the shapes of the weights."""
    length = struct.unpack("<Q", file.read(8))[0]
    if length > MAX_HEADER:
        raise ValueError("no usable safetensors header")
    header = json.loads(file.read(length))
    text = header.pop("__metadata__", {}).get("chargpt", "")
    if not text:
        raise CheckpointError(f"{path}: is a safetensors file, but not a chargpt model")
    described = {"texts": []} | parse(text)  # older files have no texts
    if described.get("format") != FORMAT:
        raise other_format(path, described.get("format"))
    check_fields(described, Description)
    if described["evaluation"] is not None:
        check_fields(described["evaluation"], Evaluation, "evaluation.")
    for text_read in described["texts"]:
        check_fields(text_read, TextRead, "texts.")
    tokenizer = tokenizer_from(described["vocabulary"])
    documents = described["documents"]
    if documents is not None:
        check_fields(documents, Documents, "documents.")
        tokenizer.encode(documents["end"])  # raises if it is not known
        if not 0 < len(documents["end"]) <= MAX_END:
            raise ValueError(f"the end mark of documents must have 1 to {MAX_END} characters")

    config = ModelConfig(**described["model_config"])  # raises if it has an unknown key
    for field in fields(config):
        # this version's default may describe another model
        if field.name not in described["model_config"]:
            raise ValueError(f"model_config has no {field.name}")
        if field.metadata["auto"] and getattr(config, field.name) == "auto":
            raise ValueError(f"model_config.{field.name} is auto, must be a number")
    shapes = dict(weight_shapes(config, tokenizer.size))
    check_header(header, shapes)
    return config, described, shapes


def parse(text: str) -> dict[str, Any]:
    """Return the JSON object `text`, or raise `ValueError` if it is too long or not one that JSON can write."""
    if len(text) > MAX_METADATA:
        raise ValueError(f"metadata of {len(text)} characters")
    described = json.loads(text)
    if not isinstance(described, dict):
        raise ValueError("metadata that is not a JSON object")
    # json.loads accepts NaN and surrogates
    json.dumps(described, ensure_ascii=False, allow_nan=False).encode()
    return described


def check_fields(described: Mapping[str, Any], kind: Any, prefix: str = "") -> None:
    """Raise a `ValueError` that names the first field of the TypedDict `kind` which `described` lacks or has wrong."""
    for field, hint in get_type_hints(kind).items():
        if field not in described and field in kind.__optional_keys__:
            continue
        limits = INTEGERS if hint is int else {}
        if not fits(described.get(field, ...), hint, limits):  # `...` has none of the types
            raise ValueError(f"{prefix}{field} is missing, of the wrong type or out of range")


def weight_shapes(config: ModelConfig, vocabulary: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield (name, shape) for each weight in a model's file, which has no `head.weight` if the head is tied."""
    dim = config.dim
    block: dict[str, tuple[int, ...]] = {
        "norm1.weight": (dim,), "attention.qkv.weight": (3 * dim, dim), "attention.proj.weight": (dim, dim),
        "norm2.weight": (dim,), "mlp.up.weight": (4 * dim, dim), "mlp.down.weight": (dim, 4 * dim),
        **{f"mlp.taps.{tap}": (dim,) for tap in range(config.conv_taps - 1)},
    }  # fmt: skip
    if config.token_shift:
        yield "shift", (dim,)
    yield "embedding.weight", (vocabulary, dim)
    if config.positions == "learned":
        yield "position_embedding.weight", (config.context, dim)
    shapes = {
        f"blocks.{i}.{name}": shape for i in range(config.layers) for name, shape in block.items()
    }
    for name, shape in (shapes | {"norm.weight": (dim,)}).items():
        yield name, shape
        may_have_bias = name.endswith("weight") and (len(shape) == 2 or config.norm == "layernorm")
        if config.bias and may_have_bias:
            yield name.replace("weight", "bias"), shape[:1]
    if not config.tied:
        yield "head.weight", (vocabulary, dim)


def check_header(header: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise `ValueError` unless a safetensors header lists exactly the weights in `shapes`, all of them fp32."""
    unknown = header.keys() - shapes.keys()
    if unknown:
        raise ValueError(f"{min(unknown)} is not a weight of such a model")
    for name, shape in shapes.items():
        tensor = header.get(name)
        if tensor is None:
            raise ValueError(f"{name} is missing, must be F32 {shape}")
        stored_shape = tuple(tensor["shape"])
        if tensor["dtype"] != "F32" or stored_shape != shape:
            raise ValueError(f"{name} is {tensor['dtype']} {stored_shape}, must be F32 {shape}")


def to_device(thing: Any, name: str) -> Any:
    """Return a model or tensor on the device `name`; raise `InputError` if this machine does not have it."""
    try:
        return thing.to(name)
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch without CUDA
        raise InputError(
            f"--device {name}: cannot be used here: {str(error).splitlines()[0]}"
        ) from None


def other_format(
    path: str | Path, stored: Any, read: int = FORMAT, way: str = "use the version that wrote it"
) -> CheckpointError:
    """Return the error for a file whose format number, a value of any type, is not `read`."""
    return CheckpointError(
        f"{path}: has format {str(stored)[:20]}, but this version reads format {read}; {way}"
    )
