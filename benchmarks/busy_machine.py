"""How much speed training keeps while other processes use the machine.

    python benchmarks/busy_machine.py TEXT [--rounds 3]

Measures the characters per second of the training steps of the default recipe, compiled: alone,
beside one process that keeps a core busy, and as two trainings at once (their mean). The last two
are printed as shares of the speed alone in the same round. plain_loop.py is measured in the same
rounds. The number of the round is the seed. Nothing else should run meanwhile.
"""

import statistics
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from measuring import (
    at_once,
    in_turn,
    make_parser,
    of_text,
    our_speed,
    plain_speed,
    print_table,
    spread,
)


@contextmanager
def busy() -> Iterator[None]:
    """Context manager that keeps one core busy during its block."""
    process = subprocess.Popen(["sh", "-c", "while :; do :; done"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measure(speed: Callable[[int], float], seed: int) -> tuple[float, float, float]:
    """Return (speed alone, share of it beside a busy process, mean share of two trainings at once)."""
    alone = speed(seed)
    with busy():
        beside = speed(seed)
    return alone, beside / alone, statistics.mean(at_once([partial(speed, seed)] * 2)) / alone


def main() -> None:
    """Measure and print a Markdown table."""
    options = make_parser(__doc__).parse_args()
    settings = of_text(options.text, "compile=true", "logger=none", steps=80, quick=options.quick)
    systems = {"this version": partial(our_speed, settings)}
    systems["plain loop"] = partial(plain_speed, options.text, 3 if options.quick else 300)
    seen = in_turn(
        options.rounds, {name: partial(measure, system) for name, system in systems.items()}
    )
    rows = []
    for name, rounds in seen.items():
        alone, *shares = zip(*rounds, strict=True)
        rows.append([name, spread(alone), *(spread(share, ".2f") for share in shares)])
    print_table(
        [
            "",
            "alone, characters/s",
            "share beside one busy process",
            "share of each of two at once",
        ],
        rows,
    )


if __name__ == "__main__":
    main()
