"""Model files: what is written is read, anything else is refused in one line before memory is taken."""

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from gpt.checkpoint import load_checkpoint
from gpt.config import ModelConfig
from gpt.model_file import FORMAT, CheckpointError, read
from tests.model_files import filled, write_model_file
from tests.reference.models import SOME, name, tiny

Header = dict[str, Any]


def split(path: Path) -> tuple[Header, bytes]:
    """Header and data of a safetensors file, by the description of the format."""
    whole = path.read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    return json.loads(whole[8 : 8 + length]), whole[8 + length :]


def join(path: Path, header: Header, data: bytes) -> None:
    """The inverse of `split`."""
    packed = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(packed)) + packed + data)


def about(header: Header, **changes: Any) -> Header:
    """The header with other values in what describes the model; ... removes a key."""
    described = json.loads(header["__metadata__"]["chargpt"]) | changes
    kept = {key: value for key, value in described.items() if value is not ...}
    return header | {"__metadata__": {"chargpt": json.dumps(kept)}}


@pytest.mark.parametrize("config", SOME, ids=name)
def test_weights_and_description_survive(config: ModelConfig, tmp_path: Path) -> None:
    model = filled(config)
    evaluation = {"mode": "disjoint", "context": 7, "stride": 7, "characters": 100}
    path = write_model_file(tmp_path / "a.safetensors", model, val_loss=1.25, evaluation=evaluation)
    found, state, meta = read(path)
    assert found == config and meta["val_loss"] == 1.25 and meta["evaluation"] == evaluation and meta["step"] == 17
    expected = model.state_dict()
    assert state.keys() == expected.keys() - ({"head.weight"} if config.tied else set())
    for key, array in state.items():
        assert array.dtype == np.float32 and np.array_equal(array, expected[key].numpy()), key
    loaded, _ = load_checkpoint(path)
    assert all(torch.equal(value, expected[key]) for key, value in loaded.state_dict().items())
    assert config.tied == (loaded.head.weight is loaded.embedding.weight)


def test_any_safetensors_reader_opens_it(tmp_path: Path) -> None:
    model = filled()
    path = write_model_file(tmp_path / "a.safetensors", model)
    with safe_open(path, "pt") as file:
        described = json.loads(file.metadata()["chargpt"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - it is no dict
    assert all(torch.equal(tensors[key], value) for key, value in model.state_dict().items())
    sha = hashlib.sha256(b"".join(tensors[key].numpy().tobytes() for key in sorted(tensors))).hexdigest()
    assert described["sha256"] == sha


def test_every_flipped_bit_of_the_weights_is_noticed(tmp_path: Path) -> None:
    path = write_model_file(tmp_path / "a.safetensors", filled())
    header, data = split(path)
    for place in range(0, len(data), 97):
        join(path, header, data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(CheckpointError, match="not those that were written"):
            read(path)


CHANGES: dict[str, tuple[Callable[[Header], Header], str]] = {
    "another format": (lambda h: about(h, format=FORMAT + 1), f"has format {FORMAT + 1}, this version reads"),
    "no description": (lambda h: {k: v for k, v in h.items() if k != "__metadata__"}, "no chargpt model"),
    "a layer more": (lambda h: about(h, model_config={**vars(tiny(layers=2))}), "blocks.1.norm1.weight is missing"),
    "an unknown setting": (lambda h: about(h, model_config={**vars(tiny(layers=1)), "bell": 1}), "bell"),
    "heads that do not divide": (lambda h: about(h, model_config={**vars(tiny(layers=1)), "heads": 5}), "heads"),
    "other characters": (lambda h: about(h, vocabulary={"kind": "char", "characters": "abc"}), "must be F32 (3, 12)"),
    "characters in disorder": (lambda h: about(h, vocabulary={"kind": "char", "characters": "ba"}), "sorted"),
    "no kind of vocabulary": (lambda h: about(h, vocabulary={}), "no vocabulary"),
    "no step": (lambda h: about(h, step=...), "step is missing"),
    "a step before the first": (lambda h: about(h, step=-1), "step is out of range"),
    "a truth value for a step": (lambda h: about(h, step=True), "step is missing or of a wrong type"),
    "a loss that is text": (lambda h: about(h, val_loss="1"), "val_loss is missing or of a wrong type"),
    "a loss that is NaN": (lambda h: about(h, val_loss=float("nan")), "not JSON compliant"),
    "half an evaluation": (lambda h: about(h, evaluation={"mode": "disjoint"}), "context is missing"),
    "no checksum": (lambda h: about(h, sha256=...), "not those that were written"),
    "a weight too many": (lambda h: {("x" if k == "norm.weight" else k): v for k, v in h.items()}, "x is no weight"),
    "another type": (
        lambda h: {k: (v | {"dtype": "I32"} if k == "norm.weight" else v) for k, v in h.items()}, "norm.weight is I32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_does_not_fit_is_refused_in_one_line(change: str, tmp_path: Path) -> None:
    path = write_model_file(tmp_path / "odd.safetensors", filled())
    alter, said = CHANGES[change]
    header, data = split(path)
    join(path, alter(header), data)
    with pytest.raises(CheckpointError) as caught:
        read(path)
    message = str(caught.value)
    assert "odd.safetensors" in message and said in message and "\n" not in message
