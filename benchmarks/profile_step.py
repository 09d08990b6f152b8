"""Where the time of a training step goes: the ten costliest operations, before and after.

    python benchmarks/profile_step.py

Before is the plain loop (benchmarks/plain_loop.py), after is the default recipe with its blocks compiled. Random
characters serve as text: they cost the same. torch.profiler over 20 steps, after 5 that are not counted; its own
cost is in the times. Nothing else should run meanwhile.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).parent.parent))

from base import processes  # noqa: E402
from benchmarks import plain_loop  # noqa: E402
from conf.schema import Config  # noqa: E402
from gpt.model import GPT  # noqa: E402
from gpt.optim import make_optimizer  # noqa: E402
from training.machine import choose_precision  # noqa: E402

VOCABULARY, STEPS = 65, 20


def before() -> Callable[[], None]:
    """A step of the plain loop."""
    model = plain_loop.Model(VOCABULARY, plain_loop.CPU)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = torch.randint(VOCABULARY, (100_000,))

    def step() -> None:
        plain_loop.loss_of(model, *plain_loop.random_batch(text, plain_loop.CPU, "cpu")).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def after() -> Callable[[], None]:
    """A step of the default recipe."""
    config = Config()
    processes.keep_freed_memory()
    model = GPT(config.model, VOCABULARY)
    for block in model.blocks:
        block.compile(dynamic=False)
    optimizer = make_optimizer(model, config.optim)
    tokens = torch.randint(VOCABULARY, (config.data.batch, config.model.context + 1))
    bf16 = choose_precision("auto", "cpu")[0] == "bf16-mixed"

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = model(tokens[:, :-1]).float()  # (B, T, V)
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.optim.clip)
        optimizer.step()
        optimizer.zero_grad()

    return step


def table(step: Callable[[], None]) -> None:
    """Print the ten costliest operations of a step."""
    for _ in range(5):
        step()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(STEPS):
            step()
    costs: dict[str, list[float]] = {}
    for row in profiler.key_averages():
        name = "compiled code between the products" if "CompiledFxGraph" in row.key else row.key
        costs.setdefault(name, [0, 0])
        costs[name][0] += row.count / STEPS
        costs[name][1] += row.self_cpu_time_total / STEPS / 1000
    whole = sum(spent for _, spent in costs.values())
    print("| operation | calls a step | ms a step | share |")
    print("|---|---|---|---|")
    for name, (calls, spent) in sorted(costs.items(), key=lambda cost: cost[1][1], reverse=True)[:10]:
        print(f"| {name} | {calls:.0f} | {spent:.2f} | {spent / whole:.0%} |")
    print(f"| all | | {whole:.2f} | |")


if __name__ == "__main__":
    for title, made in (("Before, the plain loop", before), ("After, the default recipe", after)):
        print(f"\n{title}:\n")
        table(made())
