"""What one GPU does: each part is measured on its own, and one table is made of all.

    python benchmarks/gpu.py PART       # loss, speed, best, sampling, pipeline, exact, scaling or stdlib
    python benchmarks/gpu.py table
    python benchmarks/gpu.py projection

A part keeps each measurement in RESULTS/PART.json as soon as it is there, and begins none that would not end within
`--minutes`: the same command again goes on with what is missing, also after a kill. `table` and `projection` work
without a GPU. The text is tiny Shakespeare, downloaded once, or `--text FILE`, which `scaling` needs (enwik8, unpacked,
or what there is); `sampling` and `stdlib` need none.

- loss: `experiment=shakespeare_gpu`, a whole process with an empty compile cache, then another with what that left.
  *Training time* is that of all steps at the speed that summary.json gives: batches, logging and progress included;
  compiling, validations and checkpoints not. A run counts only when the weights it ends with are below
  1.4697 on the whole validation split (disjoint windows, every character once): it was made to end there.
- speed: `train.py` against benchmarks/plain_loop.py at 64 windows of 256, in turn: the plain loop's own model and AdamW
  (`experiment=nanogpt_gpu` without dropout), then `model=baby` with the default recipe. Share of the GPU's dense bf16
  peak (training/peak_flops.py) by `GPT.flops_per_token`, also at 12 layers, 768 wide, context 1024.
- best: the loss of the best checkpoint on the whole validation split after `minutes=2`, all included; then one thing
  changed at a time in the same time, with a seed that the result does not use.
- sampling: `gpt.inference.generate` with 10.7 million weights, one text and 256 at once, over a loop without a cache.
- pipeline: a step through `train.py compile=graph` over the same captured step in a bare loop, in one process.
- exact: the same seed twice, a run that is killed and goes on, other devices, and what determinism costs.
- scaling: runs of several sizes and lengths with the settings of `experiment=enwik8`; `projection` fits
  loss = a + b C^-c (C: FLOPs of training) to the best of each C, and says what an hour would give.
- stdlib: `experiment=stdlib_gpu`, and the share of its samples that Python parses (benchmarks/parse_share.py).
"""

import hashlib
import json
import math
import multiprocessing
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from argparse import RawDescriptionHelpFormatter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import chdir
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "gpu"
sys.path.insert(0, str(ROOT))

from base import run_directory  # noqa: E402
from base.command_line import Parser, answer, number  # noqa: E402
from base.errors import InputError  # noqa: E402
from base.files import write_text  # noqa: E402
from benchmarks.time_to_loss import ours, train  # noqa: E402
from benchmarks.train_speed import spread  # noqa: E402

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from gpt.config import ModelConfig

Plan = dict[str, Callable[[], dict[str, Any]]]  # measurements by name, in their order

