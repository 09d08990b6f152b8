"""Choices for a machine: what decides, and what the reason says."""

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest
import torch

from gpt.fit import automatic
from gpt.fit.automatic import COMPILE_FROM, choose_compile, choose_precision
from tests.conftest import ROOT


@pytest.fixture
def complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A Linux machine with a compiler and Python's headers."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    return monkeypatch


def test_compiling_pays_in_long_runs(complete: pytest.MonkeyPatch) -> None:
    assert choose_compile("auto", "cpu", COMPILE_FROM) == ("true", "pays in a run this long")
    chosen, why = choose_compile("auto", "cpu", COMPILE_FROM - 1)
    assert chosen == "false" and "it pays on a CPU in runs of more than" in why
    assert choose_compile("auto", "cuda", 1.0)[0] == "true"
    assert choose_compile("false", "cpu", 1e9) == ("false", "as asked")
    assert choose_compile("true", "cpu", 1.0) == ("true", "as asked")


@pytest.mark.parametrize("missing", ["g++", "Python.h"])
def test_compiling_without_what_it_needs(complete: pytest.MonkeyPatch, tmp_path: Path, missing: str) -> None:
    if missing == "g++":
        complete.setattr(shutil, "which", lambda name: None)
    else:
        (tmp_path / "Python.h").unlink()
    chosen, why = choose_compile("auto", "cpu", 1e9)
    assert chosen == "false" and missing in why
    with pytest.raises(ValueError, match=f"^compile=true: there is no .*{missing.replace('+', '.')}"):
        choose_compile("true", "cpu", 1e9)


def test_compiling_is_not_chosen_where_nobody_tried_it(complete: pytest.MonkeyPatch) -> None:
    complete.setattr(sys, "platform", "darwin")
    assert choose_compile("auto", "cpu", 1e9)[0] == "false"


def test_capturing_is_asked_for_and_needs_cuda(complete: pytest.MonkeyPatch) -> None:
    assert choose_compile("graph", "cuda", 1.0) == ("graph", "as asked")
    for device in ("cpu", "mps"):
        with pytest.raises(ValueError, match=f"^compile=graph: needs a CUDA GPU, and this is {device}; compile=true"):
            choose_compile("graph", device, 1.0)


def test_the_same_run_gets_the_same_answer(complete: pytest.MonkeyPatch) -> None:
    """Decided without a look at a clock."""

    def forbidden() -> float:
        raise AssertionError("a clock was read")

    for clock in ("time", "perf_counter", "monotonic", "process_time"):
        complete.setattr(time, clock, forbidden)
    seconds = automatic.expected_seconds(1e13)
    assert automatic.expected_seconds(3e13) == pytest.approx(3 * seconds)
    assert choose_compile("auto", "cpu", seconds) == choose_compile("auto", "cpu", seconds)
    assert choose_precision("auto", "cpu") == choose_precision("auto", "cpu")


@pytest.mark.parametrize(
    ("flags", "precision", "why"),
    [
        ({"amx_bf16": True, "avx512_bf16": True}, "bf16-mixed", "the CPU has amx_bf16"),
        ({"amx_bf16": False, "avx512_bf16": True}, "bf16-mixed", "the CPU has avx512_bf16"),
        ({"avx512": True, "avx512_bf16": False}, "32-true", "the CPU has no bf16 arithmetic"),
        ({}, "32-true", "the CPU has no bf16 arithmetic"),
    ],
)
def test_precision_by_what_the_hardware_says(
    monkeypatch: pytest.MonkeyPatch, flags: dict[str, bool], precision: str, why: str
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: flags)
    assert choose_precision("auto", "cpu") == (precision, why)
    assert choose_precision("64-true", "cpu") == ("64-true", "as asked")
    for emulates in (True, False):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, e=emulates: e)
        assert choose_precision("auto", "cuda")[0] == ("bf16-mixed" if emulates else "32-true")
    assert choose_precision("auto", "mps")[0] == "32-true"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives memory back in a way that can be set")
def test_freed_memory_is_kept() -> None:
    """Pages that are asked for again are not filled with zeros again: few page faults after the first round."""
    program = (
        "import resource, sys, torch; from gpt.fit.automatic import keep_freed_memory\n"
        "if sys.argv[1] == 'kept': keep_freed_memory()\n"
        "work = lambda: torch.ones(10 * 2**20)\n"  # more than what glibc comes to keep by itself
        "[work() for _ in range(30)]\n"
        "counts = []\n"
        "for _ in range(9):\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt; work()\n"
        "    counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n"
        "print(sorted(counts)[4])"  # a kernel short of memory may take pages back now and then
    )
    faults = {}
    for how in ("usual", "kept"):
        command = [sys.executable, "-c", program, how]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        faults[how] = int(ended.stdout)
    pages = 4 * 10 * 2**20 / os.sysconf("SC_PAGE_SIZE")
    assert faults["kept"] < 0.01 * pages < 0.5 * pages < faults["usual"]
