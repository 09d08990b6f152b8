from dataclasses import replace
from pathlib import Path

import pytest

from base.errors import InputError
from base.jobs.run_directory import Run
from conf.compose import read_config
from conf.overrides import read_command
from conf.schema import by_key, to_yaml
from gpt.config import ModelConfig
from sweeps.sweep import changed
from tests.conf.test_defaults import compose
from tests.conftest import refusal
from tests.model_files import LETTERS, filled, write_model_file
from training.begin import compose_resumed, joined
from training.choosing.choose import with_constants
from training.resume import load_init_model


def resumed(stored, *typed):
    (given,) = read_command([*typed, "resume=auto"]).runs()
    return compose_resumed(given, stored)


def test_resuming_keeps_the_run():
    old = compose(["model.dim=64", "optim.lr=0.01", "trainer.precision=bf16-mixed", "name=old"])
    same = resumed(old, "trainer.precision=auto")
    assert (same.model.dim, same.optim.lr, same.name) == (64, 0.01, "old")
    assert same.trainer.precision == "bf16-mixed"


def test_what_is_allowed_is_allowed_to_one_command():
    old = compose(["optim.lr=0.01"])
    assert resumed(old, "optim.lr=0.02", "allow=[optim.lr]").allow == ["optim.lr"]
    assert resumed(replace(old, allow=["seed"])).allow == []


def ran(*typed):
    """The configuration that a run stores: with the usual value for each `auto`."""
    config = with_constants(compose(list(typed)), "bf16-mixed", 3)
    return replace(config, trainer=replace(config.trainer, max_steps=1500))


def chosen():
    """What a run stores that has chosen steps and devices, and has a callback of its own."""
    config = ran("minutes=5", "model.dim=64", "threads=3")
    stopping = config.callbacks["early_stopping"] | {"patience": 4}
    trainer = replace(config.trainer, max_steps=77, devices=2, num_nodes=2)
    return replace(config, trainer=trainer, callbacks={"early_stopping": stopping})


KEPT = [  # what is typed, and the steps and the width of the run that resumes
    ("", 77, 64), ("trainer.max_steps=auto model.dim=auto threads=auto trainer.devices=auto minutes=5", 77, 64),
    ("model=auto trainer=auto callbacks=auto", 77, 64), ("experiment=nanogpt_cpu", 2000, 128),
]  # fmt: skip


@pytest.mark.parametrize(("typed", "steps", "width"), KEPT)
def test_auto_keeps_what_a_run_has_chosen(typed, steps, width):
    same = resumed(chosen(), *typed.split())
    assert (same.trainer.max_steps, same.model.dim) == (steps, width)
    assert (same.threads, same.trainer.devices, same.minutes) == (3, 2, 5.0)
    assert same.trainer.num_nodes == "auto"  # is chosen again
    assert same.callbacks["early_stopping"]["patience"] == 4


def test_callbacks_that_are_typed_replace_those_of_the_run():
    run = chosen()
    assert resumed(run, "callbacks=early_stopping").callbacks["early_stopping"]["patience"] == 5
    both = "callbacks=[auto,snapshots]"
    assert list(resumed(run, both).callbacks) == ["early_stopping", "snapshots"]
    without = replace(run, callbacks={})  # the run has left early stopping out
    assert list(resumed(without, both).callbacks) == ["snapshots"]


TRAINED = vars(
    ModelConfig(layers=3, heads=3, dim=96, context=64, dropout=0.1, positions="learned")
)


@pytest.fixture
def started(tmp_path, monkeypatch):
    """What a run is that starts from a model."""
    monkeypatch.chdir(tmp_path)

    def start(model, *typed, vocabulary=LETTERS, size=11):
        write_model_file("a", filled(ModelConfig(**model), size), vocabulary)
        config = compose([*typed, "init_from=a"])
        load_init_model(config)
        return config

    return start


def test_a_trained_model_brings_its_shape(started):
    typed = ["model.dropout=0.3", "model.layers=3", "optim.lr=0.5"]
    config = started(TRAINED, *typed, vocabulary={"kind": "byte"}, size=256)
    assert vars(config.model) == TRAINED | {"dropout": 0.3}
    assert (config.data.tokenizer, config.optim.lr, config.init_from) == ("byte", 0.5, "a")
    shown = to_yaml(compose(["init_from=a"]))
    assert "layers: 3" in shown and "dim: 96" in shown and "dropout: 0.1" in shown


