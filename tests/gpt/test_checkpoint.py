import dataclasses
import os
from pathlib import Path

import pytest
import torch

from base.errors import without_folders, without_places
from conf.schema import Config
from gpt.checkpoint import (
    CHECKPOINT_FORMAT,
    checkpoint_format,
    load,
    load_checkpoint,
    read_training_checkpoint,
    save_training_checkpoint,
    write_model,
)
from gpt.config import ModelConfig
from gpt.model import GPT
from gpt.model_file import FORMAT, CheckpointError
from tests.conftest import refusal
from tests.model_files import LETTERS
from tests.reference.models import SOME, fill, name, tiny
from training.resume import conditions_of

EVALUATION = {"mode": "disjoint", "context": 7, "stride": 7, "characters": 100}


def contents(config=None, seed=0):
    config = config or tiny(layers=1)
    state = fill(GPT(config, 11), seed).state_dict()
    return {
        "format": CHECKPOINT_FORMAT, "model_config": dataclasses.asdict(config), "vocabulary": LETTERS,
        "data": {"name": "letters/b\udcffok.txt", "divided": None,
                 "texts": [{"sha256": "ab12", "split": "cd34"}]},
        "state_dict": {f"net.{key}": state[key] for key in state},
        "global_step": 17, "val_loss": 1.5, "evaluation": EVALUATION,
    }  # fmt: skip


LINES = {"kind": "line", "end": "a", "name": ""}
OF_LINES = contents() | {"data": contents()["data"] | {"divided": LINES}}


@pytest.mark.parametrize("config", [tiny(tied=True, heads=3), *SOME[::3]], ids=name)
def test_a_model_file_is_made_of_a_checkpoint(config, tmp_path):
    """The model that is read is the one that was saved: with its own memory for every weight, its head tied."""
    path = tmp_path / "last.safetensors"
    tokens = torch.arange(14).reshape(2, 7) % 11
    described = contents(config)
    described["data"]["divided"] = LINES
    save_training_checkpoint(tmp_path / "step.ckpt", described)
    write_model(path, torch.load(tmp_path / "step.ckpt", weights_only=True))
    torch.manual_seed(9)
    before = torch.get_rng_state()
    model, meta = load_checkpoint(path)
    same, tokenizer = load(path)
    assert torch.equal(same(tokens), model(tokens)) and tokenizer.vocabulary == LETTERS
    assert torch.equal(torch.get_rng_state(), before)
    expected = fill(GPT(config, 11)).eval()
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert (model.head.weight is model.embedding.weight) is config.tied
    assert not any(module.training for module in model.modules())
    assert torch.equal(model(tokens), expected(tokens))
    model(tokens).sum().backward()
    assert ModelConfig(**meta.pop("model_config")) == config
    assert meta == {
        "format": FORMAT, "vocabulary": LETTERS, "step": 17, "val_loss": 1.5, "evaluation": EVALUATION,
        "text": "b\ufffdok.txt", "documents": LINES,
        "texts": [{"sha256": "ab12", "split": "cd34"}],
    }  # fmt: skip
    assert sorted(os.listdir(tmp_path)) == ["last.safetensors", "step.ckpt"]


def test_checkpoints_of_documents_have_a_format_of_their_own(tmp_path):
    """Before it, their batches were others; those of a single text are the same."""
    of_lines = OF_LINES | {"format": checkpoint_format(LINES)}
    save_training_checkpoint(tmp_path / "step.ckpt", of_lines)
    assert read_training_checkpoint(tmp_path / "step.ckpt")["data"]["divided"] == LINES


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("book.txt", "book.txt"),
        ("/letters/book.txt", "book.txt"),
        ("C:\\letters\\book.txt", "book.txt"),
        ("letters/", "letters"),
        ("https://host/books/a.txt?token=SECRET", "a.txt"),
        ("[a.txt,dir/b.txt]", "a.txt, b.txt"),
        ("[https://ann:pw@host/a.txt,/home/b\udcff.txt]", "a.txt, b\ufffd.txt"),
        ("Python 3.11.7 standard library", "Python 3.11.7 standard library"),
    ],
)
def test_others_learn_the_name_of_a_text_and_not_where_it_lies(given, said):
    assert without_folders(given) == said


@pytest.mark.parametrize(
    ("note", "said"),
    [
        (
            "2 files, each divided 90/5/5 into training",
            "2 files, each divided 90/5/5 into training",
        ),
        (
            "1 file left out: 1 .md; to read all: 'data.path=/home/ann/**/*'",
            "1 file left out: 1 .md",
        ),
        ("1 file left out: 1 .md; unpack C:\\ann\\a.zip to read all", "1 file left out: 1 .md"),
        ("/a; ann; b.csv is read as plain text", ""),
        (
            "rows and/or lines; 5 km/h; 3 a / b; see https://a.org/ann",
            "rows and/or lines; 5 km/h; 3 a / b",
        ),
        ("a; in ~/books; b", "a"),
        ("a; 'data.path=books/**/*' reads all", "a"),
        (
            "a.csv is read as plain text; data.field=NAME",
            "a.csv is read as plain text; data.field=NAME",
        ),
    ],
)
def test_others_learn_what_a_note_says_and_not_where_files_lie(note, said):
    assert without_places(note) == said


LATER = CHECKPOINT_FORMAT + 9


NOT_CHECKPOINTS = {
    "a later format": (contents() | {"format": LATER}, f"format {LATER}"),
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
