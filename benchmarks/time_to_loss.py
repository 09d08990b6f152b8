"""How long it takes to a good model of tiny Shakespeare, whole processes, against a plain PyTorch loop.

    python benchmarks/time_to_loss.py tinyshakespeare.txt
    python benchmarks/time_to_loss.py tinyshakespeare.txt --only 1.4697 --rounds 3

The plain loop and each question in turn; the number of the round is the seed. A time is that of the whole process:
start of Python, imports, compilation, evaluations, the printed sample. A loss is over the whole validation split in
disjoint windows of the training context, by the weights that the run ends with. A run has reached a loss only if its
final loss is not above it, so the time is that of a run which was made to end there. Nothing else should run meanwhile.
"""

from functools import partial

from measuring import in_turn, make_parser, of_text, plain, print_table, ratios, spread, train

PLAIN, FULL = "plain loop", ["compile=true", "logger=none"]
# The model for each question and how long it must be trained, found with seeds 0 and 101.
RUNS = {
    "plain loop's final loss": (
        "model.layers=2 model.context=64 data.batch=24 optim.lr=2e-2 optim.muon_lr=2e-2 optim.warmup=10 "
        "trainer.max_steps=150 logger=none"
    ).split(),
    "plain loop's wall clock": [*FULL, "trainer.max_steps=1750", "trainer.val_check_interval=1750"],
    "1.4697": [*FULL, "trainer.max_steps=1350", "trainer.val_check_interval=1350"],
    "10 minutes": ["minutes=10"],
}


def plain_run(text: str, steps: int, seed: int) -> tuple[float, float]:
    """Return the seconds and the loss of the plain loop."""
    seconds, result = plain(text, steps=steps, seed=seed)
    return seconds, result["loss"]


def our_run(settings: list[str], seed: int) -> tuple[float, float]:
    """Return the seconds and the loss of train.py."""
    seconds, summary = train(*settings, f"seed={seed}")
    return seconds, summary["last_val_loss"]


def main() -> None:
    """Run everything in turn and print a Markdown table."""
    parser = make_parser(__doc__)
    parser.add_argument("--only", choices=RUNS, action="append", help="answer this question; may be repeated")
    options = parser.parse_args()
    systems = {PLAIN: partial(plain_run, options.text, 3 if options.quick else 2000)}
    for name in options.only or RUNS:
        if not (options.quick and name == "10 minutes"):
            systems[name] = partial(our_run, of_text(options.text, *RUNS[name], quick=options.quick))
    seen = in_turn(options.rounds, systems)
    base_seconds, base_losses = zip(*seen[PLAIN], strict=True)
    wanted = {"plain loop's final loss": base_losses, "1.4697": [1.4697] * options.rounds}
    rows = []
    for name, results in seen.items():
        seconds, losses = zip(*results, strict=True)
        met = [loss <= line for loss, line in zip(losses, wanted[name], strict=True)] if name in wanted else []
        reached = f"{sum(met)} of {len(met)}; others do not count" if met else ""
        times = spread(ratios(base_seconds, seconds), ".2f")
        rows.append([name, spread(seconds, ".1f"), times, spread(losses, ".4f"), reached])
    print_table(["run", "seconds", "times as fast as the plain loop", "loss", "reached"], rows)


if __name__ == "__main__":
    main()
