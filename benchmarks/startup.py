"""How long each command takes from the start of its process to its first byte of output.

    python benchmarks/startup.py [--rounds 9]

Measures the first character of sample.py in a pipe (target: 0.3 s), the error of train.py about a
misspelled key (target: 1 s), and `--help` of each command. The model has the default shape and is
trained for one step with seed 0. The first round does not count, because it only loads the files
into the system's cache.
"""

import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from measuring import QUICK, ROOT, in_turn, make_parser, print_machine, run, spread

STEP = "data.path=text.txt name=first trainer.max_steps=1 trainer.accelerator=cpu compile=false logger=none".split()


def seconds(folder: str, command: list[str], _: int) -> float:
    """Return the seconds from the start of a process to the first byte that it writes."""
    begun = time.perf_counter()
    # sample.py prints its seed there
    errors = subprocess.DEVNULL if command[0] == "sample.py" else subprocess.STDOUT
    arguments = [sys.executable, str(ROOT / command[0]), *command[1:]]
    with subprocess.Popen(arguments, cwd=folder, stdout=subprocess.PIPE, stderr=errors) as process:
        assert process.stdout
        first = process.stdout.read(1)
        took = time.perf_counter() - begun
        rest = process.stdout.read()
    assert first and b"Traceback" not in rest, rest.decode()
    return took


def main() -> None:
    """Measure the commands in turn and print a line for each."""
    options = make_parser(__doc__, rounds=9, text="").parse_args()
    commands = {
        "first character": [
            "sample.py",
            "first",
            "--num-chars",
            "20",
            "--prompt",
            "a",
            "--seed",
            "0",
        ],
        "typo answered": ["train.py", "model.headz=2"],
        **{
            f"{name}.py --help": [f"{name}.py", "--help"]
            for name in ("train", "sample", "score", "export")
        },
    }
    print_machine()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "text.txt").write_text("abcdefgh \n" * 2000)
        run([ROOT / "train.py", *STEP, *(QUICK if options.quick else [])], folder)
        seen = in_turn(
            1 + options.rounds,
            {name: partial(seconds, folder, each) for name, each in commands.items()},
        )
    for name, times in seen.items():
        print(f"{name:16} {spread(times[1:], '.2f', ' s')}")


if __name__ == "__main__":
    main()
