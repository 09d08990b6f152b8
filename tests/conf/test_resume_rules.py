from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from base.errors import InputError
from conf import compose as composing
from conf.overrides import read_command
from conf.resume_rules import changed, check_trained, trained_groups
from conf.schema import Config
from gpt.config import ModelConfig
from gpt.model_file import read_description
from tests.conf.test_defaults import compose
from tests.conftest import refusal
from tests.model_files import LETTERS, filled, write_model_file


def resumed(stored: Config, *typed: str) -> Config:
    (given,) = read_command([*typed, "resume=auto"]).runs()
    return composing.compose_resumed(given, stored)


def test_resuming_keeps_the_run() -> None:
    old = compose(["model.dim=64", "optim.lr=0.01", "trainer.precision=bf16-mixed", "name=old"])
    same = resumed(old, "trainer.precision=auto")
    assert (same.model.dim, same.optim.lr, same.trainer.precision, same.name) == (
        64,
        0.01,
        "bf16-mixed",
        "old",
    )
    assert resumed(old, "trainer.max_steps=9").trainer.max_steps == 9
    assert resumed(old, "optim.lr=0.02", "allow=[optim.lr]").allow == ["optim.lr"]
    assert resumed(replace(old, allow=["seed"], resume="auto", workers=2)).allow == [], (
        "of this command only"
    )


def test_auto_keeps_what_a_run_has_chosen() -> None:
    chosen = ran("minutes=5", "model.dim=64", "threads=3")
    chosen = replace(chosen, trainer=replace(chosen.trainer, max_steps=77, devices=2))
    chosen = replace(
        chosen, callbacks={"early_stopping": chosen.callbacks["early_stopping"] | {"patience": 4}}
    )
    autos = [
        "trainer.max_steps=auto",
        "model.dim=auto",
        "threads=auto",
        "trainer.devices=auto",
        "minutes=5",
    ]
    other = ["experiment=nanogpt_cpu"]  # which sets steps and the width
    for typed in ([], autos, ["model=auto"], ["trainer=auto"], ["callbacks=auto"], other):
        same = resumed(chosen, *typed)
        assert (same.trainer.max_steps, same.model.dim) == (
            (2000, 128) if typed is other else (77, 64)
        ), typed
        assert (same.threads, same.trainer.devices, same.minutes) == (3, 2, 5.0), typed
        assert same.callbacks["early_stopping"]["patience"] == 4, typed
    assert resumed(chosen, "callbacks=early_stopping").callbacks["early_stopping"]["patience"] == 5
    assert resumed(chosen, "callbacks=[]").callbacks == {}
    logged = resumed(compose(["logger=wandb"]), "logger.wandb.project=autograd").logger
    assert logged["wandb"]["project"] == "autograd", "is not auto"
    assert (
        resumed(replace(chosen, trainer=replace(chosen.trainer, num_nodes=2))).trainer.num_nodes
        == "auto"
    )


TRAINED = vars(
    ModelConfig(layers=3, heads=3, dim=96, context=64, dropout=0.1, positions="learned")
)


def started(model: dict[str, Any], tokenizer: str, *typed: str) -> Config:
    """What a run is that starts from a model."""
    vocabulary = LETTERS if tokenizer == "char" else {"kind": "byte"}
    size = 11 if tokenizer == "char" else 256
    write_model_file("a", filled(ModelConfig(**model), size), vocabulary)
    config = compose([*typed, "init_from=a"])
    check_trained(config, trained_groups(*read_description("a")))
    return config


def test_a_trained_model_brings_its_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = started(TRAINED, "byte", "model.dropout=0.3", "model.layers=3", "optim.lr=0.5")
    assert vars(config.model) == TRAINED | {"dropout": 0.3}
    assert config.data.tokenizer == "byte" and config.optim.lr == 0.5 and config.init_from == "a"
    for positions, context in (("learned", 32), ("rotary", 32), ("rotary", 128)):
        trained = TRAINED | {"positions": positions, "heads": 2}
        assert started(trained, "char", f"model.context={context}").model.context == context
    assert started(TRAINED | {"window": 5}, "char").model.window == 5
    two = "model.layers=8 (the model has 3), data.tokenizer=byte (the model has char)"
    for wrong, listed in (
        (["model.layers=8", "model.dim=96", "data.tokenizer=byte"], two),
        (["model.tied=true"], "model.tied=true (the model has false)"),
        (["model.context=128"], "model.context=128 (the model has 64)"),
    ):
        assert (
            refusal(InputError, started, TRAINED, "char", *wrong)
            == f"init_from=a: cannot change {listed}"
        )
    shown = composing.show(*read_command(["init_from=a"]).runs())
    assert "layers: 3" in shown and "dim: 96" in shown and "dropout: 0.1" in shown


def test_a_model_that_is_missing_or_damaged_is_reported_where_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("damaged").write_text("no model")
    for name in ("gone", "damaged"):
        # a run that resumes needs no such model
        config = compose([f"init_from={name}", "model.layers=3"])
        assert config == replace(compose(["model.layers=3"]), init_from=name)


def ran(*typed: str) -> Config:
    """The configuration that a run stores: with the usual value for each `auto`."""
    config = compose([*typed])
    model, data, trainer = (
        replace(
            group,
            **{
                key: getattr(type(group), key)
                for key, value in vars(group).items()
                if value == "auto"
            },
        )
        for group in (config.model, config.data, config.trainer)
    )
    return replace(config, model=model, data=data, trainer=trainer)


def test_what_is_typed_otherwise_than_the_run_has_it() -> None:
    plain = ran("trainer.precision=bf16-mixed", "compile=false")  # which the machine has chosen
    # which minutes have chosen, and the steps
    timed = ran("minutes=5", "model.dim=64", "data.batch=16")
    timed = replace(timed, trainer=replace(timed.trainer, max_steps=77))
    # which come with the trained model
    tuned = ran("init_from=runs/a", "model.dim=64", "data.tokenizer=byte")
    for run, typed, said in (
        (plain, "", []),
        (plain, "seed=5", ["seed=5 (the run has 0)"]),
        (plain, "seed=5 allow=[seed]", []),
        (plain, "trainer.max_steps=2000", []),
        (plain, "trainer.max_steps=1000", ["trainer.max_steps=1000 (the run has 1500)"]),
        (plain, "data.path=other.txt", ["data.path=other.txt (the run has none)"]),
        (plain, "trainer.devices=2 logger=none trainer.log_every_n_steps=1", []),
        (timed, "minutes=5", []),
        (timed, "minutes=6", ["minutes=6.0 (the run has 5.0)"]),
        (timed, "minutes=5 model.dim=32", ["model.dim=32 (the run has 64)"]),
        (
            timed,
            "model.dim=64 data.batch=16 trainer.max_steps=77",
            ["minutes=null (the run has 5.0)"],
        ),
        (tuned, "init_from=runs/a", []),
    ):
        assert changed(run, compose(typed.split())) == said, typed
