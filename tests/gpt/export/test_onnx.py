import json
from pathlib import Path

import numpy as np
import pytest
import torch

from conf.fields import InputError
from gpt.export.onnx import write_onnx
from gpt.model import GPT
from tests.conftest import ROOT, needs
from tests.gpt.export.test_torch import CONFIGS, meta, shapes
from tests.model_files import filled
from tests.reference.models import name, tiny


@pytest.mark.slow
@torch.no_grad()
def test_logits_are_those_of_the_model(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    needs("onnx", "onnxscript", "onnxruntime")
    import onnx
    import onnxruntime

    path = tmp_path / "model.onnx"
    for config in [*CONFIGS[:2], *CONFIGS[3:6], CONFIGS[7]]:
        model = filled(config)
        assert write_onnx(model, meta(model), path) < 1e-5
        assert capfd.readouterr() == ("", "") and list(tmp_path.iterdir()) == [path]
        onnx.checker.check_model(path, full_check=True)
        assert str(ROOT).encode() not in path.read_bytes()
        session = onnxruntime.InferenceSession(path)
        described = session.get_modelmeta().custom_metadata_map
        assert {key: json.loads(value) for key, value in described.items()} == meta(model)
        (tokens,), (logits,) = session.get_inputs(), session.get_outputs()
        length = "length" if config.context > 1 else 1
        assert (tokens.name, tokens.type, tokens.shape) == ("tokens", "tensor(int64)", ["batch", length])
        assert (logits.name, logits.type, logits.shape[1:]) == ("logits", "tensor(float)", [length, 11])
        for shape in shapes(config):
            given = np.random.default_rng(0).integers(11, size=shape)
            (found,) = session.run(None, {"tokens": given})
            expected = model(torch.from_numpy(given)).numpy()
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5, err_msg=f"{name(config)} {shape}")


def test_weights_that_one_file_cannot_hold(tmp_path: Path) -> None:
    needs("onnx", "onnxscript", "onnxruntime")
    with torch.device("meta"):
        model = GPT(tiny(dim=4096, layers=3, heads=32), 11)
    with pytest.raises(InputError, match="one ONNX file holds 2 GB, the weights are 2.4 GB"):
        write_onnx(model, meta(model), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []
