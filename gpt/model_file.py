"""Model files: trained weights as safetensors, and a description of the model as JSON in the metadata.

A model file from anyone is safe to open, because `read` compares the header with the described model before it
allocates memory, and executes nothing in the file. This module does not import torch, so that sampling starts fast.

The metadata has one key, `chargpt`, whose JSON contains `FIELDS` and the `sha256` of the weights. If the head is tied
to the embedding, the file has `embedding.weight` and no `head.weight`.
Source of the format: safetensors (https://github.com/huggingface/safetensors), README, "Format".
"""

import hashlib
import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from base.errors import InputError, describe_os_error, one_line, printable
from base.files import atomic
from gpt.config import ModelConfig
from gpt.tokenizer import tokenizer_from

FORMAT = 1  # increase it if an old model file would mean something else
# The description of a model: `val_loss` is in nats per token, null for weights saved between two validations;
# `evaluation` says how it was measured; `text` is the training text's name without its folder;
# `trained_on` has `sha256`, the first `HASH` digits of the hashes of files (`data.decoding.hashed`) of which the first
# `share` was trained on, `split`, a hash of the text and of how it was split, and `before`, the same of the models that
# training started from; `documents` is null, or the rule by which the text was divided into documents
# (`data.documents.Rule`).
FIELDS = {
    "format": int, "model_config": dict, "vocabulary": dict, "step": int, "val_loss": float | None,
    "evaluation": dict | None, "text": str, "trained_on": dict, "documents": dict | None,
}  # fmt: skip
DOCUMENTS = {"kind": str, "end": str, "name": str}
TRAINED_ON = {"sha256": list, "share": float, "split": str}
EVALUATION = {"mode": str, "context": int, "stride": int, "characters": int}
HASH = 16  # hexadecimal digits; older files have all 64, of the bytes of each file
MAX_TEXTS = 32  # that a model file remembers: with 1,000 hashes each, they fit into `MAX_METADATA`
MAX_END = 100  # characters of an end mark
MAX_HEADER = 2**23  # bytes: 1.5 times what the deepest model needs
MAX_METADATA = 2**20  # characters: more than a vocabulary of 65,536 and all settings need


class CheckpointError(InputError):
    """Raised for a model file or checkpoint that cannot be used, with a message of one line."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class Model(NamedTuple):
    """The contents of a model file: its architecture, its weights by name, and its description (see `FIELDS`)."""

    config: ModelConfig
    state: dict[str, np.ndarray]  # name -> float32 array of each weight, without `head.weight` if it is tied
    meta: dict[str, Any]  # `FIELDS`


def write(path: Path, state: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
    """Write a model file from the weights `state` and the description `meta`.

    The write is atomic: if it raises `OSError`, an existing file at `path` is unchanged.

    Args:
        path: file to write.
        state: name -> array of each weight that `ModelConfig.shapes` lists.
        meta: the description of the model, a mapping that has the keys of `FIELDS`.
    """
    from safetensors.numpy import save

    weights = {name: np.ascontiguousarray(array, "<f4") for name, array in state.items()}
    described = {field: meta[field] for field in FIELDS} | {"sha256": digest(weights)}
    packed = save(weights, {"chargpt": json.dumps(described, ensure_ascii=False)})
    with atomic(path) as temporary:
        temporary.write_bytes(packed)


def digest(state: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of all weights in `state` as a hexadecimal string.

    The hash covers the little-endian fp32 bytes of the weights, in the order of their names.
    """
    sha = hashlib.sha256()
    for name in sorted(state):
        sha.update(state[name].astype("<f4", copy=False).data)
    return sha.hexdigest()


def read(path: str | Path) -> Model:
    """Return the contents of a model file, safely even if the file comes from a stranger.

    Raises:
        CheckpointError: the file is missing, unreadable, damaged or in another format, or its weights do not match its
            description.
        OSError: the disk failed, so the file may be intact.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    if not Path(path).is_file():
        raise CheckpointError(f"{path}: no such model file")
    try:
        # The file is not memory-mapped: if it was shortened while it is read, a signal would end the process.
        with open(path, "rb") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            if length > MAX_HEADER:
                raise ValueError("no usable safetensors header")
            header = json.loads(file.read(length))
            text = header.pop("__metadata__", {}).get("chargpt", "")
            described = parse(text) if text else {}
            if described.get("format") == FORMAT:
                check_fields(described, FIELDS)
                check_fields(described["trained_on"], TRAINED_ON | {"before": list})
                for each in described["trained_on"]["before"]:
                    check_fields(each, TRAINED_ON)
                if (documents := described["documents"]) is not None:
                    check_fields(documents, DOCUMENTS)
                    tokenizer_from(described["vocabulary"]).encode(documents["end"])  # raises if it is not known
                    if not 0 < len(documents["end"]) <= MAX_END:
                        raise ValueError(f"the end mark of documents must have 1 to {MAX_END} characters")
                if described["evaluation"]:
                    check_fields(described["evaluation"], EVALUATION)
                config = model_config(described["model_config"])
                shapes = dict(config.shapes(tokenizer_from(described["vocabulary"]).size))
                check_header(header, shapes)
                size = 8 + length + sum(4 * math.prod(shape) for shape in shapes.values())
                file.seek(0)
                state = load(file.read(size + 1))  # one byte more, so that a longer file is refused
                check_header({name: {"dtype": "F32", "shape": state[name].shape} for name in state}, shapes)
                if digest(state) != described.get("sha256"):
                    raise ValueError("the weights are not those that were written")
                if not all(np.isfinite(array).all() for array in state.values()):
                    raise ValueError("weights that are NaN or infinite")
                return Model(config, state, {field: described[field] for field in FIELDS})
    except PermissionError as error:
        raise CheckpointError(describe_os_error(error, path)) from None
    except OSError as error:  # a disk error: the file may be intact
        error.filename = str(path)
        raise
    except (
        SafetensorError, AttributeError, LookupError, TypeError, ValueError, RecursionError, struct.error
    ) as error:  # fmt: skip
        raise CheckpointError(f"{path}: is damaged or not a model file ({one_line(error)[:160]})") from error
    if not described:
        raise CheckpointError(f"{path}: is a safetensors file, but not a chargpt model")
    raise other_format(path, described.get("format"))


def texts_read(meta: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return descriptions of the texts that a model was trained on, as at most `MAX_TEXTS` dicts.

    `meta` is the description in the model file. Each dict has the keys of `TRAINED_ON`: `sha256`, `share` and `split`.
    The first dict describes the text of the run that wrote the file. If that run started from a trained model, the
    texts of the trained model follow.
    """
    own = {key: meta["trained_on"][key] for key in TRAINED_ON}
    return [own, *(each for each in meta["trained_on"]["before"] if each != own)][:MAX_TEXTS]


