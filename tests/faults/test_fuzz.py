"""Whatever the bytes are: one clean refusal, or what was meant. Properties for all inputs, and many mutations."""

import contextlib
import hashlib
import io
import json
import random
import string
import sys
from collections import Counter
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from base.log import to_console
from conf.keys import fields
from data.config import DataConfig
from data.corpus import DataError
from data.open_text import open_text
from data.tokenizer import ByteTokenizer, CharTokenizer
from gpt import model_file
from gpt.config import ModelConfig
from gpt.model_file import FIELDS, CheckpointError
from tests.conf.test_defaults import compose
from tests.faults.programs import Cost, Nursery, clear, has_diverged, is_bounded
from tests.model_files import CONFIG, Header, by_hand, description, packed, unpacked
from training.exit_status import refuse

# How many mutations go through each program; at night twenty times as many.
FEW = {"sample": 50, "score": 15, "web": 20, "torch": 5, "train": 10}
quietly = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def sampled(few: Any, many: Any) -> Any:
    return [pytest.param(few, id="few"), pytest.param(many, id="many", marks=pytest.mark.nightly)]


def test_every_character_there_is_comes_back() -> None:
    everything = [chr(point) for point in range(sys.maxunicode + 1) if not 0xD800 <= point <= 0xDFFF]
    assert len(everything) == 1_112_064
    for first in range(0, len(everything), 65_536):
        piece = "".join(everything[first : first + 65_536])
        tokenizer = CharTokenizer(piece)
        assert tokenizer.decode(tokenizer.encode(piece)) == piece and tokenizer.size == len(piece)
        assert tokenizer.token_sizes[:, 1].sum() == len(piece.encode())
    whole = "".join(everything)
    tokens = ByteTokenizer().encode(whole)
    assert ByteTokenizer().decode(tokens) == whole and tokens.tolist()[:5] == [0, 1, 2, 3, 4]


def printed(error: Exception) -> str:
    to_console()
    with contextlib.redirect_stderr(io.StringIO()) as shown:
        assert refuse(error) == 2
    line = shown.getvalue().removesuffix("\n")
    assert line.isprintable() and shown.getvalue() == f"{line}\n", shown.getvalue()
    return line


@quietly
@given(st.sampled_from(sorted(fields())), st.text(string.printable + "äλ語", max_size=60))
def test_any_words_are_taken_or_refused_in_one_line(key: str, text: str) -> None:
    for typed, said in ((f"{key}={text}", key), (text, "train.py: ")):
        try:
            compose([typed])
        except ValueError as error:
            assert said in printed(error)


KINDS = {**FIELDS, **get_type_hints(ModelConfig)}
plain: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | st.integers(0, 9), inner, max_size=4)
    ),
    max_leaves=8,
)


@quietly
@given(st.sampled_from([*KINDS]), plain)
def test_any_description_is_taken_or_refused_in_one_line(tmp_path: Path, field: str, value: Any) -> None:
    path = tmp_path / "field.safetensors"
    path.write_bytes(by_hand(**({field: value} if field in FIELDS else {"model_config": {**CONFIG, field: value}})))
    try:
        config, _, meta = model_file.read(path)
    except CheckpointError as error:
        assert str(error).isprintable() and "field.safetensors" in str(error)
    else:
        assert json.dumps((meta | vars(config))[field]) == json.dumps(value)
        kinds = get_args(KINDS[field]) or (KINDS[field],)
        assert type(value) in kinds or (type(value) is int and float in kinds)


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


def remade(data: bytes, rng: random.Random) -> bytes:
    """A model file with changes further in: whatever comes before them is right."""
    header, body = unpacked(data)
    match rng.randrange(4):
        case 0:  # the header; its length is right
            return packed(mutated(json.dumps(header).encode(), rng), body)
        case 1:  # the description, in a header that is JSON
            text = mutated(header["__metadata__"]["chargpt"].encode(), rng).decode("utf-8", "replace")
            header["__metadata__"]["chargpt"] = text
        case 2:  # one value of the header or of the description
            described = description(header)
            name = rng.choice(sorted(header))
            inside = rng.choice([described, described["model_config"], described["vocabulary"], header, header[name]])
            odd = [0, -1, 1, 2, 7, 2**20, 2**31, 2**63, 2**64, 1.5, None, True, "", "a", "F64", [], {}, [0, 4], [1] * 9]
            inside[rng.choice(sorted(inside))] = rng.choice(odd)
            if isinstance(header["__metadata__"], dict):
                header["__metadata__"]["chargpt"] = json.dumps(described)
        case 3:  # the weights; their digest is right
            body = (mutated(body, rng) + body)[: len(body)]
            described = description(header)
            header["__metadata__"]["chargpt"] = json.dumps(described | {"sha256": covered(header, body)})
    return packed(header, body)


def covered(header: Header, body: bytes) -> str:
    places = [header[name]["data_offsets"] for name in sorted(header) if name != "__metadata__"]
    return hashlib.sha256(b"".join(body[first:last] for first, last in places)).hexdigest()


def read_mutations(count: int) -> None:
    rng, seen, before, path = random.Random(8), Counter[str](), by_hand(), Path("mutated.safetensors")
    for number in range(count):
        data = remade(before, rng) if number % 2 else mutated(before, rng)
        path.write_bytes(data)
        try:
            _, state, _ = model_file.read(path)
        except CheckpointError as error:
            assert str(error).isprintable() and str(path) in str(error), number
            seen["refused"] += 1
        else:
            header, body = unpacked(data)
            assert description(header)["sha256"] == covered(header, body), number
            for name in header.keys() - {"__metadata__"} | state.keys():
                assert state[name].tobytes() == body[slice(*header[name]["data_offsets"])], (number, name)
            seen["read"] += 1
    assert seen["refused"] > 0.6 * count and seen["read"] > 0.02 * count, seen


@pytest.mark.parametrize("count", sampled(1000, 10_000))
def test_many_mutations_of_a_model_file(count: int, nursery: Nursery, workplace: Path) -> None:
    ended = nursery.call(read_mutations, count)
    assert ended.status == 0, ended


@pytest.mark.parametrize("times", sampled(1, 20))
def test_mutations_through_every_program(times: int, nursery: Nursery, honest: dict[str, Cost], texts: None) -> None:
    worked = 0
    for program, count in FEW.items():
        rng = random.Random(11)
        for number in range(times * count):
            data = remade(by_hand(), rng) if number % 2 else mutated(by_hand(), rng)
            Path("mutated.safetensors").write_bytes(data)
            ended = nursery(program, "mutated.safetensors")
            clear()
            if ended.status == 2:
                line = ended.err.removesuffix("\n")
                assert line.isprintable() and len(line) < 400 and ended.out == "", (program, number, ended)
            else:
                assert ended.status == 0 or has_diverged(ended), (program, number, ended)
                worked += 1
            assert is_bounded(ended, honest[program], len(data)), (program, number, ended)
    assert 0.01 < worked / (times * sum(FEW.values())) < 0.4


@pytest.mark.parametrize("count", sampled(200, 1500))
def test_many_mutations_of_a_text(count: int, workplace: Path) -> None:
    rng, seen = random.Random(9), Counter[str]()
    whole = ("Grüße aus Łódź — 日本語, עברית, 🙂!\r\n" * 40).encode()
    for number in range(count):
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
    assert min(seen["read"], seen["refused"]) > count / 5, seen
