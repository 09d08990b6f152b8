"""Whatever the bytes are: one clean refusal, or what was meant. Properties for all inputs, and many mutations."""

import contextlib
import io
import json
import os
import random
import signal
import string
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conf.overrides import apply_literals, check_overrides, fields, split_literals
from conf.schema import Config, from_dict, from_yaml, to_dict, to_yaml
from data.arrays import open_text
from data.config import DataConfig
from data.corpus import DataError
from data.tokenizer import ByteTokenizer, CharTokenizer, UnknownCharacter, tokenizer_from
from gpt.archive import REQUIRED
from gpt.checkpoint import CheckpointError, load_checkpoint, read
from tests.conftest import Ended
from tests.faults.processes import fork
from tests.faults.test_attacks import repacked, written
from tests.gpt.test_checkpoint import contents
from train import refuse

MUTATIONS = 10_000
quietly = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
# All of Unicode that is text: no halves of surrogate pairs.
text_ = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


# -- Tokenizers ----------------------------------------------------------------------------------------


def test_every_character_there_is_comes_back() -> None:
    """All 1,112,064 of them, in pieces that a vocabulary can hold; and all at once as bytes."""
    everything = [chr(point) for point in range(sys.maxunicode + 1) if not 0xD800 <= point <= 0xDFFF]
    assert len(everything) == 1_112_064
    for first in range(0, len(everything), 65_536):
        piece = "".join(everything[first : first + 65_536])
        tokenizer = CharTokenizer(piece)
        assert tokenizer.decode(tokenizer.encode(piece)) == piece and tokenizer.size == len(piece)
        assert tokenizer.bytes_per_token.sum() == len(piece.encode())
    whole = "".join(everything)
    tokens = ByteTokenizer().encode(whole)
    assert ByteTokenizer().decode(tokens) == whole and tokens.tolist()[:5] == [0, 1, 2, 3, 4]


@quietly
@given(text_, text_)
def test_text_comes_back(text: str, other: str) -> None:
    tokenizer = CharTokenizer(text)
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert tokens.tolist() == [sorted(set(text)).index(letter) for letter in text]
    again = tokenizer_from(json.loads(json.dumps(tokenizer.vocabulary)))
    assert isinstance(again, CharTokenizer) and again.characters == tokenizer.characters
    if set(other) <= set(text):
        assert tokenizer.decode(tokenizer.encode(other)) == other
    else:
        place = next(place for place, letter in enumerate(other) if letter not in text)
        with pytest.raises(UnknownCharacter, match=f"at position {place} "):
            tokenizer.encode(other)


@quietly
@given(st.binary())
def test_bytes_that_are_no_text_are_shown_as_such(data: bytes) -> None:
    tokens = np.frombuffer(data, np.uint8)
    assert ByteTokenizer().decode(tokens) == data.decode("utf-8", errors="replace")


@quietly
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_what_is_no_vocabulary(value: Any) -> None:
    for vocabulary in ({"kind": value}, {"kind": "char", "characters": value}, {"characters": value}):
        try:
            tokenizer = tokenizer_from(vocabulary)
        except ValueError as error:
            assert "\n" not in str(error)
        else:
            assert tokenizer.vocabulary == vocabulary


# -- Configuration ---------------------------------------------------------------------------------------


def printed(error: Exception) -> str:
    """What train.py prints of an error, which must be one line that a terminal can show."""
    with contextlib.redirect_stderr(io.StringIO()) as shown:
        assert refuse(error) == 2
    line = shown.getvalue().removesuffix("\n")
    assert line.isprintable() and shown.getvalue() == f"{line}\n", shown.getvalue()
    return line


@quietly
@given(st.sampled_from(sorted(fields())), st.text(string.printable + "äλ語", max_size=30))
def test_any_value_is_taken_or_refused_in_one_line(key: str, value: str) -> None:
    rest, literals = split_literals([f"{key}={value}"])
    try:
        check_overrides(rest, literals, sweep=False)
        apply_literals(Config(), literals)
    except ValueError as error:
        assert key in printed(error)


@quietly
@given(st.text(string.printable + "äλ語", max_size=60))
def test_any_words_are_taken_or_refused_in_one_line(words: str) -> None:
    rest, literals = split_literals([words])
    try:
        check_overrides(rest, literals, sweep=False)
    except ValueError as error:
        assert len(printed(error)) > len("train.py: ")


