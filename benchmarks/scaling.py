"""How training scales from one process to two, and what communication costs.

    python benchmarks/scaling.py TEXT [--rounds 3] [--steps 150] [--model tiny]
    python benchmarks/scaling.py --communication

Each row of the table is a measurement of train.py with one thread per process, not compiled. The
number of the round is the seed. *Two independent runs* train at the same time without
communicating, so the speed that ddp loses against them is the cost of communication.
`--communication` prints how many bytes a step sends, computed from the shapes of models: a ring
all-reduce averages the gradients in fp32, and each of N devices sends 2 (N - 1) / N of their
bytes.
"""

import os
from functools import partial

from measuring import at_once, in_turn, make_parser, of_text, print_table, ratios, spread, train

BATCH = 8  # windows of each process and step
# Nominal rates in one direction, in bytes per second; real rates are lower.
LINKS = {"1 Gbit/s": 1.25e8, "10 Gbit/s": 1.25e9, "100 Gbit/s": 1.25e10, "NVLink 450 GB/s": 4.5e11}
SHAPES = {"tiny": (4, 128), "small": (4, 256), "baby": (6, 384)} | {
    f"{layers} layers, {dim} wide": (layers, dim)
    for layers, dim in ((12, 768), (24, 1024), (24, 2048))
}
ONE, DDP = (
    ["trainer.devices=1", f"data.batch={BATCH}"],
    ["trainer.accelerator=cpu", "trainer.devices=2"],
)
INDEPENDENT, SAME_BATCH = "two independent runs", "ddp, each the same batch"
ROWS = {
    "one process": [ONE],
    INDEPENDENT: [ONE, ONE],
    SAME_BATCH: [[*DDP, f"data.batch={2 * BATCH}"]],
    "ddp, half the batch each": [[*DDP, f"data.batch={BATCH}"]],
}


def amount(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"


def duration(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def print_communication() -> None:
    """Print how many bytes each of many devices sends per step, by model size, and the least time that takes."""
    import torch

    from gpt import GPT, ModelConfig

    rows = []
    for name, (layers, dim) in SHAPES.items():
        with torch.device("meta"):
            model = GPT(ModelConfig(layers=layers, heads=dim // 64, dim=dim), 96)
        weights = model.num_parameters()
        matrices = sum(weight.numel() for weight in model.blocks.parameters() if weight.ndim == 2)
        # In fp32: weights, gradients, and for each weight the state of Muon (matrices: one number)
        # or AdamW (two).
        state = 4 * (2 * weights + matrices + 2 * (weights - matrices))
        sent = 4 * 2 * weights
        times = (duration(sent / rate) for rate in LINKS.values())
        rows.append([name, f"{weights / 1e6:,.1f} M", amount(state), amount(sent), *times])
    print_table(
        [
            "model",
            "weights",
            "training state of each device",
            "sent",
            *(f"over {name}" for name in LINKS),
        ],
        rows,
    )


def speed(settings: list[str], runs: list[list[str]], seed: int) -> float:
    """Run train.py for each of `runs` at the same time, and return the sum of their characters per second."""
    begun = [
        partial(train, *settings, *each, f"seed={seed}", OMP_NUM_THREADS="1") for each in runs
    ]
    return sum(summary["characters_per_second"] for _, summary in at_once(begun))


def main() -> None:
    """Measure the speed of one and two processes, or compute what communication costs, and print a Markdown table."""
    parser = make_parser(__doc__, text="")
    parser.add_argument(
        "text", nargs="?", type=os.path.abspath, help="text file; without it: --communication"
    )
    parser.add_argument(
        "--steps", type=int, default=150, help="optimizer steps of each run (default 150)"
    )
    parser.add_argument(
        "--model", default="tiny", choices=("tiny", "small", "baby"), help="preset (default tiny)"
    )
    parser.add_argument(
        "--communication", action="store_true", help="print only the computed table"
    )
    options = parser.parse_args()
    if options.communication or options.text is None:
        return print_communication()
    fixed = [f"model={options.model}", "trainer.accelerator=cpu", "compile=false", "logger=none"]
    settings = of_text(options.text, *fixed, steps=options.steps, quick=options.quick)
    seen = in_turn(
        options.rounds, {name: partial(speed, settings, runs) for name, runs in ROWS.items()}
    )
    rows = []
    for name, speeds in seen.items():
        twice, beside = (ratios(speeds, seen[base]) for base in ("one process", INDEPENDENT))
        rows.append(
            [
                name,
                spread(speeds),
                spread([ratio / 2 for ratio in twice], ".0%"),
                spread(beside, ".0%"),
            ]
        )
    print_table(
        [
            "one thread per process",
            "characters/s",
            "of twice one process",
            "of two independent runs",
        ],
        rows,
    )
    waits = [1 - ratio for ratio in ratios(seen[SAME_BATCH], seen[INDEPENDENT])]
    print(f"\nShare of a ddp step that is communication and waiting: {spread(waits, '.0%')}")


if __name__ == "__main__":
    main()
