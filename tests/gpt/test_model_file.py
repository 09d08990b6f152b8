import hashlib
import json
from pathlib import Path

import torch
from safetensors import safe_open

from gpt.model_file import FORMAT, CheckpointError, read
from tests.conftest import refusal
from tests.model_files import Header, description, filled, packed, unpacked, write_model_file
from tests.reference.models import tiny


def test_any_safetensors_reader_opens_it(tmp_path: Path) -> None:
    for tied in (False, True):
        model = filled(tiny(layers=1, tied=tied))
        path = write_model_file(tmp_path / "a.safetensors", model, val_loss=1.25)
        with safe_open(path, "pt") as file:
            described = json.loads(file.metadata()["chargpt"])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - it is no dict
        weights = {key: value for key, value in model.state_dict().items() if key != "head.weight" or not tied}
        assert tensors.keys() == weights.keys() and all(torch.equal(tensors[key], weights[key]) for key in weights)
        sha = hashlib.sha256(b"".join(tensors[key].numpy().tobytes() for key in sorted(tensors))).hexdigest()
        assert described["sha256"] == sha and described["val_loss"] == 1.25


def about(header: Header, **changes: object) -> Header:
    """The header with other values in what describes the model; ... removes a key."""
    kept = {key: value for key, value in (description(header) | changes).items() if value is not ...}
    return header | {"__metadata__": {"chargpt": json.dumps(kept)}}


SHAPE = vars(tiny(layers=1))
CHANGES = [
    (lambda h: about(h, format=FORMAT + 1), f"has format {FORMAT + 1}, this version reads"),
    (lambda h: {k: v for k, v in h.items() if k != "__metadata__"}, "no chargpt model"),
    (lambda h: about(h, model_config=SHAPE | {"layers": 2}), "blocks.1.norm1.weight is missing"),
    (lambda h: about(h, model_config=SHAPE | {"bell": 1}), "bell"),
    *(
        (lambda h, key=key: about(h, model_config={k: v for k, v in SHAPE.items() if k != key}), f"has no {key}")
        for key in SHAPE
    ),
    (lambda h: about(h, model_config=SHAPE | {"heads": 5}), "heads"),
    (lambda h: about(h, vocabulary={"kind": "char", "characters": "abc"}), "must be F32 (3, 12)"),
    (lambda h: about(h, vocabulary={"kind": "char", "characters": "ba"}), "sorted"),
    (lambda h: about(h, vocabulary={}), "no vocabulary"), (lambda h: about(h, step=...), "step is missing"),
    (lambda h: about(h, step=-1), "step is out of range"),
    (lambda h: about(h, step=True), "step is missing or of a wrong type"),
    (lambda h: about(h, val_loss="1"), "val_loss is missing or of a wrong type"),
    (lambda h: about(h, val_loss=float("nan")), "not JSON compliant"),
    (lambda h: about(h, evaluation={"mode": "disjoint"}), "context is missing"),
    (lambda h: about(h, sha256=...), "not those that were written"),
    (lambda h: {("x" if k == "norm.weight" else k): v for k, v in h.items()}, "x is no weight"),
    (lambda h: h | {"norm.weight": h["norm.weight"] | {"dtype": "I32"}}, "norm.weight is I32"),
]  # fmt: skip


def test_what_does_not_fit_is_refused_in_one_line(tmp_path: Path) -> None:
    path = write_model_file(tmp_path / "odd.safetensors", filled())
    header, data = unpacked(path.read_bytes())
    for change, said in CHANGES:
        path.write_bytes(packed(change(header), data))
        message = refusal(CheckpointError, read, path)
        assert "odd.safetensors" in message and said in message, (said, message)


def test_format_5_is_a_model_without_convolution(tmp_path: Path) -> None:
    path = write_model_file(tmp_path / "old.safetensors", filled())
    header, data = unpacked(path.read_bytes())
    older = {key: value for key, value in SHAPE.items() if key != "conv_taps"}
    wanted = read(path)
    path.write_bytes(packed(about(header, format=5, model_config=older), data))
    found = read(path)
    assert (found.config, found.meta) == (wanted.config, wanted.meta)