LOSS = 1.4697  # what nanoGPT reports for a GPU
SEEDS, BEST_SEEDS, TUNING_SEED = (1, 2, 3), (1, 2, 3, 4, 5), 101
MINUTES = 2  # of a run for the best loss
# Not tuned on a GPU yet, nor are the experiments. What is typed here is not chosen by `minutes`.
BEST = f"experiment=shakespeare_gpu minutes={MINUTES} data.batch=64 model.dropout=0.3".split()
BEST += ["trainer.val_check_interval=1000"]
VARIANTS = {
    "the recipe": [],
    "dropout 0.2": ["model.dropout=0.2"],
    "dropout 0.4": ["model.dropout=0.4"],
    "weight decay 0.03": ["optim.weight_decay=0.03"],
    "weight decay 0.3": ["optim.weight_decay=0.3"],
    "256 wide": ["model.dim=256", "model.heads=4"],
    "512 wide": ["model.dim=512", "model.heads=8"],
}
SAME_PARTS = ["experiment=nanogpt_gpu", "model.dropout=0"]
BABY = ["model=baby", "model.context=256", "data.batch=64", "trainer.log_every_n_steps=100"]
WIDE = ["model=base", "model.context=1024", "data.batch=32", "trainer.log_every_n_steps=100"]
REPEATABLE = "experiment=nanogpt_gpu trainer.max_steps=1000 trainer.val_check_interval=250".split()
STEADY = ["optim.cooldown=0", "trainer.val_check_interval=1000", "trainer.log_every_n_steps=1"]  # any number of steps
ACROSS = ["model=baby", "data.batch=16", *STEADY]
WHERE = {"cpu": ["trainer.accelerator=cpu", "compile=false"], "gpu": ["trainer.accelerator=gpu", "compile=true"]}
STEPS = 20  # whose losses are compared across devices
HOUR_CONTEXT, HOUR_BATCH = 1024, 64  # of experiment=enwik8
SIZES = ((4, 2, 128), (6, 4, 256), (8, 6, 384), (12, 8, 512))  # layers, heads, width
BUDGETS = tuple(1e15 * 3**k for k in range(5))  # FLOPs
TEXTLESS = ("sampling", "stdlib")
# what | must | aim
ROWS = """
tiny Shakespeare, `nanogpt_gpu` shape, validation over the whole split: training time until 1.4697 | 15 s | 5 s
the same, wall clock of the whole process with a warm compile cache / cold | 30 s / 90 s | 12 s / 45 s
characters/s at the `baby` shape (64 x 256, bf16) against a plain compiled PyTorch loop in the same run | 1.5x | 3x
share of dense bf16 peak at `baby` / at a 12-layer 768-wide preset, context 1024 | 25 % / 45 % | 40 % / 60 %
best validation loss on tiny Shakespeare, any recipe under 5 minutes, 5 seeds, mean | 1.45 | 1.42
sampling, 10.7M model, characters/s: one stream / batch 256 | 3,000 / 200,000 | 8,000 / 1,000,000
pipeline over a raw loop of the same step | 5 % | 2 %
""".strip().splitlines()


def steps_of(count: int) -> list[str]:
    """Overrides for so many steps and one validation."""
    return [f"trainer.max_steps={count}", f"trainer.val_check_interval={count}"]


