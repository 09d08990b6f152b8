import errno
import hashlib
import json

import pytest
import torch
from safetensors import safe_open

from gpt.model_file import CheckpointError, parse, read, read_description
from tests.conftest import refusal
from tests.model_files import by_hand, filled, write_model_file
from tests.reference.models import tiny


@pytest.mark.parametrize("tied", [False, True], ids=["a head of its own", "tied"])
def test_any_safetensors_reader_opens_it(tied, tmp_path):
    model = filled(tiny(layers=1, tied=tied))
    path = write_model_file(tmp_path / "a.safetensors", model, val_loss=1.25)
    with safe_open(path, "pt") as file:
        described = json.loads(file.metadata()["chargpt"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - it is no dict
    weights = dict(model.state_dict())
    if tied:
        del weights["head.weight"]
    torch.testing.assert_close(tensors, weights, rtol=0, atol=0)
    body = b"".join(tensors[key].numpy().tobytes() for key in sorted(tensors))
    assert described["sha256"] == hashlib.sha256(body).hexdigest()
    assert described["val_loss"] == 1.25


def test_a_description_is_read_without_the_weights(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(by_hand(val_loss=1.25))
    config, _, meta = read(path)
    assert read_description(path) == (config, meta)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CheckpointError):
        read(path)
    assert read_description(path) == (config, meta)


def test_an_error_of_the_disk_is_not_taken_for_damage(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    write_model_file(path, filled())

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("gpt.model_file.parse", fail)
    with pytest.raises(OSError, match=f"Input/output error: '{path}'"):
        read(path)


def test_a_file_that_is_missing_is_named(tmp_path):
    path = tmp_path / "none.safetensors"
    message = refusal(CheckpointError, read, path)
    assert str(path) in message and "no such" in message


def test_a_description_is_an_object():
    with pytest.raises(ValueError, match="not a JSON object"):
        parse("[]")


TEXT = {"sha256": "a", "split": "b"}
MEASURED = {"mode": "disjoint", "context": 8, "stride": 8, "characters": 9}


WRONG = {
    "step": {"step": -1}, "evaluation.stride": {"evaluation": MEASURED | {"stride": 2**63}},
    "texts.files": {"texts": [TEXT | {"files": [1]}]}, "documents.end": {"documents": {"kind": "line", "name": "line"}},
}  # fmt: skip


@pytest.mark.parametrize("field", WRONG)
@pytest.mark.parametrize("reader", [read, read_description])
def test_a_wrong_field_is_named(field, reader, tmp_path):
    path = tmp_path / "b.safetensors"
    path.write_bytes(by_hand(**WRONG[field]))
    assert f"({field} is " in refusal(CheckpointError, reader, path)


def test_an_end_mark_has_at_most_100_characters(tmp_path):
    longer = {"kind": "part", "end": "a" * 101, "name": "x"}
    path = write_model_file(tmp_path / "a.safetensors", filled(), documents=longer)
    message = refusal(CheckpointError, read, path)
    assert "documents" in message and "1 to 100" in message
