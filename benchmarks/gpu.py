"""How fast one GPU reaches a given loss, and how fast it trains compared with a plain compiled PyTorch loop.

    python benchmarks/gpu.py tinyshakespeare.txt [--rounds 3] [--only loss|speed]
    python benchmarks/gpu.py book.txt --device cpu --quick    # only a test of this script

- loss: the seconds that `experiment=shakespeare_gpu` needs to a validation loss of 1.4697 over the whole split, once
  with an empty compile cache (cold) and once with the cache that this run filled (warm). *Training* is the time of all
  steps at the speed in summary.json: it includes batches, logging and progress, but not compilation, validations and
  checkpoints. The number of steps was chosen so that runs end at this loss, and runs that end above it do not count.
- speed: characters per second at the shape of `experiment=nanogpt_gpu`, 64 windows of 256 in bf16, without dropout, for
  plain_loop.py, for the same model and AdamW with train.py, and for the default recipe. Ratios compare within a round.

The number of the round is the seed.
"""

import tempfile
from functools import partial

from measuring import (
    in_turn,
    make_parser,
    of_text,
    our_speed,
    plain_speed,
    print_table,
    ratios,
    spread,
    train,
)

LOSS = 1.4697  # what nanoGPT reports for a GPU
PLAIN = "plain loop, compiled"
OURS = {
    "its model and AdamW": "experiment=nanogpt_gpu",
    "default recipe": "experiment=shakespeare_gpu",
}


def time_to_loss(settings: list[str], seed: int) -> list[tuple[float, float, float]]:
    """Train with a cold, then a warm compile cache; return (process s, training s, validation loss) of each."""
    results = []
    with tempfile.TemporaryDirectory() as cache:
        for _ in ("cold", "warm"):
            seconds, summary = train(*settings, f"seed={seed}", TORCHINDUCTOR_CACHE_DIR=cache)
            training = summary["characters"] / summary["characters_per_second"]
            results.append((seconds, training, summary["last_val_loss"]))
    return results


def print_losses(rounds: int, settings: list[str]) -> None:
    """Measure how long `settings` need to reach the loss `LOSS`, and print a table."""
    (seen,) = in_turn(rounds, {"time to a loss": partial(time_to_loss, settings)}).values()
    rows = []
    for name, runs in zip(("cold", "warm"), zip(*seen, strict=True), strict=True):
        losses = [loss for _, _, loss in runs]
        reached = [run for run in runs if run[2] <= LOSS]
        times = [
            spread(column, ".1f", " s") for column in list(zip(*reached, strict=True))[:2]
        ] or ["", ""]
        rows.append([name, *times, spread(losses, ".4f"), f"{len(reached)} of {len(runs)}"])
    print_table(["compile cache", "whole process", "training", "loss", f"reached {LOSS}"], rows)


def print_speeds(rounds: int, text: str, where: list[str], quick: bool) -> None:
    """Measure the speeds of the plain loop and of train.py in turn, and print a table."""
    shape = "--shape tiny --device cpu" if quick else "--shape gpu --device cuda --compile"
    systems = {PLAIN: partial(plain_speed, text, 10 if quick else 500, options=shape.split())}
    for name, experiment in OURS.items():
        settings = [experiment, "model.dropout=0", "trainer.log_every_n_steps=100", *where]
        given = of_text(text, *settings, steps=2000, quick=quick)
        systems[name] = partial(our_speed, given)
    seen = in_turn(rounds, systems)
    rows = [
        [name, spread(each), spread(ratios(each, seen[PLAIN]), ".2f")]
        for name, each in seen.items()
    ]
    print_table(["64 windows of 256, bf16", "characters/s", "times the plain loop"], rows)


def main() -> None:
    """Measure the time to a loss and the speeds, and print a Markdown table of each."""
    parser = make_parser(__doc__)
    parser.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        default="cuda",
        help="cpu needs --quick (default cuda)",
    )
    parser.add_argument("--only", choices=("loss", "speed"), help="measure only this")
    options = parser.parse_args()
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error(
            "--device cuda: there is no GPU here; --device cpu --quick only shows that the script works"
        )
    if (options.device == "cpu") != options.quick:
        parser.error("--quick and --device cpu: only work together")
    print("no GPU" if options.quick else torch.cuda.get_device_name(), flush=True)
    where = (
        [] if options.quick else ["trainer.accelerator=gpu", "trainer.devices=1", "compile=true"]
    )
    if options.only != "speed":
        settings = of_text(options.text, "experiment=shakespeare_gpu", *where, quick=options.quick)
        print_losses(options.rounds, settings)
    if options.only != "loss":
        print_speeds(options.rounds, options.text, where, options.quick)


if __name__ == "__main__":
    main()