def fresh(work: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


# -- The parts -----------------------------------------------------------------------------------


def loss(text: str) -> Plan:
    """Time to 1.4697."""

    def once(seed: int, compiled: str) -> dict[str, float]:
        seconds, summary = ours(text, seed, "experiment=shakespeare_gpu", TORCHINDUCTOR_CACHE_DIR=compiled)
        training = summary["characters"] / summary["characters_per_second"]
        return {"process": seconds, "training": training, "fit": summary["seconds"], "loss": summary["last_val_loss"]}

    def both(seed: int) -> dict[str, Any]:
        with TemporaryDirectory() as compiled:
            return {"cold": once(seed, compiled), "warm": once(seed, compiled)}

    return {f"seed {seed}": partial(both, seed) for seed in SEEDS}


def speed(text: str) -> Plan:
    """Characters per second against the plain loop, and the share of the peak."""
    from benchmarks import plain_loop

    def measured(seed: int, *arguments: str) -> dict[str, float]:
        _, summary = ours(text, seed, *arguments)
        return {key: summary[key] for key in ("characters_per_second", "mfu")}

    def baby(seed: int) -> dict[str, Any]:
        return {
            "plain": fresh(plain_loop.train, text, 500, seed, False, plain_loop.GPU, "cuda"),
            "same parts": measured(seed, *SAME_PARTS, *steps_of(2000)),
            "recipe": measured(seed, *BABY, *steps_of(2000)),
        }

    def wide(seed: int) -> dict[str, Any]:
        return {"wide": measured(seed, *WIDE, *steps_of(300))}

    return {f"{work.__name__}, seed {seed}": partial(work, seed) for work in (baby, wide) for seed in SEEDS}


def best(text: str) -> Plan:
    """The lowest loss in minutes, and what each choice gives."""

    def once(seed: int, *arguments: str) -> dict[str, float]:
        ours(text, seed, *BEST, *arguments, "minutes=null", *steps_of(5))  # compiles, which nobody is to pay for
        seconds, summary = ours(text, seed, *BEST, *arguments)
        return {"process": seconds} | {key: summary[key] for key in ("val_loss", "last_val_loss", "steps")}

    result: Plan = {f"seed {seed}": partial(once, seed) for seed in BEST_SEEDS}
    return result | {name: partial(once, TUNING_SEED, *changed) for name, changed in VARIANTS.items()}


def sampling(text: str) -> Plan:
    """Characters per second of writing; no text is needed."""
    from gpt.config import ModelConfig

    shape = ModelConfig(layers=6, heads=6, dim=384)
    counts = {1: 4000, 256: 1000}
    return {
        f"{rows} at once, round {turn}": partial(fresh, sampled, rows, counts[rows], shape, "cuda")
        for turn in (1, 2, 3)
        for rows in counts
    }


def sampled(rows: int, count: int, shape: "ModelConfig", device: str) -> dict[str, float]:
    """Characters per second of `generate` and of a loop without a cache, of texts side by side."""
    import torch

    from benchmarks.sample_speed import plain_loop
    from gpt.inference.generate import generate
    from gpt.model import GPT

    model, prompt = GPT(shape, 65).to(device).eval(), torch.zeros(rows, 1, dtype=torch.int64)
    for length in (count // 10, count):  # the first warms up
        started = time.perf_counter()
        generate(model, prompt, length, temperature=0.8, seed=0)
        seconds = time.perf_counter() - started
    return {"generate": rows * count / seconds, "uncached": plain_loop(model, rows)}


def pipeline(text: str) -> Plan:
    """What a step costs beside itself."""
    arguments = [f"data.path={text}", "data.split=[0.9,0.1,0.0]", "compile=graph", *BABY, *steps_of(2000)]
    return {f"seed {seed}": partial(fresh, pipelined, [*arguments, f"seed={seed}"], 2000) for seed in SEEDS}


def pipelined(arguments: list[str], steps: int) -> dict[str, float]:
    """Seconds of a step through `train.py`, in this process, and then of the same recorded step in a bare loop.

    Args:
        arguments: of `train.py`.
        steps: of the bare loop, which runs three times.
    """
    import torch

    import train as train_script
    from training.captured_step import CapturedLitGPT

    seen: list[float] = []
    ended = CapturedLitGPT.on_train_end

    def on_train_end(self: CapturedLitGPT) -> None:  # Lightning moves the weights next, and the recorded step has them
        datamodule: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        tokens = torch.tensor(datamodule.text.train, device=self.device)
        assert self.captured, "the step was not captured"
        seen.extend(bare(self.captured, self.rows, tokens, steps) for _ in range(3))
        ended(self)

    with TemporaryDirectory() as folder, chdir(folder), patch.object(CapturedLitGPT, "on_train_end", on_train_end):
        with patch.object(sys, "argv", ["train.py", "name=run", *arguments]):
            if train_script.cli():
                raise RuntimeError("train.py has failed")
        summary = run_directory.summary_of(run_directory.RUNS / "run")
    step = summary["characters"] / summary["characters_per_second"] / summary["steps"]
    return {"step": step, "bare": statistics.median(seen), "over": step / statistics.median(seen) - 1}


def bare(repeated: Callable[[], None], rows: "Tensor", tokens: "Tensor", steps: int) -> float:
    """Seconds of a step when nothing else is done: gather random windows on the device, take the step, wait once.

    Args:
        repeated: the recorded step.
        rows: (rows, context + 1) int64, the batch that it takes.
        tokens: the text on the same device, one-dimensional.
        steps: how many.
    """
    import torch

    place = torch.arange(rows.shape[1], device=rows.device)
    for count in (steps // 10, steps):  # the first warms up
        started = time.perf_counter()
        for _ in range(count):
            start = torch.randint(len(tokens) - len(place) + 1, (len(rows), 1), device=rows.device)
            rows.copy_(tokens[start + place])  # (rows, context + 1)
            repeated()
        rows[0, 0].item()  # waits for all of it
    return (time.perf_counter() - started) / steps


def exact(text: str) -> Plan:
    """Whether what should be equal is, and how near the rest."""
    plan: Plan = {f"seed {seed}": partial(repeated_exactly, text, seed, REPEATABLE) for seed in SEEDS}
    return plan | {"devices": partial(across, text, ("cpu", "gpu"), ACROSS)}


def repeated_exactly(text: str, seed: int, arguments: list[str]) -> dict[str, Any]:
    """Two runs of one seed and one that was killed: are all weights and logged losses equal, bit for bit?

    Args:
        text: a text file.
        seed: of the three runs.
        arguments: of the runs; they must save before they end.

    Returns:
        `same`, `resumed`, and `cost`: speed without determinism over that with it.
    """
    settings = ["name=run", f"data.path={text}", "data.split=[0.9,0.1,0.0]", f"seed={seed}", "watch.pictures=false"]
    settings += arguments
    deterministic = [*settings, "trainer.deterministic=true"]
    with TemporaryDirectory() as first, TemporaryDirectory() as second, TemporaryDirectory() as third:
        speeds = [train(first, *deterministic)[1]["characters_per_second"]]
        train(second, *deterministic)
        kill(third, *deterministic)
        train(third, "resume=runs/run")
        same, resumed = (equal(ended(first), ended(folder)) for folder in (second, third))
        with TemporaryDirectory() as free:
            speeds.append(train(free, *settings)[1]["characters_per_second"])
    return {"same": same, "resumed": resumed, "cost": speeds[1] / speeds[0]}


def kill(folder: str, *arguments: str) -> None:
    """Start a run and kill it as soon as it has saved for the first time."""
    command = [sys.executable, str(ROOT / "train.py"), *arguments]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        while process.poll() is None and not list(Path(folder).glob("runs/run/checkpoints/step-*.ckpt")):
            time.sleep(0.002)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    if process.wait() != -signal.SIGKILL:
        raise RuntimeError("the run ended before it could be killed")


def ended(folder: str | Path) -> tuple[dict[str, "torch.Tensor"], list[float]]:
    """The weights that a run has ended with, and the losses that it has logged."""
    from gpt.checkpoint import read

    contents = read(Path(folder, "runs/run/checkpoints/last.ckpt"))
    return contents["state_dict"], [loss for _, loss in contents["callbacks"]["Watch"]["history"]["losses"]["entries"]]


def equal(one: tuple[dict[str, Any], list[float]], other: tuple[dict[str, Any], list[float]]) -> bool:
    """Whether two runs have ended with the same weights, having logged the same losses."""
    weights = all(value.equal(other[0][name]) for name, value in one[0].items())
    return weights and one[0].keys() == other[0].keys() and one[1] == other[1]


def across(text: str, devices: tuple[str, str], arguments: list[str]) -> dict[str, float]:
    """How far apart the losses of the first 20 steps are on two devices, and after a checkpoint was moved.

    Args:
        text: a text file.
        devices: of `WHERE`.
        arguments: of the runs: no dropout, whose masks are others on each device.

    Returns:
        The largest difference of a step, in nats; `moved to`: ten steps after the move, against the run that stays.
    """

    def apart(one: str, other: str) -> float:
        return max(abs(a - b) for a, b in zip(ended(folders[one])[1], ended(folders[other])[1], strict=True))

    folders: dict[str, Path] = {}
    settings = ["name=run", f"data.path={text}", "data.split=[0.9,0.1,0.0]", "watch.pictures=false", *arguments]
    further = ["resume=runs/run", f"trainer.max_steps={STEPS + 10}", "allow=[device,threads,compile]"]
    with TemporaryDirectory() as place:
        for index, device in enumerate(devices):
            for precision in ("32-true", "bf16-mixed"):
                name = f"{precision} {index}"
                folders[name] = Path(place, name)
                folders[name].mkdir()
                given = [*WHERE[device], f"trainer.precision={precision}", f"trainer.max_steps={STEPS}"]
                train(str(folders[name]), *settings, *given)
        result = {
            "fp32": apart("32-true 0", "32-true 1"),
            "bf16": apart("bf16-mixed 0", "bf16-mixed 1"),
            f"bf16 against fp32 on {devices[1]}": apart("32-true 1", "bf16-mixed 1"),
        }
        for index, device in enumerate(devices[::-1]):
            stays, moves = f"bf16-mixed {index}", f"moved {index}"
            folders[moves] = Path(shutil.copytree(folders[stays], Path(place, moves)))
            train(str(folders[stays]), *further, *WHERE[devices[index]])
            train(str(folders[moves]), *further, *WHERE[device])
            result[f"moved to {device}"] = apart(stays, moves)
    return result


def scaling(text: str) -> Plan:
    """Losses of several sizes by the FLOPs that went into them."""
    import torch

    from gpt.config import ModelConfig
    from gpt.model import GPT

    def once(shape: ModelConfig, flops: int, steps: int) -> dict[str, float]:
        size = [f"model.{key}={getattr(shape, key)}" for key in ("layers", "heads", "dim", "context")]
        fixed = ["experiment=enwik8", "minutes=null", f"data.batch={HOUR_BATCH}"]
        _, summary = ours(text, 1, *fixed, *size, *steps_of(steps))
        return {
            "flops": summary["characters"] * flops,
            "flops_per_second": summary["characters_per_second"] * flops,
            "loss": summary["last_val_loss"],
        }

    shapes = [ModelConfig(layers=layers, heads=heads, dim=dim, context=HOUR_CONTEXT) for layers, heads, dim in SIZES]
    with torch.device("meta"):
        flops = [GPT(shape, 256).flops_per_token() for shape in shapes]  # of one byte
    plan: Plan = {}
    for budget in BUDGETS:
        for shape, each in zip(shapes, flops, strict=True):
            steps = round(budget / each / HOUR_BATCH / HOUR_CONTEXT)
            if 500 <= steps <= 6000:
                plan[f"{shape.layers} layers, {shape.dim} wide, {steps} steps"] = partial(once, shape, each, steps)
    return plan


def stdlib(text: str) -> Plan:
    """A model of Python source, and what Python says of its samples; the text is Python's own."""

    def once() -> dict[str, Any]:
        with TemporaryDirectory() as folder:
            seconds, summary = train(folder, "name=run", "experiment=stdlib_gpu", "seed=1")
            said = [
                subprocess.run(
                    [sys.executable, str(ROOT / script), "runs/run", *options],
                    cwd=folder, check=True, capture_output=True, text=True,
                ).stdout
                for script, *options in (
                    ("benchmarks/parse_share.py",),
                    ("sample.py", "--num-chars", "600", "--temperature", "0.8", "--seed", "1"),
                )
            ]  # fmt: skip
        kept = {key: summary[key] for key in ("val_loss", "val_bpc", "parameters", "steps")}
        return {"process": seconds, **kept, "parse share": said[0], "sample": said[1]}

    return {"seed 1": once}


PARTS: dict[str, Callable[[str], Plan]] = {
    work.__name__: work for work in (loss, speed, best, sampling, pipeline, exact, scaling, stdlib)
}


# -- Measuring, and what was measured ------------------------------------------------------------


def measure(file: Path, machine: dict[str, str], plan: Plan, minutes: float) -> list[str]:
    """Do what is missing of a plan, as far as there is time, and keep each result as soon as it is there.

    Args:
        file: where they are kept; what is in it is not done again.
        machine: what they hold for, by name.
        plan: what to measure.
        minutes: nothing is begun that would end later, were it as long as the longest so far.

    Returns:
        What is left.

    Raises:
        InputError: what is in the file was measured elsewhere.
    """
    kept = kept_in(file) if file.exists() else machine | {"seen": {}}
    for key, value in machine.items():
        if kept.get(key) != value:
            raise InputError(
                f"{file}: was measured with {key} {kept.get(key)}, here it is {value}; name other --results"
            )
    started, longest = time.monotonic(), 0.0
    for name in [name for name in plan if name not in kept["seen"]]:
        begun = time.monotonic()
        if begun - started + longest > 60 * minutes:
            break
        kept["seen"][name] = plan[name]()
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(kept, indent=2) + "\n")
        longest = max(longest, time.monotonic() - begun)
        print(f"{name}: {json.dumps(kept['seen'][name])}", flush=True)
    return [name for name in plan if name not in kept["seen"]]


def results(folder: Path) -> dict[str, dict[str, Any]]:
    """What has been measured, by part.

    Raises:
        InputError: there is no such directory, or a file in it is damaged.
    """
    if folder != RESULTS and not folder.is_dir():
        raise InputError(f"--results {folder}: is no directory")
    files = {part: folder / f"{part}.json" for part in PARTS}
    return {part: kept_in(file) for part, file in files.items() if file.exists()}


def kept_in(file: Path) -> dict[str, Any]:
    """What a part has measured so far.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise InputError(f"{file}: is damaged ({error}); without it, its part is measured anew") from None


def fit_scaling(flops: list[float], losses: list[float]) -> tuple[float, float, float]:
    """Fit loss = a + b C^-c by least squares.

    For each c the best a and b follow from a linear problem; c is searched for between 0.01 and 2, ever more finely.

    Args:
        flops: C of each run, three at least that differ.
        losses: of each run.

    Returns:
        a, b, c.
    """
    import numpy as np

    C, y = np.array(flops), np.array(losses)
    unit = C.max()  # so that the powers stay near 1

    def linear(c: float) -> tuple[float, np.ndarray]:
        terms = np.stack((np.ones_like(C), (C / unit) ** -c), 1)
        solution = np.linalg.lstsq(terms, y)[0]
        return float(((terms @ solution - y) ** 2).sum()), solution

    low, high = 0.01, 2.0
    for _ in range(12):
        grid = np.linspace(low, high, 41)
        best = min(range(len(grid)), key=lambda i: linear(grid[i])[0])
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, 40)]
    c = float(grid[best])
    a, b = linear(c)[1].tolist()
    return a, b * unit**c, c


def projection(found: dict[str, dict[str, Any]]) -> str:
    """What an hour of the largest model would give, from the runs of `scaling`.

    Raises:
        InputError: too few have been measured.
    """
    points = list(found["scaling"]["seen"].values()) if "scaling" in found else []
    frontier: dict[int, dict[str, float]] = {}  # the best of each budget
    for point in sorted(points, key=lambda point: -point["loss"]):
        frontier[round(math.log(point["flops"] / BUDGETS[0], 3))] = point
    if len(frontier) < 4:
        raise InputError(
            f"projection: has runs of {len(frontier)} amounts of FLOPs, needs 4: the part scaling makes them"
        )
    flops, losses = ([point[key] for point in frontier.values()] for key in ("flops", "loss"))
    a, b, c = fit_scaling(flops, losses)
    hour = 3600 * max(points, key=lambda point: point["flops"])["flops_per_second"]
    expected = a + b * hour**-c
    return (
        f"projection, not a measurement: an hour is {hour:.1e} FLOPs at the speed of the longest run, which would give "
        f"{expected:.3f} nats, {expected / math.log(2):.3f} bits a byte of {found['scaling']['text']}.\n"
        f"loss = {a:.3f} + {b:.3g} C^-{c:.3f}, from {len(flops)} runs of {min(flops):.1e} to {max(flops):.1e} FLOPs. "
        "It knows nothing of what reading a text again and again does."
    )


def figure(values: list[float], form: str, unit: str = "", wanted: int = 3) -> str:
    """Median and range of what was to be measured so many times."""
    missing = f", {len(values)} of {wanted}" if len(values) < wanted else ""
    return f"{spread(values, form)}{unit}{missing}" if values else "not measured"


def table(found: dict[str, dict[str, Any]]) -> str:
    """The seven figures as Markdown, and what else was measured."""

    def of(part: str, begin: str = "") -> list[dict[str, Any]]:
        return [each for name, each in found.get(part, {"seen": {}})["seen"].items() if name.startswith(begin)]

    def seconds(cache: str, key: str) -> str:
        tried = [each[cache] for each in of("loss")]
        counted = [each[key] for each in tried if each["loss"] < LOSS]
        missed = f"{len(tried) - len(counted)} of {len(tried)} did not reach it and do not count"
        return "; ".join([figure(counted, ".1f", " s")] * bool(counted) + [missed] * (len(counted) < len(tried)))

    def ratios(name: str) -> str:
        pairs = [(each[name], each["plain"]) for each in of("speed", "baby")]
        return figure(
            [ours["characters_per_second"] / plain["characters_per_second"] for ours, plain in pairs], ".2f", "x"
        )

    def share(name: str, begin: str) -> str:
        shares = [each[name]["mfu"] for each in of("speed", begin)]
        return "the peak is not known" if None in shares else figure([100 * each for each in shares], ".1f", " %")

    def writing(rows: int) -> str:
        return figure([each["generate"] for each in of("sampling", f"{rows} at")], ",.0f")

    losses = [each["val_loss"] for each in of("best", "seed")]
    mean = f"{statistics.mean(losses):.4f}; " if losses else ""
    cells = (
        seconds("warm", "training"),
        f"{seconds('warm', 'process')} / {seconds('cold', 'process')}",
        f"{ratios('same parts')} with its model and AdamW; {ratios('recipe')} with the default recipe",
        f"{share('recipe', 'baby')} / {share('wide', 'wide')}",
        mean + figure(losses, ".4f", "", len(BEST_SEEDS)),
        f"{writing(1)} / {writing(256)}",
        figure([100 * each["over"] for each in of("pipeline")], ".1f", " %"),
    )
    parts = ("loss", "loss", "speed", "speed", "best", "sampling", "pipeline")
    lines = ["| what | must | aim | measured: median (range) |", "|---|---|---|---|"]
    for row, part, cell in zip(ROWS, parts, cells, strict=True):
        lines.append(f"| {row} | {cell if of(part) else 'not measured'} |")
    also = {}
    for rows in (1, 256):
        over = [each["generate"] / each["uncached"] for each in of("sampling", f"{rows} at")]
        also[f"sampling over a loop without a cache, {rows} at once"] = figure(over, ".1f", "x")
    repeats = of("exact", "seed")
    for key, what in (("same", "run twice"), ("resumed", "killed and resumed")):
        equal = f"{sum(each[key] for each in repeats)} of {len(repeats)}" if repeats else "not measured"
        also[f"{what}, equal bit for bit"] = equal
    also["speed without determinism over that with it"] = figure([each["cost"] for each in repeats], ".2f", "x")
    for each in of("exact", "devices"):
        also |= {f"losses across devices, largest difference: {name}": f"{apart:.2g}" for name, apart in each.items()}
    for each in of("stdlib"):
        also["Python source, validation, bits per character"] = f"{each['val_bpc']:.4f}"
    tried = {name: each for name, each in found.get("best", {"seen": {}})["seen"].items() if name in VARIANTS}
    for name in sorted(tried, key=lambda name: tried[name]["val_loss"]):
        best, last = (f"{tried[name][key]:.4f}" for key in ("val_loss", "last_val_loss"))
        also[f"{name}: best validation loss in {MINUTES} minutes, seed {TUNING_SEED}"] = f"{best} (last weights {last})"
    lines += [
        "",
        "| also | measured: median (range) |",
        "|---|---|",
        *(f"| {what} | {cell} |" for what, cell in also.items()),
    ]
    lines += ["", *(each["parse share"] for each in of("stdlib"))]
    machines = sorted({f"{each['GPU']}, torch {each['torch']}" for each in found.values()})
    return "\n".join(
        [*lines, f"Measured on {'; '.join(machines) or 'no GPU yet'}; seeds 1, 2, 3 unless said otherwise."]
    )


# -- The command ---------------------------------------------------------------------------------


def run_part(part: str, text: str | None, folder: Path, minutes: float) -> None:
    """Measure a part, or say what has been measured.

    Raises:
        InputError: it cannot be done here, in one line.
    """
    if part in ("table", "projection"):
        print((table if part == "table" else projection)(results(folder)))
        return
    if part == "scaling" and text is None:
        raise InputError("scaling: needs --text FILE: enwik8, unpacked, or what there is")
    if text is not None and not Path(text).is_file():
        raise InputError(f"--text {text}: is no file")
    import torch

    if not torch.cuda.is_available():
        raise InputError(f"{part}: needs a CUDA GPU, and there is none here")
    from data.config import DataConfig
    from data.sources import open_corpus

    machine, path = {"GPU": torch.cuda.get_device_name(), "torch": torch.__version__}, ""
    if part not in TEXTLESS:
        source = open_corpus(DataConfig(corpus="shakespeare", path=text)).documents[0]
        with source.open() as file:
            machine["text"] = f"{source.path.name} {hashlib.file_digest(file, 'sha256').hexdigest()[:12]}"
        path = str(source.path.absolute())
    left = measure(folder / f"{part}.json", machine, PARTS[part](path), minutes)
    print(f"{len(left)} left: the same command goes on" if left else f"{part}: complete, in {folder / part}.json")


def cli(arguments: list[str]) -> int:
    """Run from the command line."""
    parser = Parser("gpu.py", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PARTS, "table", "projection"], help="what to measure or to print")
    parser.add_argument("--text", help="a text file; tiny Shakespeare unless the part is scaling")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results are kept")
    parser.add_argument("--minutes", type=number(float, 0.1, 1440), default=9.0, help="that a command may take")
    given = parser.parse_args(arguments)
    begin = partial(run_part, given.part, given.text, given.results, given.minutes)
    return answer("gpu.py", begin, out_of_memory="another program may hold the GPU's")


if __name__ == "__main__":
    sys.exit(cli(sys.argv[1:]))
