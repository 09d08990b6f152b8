from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import torch._inductor.config

from tests.conftest import needs_compiler, one_line
from training.errors import Stopped
from training.module import LitGPT


@pytest.fixture
def failing(monkeypatch):
    """torch.compile works until it calls its compiler, which is not there."""
    needs_compiler()
    monkeypatch.setattr("training.choosing.hardware.COLD", 0.0)
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    torch._dynamo.reset()
    with torch._inductor.config.patch({"cpp.cxx": ("/nonexistent",)}):
        yield


@pytest.mark.parametrize("given", [["compile=true"], []])
def test_a_run_that_cannot_be_compiled_is_refused(train, failing, given):
    ended = train(
        *given, "model.dropout=0.1", "model.layers=1", "trainer.max_steps=4", "logger=none"
    )
    one_line(ended, 2, "compiling failed (", "compiler", "; use compile=false")
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [(Stopped(2), 130, "stopped by SIGINT"), (torch.OutOfMemoryError(), 2, "memory")],
)
def test_what_stops_compiling_is_no_failure(train, failing, monkeypatch, error, status, said):
    monkeypatch.setattr(LitGPT, "compile_training_step", Mock(side_effect=error))
    ended = train("name=a")
    assert ended.status == status and said in ended.out + ended.err
    assert "not compiled" not in ended.out and not Path("runs").exists()
