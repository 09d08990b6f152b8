from conf.merge import check_unchanged, merge_resumed, merge_started, settings
from conf.schema import Config, from_dict, to_dict
from gpt.config import ModelConfig
from tests.conftest import refusal


def changed(**values: object) -> Config:
    config = to_dict(Config())
    for key, value in values.items():
        *path, last = key.split("__")
        inner = config
        for name in path:
            inner = inner[name]
        inner[last] = value
    return from_dict(config)


def test_resuming_keeps_the_run() -> None:
    old = changed(model__dim=64, optim__lr=0.01, trainer__precision="bf16-mixed", name="old")
    same = merge_resumed(old, changed(resume="auto"), ["resume", "name", "trainer.precision"])
    assert (same.model.dim, same.optim.lr, same.trainer.precision, same.name) == (64, 0.01, "bf16-mixed", "old")
    dialled = merge_resumed(old, changed(trainer__max_steps=9, resume="auto"), ["minutes", "trainer.max_steps"])
    assert dialled.trainer.max_steps == old.trainer.max_steps, "an experiment's steps, where minutes chose others"
    longer = merge_resumed(old, changed(trainer__max_steps=9, resume="auto"), ["trainer.max_steps"])
    assert longer.trainer.max_steps == 9
    typed = changed(optim__lr=0.02, resume="auto", allow=["optim.lr"])
    assert merge_resumed(old, typed, ["optim.lr", "allow"]).allow == ["optim.lr"]


TRAINED = vars(ModelConfig(layers=3, heads=3, dim=96, context=64, dropout=0.1, positions="learned"))


def test_a_trained_model_brings_its_shape() -> None:
    typed = changed(init_from="a", model__dim=128, model__dropout=0.3, model__layers=3, optim__lr=0.5)
    merged = merge_started(typed, ["init_from", "model.dropout", "model.layers", "optim.lr"], TRAINED, "byte")
    assert vars(merged.model) == TRAINED | {"dropout": 0.3}
    assert merged.data.tokenizer == "byte" and merged.optim.lr == 0.5 and merged.init_from == "a"
    assert vars(merge_started(typed, [], TRAINED, "char").model) == TRAINED
    for positions, context in (("learned", 32), ("rotary", 32), ("rotary", 128)):
        trained, typed = TRAINED | {"positions": positions, "heads": 2}, changed(init_from="a", model__context=context)
        assert merge_started(typed, ["model.context"], trained, "char").model.context == context
    typed = changed(init_from="a", model__window=8)
    assert merge_started(typed, ["model.window"], TRAINED, "char").model.window == 8
    assert merge_started(typed, [], TRAINED | {"window": 5}, "char").model.window == 5
    typed = changed(
        init_from="a", model__layers=8, model__tied=True, model__dim=96, model__context=128, data__tokenizer="byte"
    )
    keys = ["model.layers", "model.tied", "model.dim", "data.tokenizer"]
    listed = "model.layers=8 (the model has 3), model.tied=true (the model has false), "
    listed += "data.tokenizer=byte (the model has char)"
    assert refusal(ValueError, merge_started, typed, keys, TRAINED, "char") == f"init_from=a: cannot change {listed}"
    said = refusal(ValueError, merge_started, typed, ["model.context"], TRAINED, "char")
    assert said == "init_from=a: cannot change model.context=128 (the model has 64)"


def test_what_no_permission_helps_with() -> None:
    same = settings(Config()) | {"vocabulary": "9 tokens"}
    said = refusal(ValueError, check_unchanged, same, dict(same), ["vocabulary"])
    assert said.startswith("allow=[vocabulary]: cannot be allowed")
    assert "no such field; nearest: vocabulary" in refusal(ValueError, check_unchanged, same, same, ["vocabular"])
    for heads, wrong in (
        (["L1"], "L1: must be layer and head"),
        (["L0H9"], "L0H9 is not in the model"),
        (["L9H0"], "L9H0 is not in"),
    ):
        assert wrong in refusal(ValueError, changed, watch__attention_heads=heads)
