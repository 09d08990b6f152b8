import itertools
import json
import tracemalloc

import numpy as np
import pytest
import torch

from base.errors import InputError
from gpt.export.to_onnx import TOLERANCE, largest_difference, write
from gpt.model import GPT
from tests.conftest import ROOT, needs, refusal
from tests.model_files import filled
from tests.reference.models import MIXED, name, tiny

# Every value of every option; windows shorter than most texts, as long as some and longer than
# all; a context longer than the length from which the model itself takes another kernel.
CONFIGS = [
    MIXED[0], MIXED[-1], tiny(positions="sinusoidal", window=3, context=48, attention="sdpa"),
    tiny(context=1, heads=3, token_shift=True, key_offset=True),
    tiny(positions="none", window=20, context=1100, tied=True),
]  # fmt: skip


def meta(model):
    vocabulary = {"kind": "char", "characters": "abcdefghi\u00e9\U0001f600"}
    return {"model_config": vars(model.config), "vocabulary": vocabulary, "step": 17}


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS, ids=name)
@torch.no_grad()
def test_logits_are_those_of_the_model(config, tmp_path, capfd):
    needs("onnx", "onnxscript", "onnxruntime")
    import onnx
    import onnxruntime

    path = tmp_path / "model.onnx"
    model = filled(config)
    assert write(model, meta(model), path).startswith("logits differ by at most ")
    assert capfd.readouterr() == ("", "") and list(tmp_path.iterdir()) == [path]
    onnx.checker.check_model(path, full_check=True)
    assert str(ROOT).encode() not in path.read_bytes()
    session = onnxruntime.InferenceSession(path)
    described = session.get_modelmeta().custom_metadata_map
    assert {key: json.loads(value) for key, value in described.items()} == meta(model)
    (tokens,) = session.get_inputs()
    (logits,) = session.get_outputs()
    length = "length" if config.context > 1 else 1
    assert (tokens.type, tokens.shape) == ("tensor(int64)", ["batch", length])
    assert (logits.type, logits.shape[1:]) == ("tensor(float)", [length, 11])
    border = config.window or 3
    lengths = {min(length, config.context) for length in (1, 2, border, border + 1, 2**20)}
    for shape in itertools.product((1, 2, 5), lengths):
        given = np.random.default_rng(0).integers(11, size=shape)
        (found,) = session.run(["logits"], {"tokens": given})
        expected = model(torch.from_numpy(given)).numpy()
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5, err_msg=str(shape))


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (2, 4)], ids=str)
@torch.no_grad()
def test_a_difference_in_any_shape_is_refused(shape):
    model = filled(tiny())

    def difference(factor):
        return largest_difference(model, lambda x: model(x) * (factor if x.shape == shape else 1))

    assert difference(1 + 0.5 * TOLERANCE) == pytest.approx(0.5 * TOLERANCE, rel=0.05)
    for factor in (1 + 2 * TOLERANCE, torch.nan):
        refusal(InputError, difference, factor)


def test_what_one_file_cannot_hold_is_refused_before_the_work(tmp_path):
    needs("onnx", "onnxscript", "onnxruntime")
    with torch.device("meta"):
        large = GPT(tiny(dim=8192, heads=8, layers=1), 11)
    said = refusal(InputError, write, large, meta(large), tmp_path / "model.onnx")
    assert "2 GB" in said and "3.2 GB" in said


@pytest.mark.parametrize("positions", ["rotary", "sinusoidal"])
def test_a_small_file_with_a_huge_context_costs_little(tmp_path, positions):
    needs("onnx", "onnxscript", "onnxruntime")
    model = filled(tiny(positions=positions, context=2**20))
    tracemalloc.start()
    said = refusal(InputError, write, model, meta(model), tmp_path / "model.onnx")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert said.startswith("model.context=1048576: ") and peak < 50e6