@quietly
@given(st.text(min_size=1, max_size=40))
def test_a_path_is_kept_as_it_is(path: str) -> None:
    rest, literals = split_literals([f"data.path={path}"])
    assert not rest
    config = apply_literals(Config(), literals)
    assert config.data.path == (None if path == "null" else path)
    if path.isprintable():
        assert from_yaml(to_yaml(config)) == config


@quietly
@given(
    st.integers(1, 64),
    st.integers(1, 8),
    st.floats(1e-8, 1e3),
    st.floats(0, 0.99),
    st.lists(st.floats(0, 0.99), min_size=2, max_size=2),
    st.integers(0, 2**32 - 1),
)
def test_configurations_come_back_from_yaml(
    batch: int, heads: int, lr: float, dropout: float, betas: list[float], seed: int
) -> None:
    values = to_dict(Config())
    values["data"]["batch"], values["seed"] = batch, seed
    values["model"] |= {"heads": heads, "dim": heads * 4, "dropout": dropout}
    values["optim"] |= {"lr": lr, "betas": betas}
    config = from_dict(values)
    assert from_yaml(to_yaml(config)) == config


# -- Checkpoints -----------------------------------------------------------------------------------------

plain: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | st.integers(0, 9), inner, max_size=4)
    ),
    max_leaves=8,
)


@quietly
@given(st.sampled_from(sorted(REQUIRED)), plain)
def test_any_header_is_taken_or_refused_in_one_line(tmp_path: Path, key: str, value: Any) -> None:
    path = tmp_path / "header.ckpt"
    torch.save({**contents(), key: value}, path)
    try:
        load_checkpoint(path)
    except CheckpointError as error:
        assert str(error).isprintable() and "header.ckpt" in str(error)
    else:
        assert key in ("vocabulary", "data", "global_step")


@quietly
@given(st.sampled_from(sorted(contents()["model_config"])), plain)
def test_any_shape_is_taken_or_refused_in_one_line(tmp_path: Path, key: str, value: Any) -> None:
    path = tmp_path / "shape.ckpt"
    torch.save({**contents(), "model_config": {**contents()["model_config"], key: value}}, path)
    try:
        model, _ = load_checkpoint(path)
    except CheckpointError as error:
        assert str(error).isprintable() and "shape.ckpt" in str(error)
    else:
        assert getattr(model.config, key) == value


@quietly
@given(plain)
def test_plain_data_comes_back(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "plain.ckpt"
    torch.save({**contents(), "more": value}, path)
    try:
        assert repr(read(path)["more"]) == repr(value)
    except CheckpointError as error:
        assert "a int" in str(error)  # beyond 64 bits


def mutated(data: bytes, rng: random.Random) -> bytes:
    """One to a few changes of any kind at any place, more often in the parts that say what the rest means."""

    def place() -> int:
        return rng.choice([rng.randrange(len(data)), rng.randrange(min(200, len(data))), -rng.randrange(1, 2000)])

    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at = place() % len(data)
        size = min(rng.choice([1, 1, 2, 4, 8, 64, 1000]), len(data) - at)
        piece = data[at : at + size]
        other = place() % len(data)
        piece = rng.choice([
            bytes([piece[0] ^ 1 << rng.randrange(8)]) + piece[1:],  # a bit
            rng.randbytes(size), bytes(size), b"\xff" * size,  # other bytes
            b"", piece * 2, data[other : other + size],  # less, more, bytes from elsewhere
        ])  # fmt: skip
        data = (data[:at] + piece + data[at + size :]) or b"\0"
    return data if rng.random() > 0.05 else data[: rng.randrange(len(data))]


def _mutate(folder: str, seed: int, count: int) -> None:
    """Read so many mutations; what comes of them is written to a file. In a process of its own, as it may crash."""
    import resource

    os.chdir(folder)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, resource.getrlimit(resource.RLIMIT_AS)[1]))
    rng, seen = random.Random(seed), Counter[str]()
    whole = written(contents())
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        pickle = archive.read("archive/data.pkl")
    before = {key: value.clone() for key, value in contents()["state_dict"].items()}
    path = Path("mutated.ckpt")
    for number in range(count):
        if within := number % 3 == 0:  # past the checksums, into the pickle
            changed = mutated(pickle, rng)
            data = repacked(whole, lambda records, changed=changed: records.update({"archive/data.pkl": changed}))  # type: ignore[misc]
        else:
            data = mutated(whole, rng)
        path.write_bytes(data)
        Path("last").write_text(f"{seed} {number}")
        try:
            state = read(path)["state_dict"]
        except CheckpointError as error:
            seen["refused" if str(error).isprintable() and "mutated.ckpt" in str(error) else "badly refused"] += 1
        except BaseException as error:
            seen[f"{type(error).__name__} at {number}: {error}"] += 1
        else:
            same = state.keys() == before.keys() and all(
                isinstance(value, torch.Tensor) and torch.equal(value, before[key]) for key, value in state.items()
            )
            seen["another pickle" if within else "the same" if same else f"other weights at {number}"] += 1
    Path("seen.json").write_text(json.dumps(seen))


