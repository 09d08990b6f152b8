import csv
import json
import subprocess
import sys

import pytest

from base.errors import InputError
from gpt.model import GPT
from tests.conf.test_defaults import compose
from tests.conftest import ROOT, refusal
from training.choosing import hardware as memory
from training.machine import Machine

CPU = Machine("cpu", 1)
SET = "model.layers=2 model.heads=2 model.dim=32 model.context=16 data.batch=8 compile=false trainer.precision=32-true"
# Forks for each configuration, so that each has a peak of its own.
MEASURE = """
import json, os, resource, sys
sys.path.insert(0, sys.argv[2])
import torch
from gpt.model import GPT
from gpt.positions import position_tables
from tests.conf.test_defaults import compose
from training.module import mean_loss
peak = lambda: 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for number, arguments in enumerate(json.loads(sys.argv[1])):
    if os.fork() == 0:
        config = compose(arguments)
        model, context = GPT(config.model, 65).train(), config.model.context
        rows = torch.randint(65, (config.data.batch, context + 1))
        tables = position_tables(config.model, context, rows.device)
        before = peak()
        with torch.autocast("cpu", torch.bfloat16, enabled=config.trainer.precision == "bf16-mixed"):
            loss = mean_loss(model, rows, tables)
        loss.backward()
        print(json.dumps(peak() - before), flush=True)
        os._exit(0)
    os.wait()
"""
SHAPES = [
    "model.dim=64 model.heads=4 model.context=512 data.batch=16",
    "model.dim=64 model.window=64 model.context=512 data.batch=16",
    "model.layers=6 model.dim=96 model.context=64 data.batch=64",
    "model.dim=128 model.context=256 data.batch=16 trainer.precision=bf16-mixed",
]  # fmt: skip


def settings(shape):
    return [*SET.split(), "model.dropout=0", "trainer.num_nodes=1", *shape.split()]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has another unit elsewhere")
def test_the_estimate_is_near_the_peak_of_a_step():
    arguments = [json.dumps(list(map(settings, SHAPES))), str(ROOT)]
    printed = subprocess.run(
        [sys.executable, "-c", MEASURE, *arguments], capture_output=True, text=True, check=True
    )
    peaks = [int(line) for line in printed.stdout.split()]
    for shape, peak in zip(SHAPES, peaks, strict=True):
        config = compose(settings(shape))
        assert 1 / 1.5 < config.data.batch * memory.step_memory(config, 65, "cpu") / peak < 1.5, (
            shape,
            peak,
        )


def test_the_estimate_is_near_each_measured_peak():
    table = (ROOT / "docs/experiments/memory.csv").read_text()
    _, *rows = csv.reader(table.splitlines())
    names = {"fp32": "32-true", "bf16": "bf16-mixed", "no": "false", "yes": "true"}
    for layers, width, heads, context, batch, precision, compiled, _, peak in rows:
        shape = (
            f"model.layers={layers} model.dim={width} model.heads={heads} model.context={context} "
        )
        shape += f"trainer.precision={names[precision]} compile={names[compiled]}"
        row_bytes = memory.step_memory(compose(settings(shape)), 65, "cpu")
        assert 1 / 1.3 < int(batch) * row_bytes / 2**20 / int(peak) < 1.3, shape


CONFIG = compose(settings(""))
STATE = 16 * GPT(CONFIG.model, 11).num_parameters()
ROW = memory.step_memory(CONFIG, 11, "cpu")


LOWER = "; lower model.dim=32, model.layers=2 or model.context=16"


@pytest.mark.parametrize(("fits", "change", "advice"), [
    (STATE + 8 * ROW, "seed=0", None), (STATE + 7 * ROW, "seed=0", "; use data.micro_batch=4"),
    (STATE + 3 * ROW, "data.micro_batch=4", "; use data.micro_batch=2"),
    (STATE - 1, "seed=0", LOWER), (STATE + 0.5 * ROW, "seed=0", LOWER),
])  # fmt: skip
def test_only_what_cannot_fit_is_refused_with_the_setting_to_lower(
    monkeypatch, fits, change, advice
):
    monkeypatch.setattr(memory, "available", lambda _: memory.LOADED_BYTES + fits)
    config = compose([*settings(""), change])
    if advice:
        assert refusal(InputError, memory.check_memory, config, 11, CPU).endswith(advice)
    else:
        memory.check_memory(config, 11, CPU)
