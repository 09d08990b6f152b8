import errno
import hashlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from gpt.model_file import CheckpointError, parse, read, read_description
from tests.model_files import by_hand, filled, write_model_file
from tests.reference.models import tiny


def test_any_safetensors_reader_opens_it(tmp_path: Path) -> None:
    for tied in (False, True):
        model = filled(tiny(layers=1, tied=tied))
        path = write_model_file(tmp_path / "a.safetensors", model, val_loss=1.25)
        with safe_open(path, "pt") as file:
            described = json.loads(file.metadata()["chargpt"])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - it is no dict
        weights = {
            key: value
            for key, value in model.state_dict().items()
            if key != "head.weight" or not tied
        }
        assert tensors.keys() == weights.keys() and all(
            torch.equal(tensors[key], weights[key]) for key in weights
        )
        sha = hashlib.sha256(
            b"".join(tensors[key].numpy().tobytes() for key in sorted(tensors))
        ).hexdigest()
        assert described["sha256"] == sha and described["val_loss"] == 1.25


def test_a_description_is_read_without_the_weights(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(by_hand(val_loss=1.25))
    config, _, meta = read(path)
    assert read_description(path) == (config, meta)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CheckpointError):
        read(path)
    assert read_description(path) == (config, meta)


def test_an_error_of_the_disk_is_not_taken_for_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.safetensors"
    write_model_file(path, filled())

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("gpt.model_file.parse", fail)
    with pytest.raises(OSError, match=f"Input/output error: '{path}'"):
        read(path)


def test_a_file_that_is_rewritten_while_it_is_read_ends_no_process(tmp_path: Path) -> None:
    path = write_model_file(tmp_path / "a.safetensors", filled(tiny(layers=4, dim=96)))
    whole, over, seen = path.read_bytes(), threading.Event(), set()

    def rewrite() -> None:
        while not over.wait(0.001):
            path.write_bytes(whole)  # in place, as cp does: for a moment the file is empty

    with ThreadPoolExecutor() as pool:
        pool.submit(rewrite)
        try:
            while seen != {"read", "refused"}:  # a mapped file would end this process with SIGBUS
                try:
                    read(path)
                    seen.add("read")
                except CheckpointError as error:
                    seen.add("refused")
                    assert "\n" not in str(error)
        finally:
            over.set()


def test_what_is_not_a_description_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such model file"):
        read(tmp_path / "none.safetensors")
    with pytest.raises(ValueError, match="not a JSON object"):
        parse("[]")
    text = {"sha256": "a", "split": "b"}
    measured = {"mode": "disjoint", "context": 8, "stride": 8, "characters": 9}
    for field, changes in {
        "step": {"step": -1}, "val_loss": {"val_loss": "2"}, "evaluation": {"evaluation": 5}, "texts": {"texts": [5]},
        "evaluation.mode": {"evaluation": measured | {"mode": 3}},
        "evaluation.stride": {"evaluation": measured | {"stride": 2**63}},
        "texts.split": {"texts": [text, {"sha256": "a"}]}, "texts.files": {"texts": [text | {"files": [1]}]},
        "documents.end": {"documents": {"kind": "line", "name": "line"}},
    }.items():  # fmt: skip
        (tmp_path / "b.safetensors").write_bytes(by_hand(**changes))
        for reader in (read, read_description):
            with pytest.raises(
                CheckpointError,
                match=rf"\({field} is missing, of the wrong type or out of range\)",
            ):
                reader(tmp_path / "b.safetensors")
    longer = {"kind": "part", "end": "a" * 101, "name": "x"}
    with pytest.raises(CheckpointError, match="the end mark of documents must have 1 to 100"):
        read(
            write_model_file(tmp_path / "a.safetensors", filled(tiny(layers=1)), documents=longer)
        )
