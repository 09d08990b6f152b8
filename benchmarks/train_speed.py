"""How fast training is, against a plain PyTorch loop in the same run.

    python benchmarks/train_speed.py tinyshakespeare.txt
    python benchmarks/train_speed.py tinyshakespeare.txt --nanogpt nanoGPT    # a checkout of it, to judge the baseline

Every system runs in a process of its own, one after the other, several rounds; the table gives medians and
ranges. Nothing else should run meanwhile. Characters per second are those of the steps themselves: batches,
logging and progress included, imports, compilation and evaluations not. FLOPs are counted by
`GPT.flops_per_token` (Muon's own products are not); the peak is the best `torch.mm` of sizes 512 to 4096 in the
same process as the run.
"""

import argparse
import array
import json
import os
import pickle
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

SHAPE = "model.layers=4 model.heads=4 model.dim=128 model.context=64 data.batch=12".split()
PLAIN_PARTS = (
    "model.positions=learned model.qk_norm=false model.key_offset=false model.token_shift=false model.conv_taps=1 "
    "model.tied=true optim.name=adamw optim.lr=3e-3"
).split()
STEPS = 200
OURS = {
    "ours, same shape and batch 12": SHAPE,
    "ours, same shape and batch 12, compiled": [*SHAPE, "compile=true"],
    "the plain loop's parts and AdamW, batch 12": [*SHAPE, *PLAIN_PARTS, "compile=true"],
    "ours, same shape, batch 256, compiled": [*SHAPE, "data.batch=256", "compile=true"],
    "the plain loop's parts and AdamW, batch 256": [*SHAPE, *PLAIN_PARTS, "data.batch=256", "compile=true"],
    "default recipe, not compiled": ["compile=false"],
    "default recipe": ["compile=true"],  # as it is where there is a compiler
}
BARE = "default recipe, Lightning's Trainer(barebones=True)"


def peak() -> dict[str, float]:
    """The best GFLOP/s of a matrix product in this process, by type; a second for each size."""
    import torch

    best = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        best[name] = 0.0
        for size in (512, 1024, 2048, 4096):
            matrix, until = torch.ones(size, size, dtype=dtype), time.perf_counter() + 1.0
            while (started := time.perf_counter()) < until:
                torch.mm(matrix, matrix)
                best[name] = max(best[name], 2 * size**3 / (time.perf_counter() - started) / 1e9)
    return best


def run_ours(text: str, arguments: list[str]) -> dict[str, float]:
    """Train with train.py in this process."""
    import train
    from training.module import LitGPT

    inside: list[float] = []
    whole_step = LitGPT.training_step

    def timed(self: LitGPT, *given: Any) -> Any:
        started = time.perf_counter()
        result = whole_step(self, *given)
        inside.append(time.perf_counter() - started)
        return result

    LitGPT.training_step = timed  # type: ignore[method-assign]
    sys.argv = [
        "train.py", "name=run", f"data.path={text}", "data.split=[0.9,0.1,0.0]",
        f"trainer.max_steps={STEPS}", f"trainer.val_check_interval={STEPS}", *arguments,
    ]  # fmt: skip
    if train.cli():
        sys.exit("the run failed")
    summary = json.loads(Path("runs/run/summary.json").read_text())
    from conf.schema import from_yaml
    from gpt.model import GPT

    shape = from_yaml(Path("runs/run/config.yaml").read_text())
    characters = shape.data.batch * shape.model.context * (STEPS - 1)  # the first step is not counted
    flops = GPT(shape.model, 65).flops_per_token()
    loop = characters / summary["characters_per_second"]
    return {
        "characters_per_second": summary["characters_per_second"],
        "gflops": summary["characters_per_second"] * flops / 1e9,
        "outside": loop / sum(inside[1:]) - 1,
        **peak(),
    }


def run_bare(text: str) -> dict[str, float]:
    """Train the default recipe in Lightning's loop with all else off: no logging, no progress, no validation."""
    import torch

    from base import processes
    from conf.schema import Config, TrainerConfig
    from data.config import DataConfig
    from data.datamodule import TextDataModule
    from data.downloads import cache_dir
    from data.open_text import open_text
    from training import budget, machine
    from training.module import LitGPT

    trainer = TrainerConfig(max_steps=STEPS)
    config = Config(data=DataConfig(path=text, split=[0.9, 0.1, 0.0]), compile="true", trainer=trainer)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache_dir(config.data).absolute() / "compiled")
    data = open_text(config.data, config.model.context)
    processes.keep_freed_memory()
    module = LitGPT(config, data.tokenizer, data={}, conditions={})
    budget.TIMED_SECONDS = 8.0
    batches = TextDataModule(data, config.data, config.model.context, config.seed)
    tokens = torch.from_numpy(data.train[: budget.NUM_EVALUATED].astype("int64"))
    precision = machine.choose_precision("auto", "cpu")[0]
    cost = budget.measure(module, batches, tokens, 60.0, accelerator="cpu", devices=1, precision=precision)
    speed = config.data.batch * config.model.context / cost.step
    return {"characters_per_second": speed, "gflops": speed * module.net.flops_per_token() / 1e9, **peak()}


