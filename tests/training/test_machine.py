import re
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

from tests.conftest import Call, one_line
from training.machine import COMPILE_FROM, choose_compile, choose_precision, device_kind


@pytest.fixture
def complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A Linux machine with a compiler and Python's headers."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    return monkeypatch


def test_compiling_pays_in_long_runs(complete: pytest.MonkeyPatch) -> None:
    assert choose_compile("auto", "cpu", COMPILE_FROM) == ("true", "saves time in a run this long")
    chosen, why = choose_compile("auto", "cpu", COMPILE_FROM - 1)
    assert chosen == "false" and "saves time on a CPU only in runs of more than" in why
    assert choose_compile("auto", "cuda", 1.0)[0] == "true"
    for asked, device, seconds in (("false", "cpu", 1e9), ("true", "cpu", 1.0), ("graph", "cuda", 1.0)):
        assert choose_compile(asked, device, seconds) == (asked, "as configured")
    for device in ("cpu", "mps"):
        with pytest.raises(ValueError, match=f"^compile=graph: needs a CUDA GPU, and this is {device}; compile=true"):
            choose_compile("graph", device, 1.0)
    # Without what it needs.
    for missing, module, name, found in (("g++", shutil, "which", None), ("Python.h", sysconfig, "get_path", "no/dir")):
        with complete.context() as patched:
            patched.setattr(module, name, lambda _, found=found: found)
            chosen, why = choose_compile("auto", "cpu", 1e9)
            assert chosen == "false" and missing in why
            with pytest.raises(ValueError, match=f"^compile=true: there is no .*{re.escape(missing)}"):
                choose_compile("true", "cpu", 1e9)
    complete.setattr(sys, "platform", "darwin")  # nobody tried it there
    assert choose_compile("auto", "cpu", 1e9) == ("false", "not tested on this system")


def test_precision_by_what_the_hardware_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for flags, precision, why in (
        ({"amx_bf16", "avx512_bf16", "avx512_fp16"}, "bf16-mixed", "has amx_bf16"),
        ({"avx512_bf16"}, "bf16-mixed", "has avx512_bf16"),
        ({"avx512_bf16", "avx512_fp16"}, "32-true", "has no AMX, and its avx512_bf16 is slow"),
        ({"avx512_f"}, "32-true", "has no bf16 arithmetic"),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda flags=flags: dict.fromkeys(flags, True))
        assert choose_precision("auto", "cpu") == (precision, f"the CPU {why}")
    assert choose_precision("64-true", "cpu") == ("64-true", "as configured")
    assert choose_precision("auto", "mps")[0] == "32-true"
    for has, precision in ((True, "bf16-mixed"), (False, "32-true")):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, has=has: has)
        assert choose_precision("auto", "cuda")[0] == precision


def test_a_device_that_is_not_there(train: Call) -> None:
    needed = [kind for kind in ("mps", "cuda") if kind not in str(device_kind("auto"))][0]
    one_line(train(f"trainer.accelerator={needed}"), 2, f"trainer.accelerator={needed}: this machine has only ")
    one_line(train("trainer.devices=[0]"), 2, "trainer.devices=[0]: a list is for GPUs; a CPU takes a number")
