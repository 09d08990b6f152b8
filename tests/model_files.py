"""Model files of models that were never trained: as we write them, and made by hand from their bytes."""

import json
import math
import struct
from pathlib import Path

import numpy as np
import torch

from gpt.checkpoint import model_state
from gpt.config import ModelConfig
from gpt.model import GPT
from gpt.model_file import FORMAT, digest, weight_shapes, write
from tests.reference.losses import surprisal
from tests.reference.models import fill, tiny

LETTERS = {"kind": "char", "characters": "abcdefghijk"}
CONFIG = vars(ModelConfig(layers=1, heads=2, dim=16, context=8))  # of files made by hand


def about(config, vocabulary=LETTERS, **changes):
    return {
        "format": FORMAT, "model_config": vars(config), "vocabulary": vocabulary, "step": 17, "val_loss": None,
        "evaluation": None, "documents": None, "text": "book.txt", "texts": [],
    } | changes  # fmt: skip


def write_model_file(path, model, vocabulary=LETTERS, **changes):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    state = model_state(model.state_dict())
    if model.config.tied:
        del state["head.weight"]
    write(path, state, about(model.config, vocabulary, **changes))
    return path


def filled(config=None, vocabulary=11, seed=0):
    return fill(GPT(config or tiny(layers=1), vocabulary), seed).eval()


@torch.no_grad()
def nats_of(model, tokens):
    """What each token costs in disjoint windows, the first ln V: plain Python on the logits of each window."""
    ids = torch.tensor(np.asarray(tokens).astype(np.int64))
    context = model.config.context
    nats = [math.log(model.vocabulary)]
    for start in range(0, len(ids) - 1, context):
        targets = ids[start + 1 : start + context + 1].tolist()
        logits = model(ids[None, start : start + len(targets)])[0].tolist()
        nats += map(surprisal, logits, targets)
    assert len(nats) == len(ids)
    return nats


def packed(header, body):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def unpacked(data):
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def description(header):
    return json.loads(header["__metadata__"]["chargpt"])


def weights(vocabulary=LETTERS, std=0.1, **config):
    rng = np.random.default_rng(0)
    size = len(vocabulary.get("characters", range(256)))  # also of one that is too large
    shapes = weight_shapes(ModelConfig(**CONFIG | config), size)
    return {
        name: np.float32(std) * rng.standard_normal(shape, np.float32) for name, shape in shapes
    }


def by_hand(state=None, vocabulary=LETTERS, raw=None, **changes):
    """A model file with nothing wrong except what is given; `raw` stands for the description."""
    state = weights() if state is None else state
    described = about(ModelConfig(**CONFIG), vocabulary, sha256=digest(state)) | changes
    header = {"__metadata__": {"chargpt": json.dumps(described) if raw is None else raw}}
    begin = 0
    for name, array in sorted(state.items()):
        end = begin + array.nbytes
        dtype = f"F{8 * array.itemsize}"
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [begin, end]}
        begin = end
    return packed(header, b"".join(state[name].tobytes() for name in sorted(state)))
