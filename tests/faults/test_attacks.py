"""Nobody gets in: model files made to do harm are refused in one line, quickly, and have no effect."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gpt import model_file
from tests.base.test_progress import Terminal
from tests.conftest import ROOT, TINY, one_line
from tests.faults import faults
from tests.faults.hostile import HOSTILE, ODD, chars, of
from tests.faults.processes import Process, fork
from tests.model_files import filled, write_model_file

EVIL = "evil.safetensors"
PROGRAMS = {
    "sample": "sample.py {} --num-chars 1 --seed 0",
    "score": "score.py {} line.txt",
    "web": "export.py {} --to web out.html",
    "train": "train.py init_from={} data.path=text.txt name=new trainer.max_steps=1 trainer.accelerator=cpu "
    "trainer.devices=1 data.batch=2 compile=false watch.pictures=false logger=none",
}


@pytest.fixture(autouse=True)
def texts(workplace):
    """What the programs read, of the letters in tests/model_files.py."""
    Path("text.txt").write_text("abcdefghijk" * 200)
    Path("line.txt").write_text("abcdefghijk" * 2)


def call(program, model):
    """Run one of `PROGRAMS` on a model file, within limits of memory and time that depend on the size of the file."""
    script, *given = (part.format(model) for part in PROGRAMS[program].split())
    size = os.path.getsize(model) if os.path.isfile(model) else 0
    return Process(*given, program=script, defaults=False, fault=(faults.limit, size)).wait()


def read_each(place):
    """Write what `read` says of each file, of which each has limits of its own and all have ten seconds."""
    os.chdir(place)
    said = {}
    for path in sorted(Path().glob("*.safetensors")):
        faults.limit(path.stat().st_size)
        try:
            model_file.read(path)
        except model_file.CheckpointError as error:
            said[path.stem] = str(error)
    Path("said.json").write_text(json.dumps(said))


def test_hostile_files_are_refused_and_odd_ones_are_read(workplace):
    for number, make in enumerate((HOSTILE | ODD).values()):
        Path(f"{number}.safetensors").write_bytes(make())
    files = set(Path().rglob("*"))
    process = fork(read_each, workplace)
    process.join()
    assert process.exitcode == 0
    said = json.loads(Path("said.json").read_text())
    assert sorted(map(int, said)) == [*range(len(HOSTILE))]
    for number, line in said.items():
        assert line.isprintable() and len(line) < 350, line
        assert line.startswith(f"{number}.safetensors: "), line
    assert set(Path().rglob("*")) - files == {Path("said.json")}, "it has made something"


def assert_refused(ended, name):
    one_line(ended, 2, name, program=ended.err.partition(":")[0])
    assert ended.out == "" and ended.err.removesuffix("\n").isprintable()


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_model_needs_no_more_than_it_may_and_an_attack_makes_nothing(program):
    Path(EVIL).write_bytes(HOSTILE["a checkpoint with a payload"]())
    files = set(Path().rglob("*"))
    assert_refused(call(program, EVIL), EVIL)
    assert set(Path().rglob("*")) == files
    write_model_file("honest.safetensors", filled())
    assert call(program, "honest.safetensors").status == 0


@pytest.mark.parametrize(("kind", "program"), [*zip(ODD, itertools.cycle(PROGRAMS))])
def test_what_is_odd_costs_no_more_than_it_may(kind, program):
    """Each program works, or says in one line why not: a text shorter than the context, numbers that overflow."""
    Path(EVIL).write_bytes(ODD[kind]())
    ended = call(program, EVIL)
    diverged = ended.status == 1 and "training has diverged" in ended.err
    assert ended.status == 0 or ((ended.status == 2 or diverged) and ended.err.count("\n") == 1), (
        ended
    )


NO_FILES = ["pipe.st", "folder.st", "loop.st", f"{'x' * 300}.st", "/dev/zero", "/dev/stdin"]


@pytest.mark.parametrize(("path", "program"), [*zip(NO_FILES, itertools.cycle(PROGRAMS))])
def test_what_is_no_file_is_refused(path, program):
    os.mkfifo("pipe.st")
    Path("folder.st").mkdir()
    Path("loop.st").symlink_to("loop.st")
    assert_refused(call(program, path), path[:80])


# train.py quotes it, so that nobody types it unseen
@pytest.mark.parametrize("program", ["sample", "score", "web"])
def test_a_file_s_name_reaches_no_terminal_raw(program):
    name = "a\x1b[31m\x07\x9b\x7f.safetensors"
    for data, status in ((b"x", 2), (of(), 0)):
        Path(name).write_bytes(data)
        ended = call(program, name)
        assert ended.status == status, ended
        assert all(letter.isprintable() or letter == "\n" for letter in ended.out + ended.err)


def on_a_terminal(*command):
    # with which a bar of slow work goes away
    return Terminal(*command).watch().replace("\x1b[A", "")


TURNS = [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]  # of the direction of the text
RAW = {chr(code) for code in [*range(32), *range(127, 160), *TURNS]} - set("\t\r\n")
SAMPLE = [str(ROOT / "sample.py"), EVIL, "--seed", "0", "--num-chars"]


def test_control_characters_of_a_sample_reach_files_but_no_terminal():
    letters = "".join(map(chr, [*range(0xA0), *TURNS]))  # control characters, Latin and turns
    Path(EVIL).write_bytes(of(std=0, vocabulary=chars(letters)))
    command = [*SAMPLE, "3000"]
    raw = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE).stdout.decode()
    assert set(raw) == set(letters)
    assert not RAW & set(on_a_terminal(*command, "--num-samples", "2"))
    assert not RAW & set(on_a_terminal(*command, "--json"))
    shown = on_a_terminal(*SAMPLE, "1", "--prompt", "a\x1b]0;x\x07\x9b31m\x7f\r\u202e\t|")
    assert "\na␛]0;x␇\\x9b31m␡␍\\u202e\t|" in shown


def test_control_characters_of_a_training_text_reach_neither_terminal_nor_log():
    rng = np.random.default_rng(0)
    odd = "".join(rng.choice(list("ab \n\x1b\x07\x9b\x7f\u202e\u2066"), 200_000))
    # which looks like text at its beginning
    Path("odd.txt").write_text("ab \n" * 2**14 + odd, encoding="utf-8")
    shown = on_a_terminal(
        str(ROOT / "train.py"), *TINY, "data.path=odd.txt", "logger=none", "compile=false"
    )
    (log,) = Path("runs").glob("*/train.log")
    for text in (shown, log.read_text("utf-8")):
        assert all(symbol in text for symbol in ("␛", "␇", "␡", "\\x9b", "\\u202e", "\\u2066"))
        assert not RAW & set(text)
