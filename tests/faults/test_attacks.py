"""Nobody gets in: files made to do harm are refused in one line, quickly, and have no effect."""

import http.server
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import threading
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt.checkpoint import CheckpointError, load_checkpoint, read
from tests.conftest import ROOT, Ended
from tests.gpt.test_checkpoint import contents

EVIL = Path("evil.ckpt")


class Payload:
    """Runs a command while it is being unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("touch got-in",)


def written(values: Any) -> bytes:
    file = io.BytesIO()
    torch.save(values, file)
    return file.getvalue()


def repacked(data: bytes, change: Callable[[dict[str, bytes]], None], **how: Any) -> bytes:
    """A zip file with other records, all of it in order: checksums and directory fit."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        records = {record.filename: archive.read(record) for record in archive.infolist()}
    change(records)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", **how) as archive:
        for name, content in records.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = how.get("compression", zipfile.ZIP_STORED)
            archive.writestr(info, content)
            info.external_attr = 0  # as torch writes it
    return file.getvalue()


def with_pickle(program: bytes) -> bytes:
    """A checkpoint whose pickle is that program."""
    return repacked(written(contents()), lambda records: records.update({"archive/data.pkl": program}))


def made(name: str, number: int) -> bytes:
    """A pickle of what a name gives when it is called with a number."""
    return b"\x80\x02c" + name.replace(" ", "\n").encode() + b"\n\x8a\x08" + struct.pack("<q", number) + b"\x85R."


def config(**values: Any) -> bytes:
    return written({**contents(), "model_config": {**contents()["model_config"], **values}})


def nested(depth: int) -> list:
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


def doubled(times: int) -> list:
    """A list of 2^times parts in a few bytes: each holds the one before twice."""
    value: list = [1, 2]
    for _ in range(times):
        value = [value, value]
    return value


def itself() -> list:
    value: list = []
    value.append(value)
    return value


def overlapping() -> bytes:
    """A thousand records that are all the same bytes of the file."""
    data = written(contents())
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        largest = max(archive.infolist(), key=lambda record: record.file_size)
        file = io.BytesIO(data[: archive.start_dir])
        file.seek(0, 2)
        start, entries = archive.start_dir, b""
        for number in range(1000):
            name = f"archive/data/{number + 1000}".encode()
            entries += struct.pack(
                "<4s4B4HL2L5H2L", b"PK\1\2", 20, 0, 20, 0, 0, 0, 0, 0,
                largest.CRC, largest.file_size, largest.file_size, len(name), 0, 0, 0, 0, 0, largest.header_offset,
            ) + name  # fmt: skip
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1000, 1000, len(entries), start, 0)
    return file.getvalue() + entries + end


def script_module() -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), file)
    return file.getvalue()


