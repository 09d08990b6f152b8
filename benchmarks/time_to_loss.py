"""How long it takes to train a good model of tiny Shakespeare, compared with a plain PyTorch loop.

    python benchmarks/time_to_loss.py tinyshakespeare.txt
    python benchmarks/time_to_loss.py tinyshakespeare.txt --only 1.4697 --rounds 3

Runs the plain loop, with nanoGPT's settings for a CPU and with this project's, and each question in
turn. The number of the round is the seed. A time is measured over the whole process, with the start
of Python, imports, compilation, evaluations and the printed sample. A loss is measured with the
final weights over the validation split, in few steps over an even part of it, in disjoint windows
of the training context. For a question about a loss, the number of steps was chosen so that runs
end at it, and a run counts only if its final loss is not higher. Nothing else should run meanwhile.
"""

from functools import partial

from measuring import in_turn, make_parser, of_text, plain, print_table, ratios, spread, train

PLAIN = "plain loop"
# The plain loop with the context, batch and precision of the default model, compiled, and with the best
# of five rates (docs/experiments/rates.csv); as many steps are one of the questions.
EQUAL, EQUAL_STEPS = "plain loop, equal settings", 1750
# By question: the settings that answer it; the numbers of steps were found with seeds 0 and 101.
RUNS = {
    "plain loop's final loss": (
        "model.layers=2 model.context=64 data.batch=24 optim.lr=2e-2 optim.muon_lr=2e-2 optim.warmup=10 "
        "trainer.max_steps=150 logger=none"
    ).split(),
    "as many steps": [f"trainer.max_steps={EQUAL_STEPS}"],
    "1 minute": ["minutes=1"],
    "1.4697": "compile=true logger=none trainer.max_steps=1350 trainer.val_check_interval=1350".split(),
    "10 minutes": ["minutes=10"],
}


def plain_run(text: str, options: list[str], steps: int, seed: int) -> tuple[float, float]:
    """Train with plain_loop.py, and return (seconds of the process, loss in nats)."""
    seconds, result = plain(text, *options, steps=steps, seed=seed)
    return seconds, result["loss"]


def our_run(settings: list[str], seed: int) -> tuple[float, float]:
    """Train with train.py, and return (seconds of the process, loss of the final weights in nats)."""
    seconds, summary = train(*settings, f"seed={seed}")
    return seconds, summary["last_val_loss"]


def main() -> None:
    """Run everything in turn and print a Markdown table."""
    parser = make_parser(__doc__)
    parser.add_argument(
        "--only", choices=RUNS, action="append", help="answer this question; may be repeated"
    )
    options = parser.parse_args()
    equal = ["--shape", "long", "--compile", "--lr", "6e-3"]
    systems = {
        PLAIN: partial(plain_run, options.text, [], 3 if options.quick else 2000),
        EQUAL: partial(plain_run, options.text, equal, 3 if options.quick else EQUAL_STEPS),
    }
    for name in options.only or RUNS:
        if not (options.quick and "minute" in name):
            systems[name] = partial(
                our_run, of_text(options.text, *RUNS[name], quick=options.quick)
            )
    seen = in_turn(options.rounds, systems)
    base_seconds, base_losses = zip(*seen[PLAIN], strict=True)
    wanted = {"plain loop's final loss": base_losses, "1.4697": [1.4697] * options.rounds}
    rows = []
    for name, results in seen.items():
        seconds, losses = zip(*results, strict=True)
        met = (
            [loss <= line for loss, line in zip(losses, wanted[name], strict=True)]
            if name in wanted
            else []
        )
        reached = f"{sum(met)} of {len(met)}; others do not count" if met else ""
        times = spread(ratios(base_seconds, seconds), ".2f")
        rows.append([name, spread(seconds, ".1f"), times, spread(losses, ".4f"), reached])
    print_table(["run", "seconds", "times as fast as the plain loop", "loss", "reached"], rows)


if __name__ == "__main__":
    main()
