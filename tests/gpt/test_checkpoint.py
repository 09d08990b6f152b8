import dataclasses
import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from base.errors import without_folders, without_places
from conf.schema import Config
from gpt.checkpoint import (
    CHECKPOINT_FORMAT,
    load,
    load_checkpoint,
    read_training_checkpoint,
    save_training_checkpoint,
    write_model,
)
from gpt.config import ModelConfig
from gpt.model_file import FORMAT, CheckpointError
from tests.conftest import refusal
from tests.model_files import LETTERS, filled
from tests.reference.models import SOME, name, tiny
from training.resume import conditions_of

EVALUATION = {"mode": "disjoint", "context": 7, "stride": 7, "characters": 100}


def contents(config=None):
    config = config or tiny(layers=1)
    state = filled(config).state_dict()
    return {
        "format": CHECKPOINT_FORMAT, "model_config": dataclasses.asdict(config), "vocabulary": LETTERS,
        "data": {"name": "letters/b\udcffok.txt", "divided": None,
                 "texts": [{"sha256": "ab12", "split": "cd34"}]},
        "state_dict": {f"net.{key}": state[key] for key in state},
        "global_step": 17, "val_loss": 1.5, "evaluation": EVALUATION,
    }  # fmt: skip


LINES = {"kind": "line", "end": "a", "name": ""}


@pytest.mark.parametrize("config", [tiny(tied=True, heads=3), *SOME[::3]], ids=name)
def test_a_model_file_is_made_of_a_checkpoint(config, tmp_path):
    """Any reader of safetensors opens it."""
    path = tmp_path / "last.safetensors"
    described = contents(config)
    described["data"]["divided"] = LINES
    save_training_checkpoint(tmp_path / "step.ckpt", described)
    write_model(path, torch.load(tmp_path / "step.ckpt", weights_only=True))
    before = torch.get_rng_state()
    model, tokenizer = load(path)
    assert before.equal(torch.get_rng_state())
    weights = dict(filled(config).state_dict())
    torch.testing.assert_close(dict(model.state_dict()), weights, rtol=0, atol=0)
    assert (model.head.weight is model.embedding.weight) is config.tied
    assert not any(module.training for module in model.modules())
    assert tokenizer.vocabulary == LETTERS
    if config.tied:
        del weights["head.weight"]
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["chargpt"])
        tensors = {key: file.get_tensor(key) for key in weights}
        assert set(file.keys()) == set(weights)
    torch.testing.assert_close(tensors, weights, rtol=0, atol=0)
    body = b"".join(tensors[key].numpy().tobytes() for key in sorted(tensors))
    assert about.pop("sha256") == hashlib.sha256(body).hexdigest()
    assert load_checkpoint(path)[1] == about == {
        "format": FORMAT, "model_config": vars(config), "vocabulary": LETTERS, "step": 17, "val_loss": 1.5,
        "evaluation": EVALUATION, "text": "b\ufffdok.txt", "documents": LINES,
        "texts": [{"sha256": "ab12", "split": "cd34"}],
    }  # fmt: skip


NAMES = {  # how a text is named, and what others learn of it
    "book.txt": "book.txt", "/letters/book.txt": "book.txt", "C:\\letters\\book.txt": "book.txt",
    "letters/": "letters", "https://host/books/a.txt?token=SECRET": "a.txt", "[a.txt,dir/b.txt]": "a.txt, b.txt",
    "[https://ann:pw@host/a.txt,/home/b\udcff.txt]": "a.txt, b\ufffd.txt",
    "Python 3.11.7 standard library": "Python 3.11.7 standard library",
}  # fmt: skip
DIVIDED = "2 files, each divided 90/5/5 into training"
PLAIN = "rows and/or lines; 5 km/h; 3 a / b"
TABLE = "a.csv is read as plain text; data.field=NAME"
NOTES = {
    DIVIDED: DIVIDED, f"{PLAIN}; see https://a.org/ann": PLAIN, TABLE: TABLE, "a; in ~/books; b": "a",
    "1 file left out: 1 .md; to read all: 'data.path=/home/ann/**/*'": "1 file left out: 1 .md",
    "1 file left out: 1 .md; unpack C:\\ann\\a.zip to read all": "1 file left out: 1 .md",
    "/a; ann; b.csv is read as plain text": "", "a; 'data.path=books/**/*' reads all": "a",
}  # fmt: skip


def test_others_learn_what_a_text_is_and_not_where_it_lies():
    assert {given: without_folders(given) for given in NAMES} == NAMES
    assert {given: without_places(given) for given in NOTES} == NOTES


# Before checkpoints of documents had a format of their own, their batches were others.
OF_LINES = contents() | {"data": {"divided": LINES}}
NOT_CHECKPOINTS = {
    "a later format": (contents() | {"format": 99}, "format 99"),
    "documents in the other order": (OF_LINES, f"format {CHECKPOINT_FORMAT}"),
    "no file": (None, "no such checkpoint"),
    "a tensor": (torch.zeros(3), "not a chargpt checkpoint"),
    "another class": (Path("x"), "damaged or not a checkpoint"),
}


@pytest.mark.parametrize(("content", "said"), NOT_CHECKPOINTS.values(), ids=NOT_CHECKPOINTS)
def test_what_is_no_checkpoint_is_refused_in_one_line(content, said, tmp_path):
    path = tmp_path / "step.ckpt"
    if content is not None:
        torch.save(content, path)
    message = refusal(CheckpointError, read_training_checkpoint, path)
    assert "step.ckpt" in message and said in message, message


def test_another_model_or_other_settings_are_another_format():
    """A model file without a field would get today's default; one that a checkpoint lacks has its default."""
    model = {
        "layers": 4, "heads": 2, "dim": 128, "context": 256, "dropout": 0.0, "bias": False, "norm": "layernorm",
        "activation": "relu2", "positions": "rotary", "window": None, "qk_norm": True, "key_offset": True,
        "token_shift": True, "conv_taps": 3, "tied": False, "attention": "auto",
    }  # fmt: skip
    names = """seed init_from minutes threads compile data.documents data.field data.encoding data.tokenizer data.split
        data.overfit data.val_tokens data.batch data.micro_batch optim.name optim.lr optim.muon_lr optim.muon_beta2
        optim.muon_every optim.min_lr optim.warmup optim.schedule optim.cooldown optim.weight_decay optim.betas
        optim.clip trainer.precision trainer.deterministic trainer.benchmark trainer.more callbacks"""
    given = [name for name in conditions_of(Config()) if not name.startswith("model.")]
    found = (FORMAT, vars(ModelConfig()), given)
    assert found == (1, model, names.split()), "give FORMAT a new number, too"
