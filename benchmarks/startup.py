"""How long a command takes from nothing: whole processes, the median of some rounds.

    python benchmarks/startup.py [--rounds 9]

The first character of sample.py in a pipe (wanted: 0.3 s), the answer of train.py to a mistyped option (1 s), and
`--help` of each command. The model has the default shape and was trained for one step. The first round is not counted:
it brings the files into the system's cache.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODEL = ["minutes=null", "trainer.max_steps=1", "trainer.accelerator=cpu", "compile=false", "watch.pictures=false"]


def seconds(folder: str, *command: str) -> float:
    """Time from the start of a process to the first byte that it writes."""
    begun = time.perf_counter()
    arguments = [sys.executable, str(ROOT / command[0]), *command[1:]]
    errors = subprocess.DEVNULL if "--num-chars" in command else subprocess.STDOUT  # sample.py names its seed there
    with subprocess.Popen(arguments, cwd=folder, stdout=subprocess.PIPE, stderr=errors) as process:
        assert process.stdout
        first = process.stdout.read(1)
        took = time.perf_counter() - begun
        rest = process.stdout.read()
    assert first and b"Traceback" not in rest, rest.decode()
    return took


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    commands = {
        "first character": ["sample.py", "first", "--num-chars", "20", "--prompt", "a"],
        "typo answered": ["train.py", "model.headz=2"],
        **{f"{name}.py --help": [f"{name}.py", "--help"] for name in ("train", "sample", "score", "export")},
    }
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "text.txt").write_text("abcdefgh \n" * 2000)
        trained = [sys.executable, str(ROOT / "train.py"), "data.path=text.txt", "name=first", *MODEL]
        subprocess.run(trained, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        for name, command in commands.items():
            times = [seconds(folder, *command) for _ in range(1 + options.rounds)][1:]
            print(f"{name:16} {statistics.median(times):.2f} s ({min(times):.2f} to {max(times):.2f})", flush=True)


if __name__ == "__main__":
    main()
