import math
import re
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from conf.compose import read_config
from gpt.checkpoint import load_checkpoint
from gpt.model_file import read
from tests.conftest import assert_same_weights, board, last, summary
from tests.reference.optim import learning_rate
from training.module import LitGPT


def scalars(name, tag):
    place = f"{name}/validation" if tag.startswith("val/") else name
    return {point.step: point.value for point in board(place).Scalars(tag)}


@pytest.mark.slow
def test_watching_changes_nothing(train):
    given = ("optim.clip=0.95", "trainer.max_steps=20")
    assert train("name=each", *given, "trainer.log_every_n_steps=1").status == 0
    assert train("name=none", *given, "logger=none").status == 0
    assert sorted(scalars("each", "optim/grad_norm")) == list(range(1, 21))
    assert_same_weights("each", "none")


GROUPS = {
    "embedding": r"(position_)?embedding\.weight|shift", "attention": r"blocks\.\d+\.attention\..*",
    "mlp": r"blocks\.\d+\.mlp\..*", "norm": r"norm\..*|blocks\.\d+\.norm[12]\..*", "head": r"head\.weight",
}  # fmt: skip


def is_due(name, step, every):
    """Whether step s = `step` - 1 updates block i: s % every = i % every, as in docs/model.md."""
    block = re.search(r"blocks\.(\d+)\.(attention|mlp)\.", name)
    return not block or int(block[1]) % every == (step - 1) % every


def moved(older, newer, step, every):
    """||after - before|| / ||before|| of a step by group, of the blocks that Muon updates in it."""
    moves, sizes = Counter(), Counter()  # sums of squares
    for name in (name for name in older if is_due(name, step, every)):
        (group,) = [group for group, names in GROUPS.items() if re.fullmatch(names, name)]
        before = older[name].astype(float)
        moves[group] += np.square(newer[name] - before).sum()
        sizes[group] += np.square(before).sum()
    return {group: math.sqrt(moves[group] / size) for group, size in sizes.items()}


MUON = "model.layers={} optim.muon_every={}"


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "every", "log_every", "measured"), [
    (MUON.format(1, 2), 2, 4, [3, 4, 7, 8]), (MUON.format(2, 2), 2, 3, [2, 3, 5, 6, 7, 8]),
    (MUON.format(3, 3) + " data.micro_batch=2", 3, 4, [2, 3, 4, 6, 7, 8]),
    ("optim=adamw model.positions=learned model.bias=true optim.clip=0", 1, 4, [4, 8]),
])  # fmt: skip
def test_the_logged_updates_are_those_of_the_weights(train, recipe, every, log_every, measured):
    steps = ["trainer.max_steps=8", f"trainer.log_every_n_steps={log_every}"]
    watched = ["trainer.val_check_interval=1", "callbacks=snapshots", "trainer.precision=32-true"]
    assert train("name=a", *recipe.split(), *steps, *watched).status == 0
    weights = {}
    for step in range(1, 9):
        weights[step] = read(Path(f"runs/a/checkpoints/step-{step}.safetensors")).state
    expected = {group: {} for group in GROUPS}
    for step in measured:
        for group, ratio in moved(weights[step - 1], weights[step], step, every).items():
            expected[group][step] = pytest.approx(ratio, rel=1e-3)
    for group, ratios in expected.items():
        assert scalars("a", f"update/{group}") == ratios and ratios


def test_a_run_that_goes_on_has_one_history_and_the_rates_of_its_new_length(trained, train):
    """The checkpoint knows what was logged up to there, the validation that it was saved for included."""
    assert train("resume=runs/first", "trainer.max_steps=40", defaults=False).status == 0
    history = last("first")["history"]
    losses, bits, steps = (scalars("first", tag) for tag in ("val/loss", "val/bpc", "train/loss"))
    assert list(losses) == [10, 20, 30, 40] and list(steps) == list(range(5, 41, 5))
    expected = [pytest.approx([step, losses[step], bits[step]], rel=1e-6) for step in losses]
    assert history["validations"]["entries"] == expected
    assert dict(history["losses"]["entries"]) == pytest.approx(steps, rel=1e-6)
    # more steps stretch the schedule
    optim = read_config(Path("runs/first")).optim
    rates = {step: learning_rate(step - 1, 30 if step <= 30 else 40, optim) for step in steps}
    assert scalars("first", "optim/lr") == pytest.approx(rates, rel=1e-6)


def test_speed_mfu_and_memory(train, monkeypatch):
    """By a clock on which a step takes half a second, and nothing else takes its time but the first step."""
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    step, validation = LitGPT.training_step, LitGPT.validation_step

    def slow_step(module, *given):
        clock.now += 0.5 if module.global_step else 30
        return step(module, *given)

    def slow_validation(module, *given):
        clock.now += 7
        validation(module, *given)

    monkeypatch.setattr("reports.history.time", clock)
    monkeypatch.setattr(LitGPT, "training_step", slow_step)
    monkeypatch.setattr(LitGPT, "validation_step", slow_validation)
    monkeypatch.setattr("training.callbacks.metrics.peak_flops", lambda *_: 1e9)
    Path("book.txt").write_text("äbc " * 5000, "utf-8")  # five bytes for four characters
    assert train("name=a", "data.tokenizer=byte").status == 0
    tokens_per_second = 8 * 32 / 0.5
    model, _ = load_checkpoint("a")
    mfu = tokens_per_second * model.flops_per_token() / 1e9
    logged = range(5, 31, 5)
    speeds = dict.fromkeys(logged, pytest.approx(tokens_per_second * 4 / 5, rel=1e-3))
    assert scalars("a", "perf/chars_per_s") == speeds
    assert scalars("a", "perf/mfu") == dict.fromkeys(logged, pytest.approx(mfu))
    assert summary("a")["characters_per_second"] == pytest.approx(tokens_per_second)
    assert summary("a")["mfu"] == pytest.approx(mfu)
    if sys.platform == "linux":
        (kibibytes,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        assert scalars("a", "perf/memory_gib")[30] == pytest.approx(
            int(kibibytes) / 2**20, rel=0.2
        )
