"""ONNX: the same logits in onnxruntime, for every option, batch size and length."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from conf.fields import InputError
from gpt.config import ModelConfig
from gpt.export.onnx import write_onnx
from gpt.model import GPT
from tests.conftest import ROOT, needs
from tests.gpt.export.test_torch import PLACED, PLAIN, meta, shapes
from tests.reference.models import fill, name, tiny

CONFIGS = PLAIN[::3] + PLACED[1:6]


def test_every_value_of_every_option_is_there() -> None:
    for key in "norm activation positions qk_norm key_offset token_shift tied bias attention heads".split():
        assert {getattr(config, key) for config in CONFIGS} == {getattr(config, key) for config in PLAIN + PLACED}, key


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS, ids=name)
def test_logits_are_those_of_the_model(config: ModelConfig, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    needs("onnx", "onnxscript", "onnxruntime")
    import onnxruntime

    model = fill(GPT(config, 11)).eval()
    path = tmp_path / "model.onnx"
    assert write_onnx(model, meta(config), path) < 1e-5
    assert capfd.readouterr() == ("", "")
    session = onnxruntime.InferenceSession(path)
    (tokens,), (logits,) = session.get_inputs(), session.get_outputs()
    assert (tokens.name, tokens.type, tokens.shape) == ("tokens", "tensor(int64)", ["batch", "length"])
    assert (logits.name, logits.type, logits.shape) == ("logits", "tensor(float)", ["batch", "length", 11])
    rng = np.random.default_rng(0)
    for shape in shapes(config):
        given = rng.integers(11, size=shape)
        (found,) = session.run(None, {"tokens": given})
        with torch.no_grad():
            expected = model(torch.from_numpy(given)).numpy()
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_the_file_is_enough_and_tells_nothing_of_the_machine(tmp_path: Path) -> None:
    needs("onnx", "onnxscript", "onnxruntime")
    import onnx
    import onnxruntime

    config = tiny(tied=True)
    path = tmp_path / "model.onnx"
    write_onnx(fill(GPT(config, 11)).eval(), meta(config), path)
    described = onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map
    assert {key: json.loads(value) for key, value in described.items()} == meta(config)
    assert str(ROOT).encode() not in path.read_bytes() and list(tmp_path.iterdir()) == [path]
    onnx.checker.check_model(path, full_check=True)


def test_weights_that_one_file_cannot_hold(tmp_path: Path) -> None:
    needs("onnx", "onnxscript", "onnxruntime")
    with torch.device("meta"):
        model = GPT(tiny(dim=4096, layers=3, heads=32), 11)
    with pytest.raises(InputError, match="one ONNX file holds 2 GB, the weights are 2.4 GB"):
        write_onnx(model, meta(model.config), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []
