"""How fast a large text becomes an encoded array, and in how much memory.

    python benchmarks/encode_speed.py [--megabytes 1000] [--kind ascii|mixed]

Makes a text in a temporary directory and opens it with `data.open_text.open_text` in a process of its
own, so that the peak memory is that of the encoding alone. The time covers everything a user waits
for: hashing, the vocabulary, encoding, writing, hashing again. Compared with copying the file, fsync included.
"""

import argparse
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data.config import DataConfig  # noqa: E402
from data.open_text import open_text  # noqa: E402

WORDS = "the of and a to in is you that it he was for on are as with his they I".split()


def write_text(path: Path, size: int, kind: str) -> None:
    """Write `size` bytes or a little more of random words; `mixed` has letters beyond ASCII in every line."""
    words = [*WORDS, "naïve", "“quoted”", "слово", "語"] if kind == "mixed" else WORDS
    picks = np.random.default_rng(0).integers(len(words), size=(20_000, 12))
    block = "".join(" ".join(words[pick] for pick in line) + "\n" for line in picks).encode()
    with open(path, "wb") as file:
        for _ in range(-(-size // len(block))):
            file.write(block)


def measure(path: Path, cache: Path, results: multiprocessing.SimpleQueue) -> None:
    """Open the text twice, cold and cached; report seconds, seconds, and peak memory in bytes."""
    config = DataConfig(path=str(path), cache_dir=str(cache))
    seconds = []
    for _ in range(2):
        begin = time.perf_counter()
        open_text(config, context=256)
        seconds.append(time.perf_counter() - begin)
    unit = 1 if sys.platform == "darwin" else 1024
    results.put((*seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--kind", choices=("ascii", "mixed"), default="ascii")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = folder / "text.txt"
        write_text(text, options.megabytes * 1_000_000, options.kind)
        size = text.stat().st_size / 1e6

        begin = time.perf_counter()
        with open(text, "rb") as source, open(folder / "copy", "wb") as target:
            shutil.copyfileobj(source, target)
            os.fsync(target.fileno())
        copying = time.perf_counter() - begin

        spawn = multiprocessing.get_context("spawn")
        results = spawn.SimpleQueue()
        process = spawn.Process(target=measure, args=(text, folder / "cache", results))
        process.start()
        process.join()
        if process.exitcode:
            sys.exit(f"encoding ended with status {process.exitcode}")
        cold, cached, memory = results.get()
    print(f"{size:.0f} MB of {options.kind} text")
    print(f"encode  {cold:7.2f} s  {size / cold:6.0f} MB/s  {cold / copying:.1f} times as long as copying the file")
    print(f"cached  {cached:7.2f} s  {size / cached:6.0f} MB/s")
    print(f"peak memory {memory / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
