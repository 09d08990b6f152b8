from gpt.config import ModelConfig
from gpt.model import GPT
from training.memory import available, needed, smaller


def test_what_a_step_needs_is_counted() -> None:
    model = ModelConfig(layers=2, heads=2, dim=32, context=16)
    state, activations = needed(model, 11, 3)
    assert state == 16 * GPT(model, 11).num_parameters() and needed(model, 11, 6) == (state, 2 * activations)
    assert 2**28 < available("cpu") < 2**50


def test_changes_go_from_cheap_to_dear_and_can_be_made() -> None:
    changes = list(smaller(ModelConfig(heads=2, dim=48, context=8), 6))
    assert [change[:2] for change in changes] == [
        ("data.micro_batch", 3), ("data.micro_batch", 2), ("data.micro_batch", 1),
        ("model.context", 4), ("model.context", 2), ("model.context", 1), ("model.dim", 24), ("model.dim", 8),
    ]  # fmt: skip
    for key, _, model, windows in changes:
        assert windows == 6 or key == "data.micro_batch"
        assert sum(needed(model, 11, windows)) < sum(needed(ModelConfig(heads=2, dim=48, context=8), 11, 6))
