"""Nobody gets in: model files made to do harm are refused in one line by every program, quickly, and have no effect."""

import io
import itertools
import json
import os
import pickle
import pty
import socket
import struct
import subprocess
import sys
import tty
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpt.checkpoint import read
from gpt.config import ModelConfig
from gpt.model_file import FORMAT
from tests.conftest import ROOT, TINY, Call, one_line
from tests.faults.programs import MB, PROGRAMS, Nursery, clear, cold, has_diverged, is_bounded, is_refusal
from tests.model_files import CONFIG, LETTERS, Header, by_hand, description, packed, unpacked, weights

Honest = dict[str, Any]  # program -> cost
EVIL = "evil.safetensors"
CONTROLS = "\x1b[31m\x07\x9b\r\n\x7f"
RESUME = ("resume=runs/first", "trainer.max_steps=40")
pytestmark = pytest.mark.usefixtures("texts")
# Each file is tried on one program, in turn, of which the last two take seconds; at night on all.
IN_TURN = ["sample", "score", "web"] * 3 + ["torch", "train"]
THROUGH = pytest.mark.parametrize("through", ["one", pytest.param("all", marks=pytest.mark.nightly)])


class Payload:
    def __reduce__(self) -> Any:
        return os.system, ("touch got-in",)


def of(std: float = 0.1, vocabulary: dict[str, Any] = LETTERS, **config: Any) -> bytes:
    shape = vars(ModelConfig(**{**CONFIG, **config}))
    return by_hand(weights(vocabulary, std, **config), vocabulary, model_config=shape)


def said(**config: Any) -> bytes:
    return by_hand(model_config={**CONFIG, **config})


def header(change: Callable[[Header], Any]) -> bytes:
    content, body = unpacked(by_hand())
    change(content)
    return packed(content, body)


def offsets(first: Any, second: Any, name: str = "embedding.weight") -> bytes:
    return header(lambda content: content[name].update(data_offsets=[first, second]))


def state(**changes: Any) -> bytes:
    changed = {**weights(), **{name.replace("__", "."): value for name, value in changes.items()}}
    return by_hand({name: value for name, value in changed.items() if value is not None})


