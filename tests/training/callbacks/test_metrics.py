import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace

import pytest
import torch

import training.callbacks.checkpoints
import training.callbacks.metrics
from tests.conftest import Ended, assert_same_weights, board, last, summary
from tests.faults import faults
from tests.faults.processes import run_ranks
from tests.training.callbacks.test_watch import TAGS, images

Train = Callable[..., Ended]


def scalars(name: str, tag: str) -> dict[int, float]:
    place = f"{name}/validation" if tag.startswith("val/") else name
    return {point.step: point.value for point in board(place).Scalars(tag)}


@pytest.mark.slow
def test_clipped_steps_are_counted_and_watching_changes_nothing(train: Train) -> None:
    clip, every = 0.95, "trainer.log_every_n_steps="
    for name, more in (("each", f"{every}1"), ("some", f"{every}5"), ("none", "logger=none")):
        assert train(f"name={name}", f"optim.clip={clip}", "trainer.max_steps=20", more).status == 0
    norms = scalars("each", "optim/grad_norm")
    assert sorted(norms) == list(range(1, 21))
    counted = {end: sum(norms[step] > clip for step in range(end - 4, end + 1)) / 5 for end in range(5, 21, 5)}
    assert len(set(counted.values())) > 1, "some of the steps were clipped"
    assert scalars("some", "optim/clip_share") == pytest.approx(counted)
    for name in ("some", "none"):
        assert_same_weights("each", name)


GROUPS = {
    "embedding": r"(position_)?embedding\.weight|shift", "attention": r"blocks\.\d+\.attention\..*",
    "mlp": r"blocks\.\d+\.mlp\..*", "norm": r"norm\..*|blocks\.\d+\.norm[12]\..*", "head": r"head\.weight",
}  # fmt: skip


def moved(name: str, key: str = "state_dict") -> dict[str, float]:
    """||after - before|| / ||before|| of the last step of a run that has saved after every step, by group."""
    older, newer = (torch.load(f"runs/{name}/checkpoints/{which}.ckpt")[key] for which in ("previous", "last"))
    sums = {group: [0.0, 0.0] for group in GROUPS}
    for full in (full for full in older if "net." in full):
        (group,) = [group for group, names in GROUPS.items() if re.fullmatch(names, full.rpartition("net.")[2])]
        before, after = older[full].double(), newer[full].double()
        sums[group][0] += float((after - before).square().sum())
        sums[group][1] += float(before.square().sum())
    return {group: math.sqrt(move / size) for group, (move, size) in sums.items()}


EVERY = ["trainer.max_steps=3", "trainer.val_check_interval=1", "trainer.log_every_n_steps=3"]


def assert_updates(name: str, expected: dict[str, float]) -> None:
    for group in GROUPS:
        assert scalars(name, f"update/{group}") == pytest.approx({3: expected[group]}, rel=1e-4), group


@pytest.mark.slow
def test_updates_are_those_between_two_checkpoints(train: Train) -> None:
    for key, recipe in (
        ("state_dict", "optim=adamw model.positions=learned model.bias=true optim.clip=0"),
        ("current_model_state", "optim=muon data.micro_batch=2 callbacks=ema trainer.precision=32-true"),
    ):
        assert train(f"name={key}", *EVERY, *recipe.split()).status == 0
        expected = moved(key, key)
        assert min(expected.values()) > 1e-5
        assert_updates(key, expected)
    assert "optim/clip_share" not in board("state_dict").Tags()["scalars"], "nothing is clipped"


def known(flops: float) -> None:
    training.callbacks.metrics.peak_flops = lambda *_: flops  # type: ignore[assignment]


@pytest.mark.slow
def test_updates_peak_and_pictures_of_two_processes(workplace: Path) -> None:
    typed = ["name=a", "optim=muon", "watch.pictures=true", *EVERY]
    ended = run_ranks(2, *typed, fault=(known, 1e12))
    assert ended.status == 0 and "pictures " not in ended.out, ended
    assert_updates("a", moved("a"))
    assert set(images("a")) == {(tag, step) for tag in TAGS for step in (1, 2, 3)}
    assert last("a")["callbacks"]["Metrics"]["peak"] == 2e12
    # FLOPs of a token, by hand: 6 for each weight of a matrix, and 12 for each pair of positions and channel.
    layers, dim, context, vocabulary = 2, 32, 32, len(set(Path("book.txt").read_text()))
    flops = 6 * (layers * 12 * dim * dim + vocabulary * dim) + 12 * layers * context * dim
    speed, said = scalars("a", "perf/chars_per_s")[3], summary("a")
    assert scalars("a", "perf/mfu")[3] == pytest.approx(speed * flops / 2e12, rel=1e-5)
    assert said["mfu"] == pytest.approx(said["characters_per_second"] * flops / 2e12)


TAKES = {  # seconds on a clock of the test's own, in what does the work of each part
    "data.datamodule.train_batch": 1, "torch.nn.functional.cross_entropy": 2,
    "training.module.LitGPT.manual_backward": 4, "torch.nn.utils.clip_grad_norm_": 2,
    "training.callbacks.stop_signals.StopSignals.on_train_batch_end": 1,
    "training.module.LitGPT.on_validation_epoch_end": 100, "training.callbacks.checkpoints.Checkpoints.save": 1000,
}  # fmt: skip


def test_speed_leaves_out_validations_and_checkpoints(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1.0]
    for target, seconds in TAKES.items():
        owner, _, name = target.rpartition(".")
        owner = resolve_name(owner)
        monkeypatch.setattr(owner, name, getattr(owner, name))  # put back afterwards
        faults.before(owner, name, lambda *_, takes=seconds, **__: now.append(now[-1] + takes))
    clock = SimpleNamespace(perf_counter=lambda: now[-1], monotonic=time.monotonic)
    for module in (training.callbacks.metrics, training.callbacks.checkpoints):
        monkeypatch.setattr(module, "time", clock)
    steps = ["trainer.max_steps=12", "trainer.val_check_interval=4", "trainer.log_every_n_steps=4"]
    assert train("name=a", "data.micro_batch=4", *steps).status == 0
    assert scalars("a", "perf/chars_per_s") == pytest.approx(dict.fromkeys((4, 8, 12), 8 * 32 / 16))
    assert summary("a")["seconds"] == 12 * 16 + 3 * (1100 + 2), "whose losses are computed as those of training are"


def test_a_run_that_goes_on_has_one_history(trained: Path, train: Train) -> None:
    """The checkpoint knows what was logged up to there, the validation that it was saved for included."""
    assert train("resume=runs/first", "trainer.max_steps=40", defaults=False).status == 0
    history = last("first")["callbacks"]["Metrics"]["history"]
    losses, bits, steps = scalars("first", "val/loss"), scalars("first", "val/bpc"), scalars("first", "train/loss")
    assert list(losses) == [10, 20, 30, 40] and list(steps) == list(range(5, 41, 5))
    expected = [pytest.approx([step, losses[step], bits[step]], rel=1e-6) for step in losses]
    assert history["validations"]["entries"] == expected
    assert dict(history["losses"]["entries"]) == pytest.approx(steps, rel=1e-6)