def legacy() -> bytes:
    file = io.BytesIO()
    torch.save({**contents(), "x": Payload()}, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def add(name: str) -> Callable[[], bytes]:
    return lambda: repacked(written(contents()), lambda records: records.update({name: b"x"}))


def twice() -> bytes:
    file = io.BytesIO(written(contents()))
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("archive/data.pkl", pickle.dumps(Payload(), protocol=2))
    return file.getvalue()


STATE = contents()["state_dict"]
EMBEDDING = STATE["net.embedding.weight"]
ATTACKS: dict[str, Callable[[], bytes]] = {
    "a payload for the file": lambda: pickle.dumps(Payload()),
    "a payload beside the state": lambda: written({**contents(), "rng": Payload()}),
    "a payload in the state": lambda: written({**contents(), "state_dict": {**STATE, "net.head.weight": Payload()}}),
    "a payload in the hyper-parameters": lambda: written({**contents(), "hyper_parameters": {"x": Payload()}}),
    "a payload in the old format": legacy,
    "a payload in a second record of the name": twice,
    "a name to import": lambda: written({**contents(), "hyper_parameters": {"_instantiator": "os.system"}}),
    "an instantiator deeper down": lambda: written({**contents(), "data": {"x": [{"_instantiator": "os.system"}]}}),
    "a class path": lambda: written({**contents(), "model_config": {"_class_path": "os.system"}}),
    "hyper-parameters at all": lambda: written({**contents(), "hyper_parameters": {}}),
    "a way out of the folder": add("archive/../../got-in"),
    "an absolute way": add("/got-in"),
    "a way in the style of Windows": add("archive\\..\\got-in"),
    "another folder": add("other/data/0"),
    "code beside it": add("archive/code/__torch__.py"),
    "a compiled module": script_module,
    "a bomb of zeros": lambda: repacked(
        written(contents()),
        lambda records: records.update({"archive/data/9": bytes(2**28)}),
        compression=zipfile.ZIP_DEFLATED,
    ),
    "records over each other": overlapping,
    "a hundred gigabytes in ten bytes": lambda: with_pickle(made("__builtin__ bytearray", 10**11)),
    "a tensor of its own making": lambda: with_pickle(made("torch FloatTensor", 10**11)),
    "a name that exists nowhere": lambda: with_pickle(b"\x80\x02cno.such.module\nthing\n)R."),
    "an absurd view": lambda: written(
        {**contents(), "state_dict": {**STATE, "net.embedding.weight": torch.zeros(1).expand(10**6, 10**6)}}
    ),
    "a view that repeats": lambda: written(
        {**contents(), "state_dict": {**STATE, "net.embedding.weight": torch.zeros(1).expand(EMBEDDING.shape)}}
    ),
    "a sparse tensor": lambda: written({**contents(), "data": {"x": torch.eye(3).to_sparse()}}),
    "absurdly many layers": lambda: config(layers=4096),
    "absurd width": lambda: config(dim=2**17),
    "absurd context": lambda: config(context=2**20, dim=32),
    "too absurd a context": lambda: config(context=2**62),
    "an absurd number": lambda: written({**contents(), "global_step": 10**5000}),
    "very deep nesting": lambda: written({**contents(), "data": {"x": nested(400)}}),
    "parts that double": lambda: written({**contents(), "vocabulary": {"kind": doubled(60)}}),
    "a part that holds itself": lambda: written({**contents(), "data": {"x": itself()}}),
    "a set": lambda: written({**contents(), "data": {"x": {1, 2}}}),
    "bytes": lambda: written({**contents(), "data": {"x": b"x"}}),
    "keys that are no names": lambda: written({**contents(), "data": {(1, 2): 3}}),
    "a vocabulary of another size": lambda: written({**contents(), "vocabulary": {"kind": "byte"}}),
    "a vocabulary of no kind": lambda: written({**contents(), "vocabulary": {"kind": doubled(2)}}),
    "a vocabulary in disorder": lambda: written({**contents(), "vocabulary": {"kind": "char", "characters": "b" * 11}}),
    "weights that are no numbers": lambda: written(
        {**contents(), "state_dict": {**STATE, "net.embedding.weight": EMBEDDING * float("nan")}}
    ),
    "a step before the first": lambda: written({**contents(), "global_step": -5}),
    "colours for the terminal": lambda: written({**contents(), "model_config": {"\x1b[31m\nred": 1}}),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def little_memory() -> Iterator[None]:
    """What takes memory by the gigabyte fails here, and would be seen."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_refused_in_one_line(attack: str, sample: Callable[..., Ended]) -> None:
    EVIL.write_bytes(ATTACKS[attack]())
    modules, files = set(sys.modules), set(Path().rglob("*"))
    begun = time.perf_counter()
    ended = sample(str(EVIL))
    assert time.perf_counter() - begun < 2
    assert ended.status == 2 and ended.err.startswith("sample.py: ") and ended.err.count("\n") == 1, ended
    assert "evil.ckpt" in ended.err and ended.err.strip().isprintable() and len(ended.err) < 400
    assert ended.out == "" and "memory" not in ended.err
    assert set(Path().rglob("*")) == files, "something was made"
    assert not {name for name in set(sys.modules) - modules if name.startswith(("lightning", "no"))}


def test_the_payload_would_work(workplace: Path) -> None:
    """Where it is loaded as Lightning's `load_from_checkpoint` was for years."""
    EVIL.write_bytes(ATTACKS["a payload in the hyper-parameters"]())
    torch.load(EVIL, weights_only=False)
    assert Path("got-in").exists()


def test_torch_s_own_list_lets_memory_be_taken(workplace: Path) -> None:
    EVIL.write_bytes(with_pickle(made("__builtin__ bytearray", 10**8)))
    assert len(torch.load(EVIL, weights_only=True)) == 100_000_000
    with pytest.raises(CheckpointError, match="asks for"):
        read(EVIL)


def test_what_is_loaded_is_what_was_looked_through(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file may be exchanged for another in between."""
    EVIL.write_bytes(written(contents()))
    original = torch.load

    def exchanged(*given: Any, **named: Any) -> Any:
        Path("other").write_bytes(written({**contents(), "global_step": 666}))
        os.replace("other", EVIL)
        return original(*given, **named)

    monkeypatch.setattr(torch, "load", exchanged)
    assert read(EVIL)["global_step"] == 17


@pytest.mark.parametrize("attack", ["a payload beside the state", "a class path", "records over each other"])
def test_resuming_refuses_them_too(attack: str, train: Callable[..., Ended]) -> None:
    assert train("name=a", "trainer.max_steps=10").status == 0
    for path in Path("runs/a/checkpoints").iterdir():
        path.unlink()
    path = Path("runs/a/checkpoints/step-00000010.ckpt")
    path.write_bytes(ATTACKS[attack]())
    for resume in (["resume=runs/a"], [f"resume={path}"], ["name=a", "resume=auto"]):
        ended = train(*resume, "trainer.max_steps=20", defaults=False)
        assert ended.status == 2 and ended.err.count("\n") == 1 and str(path) in ended.err, ended
    assert not list(Path().rglob("got-in"))


@pytest.mark.parametrize("part", ["loops", "optimizer_states", "callbacks", "conditions"])
def test_parts_to_go_on_from_that_do_not_fit(part: str, train: Callable[..., Ended]) -> None:
    """Plain data all right, but not what this run has."""
    assert train("name=a", "trainer.max_steps=10").status == 0
    path = Path("runs/a/checkpoints/step-00000010.ckpt")
    saved = read(path)
    for other in (
        [],
        {},
        [{"state": {}, "param_groups": []}],
        {"fit_loop": {"x": 1}},
        {"Watch": {"__class__": 1}},
        None,
    ):
        for file in path.parent.iterdir():
            file.unlink()
        torch.save({**saved, part: other}, path)
        ended = train("resume=runs/a", "trainer.max_steps=20", defaults=False)
        assert ended.status == 2 and ended.err.count("\n") == 1 and "train.py: " in ended.err, (other, ended)


def test_links_in_a_run_lead_nowhere(train: Callable[..., Ended]) -> None:
    """Nothing is cut or removed outside of the run."""
    assert train("name=a", "trainer.max_steps=10").status == 0
    Path("mine").write_bytes(bytes(5000))
    Path("runs/a/events.out.tfevents.2.z").symlink_to(Path("mine").absolute())
    assert train("resume=runs/a", "trainer.max_steps=20", defaults=False).status == 0
    assert Path("mine").read_bytes() == bytes(5000)
    Path("elsewhere").mkdir()
    for path in Path("runs/a/checkpoints").iterdir():
        path.rename(Path("elsewhere") / path.name)
    Path("elsewhere/step-00000001.ckpt").write_text("mine")
    Path("runs/a/checkpoints").rmdir()
    Path("runs/a/checkpoints").symlink_to(Path("elsewhere").absolute())
    ended = train("resume=runs/a", "trainer.max_steps=30", defaults=False)
    assert ended.status == 2 and "is a link to somewhere else" in ended.err
    assert Path("elsewhere/step-00000001.ckpt").read_text() == "mine"


def test_nothing_is_fetched_over_the_network(train: Callable[..., Ended], sample: Callable[..., Ended]) -> None:
    asked = []

    class Listener(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

    server = http.server.HTTPServer(("127.0.0.1", 0), Listener)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_port}/model.ckpt"
        for ended in (sample(address), train(f"resume={address}", defaults=False)):
            assert ended.status == 2 and ended.err.count("\n") == 1 and "no such" in ended.err, ended
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert asked == []


def test_a_process_of_its_own_is_as_safe(workplace: Path) -> None:
    """What the fixtures could hide: the real command, with a bomb and a payload."""
    for attack in ("a payload in the state", "a bomb of zeros"):
        EVIL.write_bytes(ATTACKS[attack]())
        ended = subprocess.run([sys.executable, ROOT / "sample.py", EVIL], capture_output=True, text=True, timeout=30)
        assert ended.returncode == 2 and ended.stderr.count("\n") == 1, ended
    assert not Path("got-in").exists()


def test_what_is_in_order_is_loaded(workplace: Path) -> None:
    """The same ways of making files, with nothing wrong in them: it is the harm that is refused."""
    EVIL.write_bytes(repacked(written(contents()), lambda records: None))
    assert json.dumps(load_checkpoint(EVIL)[1]["vocabulary"])
    torch.save({**contents(), "data": {"x": doubled(3), "y": nested(20), "z": [1.5, None, True, "x"]}}, EVIL)
    assert load_checkpoint(EVIL)[1]["data"]["z"] == [1.5, None, True, "x"]