def test_many_mutations_of_a_checkpoint(tmp_path: Path) -> None:
    """Ten thousand, a third of them behind valid checksums: refused in one line, or the same weights."""
    process = fork(_mutate, str(tmp_path), 8, MUTATIONS)
    process.join(240)
    if process.is_alive():
        process.kill()
    assert process.exitcode == 0, f"ended with {process.exitcode} at {(tmp_path / 'last').read_text()}"
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert sum(seen.values()) == MUTATIONS
    assert set(seen) <= {"refused", "the same", "another pickle"}, seen
    assert seen["refused"] > 0.8 * MUTATIONS and seen["the same"] > 0, seen


def test_torch_alone_reads_other_weights(tmp_path: Path) -> None:
    """The same mutations without what looks a file through: some load, with weights that are others."""
    rng, others = random.Random(8), 0
    whole, before = written(contents()), contents()["state_dict"]
    for _ in range(300):
        (tmp_path / "x.ckpt").write_bytes(mutated(whole, rng))
        try:
            state = torch.load(tmp_path / "x.ckpt")["state_dict"]
            others += any(not torch.equal(value, before[key]) for key, value in state.items())
        except Exception:
            continue
    assert others > 10


# -- Texts -----------------------------------------------------------------------------------------------


def test_many_mutations_of_a_text(workplace: Path) -> None:
    """Texts of any bytes: one line, or a text that is the file's."""
    rng, seen = random.Random(9), Counter[str]()
    whole = ("Grüße aus Łódź — 日本語, עברית, 🙂!\r\n" * 40).encode()
    for number in range(1500):
        data = mutated(whole, rng) if number % 10 else rng.randbytes(rng.randrange(3000))
        Path("text.txt").write_bytes(data)
        kind = rng.choice(["char", "char", "byte"])
        encoding = "utf-8" if kind == "byte" else rng.choice(["utf-8", "utf-8", "utf-16", "latin-1", "cp1252", "utf-7"])
        try:
            text = open_text(DataConfig(path="text.txt", tokenizer=kind, encoding=encoding), 16)
        except DataError as error:
            assert str(error).isprintable() and "text.txt" in str(error), (number, str(error))
            seen["refused"] += 1
            continue
        tokens = np.concatenate([text.train, text.validation, text.test])
        if kind == "byte":
            assert tokens.tobytes() == data
        else:
            expected = data.decode(encoding).removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
            assert text.tokenizer.decode(tokens) == expected, number
        seen["read"] += 1
    assert min(seen["read"], seen["refused"]) > 300, seen


def test_a_text_of_any_bytes_trains_or_is_refused(train: Callable[..., Ended]) -> None:
    rng = random.Random(10)
    for number in range(6):
        Path("odd.txt").write_bytes(rng.randbytes(4000))
        ended = train("data.path=odd.txt", "trainer.max_steps=2", "data.tokenizer=byte", f"name=n{number}")
        assert ended.status == 0, ended.err
        ended = train("data.path=odd.txt", "trainer.max_steps=2")
        assert ended.status == 2 and ended.err.count("\n") == 1


def test_a_process_that_crashes_would_be_seen(tmp_path: Path) -> None:
    process = fork(os.kill, 0, 0)
    process.join(30)
    assert process.exitcode == 0
    process = fork(os.abort)
    process.join(30)
    assert process.exitcode == -signal.SIGABRT
