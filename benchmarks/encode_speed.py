"""How fast a large text is encoded, and in how much memory.

    python benchmarks/encode_speed.py [--megabytes 1000] [--kind ascii|mixed]

Writes a file of random words (seed 0) and opens it in another process, so that the peak memory is
that of encoding. The time covers all that a user waits for: hashing, the vocabulary, encoding and
writing. For comparison, the text is opened a second time, from the cache, and the file is copied,
fsync included.
"""

import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from measuring import make_parser, print_machine

from data.config import DataConfig
from data.text import open_text

WORDS = "the of and a to in is you that it he was for on are as with his they I".split()
UNIT = 1 if sys.platform == "darwin" else 1024  # bytes of ru_maxrss


def write_text(path: Path, size: int, kind: str) -> None:
    """Write at least `size` bytes of random words; those of `mixed` have letters beyond ASCII."""
    words = [*WORDS, "naïve", "“quoted”", "слово", "語"] if kind == "mixed" else WORDS
    picks = np.random.default_rng(0).integers(len(words), size=(20_000, 12))
    block = "".join(" ".join(words[pick] for pick in line) + "\n" for line in picks).encode()
    with open(path, "wb") as file:
        for _ in range(-(-size // len(block))):
            file.write(block)


def measure(path: Path, cache: Path) -> tuple[float, float, int]:
    """Open the text twice, then from the cache, and return the seconds of each and the peak memory in bytes."""
    config = DataConfig(path=str(path), cache_dir=str(cache))
    seconds = []
    for _ in range(2):
        begun = time.perf_counter()
        open_text(config, context=256)
        seconds.append(time.perf_counter() - begun)
    return seconds[0], seconds[1], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT


def main() -> None:
    """Measure and print a few lines for each round."""
    parser = make_parser(__doc__, rounds=1, text="")
    parser.add_argument(
        "--megabytes", type=int, default=1000, help="size of the text (default 1000)"
    )
    parser.add_argument(
        "--kind", choices=("ascii", "mixed"), default="ascii", help="of letters (default ascii)"
    )
    options = parser.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text.txt")
        write_text(text, 1_000_000 * (1 if options.quick else options.megabytes), options.kind)
        size = text.stat().st_size / 1e6
        for number in range(options.rounds):
            begun = time.perf_counter()
            with open(text, "rb") as source, open(Path(folder, "copy"), "wb") as target:
                shutil.copyfileobj(source, target)
                os.fsync(target.fileno())
            copying = time.perf_counter() - begun
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                cold, cached, memory = pool.submit(
                    measure, text, Path(folder, f"cache {number}")
                ).result()
            print(f"{size:.0f} MB of {options.kind} text, peak memory {memory / 1e6:.0f} MB")
            print(
                f"encode  {cold:7.2f} s  {size / cold:6.0f} MB/s  {cold / copying:.1f} times as long as a copy"
            )
            print(f"cached  {cached:7.2f} s  {size / cached:6.0f} MB/s", flush=True)


if __name__ == "__main__":
    main()
