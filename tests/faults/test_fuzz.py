"""Whatever the bytes are: one clean refusal, or what was meant. Properties for all inputs, and many mutations."""

import hashlib
import json
import random
import string
from collections import Counter
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from base.errors import InputError
from conf.keys import KEYS
from gpt import model_file
from gpt.config import ModelConfig
from gpt.model_file import FIELDS, CheckpointError
from tests.conf.test_defaults import compose
from tests.model_files import CONFIG, Header, by_hand, description, packed, unpacked

quietly = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@quietly
@given(st.sampled_from(sorted(KEYS)), st.text(string.printable + "äλ語", max_size=60))
def test_any_words_are_taken_or_refused(key: str, text: str) -> None:
    for typed in (f"{key}={text}", text):
        try:
            compose([typed])
        except InputError as error:  # of which one line is printed: tests/base/test_command_line.py
            assert typed == text or key in str(error)


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
        given = KINDS[field]
        kinds = [get_origin(kind) or kind for kind in (get_args(given) if isinstance(given, UnionType) else [given])]
        assert type(value) in kinds or (type(value) is int and float in kinds)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """One to a few changes of any kind at any place, more often at the start, which says what the rest means."""
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at, other = (rng.randrange(rng.choice([len(data), min(200, len(data))])) for _ in range(2))
        piece = data[at : at + rng.choice([1, 1, 2, 4, 8, 64, 1000])]
        size = len(piece)
        piece = rng.choice([
            bytes([piece[0] ^ 1 << rng.randrange(8)]) + piece[1:],  # a bit
            rng.randbytes(size), bytes(size), b"\xff" * size,  # other bytes
            b"", piece * 2, data[other : other + size],  # less, more, bytes from elsewhere
        ])  # fmt: skip
        data = (data[:at] + piece + data[at + size :]) or b"\0"
    return data if rng.random() > 0.05 else data[: rng.randrange(len(data))]


def remade(data: bytes, rng: random.Random) -> bytes:
    """A model file with changes further in: in a header of the right length, or in weights of the right digest."""
    header, body = unpacked(data)
    if rng.random() < 0.5:
        return packed(mutated(json.dumps(header).encode(), rng), body)
    body = (mutated(body, rng) + body)[: len(body)]
    header["__metadata__"]["chargpt"] = json.dumps(description(header) | {"sha256": covered(header, body)})
    return packed(header, body)


def covered(header: Header, body: bytes) -> str:
    places = [header[name]["data_offsets"] for name in sorted(header) if name != "__metadata__"]
    return hashlib.sha256(b"".join(body[first:last] for first, last in places)).hexdigest()


def test_many_mutations_of_a_model_file(tmp_path: Path) -> None:
    count = 1000
    rng, seen, before, path = random.Random(8), Counter[str](), by_hand(), tmp_path / "mutated.safetensors"
    for number in range(count):
        data = remade(before, rng) if number % 2 else mutated(before, rng)
        path.write_bytes(data)
        try:
            _, state, _ = model_file.read(path)
        except CheckpointError as error:
            assert str(error).isprintable() and path.name in str(error), number
            seen["refused"] += 1
        else:
            header, body = unpacked(data)
            assert description(header)["sha256"] == covered(header, body), number
            for name in header.keys() - {"__metadata__"} | state.keys():
                assert state[name].tobytes() == body[slice(*header[name]["data_offsets"])], (number, name)
            seen["read"] += 1
    assert seen["refused"] > 0.6 * count and seen["read"] > 0.02 * count, seen
