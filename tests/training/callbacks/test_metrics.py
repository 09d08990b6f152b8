import math
import re
from pathlib import Path

import pytest
import torch

from tests.conftest import Call, assert_same_weights, board, last


def scalars(name: str, tag: str) -> dict[int, float]:
    place = f"{name}/validation" if tag.startswith("val/") else name
    return {point.step: point.value for point in board(place).Scalars(tag)}


@pytest.mark.slow
def test_watching_changes_nothing(train: Call) -> None:
    given = ("optim.clip=0.95", "trainer.max_steps=20")
    assert train("name=each", *given, "trainer.log_every_n_steps=1").status == 0
    assert train("name=none", *given, "logger=none").status == 0
    assert sorted(scalars("each", "optim/grad_norm")) == list(range(1, 21))
    assert_same_weights("each", "none")


GROUPS = {
    "embedding": r"(position_)?embedding\.weight|shift", "attention": r"blocks\.\d+\.attention\..*",
    "mlp": r"blocks\.\d+\.mlp\..*", "norm": r"norm\..*|blocks\.\d+\.norm[12]\..*", "head": r"head\.weight",
}  # fmt: skip


def moved(name: str, key: str = "state_dict") -> dict[str, float]:
    """||after - before|| / ||before|| of the last step of a run that has saved after every step, by group."""
    older, newer = (
        torch.load(f"runs/{name}/checkpoints/{which}.ckpt")[key] for which in ("previous", "last")
    )
    sums = {group: [0.0, 0.0] for group in GROUPS}
    for full in (full for full in older if "net." in full):
        (group,) = [
            group
            for group, names in GROUPS.items()
            if re.fullmatch(names, full.rpartition("net.")[2])
        ]
        before, after = older[full].double(), newer[full].double()
        sums[group][0] += float((after - before).square().sum())
        sums[group][1] += float(before.square().sum())
    return {group: math.sqrt(move / size) for group, (move, size) in sums.items()}


EVERY = ["trainer.max_steps=3", "trainer.val_check_interval=1", "trainer.log_every_n_steps=3"]


@pytest.mark.slow
@pytest.mark.parametrize(("key", "recipe"), [
    pytest.param("state_dict", "optim=adamw model.positions=learned model.bias=true optim.clip=0", id="AdamW"),
    pytest.param("current_model_state", "optim=muon data.micro_batch=2 callbacks=ema trainer.precision=32-true",
                 id="averages"),
])  # fmt: skip
def test_updates_are_those_between_two_checkpoints(train: Call, key: str, recipe: str) -> None:
    assert train("name=a", *EVERY, *recipe.split()).status == 0
    expected = moved("a", key)
    assert min(expected.values()) > 1e-5
    logged = {group: scalars("a", f"update/{group}") for group in GROUPS}
    assert logged == {group: pytest.approx({3: expected[group]}, rel=1e-4) for group in GROUPS}


def test_a_run_that_goes_on_has_one_history(trained: Path, train: Call) -> None:
    """The checkpoint knows what was logged up to there, the validation that it was saved for included."""
    assert train("resume=runs/first", "trainer.max_steps=40", defaults=False).status == 0
    history = last("first")["history"]
    losses, bits, steps = (
        scalars("first", "val/loss"),
        scalars("first", "val/bpc"),
        scalars("first", "train/loss"),
    )
    assert list(losses) == [10, 20, 30, 40] and list(steps) == list(range(5, 41, 5))
    expected = [pytest.approx([step, losses[step], bits[step]], rel=1e-6) for step in losses]
    assert history["validations"]["entries"] == expected
    assert dict(history["losses"]["entries"]) == pytest.approx(steps, rel=1e-6)