@pytest.mark.parametrize(("positions", "context"), [("learned", 32), ("rotary", 128)])
def test_a_trained_model_takes_another_context(started, positions, context):
    trained = TRAINED | {"positions": positions, "heads": 2}
    assert started(trained, f"model.context={context}").model.context == context


def test_what_a_trained_model_cannot_be_is_named(started):
    typed = "model.layers=8 model.dim=96 model.context=128 data.tokenizer=byte".split()
    message = refusal(InputError, started, TRAINED, *typed)
    size = "model.layers=8 (the model has 3), model.context=128 (the model has 64)"
    tokenizer = "data.tokenizer=byte (the model has char)"
    assert message == f"init_from=a: cannot change {size}, {tokenizer}"


def test_a_model_that_is_missing_is_reported_where_it_is_loaded():
    # a run that resumes needs no such model
    config = compose(["init_from=gone", "model.layers=3"])
    assert config == replace(compose(["model.layers=3"]), init_from="gone")


BY_CLOCK = "minutes=5 model.dim=64 data.batch=16"


@pytest.mark.parametrize(("started", "typed", "said"), [
    ("", "seed=5", "seed=5 (the run has 0)"), ("", "seed=5 allow=[seed]", ""),
    ("", "trainer.max_steps=2000", ""), ("", "trainer.max_steps=1000", "trainer.max_steps=1000 (the run has 1500)"),
    ("", "data.path=other.txt", "data.path=other.txt (the run has none)"),
    ("callbacks=[]", "callbacks=ema", "callbacks={ema:{share:0.05}} (the run has {})"),
    # what comes with a trained model need not be typed
    ("init_from=runs/a model.dim=64 data.tokenizer=byte", "init_from=runs/a", ""),
    ("", "trainer.devices=2 logger=none trainer.log_every_n_steps=1", ""),
    # what minutes have chosen may be typed or not
    (BY_CLOCK, "minutes=5", ""), (BY_CLOCK, "minutes=6", "minutes=6.0 (the run has 5.0)"),
    (BY_CLOCK, "minutes=5 model.dim=32", "model.dim=32 (the run has 64)"),
    (BY_CLOCK, "model.dim=64 data.batch=16 trainer.max_steps=77", "minutes=null (the run has 5.0)"),
])  # fmt: skip
def test_what_is_typed_otherwise_than_the_run_has_it(started, typed, said):
    # which the machine has chosen
    run = ran("trainer.precision=bf16-mixed", "compile=false", *started.split())
    if started:
        run = replace(run, trainer=replace(run.trainer, max_steps=77))
    assert changed(run, compose(typed.split())) == [said] * bool(said)


KEPT_ARGUMENTS = [  # of the commands before, of the present one, and of both together
    ("seed=1 model.dim=64", "seed=2", "model.dim=64 seed=2"),
    ("minutes=0.15 model=auto", "trainer.max_steps=9", "model=auto trainer.max_steps=9"),
    ("callbacks=ema callbacks.ema.share=0.1", "callbacks=snapshots", "callbacks=snapshots"),
    ("--config-dir=/a --config-dir=/b seed=1", "--config-dir=/b", "--config-dir=/a seed=1 --config-dir=/b"),
]  # fmt: skip


@pytest.mark.parametrize(("earlier", "new", "both"), KEPT_ARGUMENTS)
def test_the_arguments_of_a_resumed_run_repeat_it(earlier, new, both):
    assert joined(earlier.split(), new.split()) == both.split()
    compose([each for each in both.split() if not each.startswith("--")])  # is accepted


def test_a_run_without_its_arguments_has_those_of_its_configuration(trained, train):
    run = Run(Path("runs/first"))
    for damaged in ("{", "[1]", '{"a": 1}'):
        run.overrides.write_text(damaged)
        assert run.arguments is None
    run.overrides.unlink()
    assert train("resume=first", "trainer.max_steps=31", defaults=False).status == 0
    assert run.arguments is not None
    values = by_key(compose(run.arguments)) | {"name": "first"}
    assert values == by_key(read_config(run.directory)) | {"trainer.num_nodes": "auto"}
