"""torch.export: the same logits, from a file that needs nothing of this project."""

import dataclasses
import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from conf.fields import InputError
from gpt.config import ModelConfig
from gpt.export.torch import trace, write_torch
from gpt.model import GPT
from tests.conftest import ROOT
from tests.reference.models import PLACES, SHIFT, SOME, fill, name, tiny

PLAIN = [config for config in SOME if config not in PLACES]
# Each other kind of place, and windows shorter than most texts, as long as some and longer than all.
PLACED = [
    tiny(positions="sinusoidal", attention="sdpa"),
    tiny(positions="alibi", heads=3, key_offset=True),
    tiny(positions="none", tied=True),
    tiny(positions="alibi", window=3, context=48, attention="sdpa"),
    tiny(positions="rotary", window=17, context=48, key_offset=True, heads=3),
    tiny(positions="sinusoidal", window=20, token_shift=True),
    tiny(positions="none", window=1),
]


def shapes(config: ModelConfig) -> list[tuple[int, int]]:
    border = config.window or 3
    lengths = {length for length in (1, 2, 3, border, border + 1, config.context) if length <= config.context}
    return list(itertools.product((1, 2, 5), sorted(lengths)))


def meta(config: ModelConfig) -> dict:
    return {
        "model_config": dataclasses.asdict(config),
        "vocabulary": {"kind": "char", "characters": "abcdefghi\u00e9\U0001f600"},
        "step": 17,
    }


@pytest.mark.slow
@pytest.mark.parametrize("config", PLAIN + PLACED, ids=name)
def test_traced_once_it_takes_every_batch_size_and_length(config: ModelConfig) -> None:
    model = fill(GPT(config, 11)).eval()
    program = trace(model).module()
    for batch, length in shapes(config):
        tokens = torch.randint(11, (batch, length))
        assert torch.allclose(program(tokens), model(tokens), rtol=0, atol=1e-6), (batch, length)
    with pytest.raises(AssertionError, match=f"<= {config.context}"):
        program(torch.zeros(1, config.context + 1, dtype=torch.int64))


LOAD = """
import json, sys
import torch
described = {"vocabulary": "", "model_config": "", "step": ""}
model = torch.export.load(sys.argv[1], extra_files=described).module()
tokens = torch.arange(14).reshape(2, 7) % 11
print(json.dumps([described, model(tokens).tolist(), model(tokens[:1, :1]).tolist(), "gpt" in sys.modules]))
"""


@pytest.mark.slow
def test_the_file_is_enough(tmp_path: Path) -> None:
    config = SHIFT[-1]
    model = fill(GPT(config, 11)).eval()
    assert write_torch(model, meta(config), tmp_path / "model.pt2") < 1e-6
    assert str(ROOT).encode() not in (tmp_path / "model.pt2").read_bytes()
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", LOAD, "model.pt2"], capture_output=True, text=True, cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stderr
    described, whole, first, ours = json.loads(ended.stdout)
    assert {key: json.loads(value) for key, value in described.items()} == meta(config)
    assert not ours
    tokens = torch.arange(14).reshape(2, 7) % 11
    assert torch.allclose(torch.tensor(whole), model(tokens), atol=1e-6)
    assert torch.allclose(torch.tensor(first), model(tokens[:1, :1]), atol=1e-6)


@pytest.mark.parametrize("context", [1, 2, 3])
def test_a_short_context(context: int) -> None:
    model = fill(GPT(tiny(context=context, heads=3, token_shift=True, key_offset=True), 11)).eval()
    program = trace(model).module()
    for batch, length in itertools.product((1, 2, 5), range(1, context + 1)):
        tokens = torch.randint(11, (batch, length))
        assert torch.allclose(program(tokens), model(tokens), rtol=0, atol=1e-6), (batch, length)


@pytest.mark.parametrize("positions", ["rotary", "alibi"])
def test_the_graph_of_a_long_context_is_one_for_all_lengths(positions: str) -> None:
    """Also beyond the length from which the model itself takes another kernel."""
    model = fill(GPT(tiny(positions=positions, context=1100), 11)).eval()
    program = trace(model).module()
    for length in (3, 1100):
        tokens = torch.arange(length)[None] % 11
        torch.testing.assert_close(program(tokens), model(tokens), rtol=0, atol=1e-4)


def test_a_table_far_larger_than_the_weights_is_refused() -> None:
    with pytest.raises(InputError, match=r"^model.context=1048576: its table of positions may have at most \d+ rows$"):
        trace(GPT(tiny(positions="sinusoidal", context=2**20), 11))