def typed(dtype: str, size: int) -> bytes:
    content, body = unpacked(by_hand())
    name = max(content.keys() - {"__metadata__"}, key=lambda name: content[name]["data_offsets"])
    first, last = content[name]["data_offsets"]
    content[name] |= {"dtype": dtype, "data_offsets": [first, first + (last - first) // 4 * size]}
    return packed(content, body[:first] + bytes((last - first) // 4 * size))


def chars(characters: str) -> dict[str, str]:
    return {"kind": "char", "characters": characters}


def many_characters(count: int) -> dict[str, str]:
    return chars("".join(map(chr, [*range(0xD800), *range(0xE000, 0xE000 + count - 0xD800)])))


def nested(depth: int) -> str:
    return "[" * depth + "0" + "]" * depth


def old_checkpoint(contents: Any) -> bytes:
    file = io.BytesIO()
    torch.save(contents, file)
    return file.getvalue()


def twice(name: str, other: Any) -> bytes:
    content, body = unpacked(by_hand())
    return packed(json.dumps(content).encode()[:-1] + b", " + json.dumps({name: other}).encode()[1:], body)


def described(field: str, value: str) -> bytes:
    content = description(unpacked(by_hand())[0])
    group, _, key = field.rpartition(".")
    (content["model_config"] if group else content)[key] = "HERE"
    return by_hand(raw=json.dumps(content).replace('"HERE"', value))


# For each field, and each setting of the model, JSON that it does not take, or that the weights do not have. What is of
# another type is in test_fuzz.py::test_any_description_is_taken_or_refused_in_one_line.
EVALUATED = '{"mode": "x", "context": 1, "stride": 1, "characters": 1}'
WRONG = {
    "format": ["4", "7", "5.5", "1" * 4200, nested(900), '"\\u001b[31m\\n"'], "text": ['"\\ud800"'],
    "model_config": ["null", "{}", '{"layers": 1}', '{"\\u001b[31m\\n": 1}', '{"_target_": "os.system"}'],
    "vocabulary": ['{"kind": "byte"}', '{"kind": "\\u001b"}', '{"kind": "char", "characters": [0]}', nested(900)],
    "step": ["-1", "1e999", str(2**63), "1" * 5000], "val_loss": ["NaN", "-Infinity", "1e999", "1" * 4200],
    "evaluation": ['{"mode": 1}', *(EVALUATED.replace("1", number, 1) for number in ("-1", "true", "1" + "0" * 4000))],
    "sha256": ["null", '""', '"' + 64 * "0" + '"', nested(900)], "model.layers": ["0", "2", "4096", "4097", "1" * 4200],
    "model.heads": ["0", "3", "4096"], "model.dim": ["0", "8", "17", "131072", "131073", "1e9", str(2**63 - 1)],
    "model.context": ["0", "1048577", str(2**62), "1e400"], "model.dropout": ["1", "-1", "NaN", "1" + "0" * 400],
    "model.tied": ["true"], "model.bias": ["true"], "model.norm": ['"rmsnorm\\u001b"', '"' + "x" * 900_000 + '"'],
    "model.activation": ['"\\ud800"'], "model.positions": ['"learned"', '"ROTARY"', nested(900)],
    "model.attention": ['"flash"', nested(100)], "model.window": ["0", "-1", str(2**63), "1" + "0" * 4000],
}  # fmt: skip
TYPES = {"F64": 8, "BF16": 2, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I32": 4, "U64": 8, "F4": 1, "\x1b[31m": 4}
ATTACKS: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"", "eight bytes": lambda: bytes(8), "50 MB of zeros": lambda: bytes(50 * MB),
    **{f"a header of {size} bytes": lambda size=size: struct.pack("<Q", size) + by_hand()[8:]
       for size in (100, 100_000, 2**63, 2**64 - 1)},
    "a header of 8 MB of junk": lambda: packed(b"{" + os.urandom(8 * MB - 9), b""),
    "a header above the limit": lambda: packed(b"{}" + b" " * 8 * MB, b""),
    "a header of many names": lambda: packed(
        {f"x{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(120_000)}, b""),
    "a header of one long shape": lambda: packed(
        {"embedding.weight": {"dtype": "F32", "shape": [1] * 2_500_000, "data_offsets": [0, 4]}}, bytes(4)),
    "a header that is a list": lambda: packed([], b""),
    "a header deep in itself": lambda: packed(nested(2 * MB).encode(), b""),
    "a header deep in a weight": lambda: packed(b'{"a": ' * 500_000 + b"1" + b"}" * 500_000, b""),
    "a name twice": lambda: twice("embedding.weight", {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}),
    "no metadata": lambda: header(lambda content: content.pop("__metadata__")),
    "metadata of others": lambda: header(lambda content: content.update(__metadata__={"format": "pt"})),
    "metadata that is no text": lambda: header(lambda content: content["__metadata__"].update(chargpt={"format": 5})),
    "a description that is no JSON": lambda: by_hand(raw="x"), "a description of one": lambda: by_hand(raw="[]"),
    "a description deep in a field": lambda: by_hand(raw='{"x":' * 200_000 + "1" + "}" * 200_000),
    "a description of 7 MB": lambda: by_hand(raw=json.dumps({"format": FORMAT, "x": "x" * 7 * MB})),
    "a number of a million digits": lambda: by_hand(raw='{"format": ' + "5" * 1_000_000 + "}"),
    "weights over each other": lambda: offsets(0, 11 * 16 * 4, "head.weight"),
    **{f"weights at {places}": partial(offsets, *places) for places in (
        (2**40, 2**40 + 704), (704, 0), (-704, 0), (2**64 - 704, 2**64), ("0", None))},
    "a hole": lambda: header(lambda content: content.pop("head.weight")), "cut short": lambda: by_hand()[:-1],
    "more at the end": lambda: by_hand() + b"x" * 100, "cut in the middle": lambda: by_hand()[: len(by_hand()) // 2],
    "a weight missing": lambda: state(head__weight=None),
    "a weight too many": lambda: state(blocks__1__norm1__weight=np.zeros(16, np.float32)),
    **{f"a weight of shape {shape}": partial(state, embedding__weight=np.zeros(shape, np.float32))
       for shape in ((16, 11), (0, 16), (11, 16, *[1] * 30))},
    **{f"weights that are {value}": partial(state, norm__weight=np.full(16, value, np.float32))
       for value in (np.nan, -np.inf)},
    "a flipped bit in a weight": lambda: by_hand()[:-100] + bytes([by_hand()[-100] ^ 4]) + by_hand()[-99:],
    "two weights exchanged": lambda: header(lambda content: content.update(
        {"embedding.weight": content["head.weight"], "head.weight": content["embedding.weight"]})),
    **{f"a vocabulary of {letters[:9]!r}": partial(by_hand, vocabulary=chars(letters))
       for letters in ("", "bacdefghijk", "aaaaaaaaaaa", "a\ud800")},
    "no token": lambda: of(vocabulary=chars("")), "too many characters": lambda: of(vocabulary=many_characters(70_000)),
    "absurd width and depth": lambda: said(dim=2**17, layers=4096, heads=4096),
    "an absurd context with learned positions": lambda: said(context=2**20, positions="learned"),
    "a name with colours": lambda: header(lambda content: content.update({CONTROLS: content.pop("norm.weight")})),
    "a pickle": lambda: pickle.dumps(Payload()), "one behind a header": lambda: packed({}, pickle.dumps(Payload())),
    "an older checkpoint with a payload": lambda: old_checkpoint({"format": 4, "state_dict": Payload()}),
    **{f"weights that are {dtype}": partial(typed, dtype, size) for dtype, size in TYPES.items()},
    **{f"{key}: {value[:30]}": partial(described, key, value) for key, values in WRONG.items() for value in values},
}  # fmt: skip
# Right, though nobody would make them: they cost no more than they may, too.
ODD: dict[str, Callable[[], bytes]] = {
    **{f"context 2^20, {positions}, window {window}": partial(of, context=2**20, positions=positions, window=window)
       for positions in ("rotary", "alibi", "sinusoidal", "none") for window in (None, 1, 2**20)},
    "context 2^18, learned": lambda: of(context=2**18, positions="learned", dim=32),
    "context 2^20, 64 blocks": lambda: of(context=2**20, layers=64, positions="rotary"),
    "context 2^20, 1024 heads": lambda: of(context=2**20, heads=1024, dim=1024, positions="alibi"),
    "2000 blocks": lambda: of(layers=2000, heads=1, dim=4), "50 MB": lambda: of(dim=1024, heads=1),
    "one channel": lambda: of(dim=1, heads=1, positions="none", key_offset=False),
    "one character": lambda: of(vocabulary=chars("a")), "many": lambda: of(vocabulary=many_characters(65_536)),
    "a vocabulary of controls": lambda: of(vocabulary=chars("".join(sorted(CONTROLS)))),
    "a name of controls": lambda: by_hand(text=CONTROLS), "a step of 2^63": lambda: by_hand(step=2**63 - 1),
    "a text that closes a page": lambda: by_hand(text="</script><script>alert(1)</script>"),
    **{f"weights of {std}": partial(of, std=std) for std in (1e37, 1e-45, 0)},
}  # fmt: skip


@THROUGH
def test_every_program_refuses_an_attack_in_one_line(through: str, nursery: Nursery, honest: Honest) -> None:
    Path(EVIL).touch()
    files, turn = set(Path().rglob("*")), itertools.cycle(IN_TURN)
    for attack, made in ATTACKS.items():
        Path(EVIL).write_bytes(made())
        for program in PROGRAMS if through == "all" else [next(turn)]:
            ended = nursery(program, EVIL)
            assert is_refusal(ended, EVIL), (attack, program, ended)
            assert is_bounded(ended, honest[program], Path(EVIL).stat().st_size), (attack, program, ended)
        assert set(Path().rglob("*")) == files, f"{attack}: something was made"


@THROUGH
def test_what_is_odd_costs_no_more_than_it_may(through: str, nursery: Nursery, honest: Honest) -> None:
    """Each program works, or says in one line why not: a text shorter than the context, numbers that overflow."""
    turn = itertools.cycle(IN_TURN)
    for odd, made in ODD.items():
        Path(EVIL).write_bytes(made())
        size = Path(EVIL).stat().st_size
        for program in PROGRAMS if through == "all" else [next(turn)]:
            if (program not in ("sample", "web") and "blocks" in odd) or (program == "train" and size > MB):
                program = "sample"  # the others would take their time for each block and each weight
            ended = nursery(program, EVIL)
            refused = ended.status == 2 and ended.err.count("\n") == 1
            assert ended.status == 0 or refused or has_diverged(ended), (odd, program, ended)
            assert is_bounded(ended, honest[program], size), (odd, program, ended)
            clear()


def test_what_is_no_file_is_refused(nursery: Nursery, honest: Honest) -> None:
    os.mkfifo("pipe.safetensors")
    Path("folder.safetensors").mkdir()
    Path("gone.safetensors").symlink_to("nowhere")
    Path("loop.safetensors").symlink_to("loop.safetensors")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind("socket.safetensors")
        names = [f"{name}.safetensors" for name in ("pipe", "folder", "gone", "loop", "socket", "x" * 300)]
        for number, path in enumerate([*names, "/dev/zero", "/dev/stdin", "/proc/self"]):
            for program in {"sample", "train", list(PROGRAMS)[number % len(PROGRAMS)]}:
                ended = nursery(program, path)
                assert is_refusal(ended, path[:80]) and is_bounded(ended, honest[program], 0), (program, ended)


def test_a_file_s_name_reaches_no_terminal_raw(nursery: Nursery) -> None:
    name = "a\x1b[31m\x07\x9b\x7f.safetensors"
    for data, status in ((of(), 0), (b"x", 2)):
        Path(name).write_bytes(data)
        for program in set(PROGRAMS) - {"train"}:  # where it has to be quoted, so that nobody types it unseen
            ended = nursery(program, name)
            assert ended.status == status, (program, ended)
            assert all(letter.isprintable() or letter == "\n" for letter in ended.out + ended.err), (program, ended)
            clear()


WORST = ["50 MB", "context 2^20, alibi, window None", "a header of many names", "cut in the middle"]
COLD = {"sample": WORST, "score": ["a header of many names"]}
COLD_ALL = dict.fromkeys(["sample", "score", "web"], WORST)


@pytest.mark.parametrize("tried", [COLD, pytest.param(COLD_ALL, marks=pytest.mark.nightly)], ids=["some", "all"])
def test_the_real_commands_cost_no_more_than_they_may(tried: dict[str, list[str]]) -> None:
    Path("honest.safetensors").write_bytes(of())
    for program, names in tried.items():
        honest = cold(program, "honest.safetensors")
        assert honest.status == 0, honest
        for name in names:
            clear()
            Path(EVIL).write_bytes((ODD | ATTACKS)[name]())
            ended = cold(program, EVIL)
            assert is_refusal(ended, EVIL) if name in ATTACKS else ended.status == 0, (program, name, ended)
            assert is_bounded(ended, honest, Path(EVIL).stat().st_size), (program, name, ended, honest)


def test_the_payload_would_work() -> None:
    Path("evil.ckpt").write_bytes(ATTACKS["an older checkpoint with a payload"]())
    torch.load("evil.ckpt", weights_only=False)
    assert Path("got-in").exists()


def test_nothing_is_fetched_over_the_network(nursery: Nursery, listener: tuple[str, list[str]], train: Call) -> None:
    address = f"{listener[0]}/model.safetensors"
    for ended in (*(nursery(program, address) for program in PROGRAMS), train(f"resume={address}", defaults=False)):
        assert ended.status == 2 and ended.err.count("\n") == 1 and "no such" in ended.err, ended
    assert listener[1] == []


def on_a_terminal(command: list[Any], typed: str = "") -> str:
    ours, theirs = pty.openpty()
    tty.setraw(theirs)  # or it would turn line breaks into two characters
    with subprocess.Popen(
        [sys.executable, *command], stdin=subprocess.PIPE, stdout=theirs, stderr=subprocess.DEVNULL
    ) as process:
        os.close(theirs)
        process.stdin.write(typed.encode())
        process.stdin.close()
        written = b""
        with suppress(OSError):  # how Linux says that nothing more comes
            while piece := os.read(ours, 2**16):
                written += piece
    os.close(ours)
    assert process.returncode == 0, written
    return written.decode()


def test_control_characters_reach_no_terminal() -> None:
    letters = "".join(map(chr, range(0xA0)))
    Path(EVIL).write_bytes(of(std=0, vocabulary=chars(letters)))
    command = [ROOT / "sample.py", EVIL, "--num-chars", "3000", "--seed", "0"]
    raw = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE).stdout.decode()
    assert set(raw) == set(letters)
    pictures = {code: chr(0x2400 + code) for code in range(32)} | {code: f"\\x{code:x}" for code in range(128, 160)}
    seen = raw.translate({**pictures, 127: "␡", 9: "\t", 10: "\n"})
    assert on_a_terminal([*command, "--num-samples", "2"]).startswith(f"--- 1\n{seen}--- 2\n")
    prompt = "a\x1b]0;x\x07\x9b31m\x7f\r"
    assert on_a_terminal([*command[:2], "--num-chars", "0", "--prompt", prompt]) == "a␛]0;x␇\\x9b31m␡␍\n"
    lines = on_a_terminal([*command, "--interactive"], "abc\x1bd\n")
    assert all(shown in lines for shown in ("abc␛d", "␇", "\\x9b"))
    assert not {"\x1b", "\x07", "\x9b", "\x7f"} & set(lines)
    assert not set(on_a_terminal([*command, "--json"])) & set(letters[:10] + letters[11:32] + letters[127:])
    subprocess.run([sys.executable, *command, "--output", "out.txt"], check=True, stderr=subprocess.DEVNULL)
    assert Path("out.txt").read_bytes().decode() == raw
    # Neither does training show those of its text.
    rng = np.random.default_rng(0)
    Path("odd.txt").write_text("".join(rng.choice(list("ab \n\x1b\x07\x9b\x7f"), 20_000)), encoding="utf-8")
    shown = on_a_terminal([ROOT / "train.py", *TINY, "data.path=odd.txt", "logger=none", "compile=false"])
    assert all(each in shown for each in ("␛", "␇", "␡", "\\x9b"))
    assert not {"\x1b", "\x07", "\x9b", "\x7f", "\r"} & set(shown)


def test_parts_to_go_on_from_that_do_not_fit(trained: Path, train: Call) -> None:
    path = Path("runs/first/checkpoints/step-00000030.ckpt")
    saved = read(path)
    others = [
        ("loops", []), ("loops", {"fit_loop": {"x": 1}}), ("optimizer_states", {}), ("callbacks", None),
        ("optimizer_states", [{"state": {}, "param_groups": []}]), ("callbacks", {"Watch": {"__class__": 1}}),
        ("conditions", []), ("conditions", {}),
    ]  # fmt: skip
    for part, other in others:
        for file in path.parent.iterdir():
            file.unlink()
        torch.save({**saved, part: other}, path)
        ended = train(*RESUME, defaults=False)
        assert ended.status == 2 and ended.err.count("\n") == 1 and "train.py: " in ended.err, (part, other, ended)


def test_links_in_a_run_lead_nowhere(trained: Path, train: Call) -> None:
    Path("mine").write_bytes(bytes(5000))
    for linked in ("events.out.tfevents.2.z", "train.log", "trace.json", "projector/tensors.tsv", "checkpoints/x"):
        path = Path("runs/first", linked)
        path.rename(f"{path}.mine") if path.exists() else None
        path.symlink_to(Path("mine").absolute())
        one_line(train(*RESUME, defaults=False), 2, f"{path}: is a link to somewhere else\n")
        path.unlink()
    assert Path("mine").read_bytes() == bytes(5000)
    trained.parent.rename("elsewhere")
    Path("elsewhere/step-00000001.ckpt").write_text("mine")
    trained.parent.symlink_to(Path("elsewhere").absolute())
    one_line(train(*RESUME, defaults=False), 2, "is a link to somewhere else")
    assert Path("elsewhere/step-00000001.ckpt").read_text() == "mine"
