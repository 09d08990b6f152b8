from conf.merge import changed, check_unchanged, merge, merge_resumed, merge_started, settings
from gpt.config import ModelConfig
from tests.conftest import refusal


def test_resuming_keeps_the_run() -> None:
    old = merge({"model.dim": 64, "optim.lr": 0.01, "trainer.precision": "bf16-mixed", "name": "old"})
    same = merge_resumed(old, {"resume": "auto", "name": None, "trainer.precision": "auto"})
    assert (same.model.dim, same.optim.lr, same.trainer.precision, same.name) == (64, 0.01, "bf16-mixed", "old")
    dialled = merge_resumed(old, {"trainer.max_steps": 9, "resume": "auto", "minutes": 5.0})
    assert dialled.trainer.max_steps == old.trainer.max_steps, "an experiment's steps, where minutes chose others"
    assert merge_resumed(old, {"trainer.max_steps": 9, "resume": "auto"}).trainer.max_steps == 9
    assert merge_resumed(old, {"optim.lr": 0.02, "resume": "auto", "allow": ["optim.lr"]}).allow == ["optim.lr"]


TRAINED = vars(ModelConfig(layers=3, heads=3, dim=96, context=64, dropout=0.1, positions="learned"))


def test_a_trained_model_brings_its_shape() -> None:
    given = {"init_from": "a", "model.dropout": 0.3, "model.layers": 3, "optim.lr": 0.5}
    merged = merge_started(given, TRAINED, "byte")
    assert vars(merged.model) == TRAINED | {"dropout": 0.3}
    assert merged.data.tokenizer == "byte" and merged.optim.lr == 0.5 and merged.init_from == "a"
    for positions, context in (("learned", 32), ("rotary", 32), ("rotary", 128)):
        trained = TRAINED | {"positions": positions, "heads": 2}
        assert merge_started({"init_from": "a", "model.context": context}, trained, "char").model.context == context
    assert merge_started({"init_from": "a"}, TRAINED | {"window": 5}, "char").model.window == 5
    two = "model.layers=8 (the model has 3), data.tokenizer=byte (the model has char)"
    for wrong, listed in (
        ({"model.layers": 8, "model.dim": 96, "data.tokenizer": "byte"}, two),
        ({"model.tied": True}, "model.tied=true (the model has false)"),
        ({"model.context": 128}, "model.context=128 (the model has 64)"),
    ):
        said = refusal(ValueError, merge_started, {"init_from": "a"} | wrong, TRAINED, "char")
        assert said == f"init_from=a: cannot change {listed}"


def test_what_is_typed_otherwise_than_the_run_has_it() -> None:
    plain = merge({"trainer.precision": "bf16-mixed", "compile": "false"})  # which the machine has chosen
    timed = merge({"minutes": 5.0, "model.dim": 64, "data.batch": 16, "trainer.max_steps": 77})  # and minutes
    tuned = merge({"init_from": "runs/a", "model.dim": 64, "data.tokenizer": "byte"})  # and the trained model
    for run, typed, said in (
        (plain, {}, []),
        (plain, {"seed": 5}, ["seed=5 (the run has 0)"]),
        (plain, {"seed": 5, "allow": ["seed"]}, []),
        (plain, {"trainer.max_steps": 2000}, []),
        (plain, {"trainer.max_steps": 1000}, ["trainer.max_steps=1000 (the run has 1500)"]),
        (plain, {"data.path": "other.txt"}, ["data.path=other.txt (the run has null)"]),
        (plain, {"trainer.devices": 2, "logger": {}, "trainer.log_every_n_steps": 1}, []),
        (timed, {"minutes": 5.0}, []),
        (timed, {"minutes": 6.0}, ["minutes=6.0 (the run has 5.0)"]),
        (timed, {"minutes": 5.0, "model.dim": 32}, ["model.dim=32 (the run has 64)"]),
        (timed, {"model.dim": 64, "data.batch": 16, "trainer.max_steps": 77}, ["minutes=null (the run has 5.0)"]),
        (tuned, {"init_from": "runs/a"}, []),
    ):
        assert changed(run, typed) == said, typed


def test_what_no_permission_helps_with() -> None:
    same = settings(merge()) | {"vocabulary": "9 tokens"}
    said = refusal(ValueError, check_unchanged, same, dict(same), ["vocabulary"])
    assert said.startswith("allow=[vocabulary]: cannot be allowed")
    for head, wrong in {"L1": ": must be layer and head", "L0H9": " is not in the model", "L9H0": " is not in"}.items():
        assert f"{head}{wrong}" in refusal(ValueError, merge, {"watch.attention_heads": [head]})
