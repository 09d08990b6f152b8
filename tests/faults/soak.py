"""Kill runs at random moments, many times, and count what came of it: `python -m tests.faults.soak --kills 200`.

It works in a temporary directory and prints a row of the table in docs/reliability.md.
"""

import argparse
import os
import random
import signal
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

from tests.faults.processes import Process, run  # noqa: E402
from tests.faults.test_resume import ADAMW, EMA, MUON, assert_as_if_never_touched  # noqa: E402


def soak(kills: int, seed: int) -> None:
    """Kill runs `kills` times, each again and again until it gets through, and compare it with one left alone."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(300)]
    Path("book.txt").write_text(" ".join(rng.choices(words, k=5000)), encoding="utf-8")
    done, runs, recipes = 0, 0, [MUON, ADAMW, EMA]
    for number, recipe in enumerate(recipes):
        assert run(f"name=whole{number}", *recipe).status == 0
    while done < kills:
        recipe, most = recipes[runs % 3], rng.uniform(0.6, 1.6)
        while True:
            process = Process("name=cut", "resume=auto", *recipe)
            time.sleep(rng.uniform(0.1, most))
            process.signal(signal.SIGKILL)
            ended = process.wait()
            assert ended.status in (0, -signal.SIGKILL), ended
            done += ended.status != 0
            if ended.status == 0:
                break
            most += 0.1  # so that it gets through in the end
        Path("runs/cut").rename(f"runs/cut{runs}")
        assert_as_if_never_touched(Path(f"runs/whole{runs % 3}"), Path(f"runs/cut{runs}"))
        runs += 1
        print(f"\r{done} kills, {runs} runs as if never touched", end="", flush=True)
    print(f"\n| SIGKILL at a random moment | from outside, `soak --kills {kills} --seed {seed}` | {done} | {done} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["XDG_CACHE_HOME"] = folder
        soak(options.kills, options.seed)
        os.chdir("/")
