import dataclasses
import os
from pathlib import Path
from typing import Any

import torch

from conf.merge import settings
from conf.schema import Config
from gpt.checkpoint import REQUIRED, CheckpointError, last_component, load_checkpoint, read, save, write_model
from gpt.config import ModelConfig
from gpt.model import GPT
from gpt.model_file import FORMAT
from tests.conftest import refusal
from tests.reference.models import SOME, fill, tiny

EVALUATION = {"mode": "disjoint", "context": 7, "stride": 7, "characters": 100}
LETTERS = {"kind": "char", "characters": "abcdefghijk"}


def contents(config: ModelConfig | None = None, seed: int = 0) -> dict[str, Any]:
    config = config or tiny(layers=1)
    state = fill(GPT(config, 11), seed).state_dict()
    return {
        "format": FORMAT, "model_config": dataclasses.asdict(config), "vocabulary": LETTERS,
        "data": {"name": "letters/b\udcffok.txt"}, "state_dict": {f"net.{key}": state[key] for key in state},
        "global_step": 17, "val_loss": 1.5, "evaluation": EVALUATION,
    }  # fmt: skip


def test_a_model_file_is_made_of_a_checkpoint(tmp_path: Path) -> None:
    """The model that is read is the one that was saved: with its own memory for every weight, its head tied."""
    path, tokens = tmp_path / "last.safetensors", torch.arange(14).reshape(2, 7) % 11
    for config in [tiny(tied=True, heads=3), *SOME[::3]]:
        save(tmp_path / "step.ckpt", contents(config))
        write_model(path, read(tmp_path / "step.ckpt"))
        torch.manual_seed(9)
        before = torch.get_rng_state()
        model, meta = load_checkpoint(path)
        assert torch.equal(torch.get_rng_state(), before)
        expected = fill(GPT(config, 11)).eval()
        assert [(*each, p.shape, p.requires_grad) for *each, p in model.named_parameters()] == [
            (*each, p.shape, p.requires_grad) for *each, p in expected.named_parameters()
        ]
        assert (model.head.weight is model.embedding.weight) is config.tied
        assert {each.device.type for each in (*model.parameters(), *model.buffers())} == {"cpu"}
        assert not any(module.training for module in model.modules())
        assert torch.equal(model(tokens), expected(tokens)), config
        model(tokens).sum().backward()
        assert ModelConfig(**meta.pop("model_config")) == config
        assert meta == {
            "format": FORMAT, "vocabulary": LETTERS, "step": 17, "val_loss": 1.5, "evaluation": EVALUATION,
            "text": "b\ufffdok.txt",
        }  # fmt: skip
    assert sorted(os.listdir(tmp_path)) == ["last.safetensors", "step.ckpt"]


def test_others_learn_the_name_of_a_text_and_not_where_it_lies() -> None:
    for given, said in {
        "book.txt": "book.txt", "/letters/book.txt": "book.txt", "C:\\letters\\book.txt": "book.txt",
        "letters/": "letters", "https://host/books/a.txt?token=SECRET": "a.txt", "[a.txt,dir/b.txt]": "a.txt, b.txt",
        "Python 3.11.7 standard library": "Python 3.11.7 standard library",
    }.items():  # fmt: skip
        assert last_component(given) == said


def test_what_is_no_checkpoint_is_refused_in_one_line(tmp_path: Path) -> None:
    path, good = tmp_path / "odd.ckpt", contents()

    def refused(path: Path, said: str) -> None:
        message = refusal(CheckpointError, read, path)
        assert path.name in message and said in message, (said, message)

    refused(tmp_path / "none.ckpt", "no such checkpoint")
    refused(tmp_path, "no such checkpoint")
    path.write_text("Friends, Romans, countrymen")
    refused(path, "is damaged")
    for other, said in (
        (torch.zeros(3), "holds a Tensor"), ([1, 2], "holds a list"), (Path("x"), "is damaged or no checkpoint"),
        ({**good, "format": FORMAT + 1}, f"has format {FORMAT + 1}"), ({**good, "format": None}, "without format"),
        *(({other: value for other, value in good.items() if other != key}, f"without {key}") for key in REQUIRED),
    ):  # fmt: skip
        torch.save(other, path)
        refused(path, said)


def test_another_model_or_other_settings_are_another_format() -> None:
    """A model file without a field would get today's default; a setting that a checkpoint lacks counts as null."""
    model = """layers heads dim context dropout bias norm activation positions window qk_norm key_offset token_shift
        conv_taps tied attention"""
    names = """seed init_from minutes compile data.encoding data.tokenizer data.split data.overfit data.batch
        data.micro_batch optim.name optim.lr optim.muon_lr optim.muon_beta2 optim.min_lr optim.warmup optim.schedule
        optim.cooldown optim.weight_decay optim.betas optim.clip trainer.precision trainer.deterministic
        trainer.benchmark callbacks"""
    given = [name for name in settings(Config()) if not name.startswith("model.")]
    found = (FORMAT, list(ModelConfig.__dataclass_fields__), given)
    assert found == (6, model.split(), names.split()), "give FORMAT a new number, too"
