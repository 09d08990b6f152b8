from pathlib import Path

import numpy as np
import pytest

from data.config import DataConfig
from data.text import open_text
from gpt.checkpoint import load_checkpoint
from gpt.model_file import read
from tests.conftest import Call, last
from tests.model_files import nats_of

AVERAGED = ["callbacks.ema.share=0.1", "trainer.max_steps=20"]
FILES = Path("runs/a/checkpoints")


@pytest.mark.parametrize("callbacks", ["snapshots", "[snapshots,ema]"])
def test_each_validation_leaves_what_it_evaluated(
    callbacks: str, train: Call, sample: Call
) -> None:
    averaged = AVERAGED if "ema" in callbacks else AVERAGED[1:]
    assert train("name=a", f"callbacks={callbacks}", *averaged).status == 0
    assert sorted(path.name for path in FILES.glob("step-*")) == [
        "step-10.safetensors",
        "step-20.safetensors",
    ]
    history = last("a")["history"]
    validations = {step: loss for step, loss, _ in history["validations"]["entries"]}
    tokens = open_text(DataConfig(path="book.txt"), 32).validation
    for step in (10, 20):
        model, meta = load_checkpoint(FILES / f"step-{step}.safetensors")
        assert (meta["step"], meta["val_loss"]) == (step, validations[step])
        assert np.mean(nats_of(model, tokens)) == pytest.approx(validations[step], abs=1e-5)
    newest, end = read(FILES / "step-20.safetensors"), read(FILES / "last.safetensors")
    assert newest.config == end.config and all(
        (newest.state[key] == end.state[key]).all() for key in end.state
    )
    assert sample(str(FILES / "step-10.safetensors"), "--num-chars", "5").status == 0


def test_a_validation_before_the_first_step_leaves_nothing(trained: Path, train: Call) -> None:
    assert (
        train("name=a", "callbacks=snapshots", "init_from=first", "trainer.max_steps=10").status
        == 0
    )
    assert [path.name for path in FILES.glob("step-*")] == ["step-10.safetensors"]
