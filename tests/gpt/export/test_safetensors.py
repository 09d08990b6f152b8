"""safetensors: bit for bit there and back, and nothing believed on the way back."""

import dataclasses
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from gpt.archive import FORMAT, CheckpointError
from gpt.config import ModelConfig
from gpt.export.safetensors import read_safetensors, write_safetensors
from gpt.model import GPT
from tests.conftest import needs
from tests.reference.models import SOME, fill, name, tiny


@pytest.fixture(autouse=True)
def installed() -> None:
    needs("safetensors")


def meta(config: ModelConfig) -> dict:
    return {
        "format": FORMAT,
        "model_config": dataclasses.asdict(config),
        "vocabulary": {"kind": "char", "characters": "\t\n abcdef\u00e9\U0001f600"},
        "data": {"path": "b\udcff.txt", "split": [0.9, 0.1, 0.0]},
        "global_step": 17,
    }


def write(path: Path, config: ModelConfig | None = None) -> GPT:
    config = config or tiny(layers=1)

    model = fill(GPT(config, 11)).eval()
    write_safetensors(model, {**meta(config), "optimizer_states": [], "loops": {}}, path)
    return model


def by_hand(path: Path) -> dict[str, np.ndarray]:
    """The format as its description says: the header's size, the header as JSON, the numbers."""
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + size])
    header.pop("__metadata__", None)
    found = {}
    for key, entry in header.items():
        begin, end = entry["data_offsets"]
        assert entry["dtype"] == "F32"
        found[key] = np.frombuffer(raw[8 + size + begin : 8 + size + end], "<f4").reshape(entry["shape"])
    return found


@pytest.mark.parametrize("config", SOME, ids=name)
def test_there_and_back_bit_for_bit(config: ModelConfig, tmp_path: Path) -> None:
    path = tmp_path / "my model.v2.safetensors"
    model = write(path, config)
    weights = by_hand(path)
    assert weights.keys() == model.state_dict().keys() - ({"head.weight"} if config.tied else set())
    for key, value in weights.items():
        assert value.tobytes() == model.state_dict()[key].numpy().tobytes()
    described = json.loads((tmp_path / "my model.v2.json").read_text("ascii"))
    loaded, about = read_safetensors(path)
    assert about == described and about["data"] == meta(config)["data"] and about["global_step"] == 17
    assert loaded.config == config and not loaded.training
    assert loaded.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(loaded.state_dict()[key], value) for key, value in model.state_dict().items())
    assert (loaded.head.weight is loaded.embedding.weight) is config.tied
    assert {file.name for file in tmp_path.iterdir()} == {"my model.v2.safetensors", "my model.v2.json"}
    assert path.stat().st_mode == path.with_suffix(".json").stat().st_mode


