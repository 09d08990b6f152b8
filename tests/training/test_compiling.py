import re
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import torch._inductor.config

from tests.conftest import Call, needs_compiler
from training.errors import Stopped
from training.module import LitGPT


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch.compile works until it calls its compiler, which is not there."""
    needs_compiler()
    monkeypatch.setattr("training.choosing.hardware.COLD", 0.0)
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    torch._dynamo.reset()
    with torch._inductor.config.patch({"cpp.cxx": ("/nonexistent",)}):
        yield


def test_a_run_that_cannot_be_compiled_is_refused(train: Call, failing: None) -> None:
    for given in (["compile=true"], []):
        ended = train(
            *given, "model.dropout=0.1", "model.layers=1", "trainer.max_steps=4", "logger=none"
        )
        assert ended.status == 2 and not Path("runs").exists()
        assert re.fullmatch(
            r"train.py: compiling failed \(\w+: .*compiler.*\); use compile=false\n", ended.err
        )


def test_what_stops_compiling_is_no_failure(
    train: Call, failing: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, status, said in (
        (Stopped(2), 130, "stopped by SIGINT"),
        (torch.OutOfMemoryError(), 2, "memory"),
    ):
        monkeypatch.setattr(LitGPT, "compile_training_step", Mock(side_effect=error))
        ended = train("name=a")
        assert (
            ended.status == status and said in ended.out + ended.err and not Path("runs").exists()
        )
        assert "not compiled" not in ended.out
