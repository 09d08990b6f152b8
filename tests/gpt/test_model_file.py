import errno

import pytest

from gpt.model_file import CheckpointError, read, read_description
from tests.conftest import refusal
from tests.model_files import by_hand


def test_a_description_is_read_without_the_weights(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(by_hand(val_loss=1.25))
    config, _, meta = read(path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CheckpointError):
        read(path)
    assert read_description(path) == (config, meta)
    path.write_bytes(by_hand(step=-1))
    assert "(step is " in refusal(CheckpointError, read_description, path)


def test_an_error_of_the_disk_is_not_taken_for_damage(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    path.write_bytes(by_hand())

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("gpt.model_file.parse", fail)
    with pytest.raises(OSError, match=f"Input/output error: '{path}'"):
        read(path)