def test_a_file_from_before_there_were_windows(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    model = write(path, tiny(layers=1, positions="learned"))
    old = described(path)
    del old["model_config"]["window"]
    path.with_suffix(".json").write_text(json.dumps(old))
    loaded, _ = read_safetensors(path)
    tokens = torch.arange(7)[None]
    assert loaded.config == model.config and torch.equal(loaded(tokens), model(tokens))


def refused(path: Path, *words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_safetensors(path)
    message = str(caught.value)
    assert "\n" not in message and "model." in message and all(word in message for word in words), message


def described(path: Path) -> dict:
    return json.loads(path.with_suffix(".json").read_text("utf-8"))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"format": FORMAT + 1}, f"has format {FORMAT + 1}"),
        ({"format": None}, "without format"),
        ({"global_step": -1}, "without a step"),
        ({"global_step": 1.5}, "without global_step"),
        ({"global_step": 10**30}, "damaged"),
        ({"vocabulary": {"kind": "char", "characters": "abc"}}, "must be (3, 12)"),
        ({"vocabulary": {"kind": "char", "characters": "kjihgfedcba"}}, "sorted"),
        ({"vocabulary": {"kind": "byte"}}, "must be (256, 12)"),
        ({"vocabulary": {"kind": "word"}}, "no vocabulary"),
        ({"vocabulary": []}, "without vocabulary"),
        ({"model_config": {}}, ""),
        ({"model_config": meta(tiny(layers=2))["model_config"]}, "blocks.1"),
        ({"model_config": meta(tiny(layers=1, dim=24))["model_config"]}, "must be"),
        ({"model_config": {**meta(tiny(layers=1))["model_config"], "context": 2**20, "heads": 1}}, ""),
        ({"model_config": {**meta(tiny(layers=1))["model_config"], "heads": 5}}, "model.heads=5"),
        ({"model_config": {**meta(tiny(layers=1))["model_config"], "dim": "12"}}, "model.dim=12"),
        ({"model_config": {**meta(tiny(layers=1))["model_config"], "bell": 1}}, "bell"),
        ({"model_config": {**meta(tiny(layers=1))["model_config"], "tied": "yes"}}, "model.tied"),
        ({"model_config": {**meta(tiny(layers=1))["model_config"], "window": 0}}, "model.window=0"),
        ({"model_config": {**meta(tiny(layers=1))["model_config"], "window": "all"}}, "model.window=all"),
        ({"model_config": {**meta(tiny(layers=1))["model_config"], "positions": "rotari"}}, "model.positions=rotari"),
    ],
)
def test_what_does_not_fit(changes: dict, word: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write(path, tiny(layers=1, positions="learned"))
    path.with_suffix(".json").write_text(json.dumps(described(path) | changes))
    refused(path, word)


@pytest.mark.parametrize("key", ["format", "model_config", "vocabulary", "data", "global_step"])
def test_a_missing_part_is_named(key: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write(path)
    path.with_suffix(".json").write_text(
        json.dumps({other: value for other, value in described(path).items() if other != key})
    )
    refused(path, key)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 100_000, '{"a": NaN}', '"\\ud800"', "\udcff", "17"])
def test_a_json_that_is_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write(path)
    path.with_suffix(".json").write_text(text, encoding="utf-8", errors="surrogateescape")
    refused(path, "model.json")


@pytest.mark.parametrize("missing", ["model.json", "model.safetensors"])
@pytest.mark.parametrize("directory", [False, True])
def test_both_files_are_needed(missing: str, directory: bool, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write(path)
    (tmp_path / missing).unlink()
    if directory:
        (tmp_path / missing).mkdir()
    refused(path, f"{missing}: no such file")


@pytest.mark.parametrize(
    "kind", ["empty", "text", "cut", "huge header", "nan", "integers", "float8", "missing", "extra", "shape"]
)
def test_weights_that_are_none(kind: str, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "model.safetensors"
    model = write(path)
    state, raw = model.state_dict(), path.read_bytes()
    match kind:
        case "empty":
            path.write_bytes(b"")
        case "text":
            path.write_text("Friends, Romans, countrymen")
        case "cut":
            path.write_bytes(raw[:-1])
        case "huge header":
            path.write_bytes(struct.pack("<Q", 2**62) + raw[8:])
        case "nan":
            state["norm.weight"] = state["norm.weight"] * torch.nan
            save_file(state, path)
        case "integers":
            save_file({key: value.to(torch.int32) for key, value in state.items()}, path)
        case "float8":
            save_file({key: value.to(torch.float8_e4m3fn) for key, value in state.items()}, path)
        case "missing":
            del state["norm.weight"]
            save_file(state, path)
        case "extra":
            save_file({**state, "bell": torch.zeros(1)}, path)
        case "shape":
            state["norm.weight"] = torch.zeros(13)
            save_file(state, path)
    refused(path, "model.safetensors")


def test_any_damaged_byte_of_the_header_is_one_line_or_the_same_model(tmp_path: Path) -> None:
    """Numbers have no checksum in this format; names, types, shapes and places are looked at."""
    path = tmp_path / "model.safetensors"
    model = write(path)
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    refusals = 0
    for place in range(8 + size):
        for flip in (0xFF, 0x01):
            path.write_bytes(raw[:place] + bytes([raw[place] ^ flip]) + raw[place + 1 :])
            try:
                loaded, _ = read_safetensors(path)
            except CheckpointError as error:
                refusals += 1
                assert "\n" not in str(error)
            else:
                assert loaded.state_dict().keys() == model.state_dict().keys()
    assert refusals > size
