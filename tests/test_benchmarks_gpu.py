"""What measures a GPU, on a CPU: all but CUDA itself."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hydra
import pytest
import torch
import torch.nn.functional as F
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from benchmarks import gpu, plain_loop, sample_speed
from conf.fields import InputError
from conf.overrides import CONF, check_overrides, leaves
from conf.schema import Config, to_dict
from gpt.config import ModelConfig
from gpt.model import GPT
from tests.reference.capture import record
from tests.reference.models import fill

MACHINE = {"GPU": "a GPU", "torch": "2.0"}


def test_what_was_measured_is_kept_and_nothing_begun_that_would_not_end_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, now, asked = tmp_path / "results" / "part.json", [0.0], []
    monkeypatch.setattr(gpu, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def lasting(name: str, seconds: float) -> Callable[[], dict[str, Any]]:
        def work() -> dict[str, Any]:
            asked.append(name)
            now[0] += seconds
            return {"by": name} if seconds else 1 / 0  # type: ignore[return-value]

        return work

    plan = {name: lasting(name, seconds) for name, seconds in (("a", 10), ("b", 120), ("c", 60), ("d", 1))}
    with pytest.raises(ZeroDivisionError):
        gpu.measure(file, MACHINE, {"a": plan["a"], "b": lasting("b", 0)}, 9)
    assert json.loads(file.read_text()) == MACHINE | {"seen": {"a": {"by": "a"}}}
    # After c, 180 seconds are gone, and d might last as long as b: 300 of 299.
    assert gpu.measure(file, MACHINE, plan, minutes=299 / 60) == ["d"]
    assert asked == ["a", "b", "b", "c"]
    assert gpu.measure(file, MACHINE, plan, minutes=0.001) == []  # the first always is
    assert json.loads(file.read_text()) == MACHINE | {"seen": {name: {"by": name} for name in "abcd"}}
    with pytest.raises(InputError, match=r"measured with torch 2\.0, here it is 2\.1; name other --results"):
        gpu.measure(file, MACHINE | {"torch": "2.1"}, plan, 9)
    assert os.listdir(file.parent) == ["part.json"]


def timed(training: float, loss: float) -> dict[str, float]:
    return {"process": training + 10, "training": training, "fit": training + 1, "loss": loss}


def pace(speed: float, mfu: float | None = None) -> dict[str, float | None]:
    return {"characters_per_second": speed, "mfu": mfu}


FOUND: dict[str, dict[str, Any]] = {
    "loss": {
        "seed 1": {"cold": timed(5, 1.46), "warm": timed(4, 1.46)},
        "seed 2": {"cold": timed(7, 1.46), "warm": timed(6, 1.465)},
        "seed 3": {"cold": timed(1, 1.4697), "warm": timed(2, 1.45)},
    },
    "speed": {
        "baby, seed 1": {"plain": pace(100), "same parts": pace(250), "recipe": pace(150, 0.3)},
        "baby, seed 2": {"plain": pace(100), "same parts": pace(200), "recipe": pace(160, 0.32)},
        "wide, seed 1": {"wide": pace(50, 0.5)},
    },
    "best": {
        name: {"val_loss": loss, "last_val_loss": loss + 0.01}
        for name, loss in (("seed 1", 1.42), ("seed 2", 1.45), ("256 wide", 1.44), ("the recipe", 1.43))
    },
    "sampling": {
        "1 at once, round 1": {"generate": 9000, "uncached": 300},
        "256 at once, round 1": {"generate": 1_200_000, "uncached": 4000},
    },
    "pipeline": {"seed 1": {"over": 0.021}, "seed 2": {"over": 0.01}, "seed 3": {"over": 0.03}},
    "exact": {
        "seed 1": {"same": True, "resumed": True, "cost": 1.5},
        "seed 2": {"same": True, "resumed": False, "cost": 1.25}, "devices": {"bf16": 0.0123},
    },
    "stdlib": {"seed 1": {"val_bpc": 1.1, "test_bpc": 1.2, "parse share": "12 % parse"}},
}  # fmt: skip
CELLS = {
    "loss": [
        "4.0 (2.0 to 6.0) s",
        "14.0 (12.0 to 16.0) s / 16.0 (15.0 to 17.0) s, 2 of 3; 1 of 3 did not reach it and do not count",
    ],
    "speed": [
        "2.25 (2.00 to 2.50)x, 2 of 3 with its model and AdamW; 1.55 (1.50 to 1.60)x, 2 of 3 with the default recipe",
        "31.0 (30.0 to 32.0) %, 2 of 3 / 50.0 (50.0 to 50.0) %, 1 of 3",
    ],
    "best": ["1.4350; 1.4350 (1.4200 to 1.4500), 2 of 5"],
    "sampling": ["9,000 (9,000 to 9,000), 1 of 3 / 1,200,000 (1,200,000 to 1,200,000), 1 of 3"],
    "pipeline": ["2.1 (1.0 to 3.0) %"],
}


def test_the_table_has_what_was_measured_and_says_what_was_not() -> None:
    for parts in ([], ["speed", "best"], list(FOUND)):
        text = gpu.table({part: MACHINE | {"seen": FOUND[part]} for part in parts})
        rows = [line.strip("| ").split(" | ") for line in text.split("\n\n")[0].splitlines()[2:]]
        wanted = [cell if part in parts else "not measured" for part, cells in CELLS.items() for cell in cells]
        assert [row[-1] for row in rows] == wanted
        must = ["15 s", "30 s / 90 s", "1.5x", "25 % / 45 %", "1.45", "3,000 / 200,000", "5 %"]
        assert [row[1] for row in rows] == must
        assert f"Measured on {'a GPU, torch 2.0' if parts else 'no GPU yet'};" in text
    also = dict(line.strip("| ").split(" | ") for line in text.split("\n\n")[1].splitlines()[2:])
    assert also["run twice, equal bit for bit"] == "2 of 2"
    assert also["killed and resumed, equal bit for bit"] == "1 of 2"
    assert also["sampling over a loop without a cache, 256 at once"].startswith("300")
    assert "12 % parse" in text


def composed(arguments: list[str]) -> dict[str, Any]:
    check_overrides(arguments, {}, False)
    ConfigStore.instance().store("schema", node=Config)
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        config = OmegaConf.to_object(hydra.compose("train", arguments))
    assert isinstance(config, Config)
    return dict(leaves(to_dict(config)))


def test_runs_have_the_settings_that_they_are_named_for() -> None:
    recipe = composed(gpu.BEST)
    assert recipe["minutes"] == gpu.MINUTES
    for changed in gpu.VARIANTS.values():
        variant = composed([*gpu.BEST, *changed])
        assert {key for key in recipe if recipe[key] != variant[key]} == {each.partition("=")[0] for each in changed}
    for arguments, shape in (
        (gpu.BABY, (6, 6, 384, 256, 64)),
        (gpu.SAME_PARTS, (6, 6, 384, 256, 64)),
        (gpu.WIDE, (12, 12, 768, 1024, 32)),
        (["experiment=enwik8", "minutes=null"], (*gpu.SIZES[-1], gpu.HOUR_CONTEXT, gpu.HOUR_BATCH)),
    ):
        settings = composed([*arguments, *gpu.steps_of(9)])
        keys = ("model.layers", "model.heads", "model.dim", "model.context", "data.batch", "trainer.max_steps")
        assert tuple(settings[key] for key in keys) == (*shape, 9), arguments
    for arguments in (gpu.REPEATABLE, gpu.ACROSS, *gpu.WHERE.values()):
        composed([*arguments, "trainer.deterministic=true"])


def test_the_plain_loop_is_the_model_of_nanogpt() -> None:
    shape = plain_loop.Shape(layers=3, heads=3, dim=48, context=20, batch=5)
    config = ModelConfig(
        layers=3, heads=3, dim=48, context=20, activation="gelu", positions="learned",
        qk_norm=False, key_offset=False, token_shift=False, tied=True,
    )  # fmt: skip
    ours, plain = fill(GPT(config, 11)), plain_loop.Model(11, shape)
    state = {name.replace("attention.", "").replace("mlp.", ""): value for name, value in ours.state_dict().items()}
    plain.load_state_dict({name.replace("position_embedding", "places"): value for name, value in state.items()})
    x, y = plain_loop.random_batch(torch.randint(11, (300,)).numpy(), shape, "cpu")
    assert x.shape == (5, 20) and torch.equal(x[:, 1:], y[:, :-1])
    expected = F.cross_entropy(ours(x).flatten(0, 1), y.flatten())
    torch.testing.assert_close(plain_loop.loss_of(plain, x, y), expected)


TINY = (
    "model.layers=1 model.heads=1 model.dim=16 model.context=16 data.batch=4 trainer.accelerator=cpu logger=none "
    "compile=false watch.pictures=false"
).split()


@pytest.mark.slow
def test_parts_run_on_a_cpu(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpt.fit.automatic.choose_recorder", lambda *_: record)
    monkeypatch.setattr("gpt.model.GPT._check", lambda *_: None)  # looks at tokens, on a CPU alone
    arguments = [f"data.path={workplace / 'book.txt'}", "data.split=[0.9,0.1,0.0]", *TINY, *gpu.steps_of(8)]
    seen = gpu.pipelined(arguments, 10)
    assert seen["over"] == pytest.approx(seen["step"] / seen["bare"] - 1) and seen["bare"] > 0
    monkeypatch.setattr(sample_speed, "LENGTH", 60)
    speeds = gpu.sampled(3, 40, ModelConfig(layers=1, heads=1, dim=8, context=16), "cpu")
    assert speeds.keys() == {"generate", "uncached"} and min(speeds.values()) > 0
