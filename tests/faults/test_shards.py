import re
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch

from tests import stores
from tests.faults import faults
from tests.faults.processes import run
from tests.faults.test_checkpoints import at_work
from tests.faults.test_resume import assert_as_if_never_touched
from tests.stores import Bucket, differing

DOCUMENTS = differing(48)
# Enough for three blocks, but not for the text.
CUT = "name=cut resume=auto data.cache_gb=2.4e-4 trainer.max_steps=40 data.batch=64 compile=false".split()
CUT += ["model.dropout=0.1"]
POINTS = {
    "while the manifest is made": (faults.in_fetch, 20),
    "while the first block is fetched": (faults.in_fetch, 57),
    "while a later block is fetched": (faults.in_fetch, 70),
    "with a shard written but not named": (faults.before_rename, 3, ".bin"),
    "in training": (faults.at_step, 33),
}


@pytest.fixture
def text(bucket: Bucket, workplace: Path) -> str:
    bucket.put_all(DOCUMENTS.items())
    return f"data.path={bucket.address}/*.txt"


def trained(text: str) -> Path:
    elsewhere = {"XDG_CACHE_HOME": str(Path("untouched").absolute())}
    ended = run(*CUT, text, fault=(faults.small_shards,), environment=elsewhere)
    assert ended.status == 0, ended
    shutil.move("runs/cut", "whole")
    return Path("whole")


def test_killed_anywhere(text: str, workplace: Path) -> None:
    whole = trained(text)
    for point, fault in POINTS.items():
        shutil.rmtree("runs", ignore_errors=True)
        shutil.rmtree("cache", ignore_errors=True)
        killed = run(*CUT, text, fault=(faults.small_shards, *fault))
        assert killed.status == -signal.SIGKILL, (point, killed)
        ended = run(*CUT, text, fault=(faults.small_shards,))
        assert ended.status == 0, (point, ended)
        assert_as_if_never_touched(whole, Path("runs/cut"))
        left = {file.suffix for file in Path("cache").rglob("*") if file.is_file() and "shards" in file.parts}
        assert left <= {".bin", ".lock", ".jsonl", ""}, (point, left)


def weights(run: Path) -> dict[str, torch.Tensor]:
    return torch.load(run / "checkpoints/last.ckpt")["state_dict"]


def test_two_processes_train_as_one(bucket: Bucket, workplace: Path) -> None:
    text = "\n".join(DOCUMENTS.values())
    bucket.put_all((f"{number}.txt", (text[number:] * 40)[: 2**22 * 10 // 9]) for number in range(4))
    recipe = [f"data.path={bucket.address}", "trainer.precision=32-true", "optim=adamw", "compile=false"]
    recipe += ["data.split=[0.99,0.005,0.005]", "trainer.max_steps=20"]
    for devices in (1, 2):
        before = bucket.server.read(f"{bucket.name}/0.txt")
        ended = run(*recipe, f"name=of{devices}", f"data.cache_dir=of{devices}", f"trainer.devices={devices}")
        assert ended.status == 0, ended
        # For the manifest, for validation and test, for training.
        assert bucket.server.read(f"{bucket.name}/0.txt") - before == 3
    one, two = weights(Path("runs/of1")), weights(Path("runs/of2"))
    for key in one:
        torch.testing.assert_close(one[key], two[key], rtol=0, atol=2e-5)


def test_what_changes_while_it_trains_is_named_and_what_was_trained_is_kept(bucket: Bucket, text: str) -> None:
    whole = trained(text)
    with at_work(*CUT, text, step=15, fault=(faults.small_shards,)) as process:
        for name in DOCUMENTS:
            bucket.put(name, DOCUMENTS[name].swapcase())
    ended = process.wait()
    assert ended.status == 2, ended
    named = rf"train\.py: {bucket.address}/\d\d\.txt: has changed since it was read: its sha256 is another"
    assert re.fullmatch(named, ended.err.splitlines()[-1]) and "Traceback" not in ended.err, ended
    ended = run(*CUT, text, fault=(faults.small_shards,))
    assert ended.status == 2 and re.match(rf"train\.py: {bucket.address}/00\.txt: has changed .*47 more", ended.err)
    for name in DOCUMENTS:
        bucket.put(name, DOCUMENTS[name])
    ended = run(*CUT, text, fault=(faults.small_shards,))
    assert ended.status == 0, ended
    assert_as_if_never_touched(whole, Path("runs/cut"))
    bucket.put("07.txt", DOCUMENTS["07.txt"][::-1])
    longer = [each.replace("steps=40", "steps=44") for each in CUT]
    ended = run(*longer, text, "allow=[text]", fault=(faults.small_shards,))
    assert ended.status == 0 and "no longer bit for bit" in ended.out, ended


def test_a_store_that_goes_away_and_comes_back(workplace: Path) -> None:
    for name, content in DOCUMENTS.items():
        (workplace / name).write_text(content, encoding="utf-8")
    server = stores.web(workplace)
    text = f"data.path=[{','.join(f'http://127.0.0.1:{server.port}/{name}' for name in DOCUMENTS)}]"
    try:
        whole = trained(text)
        with at_work(*CUT, text, step=5, fault=(faults.small_shards,)) as process:
            server.stop()
            Path("go").touch()
            time.sleep(4)
            assert process.poll() is None  # it waits
            stopped_at = server.log.stat().st_size
            server.start()
        ended = process.wait()
        assert ended.status == 0, ended
        assert b"GET /" in server.log.read_bytes()[stopped_at:]
        assert_as_if_never_touched(whole, Path("runs/cut"))
    finally:
        server.stop()
