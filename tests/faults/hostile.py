"""Model files by kind: `HOSTILE` ones are made to do harm; `ODD` ones are right, though nobody would make them."""

import io
import json
import os
import pickle
import struct
from functools import partial

import numpy as np
import torch

from gpt.config import ModelConfig
from gpt.model_file import FORMAT
from tests.model_files import CONFIG, LETTERS, by_hand, description, packed, unpacked, weights

MB = 2**20
NORM = "norm.weight"
CONTROLS = "\x1b[31m\x07\x9b\r\n\x7f"


class Payload:
    def __reduce__(self):
        return os.system, ("touch got-in",)


def of(std=0.1, vocabulary=LETTERS, **config):
    shape = vars(ModelConfig(**{**CONFIG, **config}))
    return by_hand(weights(vocabulary, std, **config), vocabulary, model_config=shape)


def chars(characters):
    return {"kind": "char", "characters": characters}


def many_characters(count):
    return chars("".join(map(chr, [*range(0xD800), *range(0xE000, 0xE000 + count - 0xD800)])))


def header(change):
    content, body = unpacked(by_hand())
    change(content)
    return packed(content, body)


def state(**changes):
    return by_hand(weights() | changes)


def twice():
    content, body = unpacked(by_hand())
    other = {"embedding.weight": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}
    return packed(json.dumps(content).encode()[:-1] + b", " + json.dumps(other).encode()[1:], body)


def checkpoint():
    file = io.BytesIO()
    torch.save({"format": FORMAT, "state_dict": Payload()}, file)
    return file.getvalue()


def said(field, value):
    """A description with this JSON in a field, or in a key of `model_config`."""
    content = description(unpacked(by_hand())[0])
    group, _, key = field.rpartition(".")
    (content["model_config"] if group else content)[key] = "HERE"
    return by_hand(raw=json.dumps(content).replace('"HERE"', value))


def tensor(**changes):
    """A header that lists one weight alone, or one of that name otherwise than it is."""
    return {
        "embedding.weight": {"dtype": "F32", "shape": [11, 16], "data_offsets": [0, 704]} | changes
    }


# JSON that a field does not take, or that the weights do not have; other types and values:
# test_any_description of test_fuzz.py.
DEEP, LONG = "[" * 900 + "0" + "]" * 900, "1" * 4200
WRONG = {
    "format": [str(FORMAT + 1), LONG], "text": ['"\\ud800"'], "val_loss": ["NaN"],
    "vocabulary": ['{"kind": "byte"}', '{"kind": "char", "characters": "abcdefghijk", "more": 1}'],
    "sha256": ["null", DEEP], "model.layers": ["2", LONG], "model.dim": ["131072"], "model.context": ["1e400"],
    "evaluation": ['{"mode": "disjoint", "context": 8, "stride": 9223372036854775808, "characters": 9}'],
    "texts": ['[{"sha256": "a", "split": "b", "files": [1]}]'],
    "documents": ['{"kind": "line", "name": "line"}', json.dumps({"kind": "part", "end": "a" * 101, "name": "x"})],
}  # fmt: skip
HOSTILE = {
    "nothing": lambda: b"", "50 MB of zeros": lambda: bytes(50 * MB), "a pickle": lambda: pickle.dumps(Payload()),
    "a checkpoint with a payload": checkpoint,
    "a header of 2^64 bytes": lambda: struct.pack("<Q", 2**64 - 1) + by_hand()[8:],
    "a header above the limit": lambda: packed(b"{}" + b" " * 8 * MB, b""),
    "a header of many names": lambda: packed(
        {f"x{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(120_000)}, b""),
    "a header deep in itself": lambda: packed(b'{"a": ' * 500_000 + b"1" + b"}" * 500_000, b""),
    "a name twice": twice, "no metadata": lambda: header(lambda content: content.pop("__metadata__")),
    "metadata that is no text": lambda: header(lambda content: content["__metadata__"].update(chargpt={"format": 5})),
    "a description deep in a field": lambda: by_hand(raw='{"x":' * 200_000 + "1" + "}" * 200_000),
    "a list as a description": lambda: by_hand(raw="[]"),
    "a description of 7 MB": lambda: by_hand(raw=json.dumps({"format": FORMAT, "x": "x" * 7 * MB})),
    **{f"a weight with {changes}": lambda changes=changes: header(lambda content: content.update(tensor(**changes)))
       for changes in ({"data_offsets": [2**40, 2**40 + 704]}, {"data_offsets": [704, 0]},
                       {"data_offsets": ["0", None]}, {"shape": [16, 11]}, {"dtype": "I32"}, {"dtype": CONTROLS})},
    "a weight missing": lambda: header(lambda content: content.pop("head.weight")),
    "more at the end": lambda: by_hand() + b"x" * 100,
    "a weight too many": lambda: state(more=np.zeros(16, np.float32)),
    "a weight of doubles": lambda: state(**{NORM: np.ones(16)}),
    **{f"weights that are {value}": partial(state, **{NORM: np.full(16, value, np.float32)})
       for value in (np.nan, -np.inf)},
    "two weights exchanged": lambda: header(lambda content: content.update(
        {"embedding.weight": content["head.weight"], "head.weight": content["embedding.weight"]})),
    **{f"a vocabulary of {letters[:3]!a}": partial(by_hand, vocabulary=chars(letters))
       for letters in ("bacdefghijk", "aaaaaaaaaaa", "a\ud800", "")},
    "too many characters": lambda: by_hand(vocabulary=many_characters(70_000)),
    "an absurd size": lambda: by_hand(model_config={**CONFIG, "dim": 2**17, "layers": 4096, "heads": 4096}),
    "a name with colours": lambda: header(lambda content: content.update({CONTROLS: content.pop(NORM)})),
    **{f"{key} {value[:12]}": partial(said, key, value) for key, values in WRONG.items() for value in values},
}  # fmt: skip
ODD = {
    "1000 blocks": lambda: of(layers=1000, heads=1, dim=4),
    "context 2^18, learned": lambda: of(context=2**18, positions="learned", dim=32),
    "context 2^20, window 2^20": lambda: of(context=2**20, positions="sinusoidal", window=2**20),
    "one character": lambda: of(vocabulary=chars("a")), "many": lambda: of(vocabulary=many_characters(65_536)),
    "a name of controls that closes a page": lambda: by_hand(text=f"{CONTROLS}</script><script>alert(1)</script>"),
    **{f"weights of {std}": partial(of, std=std) for std in (1e37, 0)},
}  # fmt: skip
