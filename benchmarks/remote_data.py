"""What it costs to train on text in an S3 store instead of a local file.

    python benchmarks/remote_data.py [--megabytes 1000] [--shards 64] [--step-ms 50] [--cache-gb 20]

Puts a text into moto's S3 server, which runs on this machine and takes part of it, and the same text into a file. Takes
the batches of the store one in every `--step-ms`, as a training loop would, through more than three blocks, then those
of both as fast as they come. A step has waited when a shard of its batch was not there yet. Below 1 GB, blocks and
shards are made smaller, so that there are as many.
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data.config import DataConfig  # noqa: E402
from data.open_text import open_text
from data.remote import shards  # noqa: E402
from data.text import Text  # noqa: E402

BUCKET, CONTEXT, BATCH = "benchmark", 512, 512
WORDS = "the of and a to in is you that it he was for on are as with his they I naïve слово".split()


def start_server() -> subprocess.Popen:
    """Start an empty S3 server and let this process and those that it starts find it."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ.update(keys, AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}")
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return server
        except OSError:
            assert server.poll() is None, "the server has ended"
            time.sleep(0.05)


def fill(megabytes: int, count: int, file: Path) -> None:
    """Put random words into the bucket, in `count` documents, and one after the other into `file`."""
    import boto3

    client = boto3.client("s3")
    client.create_bucket(Bucket=BUCKET)
    rng = np.random.default_rng(0)
    with open(file, "wb") as local:
        for number in range(count):
            size = megabytes * 10**6 // count
            words = " ".join(WORDS[pick] for pick in rng.integers(len(WORDS), size=size // 3)).encode()
            document = words[: size - 1].decode(errors="ignore").encode() + b"\n"
            local.write(document)
            client.put_object(Bucket=BUCKET, Key=f"{number:04}.txt", Body=document)
    client.close()


def train_batch(text: Text, step: int) -> object:
    """One batch; what makes it loads torch, which the processes that read documents need not."""
    from data.batches import train_batch

    return train_batch(text.train, 0, step, BATCH, CONTEXT)


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def batches_per_second(text: Text, steps: int) -> float:
    """How fast batches come that are taken at once, the first ones left out."""
    train_batch(text, 0)
    return steps / timed(lambda: [train_batch(text, step) for step in range(1, steps + 1)])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument("--step-ms", type=float, default=50)
    parser.add_argument("--cache-gb", type=float, default=20)
    options = parser.parse_args()
    shards.BLOCK = min(shards.BLOCK, options.megabytes * 10**6 // 8)
    shards.SHARD = min(shards.SHARD, options.megabytes * 10**6 // options.shards // 2)
    server = start_server()
    try:
        with tempfile.TemporaryDirectory() as name:
            measure(options, Path(name))
    finally:
        server.kill()
        server.wait()


def measure(options: argparse.Namespace, folder: Path) -> None:
    """Measure in an empty folder."""
    fill(options.megabytes, options.shards, folder / "text.txt")
    size = (folder / "text.txt").stat().st_size / 1e6
    print(f"{size:,.0f} MB in {options.shards} documents, blocks of {shards.BLOCK / 1e6:,.0f} million tokens")
    config = DataConfig(path=f"s3://{BUCKET}", cache_dir=str(folder / "cache"), cache_gb=options.cache_gb)
    local_config = DataConfig(path=str(folder / "text.txt"), cache_dir=str(folder / "local"))
    local = open_text(local_config, CONTEXT)
    first = timed(lambda: open_text(config, CONTEXT))
    print(f"first start, with the manifest     {first:.2f} s, {size / first:.0f} MB/s")
    print(f"later start                        {timed(lambda: open_text(config, CONTEXT)):.2f} s")
    text = open_text(config, CONTEXT)
    print(f"first batch                        {timed(lambda: train_batch(text, 0)):.2f} s")

    per_block = shards.BLOCK // (BATCH * CONTEXT)
    steps = int(3.5 * per_block)
    took, waits = [], []
    tokens = shards._Block.tokens
    shards._Block.tokens = lambda block, shard: waits.append(not block.fetched[shard].done()) or tokens(block, shard)
    waited = 0
    for step in range(1, steps):
        waits.clear()
        took.append(timed(lambda step=step: train_batch(text, step)))
        waited += any(waits)
        time.sleep(max(0.0, options.step_ms / 1000 - took[-1]))
    shards._Block.tokens = tokens
    print(f"steps of {options.step_ms:g} ms that waited          {waited} of {len(took)}, through 3.5 blocks", end="; ")
    print(f"a batch took {1000 * statistics.median(took):.2f} ms, at most {1000 * max(took):.2f}")
    steps = max(10, per_block // 2)
    there, here = batches_per_second(text, steps), batches_per_second(local, steps)
    print(f"batches of {BATCH} x {CONTEXT} at once         {there:.0f}/s, of the local file {here:.0f}/s")
    kept = sum(file.stat().st_size for file in (folder / "cache" / "shards").rglob("*.bin")) / 1e6
    print(f"shards in the cache                {kept:,.0f} MB, of at most {1000 * options.cache_gb:,.0f}")


if __name__ == "__main__":
    main()
