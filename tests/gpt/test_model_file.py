import errno

import pytest

from gpt.model_file import CheckpointError, read, read_description
from tests.conftest import refusal
from tests.model_files import by_hand


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
    path.write_bytes(by_hand())

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("gpt.model_file.parse", fail)
    with pytest.raises(OSError, match=f"Input/output error: '{path}'"):
        read(path)


MEASURED = {"mode": "disjoint", "context": 8, "stride": 8, "characters": 9}
LONG_END = {"kind": "part", "end": "a" * 101, "name": "x"}
WRONG = {  # what is said, and the fields
    "(step is ": {"step": -1}, "(evaluation.stride is ": {"evaluation": MEASURED | {"stride": 2**63}},
    "(texts.files is ": {"texts": [{"sha256": "a", "split": "b", "files": [1]}]},
    "(documents.end is ": {"documents": {"kind": "line", "name": "line"}}, "1 to 100": {"documents": LONG_END},
    "not a JSON object": {"raw": "[]"},
}  # fmt: skip


@pytest.mark.parametrize("said", WRONG)
def test_a_wrong_field_is_named(said, tmp_path):
    path = tmp_path / "b.safetensors"
    path.write_bytes(by_hand(**WRONG[said]))
    assert said in refusal(CheckpointError, read_description, path)