def run_plain(text: str) -> dict[str, float]:
    """Train with the plain loop in this process."""
    from benchmarks import plain_loop
    from gpt.config import ModelConfig
    from gpt.model import GPT

    speed = plain_loop.train(text, STEPS, seed=0, evaluate=False)["characters_per_second"]
    assert speed is not None
    plain = plain_loop.CPU
    shape = ModelConfig(layers=plain.layers, heads=plain.heads, dim=plain.dim, context=plain.context, tied=True)
    return {"characters_per_second": speed, "gflops": speed * GPT(shape, 65).flops_per_token() / 1e9, **peak()}


def run_nanogpt(text: str, checkout: str) -> dict[str, float]:
    """Train with nanoGPT's own train.py, on the same text, without its evaluations."""
    folder = Path(checkout).absolute() / "data" / "shakespeare_char"
    characters = Path(text).read_text(encoding="utf-8")
    vocabulary = sorted(set(characters))
    index = {character: i for i, character in enumerate(vocabulary)}
    ids = array.array("H", [index[character] for character in characters])
    border = int(0.9 * len(ids))
    (folder / "train.bin").write_bytes(ids[:border].tobytes())
    (folder / "val.bin").write_bytes(ids[border:].tobytes())
    meta = {"vocab_size": len(vocabulary), "stoi": index, "itos": dict(enumerate(vocabulary))}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))
    options = {
        "device": "cpu", "compile": False, "block_size": 64, "batch_size": 12, "n_layer": 4, "n_head": 4, "n_embd": 128,
        "dropout": 0.0, "max_iters": STEPS, "lr_decay_iters": STEPS, "log_interval": 1, "eval_interval": 10**9,
        "eval_iters": 1, "out_dir": Path.cwd() / "out",
    }  # fmt: skip
    flags = [f"--{key}={value}" for key, value in options.items()]
    command = [sys.executable, "train.py", "config/train_shakespeare_char.py", *flags]
    ended = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True)
    times = [float(found) for found in re.findall(r"time ([\d.]+)ms", ended.stdout)]
    return {"characters_per_second": 12 * 64 * 1000 / statistics.median(times)}


def measure(arguments: list[str]) -> dict[str, float]:
    """Call this file again, in an empty directory, and read what it says last."""
    with tempfile.TemporaryDirectory() as folder:
        ended = subprocess.run([sys.executable, __file__, *arguments], cwd=folder, capture_output=True, text=True)
    if ended.returncode:
        sys.exit(f"{' '.join(arguments)} failed:\n{ended.stderr}")
    return json.loads(ended.stdout.splitlines()[-1])


def spread(values: list[float], form: str) -> str:
    """Median and range."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def main() -> None:
    """Measure everything in turn and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", help="a text file, such as tiny Shakespeare")
    parser.add_argument("--rounds", type=int, default=3, help="how often each system runs")
    parser.add_argument("--nanogpt", help="a checkout of nanoGPT to run beside the plain loop")
    parser.add_argument("--only", help="measure this one system once and print what was seen as JSON")
    given = parser.parse_args()
    text = str(Path(given.text).absolute())
    if given.only:
        if given.only == "plain loop":
            seen = run_plain(text)
        elif given.only == "nanoGPT":
            seen = run_nanogpt(text, given.nanogpt)
        elif given.only == BARE:
            seen = run_bare(text)
        else:
            seen = run_ours(text, OURS[given.only])
        print(json.dumps(seen))
        return
    checkout = ["--nanogpt", str(Path(given.nanogpt).absolute())] if given.nanogpt else []
    systems = ["plain loop", *(["nanoGPT"] if given.nanogpt else []), *OURS, BARE]
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in systems}
    for turn in range(given.rounds):
        for name in systems:
            print(f"round {turn + 1} of {given.rounds}: {name}", file=sys.stderr, flush=True)
            seen[name].append(measure([text, "--only", name, *checkout]))
    head = "system, characters/s, against the plain loop, GFLOP/s, share of bf16 peak, of fp32 peak, around the step"
    print("| " + head.replace(", ", " | ") + " |")
    print("|---|---|---|---|---|---|---|")
    for name in systems:
        speeds = [each["characters_per_second"] for each in seen[name]]
        ratios = [each["characters_per_second"] / base["characters_per_second"]
                  for each, base in zip(seen[name], seen["plain loop"], strict=True)]  # fmt: skip
        cells = [name, spread(speeds, ",.0f"), spread(ratios, ".2f")]
        if "gflops" in seen[name][0]:
            cells.append(spread([each["gflops"] for each in seen[name]], ".0f"))
            cells += [spread([each["gflops"] / each[kind] for each in seen[name]], ".0%") for kind in ("bf16", "fp32")]
        if "outside" in seen[name][0]:
            cells.append(spread([each["outside"] for each in seen[name]], ".1%"))
        print("| " + " | ".join(cells) + " |" * (8 - len(cells)))
    peaks = {kind: spread([each[kind] for each in seen["plain loop"]], ".0f") for kind in ("bf16", "fp32")}
    print(f"\nPeak: bf16 {peaks['bf16']}, fp32 {peaks['fp32']} GFLOP/s, {os.cpu_count()} cores.")


if __name__ == "__main__":
    main()