def shares_read(texts: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return which fraction of each file, from its beginning, a model was trained on: hash of the file -> fraction.

    `texts` are dicts with the keys of `TRAINED_ON`, as `texts_read` returns them. If several texts include the same
    file, the largest fraction is returned.
    """
    ordered = sorted(texts, key=lambda text: text["share"])
    return {str(sha256)[:HASH]: text["share"] for text in ordered for sha256 in text["sha256"]}


def to_device(thing: Any, name: str) -> Any:
    """Return a model or tensor moved to the device `name`, such as cuda.

    If this machine does not have the device, raise `InputError`.
    """
    try:
        return thing.to(name)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"--device {name}: cannot be used here: {str(error).splitlines()[0]}") from None


def other_format(path: str | Path, found: Any, read: int = FORMAT) -> CheckpointError:
    """Return the error to raise if a file has format number `found` but this version reads only format number `read`.

    `found` is read from the file, so it may be of any type.
    """
    kind = str(found)[:20] if isinstance(found, int | str) else "unknown"
    what = f"has format {kind}, but this version reads format {read}"
    return CheckpointError(f"{path}: {what}; use the version that wrote it")


def parse(text: str) -> dict[str, Any]:
    """Return the description of a model from its JSON, the value of `chargpt` in the metadata of a model file.

    If the JSON is longer than `MAX_METADATA` characters or is not a valid JSON object, raise `ValueError`.
    """
    if len(text) > MAX_METADATA:
        raise ValueError(f"metadata of {len(text)} characters")
    described = json.loads(text)
    if not isinstance(described, dict):
        raise ValueError("metadata that is not a JSON object")
    json.dumps(described, ensure_ascii=False, allow_nan=False).encode()  # json.loads accepts NaN and surrogates
    return described


def check_fields(described: Mapping[str, Any], types: Mapping[str, Any]) -> None:
    """Raise `ValueError` if a required field of `described` is missing, has the wrong type or is out of range.

    `types` maps the name of each required field to its type. An integer is in range if it is at least 0 and less than
    2^63.
    """
    for field, kind in types.items():
        value = described.get(field, ...)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"{field} is missing or of the wrong type")
        if isinstance(value, int) and not 0 <= value < 2**63:
            raise ValueError(f"{field} is out of range")


def model_config(described: Mapping[str, Any]) -> ModelConfig:
    """Return the architecture of a model from `described`, the field `model_config` of its file.

    A missing key does not get this version's default, because the default may describe another model.

    Raises:
        ValueError: a key is missing, or a value is invalid or `auto`.
        TypeError: a key is unknown.
    """
    if missing := [field.name for field in fields(ModelConfig) if field.name not in described]:
        raise ValueError(f"model_config has no {', '.join(missing)}")
    config = ModelConfig(**described)
    if auto := [each.name for each in fields(config) if each.metadata["auto"] and getattr(config, each.name) == "auto"]:
        raise ValueError(f"model_config.{auto[0]} is auto, must be a number")
    return config


def check_header(header: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise `ValueError` unless a safetensors header lists exactly the weights in `shapes`, all of them fp32.

    `header` maps the name of each weight to a dict with the keys `dtype` and `shape`. `shapes` maps the name of each
    weight to its shape.
    """
    if more := header.keys() - shapes.keys():
        raise ValueError(f"{min(more)} is not a weight of such a model")
    for name, shape in shapes.items():
        found = header.get(name)
        if found is None or found["dtype"] != "F32" or tuple(found["shape"]) != shape:
            what = "missing" if found is None else f"{found['dtype']} {tuple(found['shape'])}"
            raise ValueError(f"{name} is {what}, must be F32 {shape}")
