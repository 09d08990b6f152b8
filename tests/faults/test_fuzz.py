"""Whatever the bytes are: one clean refusal, or what was meant. Properties for all inputs, and many mutations."""

import json
import string
from types import UnionType
from typing import get_args, get_origin, get_type_hints

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from base.errors import InputError
from conf.keys import KEYS
from gpt import model_file
from gpt.config import ModelConfig
from gpt.model_file import FIELDS, CheckpointError
from tests.conf.test_defaults import compose
from tests.model_files import CONFIG, by_hand

quietly = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@settings(quietly, max_examples=50)  # each composes twice
@given(st.sampled_from(sorted(KEYS)), st.text(string.printable + "äλ語", max_size=60))
def test_any_words_are_taken_or_refused(key, text):
    for typed in (f"{key}={text}", text):
        try:
            compose([typed])
        except (
            InputError
        ) as error:  # of which one line is printed: tests/base/test_command_line.py
            assert typed == text or key in str(error)


KINDS = {**FIELDS, **get_type_hints(ModelConfig)}
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8) | st.integers(0, 9), inner, max_size=4)
    ),
    max_leaves=8,
)


@quietly
@given(st.sampled_from([*KINDS]), plain)
def test_any_description_is_taken_or_refused_in_one_line(tmp_path, field, value):
    path = tmp_path / "field.safetensors"
    path.write_bytes(
        by_hand(
            **({field: value} if field in FIELDS else {"model_config": {**CONFIG, field: value}})
        )
    )
    try:
        config, _, meta = model_file.read(path)
    except CheckpointError as error:
        assert str(error).isprintable() and "field.safetensors" in str(error)
    else:
        assert json.dumps((meta | vars(config))[field]) == json.dumps(value)
        given = KINDS[field]
        kinds = [
            get_origin(kind) or kind
            for kind in (get_args(given) if isinstance(given, UnionType) else [given])
        ]
        assert type(value) in kinds or (type(value) is int and float in kinds)
