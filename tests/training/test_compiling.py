import re
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import torch._inductor.config

from tests.conftest import Call, assert_same_weights, last, needs_compiler
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


def test_a_run_that_cannot_be_compiled_does_without_or_is_refused(train: Call, failing: None) -> None:
    same = ["model.dropout=0.1", "model.layers=1", "trainer.max_steps=4", "logger=none"]
    ended = train("name=typed", "compile=true", *same)
    assert ended.status == 2 and not Path("runs").exists()
    assert re.fullmatch(r"train.py: compile=true: failed \(\w+: .*compiler.*\); use compile=false\n", ended.err)
    ended = train("name=auto", *same)
    (line,) = [line for line in ended.out.splitlines() if "compile=" in line]
    assert ended.status == 0 and line.endswith("; the run is not compiled")
    assert "not compiled (compiling failed)" in ended.out
    assert "compile: 'false'" in Path("runs/auto/config.yaml").read_text()
    assert train("name=plain", "compile=false", *same).status == 0
    assert last("auto")["conditions"] == last("plain")["conditions"]
    assert_same_weights("auto", "plain")
    assert train("name=auto", "resume=auto", "trainer.max_steps=6", *same[:2]).status == 0


def test_what_stops_compiling_is_no_failure(train: Call, failing: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for error, status, said in ((Stopped(2), 130, "stopped by SIGINT"), (torch.OutOfMemoryError(), 2, "memory")):
        monkeypatch.setattr(LitGPT, "compile_training_step", Mock(side_effect=error))
        ended = train("name=a")
        assert ended.status == status and said in ended.out + ended.err and not Path("runs").exists()
        assert "not compiled" not in ended.out
