from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import torch._inductor.config

from conf.compose import read_config
from tests.conftest import assert_same_weights, last, one_line
from training.module import LitGPT

SMALL = "model.dropout=0.1 model.layers=1 trainer.max_steps=4 logger=none".split()


@pytest.fixture
def failing(monkeypatch):
    """Compiling pays in any run, but torch.compile does not find its compiler."""
    monkeypatch.setattr("training.choosing.hardware.sys.platform", "linux")
    monkeypatch.setattr("training.choosing.hardware.COMPILING", 0.0)
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    torch._dynamo.reset()
    with torch._inductor.config.patch({"cpp.cxx": ("/nonexistent",)}):
        yield


@pytest.mark.slow
def test_a_run_that_must_be_compiled_and_cannot_is_refused(train, failing):
    ended = train("compile=true", *SMALL)
    one_line(ended, 2, "compile=true: compiling failed (", "compiler", "; use compile=false")
    assert not Path("runs").exists()


@pytest.mark.slow
def test_a_run_that_cannot_be_compiled_goes_on_without(train, failing):
    ended = train("name=a", *SMALL)
    assert ended.status == 0 and not ended.err, ended
    assert ", not compiled, because compiling failed (" in ended.out
    assert read_config(Path("runs/a")).compile == "false"
    assert last("a")["conditions"]["compile"] == "false"
    assert train("name=b", "compile=false", *SMALL).status == 0
    assert_same_weights("a", "b")
    longer = train("resume=runs/a", "trainer.max_steps=6", defaults=False)
    assert longer.status == 0 and "not compiled (as configured)" in longer.out


def test_memory_that_runs_out_while_compiling_ends_the_run(train, failing, monkeypatch):
    full = Mock(side_effect=torch.OutOfMemoryError)
    monkeypatch.setattr(LitGPT, "compile_training_step", full)
    ended = train()
    one_line(ended, 2, "memory")
    assert "not compiled" not in ended.out and not Path("runs").exists()
