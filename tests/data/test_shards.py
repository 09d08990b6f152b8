"""Text at addresses: the same text as from this disk, in batches that follow from the seed, and nothing skipped."""

import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from data import cache as cache_module
from data import manifest, shards
from data.arrays import open_text
from data.batches import train_batch
from data.cache import GB, Cache
from data.config import DataConfig
from data.corpus import DataError
from data.order import plan_epoch
from tests.conftest import ROOT
from tests.stores import differing, web

CONTEXT = 16


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Shards and blocks of a size that takes no time."""
    monkeypatch.setattr(shards, "SHARD", 8_000)
    monkeypatch.setattr(shards, "BLOCK", 30_000)
    monkeypatch.setattr(manifest, "PATIENCE", 1.0)
    monkeypatch.setattr(cache_module, "PATIENCE", 1.0)


@pytest.fixture
def opened(tmp_path):
    """Open a path, with a cache of its own."""

    def open_it(path, cache="cache", context=CONTEXT, as_before=False, **settings):
        config = DataConfig(path=str(path), cache_dir=str(tmp_path / cache), **settings)
        return open_text(config, context, as_before=as_before)

    return open_it


def write(folder, documents):
    for name, content in documents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


# -- The order of the windows ----------------------------------------------------------------------

LENGTHS = np.array([100, 17, 33, 400, 65, 1000, 34, 18, 250, 49], np.int64)


def everything(plan):
    return plan.locate(np.arange(plan.blocks[-1]))


@pytest.mark.parametrize("context", [1, 5, 16])
@pytest.mark.parametrize("block", [1, 200, 700, 10**9])
def test_an_epoch_takes_every_window_once(context, block):
    for seed, epoch in [(0, 0), (0, 1), (7, 0), (2**70 + 3, 5)]:
        plan = plan_epoch(LENGTHS, seed, epoch, context, block)
        _, shard, start = everything(plan)
        seen = Counter(zip(shard.tolist(), start.tolist(), strict=True))
        expected = Counter()
        for number, length in enumerate(LENGTHS.tolist()):
            first = min(place for each, place in seen if each == number)
            windows = (length - min(context, length - context)) // context
            assert 0 <= first <= length - 1 - windows * context
            expected.update((number, first + window * context) for window in range(windows))
        assert seen == expected


def test_over_the_epochs_every_token_but_a_shard_s_first_is_a_target():
    lengths = LENGTHS[[1, 2, 4, 6, 7]]
    targets = [set() for _ in lengths]
    for epoch in range(250):
        _, shard, start = everything(plan_epoch(lengths, 3, epoch, CONTEXT, 300))
        for number, place in zip(shard.tolist(), start.tolist(), strict=True):
            targets[number].update(range(place + 1, place + CONTEXT + 1))
    assert targets == [set(range(1, length)) for length in lengths.tolist()]


@pytest.mark.parametrize("block", [1, 200, 700, 10**9])
def test_a_block_is_finished_before_the_next_and_holds_so_many_tokens(block):
    plan = plan_epoch(LENGTHS, 1, 2, CONTEXT, block)
    blocks, shard, _ = everything(plan)
    assert blocks.tolist() == sorted(blocks)
    taken = [plan.shards_of(each) for each in range(len(plan.blocks))]
    assert sorted(sum(taken, [])) == list(range(len(LENGTHS)))
    for each, its in enumerate(taken):
        assert set(shard[blocks == each].tolist()) == set(its)
        assert LENGTHS[its[:-1]].sum() <= block + 2 * CONTEXT * len(its)
    assert len(taken) == {1: 10, 10**9: 1}.get(block, len(taken))
    if block == 200:
        assert len(taken) > 3


def test_in_one_block_the_order_is_as_random_as_of_one_text():
    lengths = np.full(50, 2_000)
    _, shard, start = everything(plan_epoch(lengths, 0, 0, CONTEXT, 10**6))
    place = shard * 2_000 + start
    rank = np.argsort(np.argsort(place))
    assert abs(np.corrcoef(rank, np.arange(len(rank)))[0, 1]) < 0.05
    assert abs(np.corrcoef(rank[1:], rank[:-1])[0, 1]) < 0.05
    for part in np.array_split(shard, 10):
        assert len(set(part.tolist())) > 45


def test_epochs_and_seeds_have_orders_and_phases_of_their_own():
    orders = [everything(plan_epoch(LENGTHS, seed, epoch, 16, 300)) for seed, epoch in [(0, 0), (0, 1), (1, 0)]]
    for one in range(3):
        for other in range(one):
            assert [a.tolist() for a in orders[one][1:]] != [a.tolist() for a in orders[other][1:]]


# -- The text is what it would be on this disk -----------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 12, 48])
@pytest.mark.parametrize("tokenizer", ["char", "byte"])
def test_the_same_text_as_from_files(tmp_path, opened, count, tokenizer):
    documents = differing(count)
    documents["00.txt"] = "\ufeff" + documents["00.txt"].replace(" ", "\r\n")
    folder = write(tmp_path / "text", documents)
    here, there = (opened(path, tokenizer=tokenizer) for path in (folder, f"file://{folder}/*.txt"))
    assert there.tokenizer.vocabulary == here.tokenizer.vocabulary
    for split in ("validation", "test"):
        assert there.tokenizer.decode(getattr(there, split)) == here.tokenizer.decode(getattr(here, split))
        assert there.characters[split] == here.characters[split]
    # Joined by newlines where a shard ends, the shards are the whole of it.
    newline = here.tokenizer.pack("\n") if count > 1 else np.zeros(0, np.uint8)
    joined = [there.train.open(number) for number in range(len(there.train.shards))]
    assert len(joined) == 1 or all(len(each) >= 8_000 for each in joined)
    whole = np.concatenate([part for each in joined for part in (each, newline)][: 2 * len(joined) - 1])
    assert whole.dtype == here.train.dtype and np.array_equal(whole, here.train)
    assert there.characters["train"] == here.characters["train"] - (len(joined) - 1)
    assert len(there.train) == sum(map(len, joined))
    assert np.array_equal(there.train[5:20_000:3], np.concatenate(joined)[5:20_000:3])
    assert np.array_equal(there.train[:10], whole[:10])


def test_batches_hold_the_windows_of_the_order(tmp_path, opened):
    text = opened(f"file://{write(tmp_path / 'text', differing(48))}/*.txt")
    whole = [text.train.open(number).tolist() for number in range(len(text.train.shards))]
    per_epoch = int(plan_epoch(text.train.lengths, 5, 0, CONTEXT, 30_000).blocks[-1])
    expected = []
    for epoch in range(2):
        _, shard, start = everything(plan_epoch(text.train.lengths, 5, epoch, CONTEXT, 30_000))
        expected += [whole[s][p : p + CONTEXT + 1] for s, p in zip(shard.tolist(), start.tolist(), strict=True)]
    steps = 2 * per_epoch // 37
    got = [train_batch(text.train, 5, step, 37, CONTEXT) for step in range(steps)]
    assert np.concatenate(got).tolist() == expected[: 37 * steps]
    for step in (0, steps // 2, per_epoch // 37, steps - 1):  # from anywhere, and shared out
        ranks = [train_batch(text.train, 5, step, 37, CONTEXT, rows) for rows in (slice(0, 20), slice(20, 37))]
        assert np.concatenate(ranks).tolist() == got[step].tolist()


def test_a_text_that_is_moved_is_the_same_and_one_that_differs_is_not(tmp_path, opened):
    documents = differing(3)
    first = opened(f"file://{write(tmp_path / 'one/dir', documents)}")
    assert opened(f"file://{write(tmp_path / 'two', documents)}/*.txt").fingerprint == first.fingerprint
    documents["01.txt"] += "x"
    assert opened(f"file://{write(tmp_path / 'three', documents)}").fingerprint != first.fingerprint


def test_a_list_is_the_files_in_it(tmp_path, opened, monkeypatch):
    monkeypatch.chdir(write(tmp_path, {"a.txt": "abc " * 90, "d/b, c.txt": "bcd " * 90, "z.txt": "never"}))
    together = opened("[d/b? c.txt, a.txt,a.txt]")
    assert together.characters == {"train": 649, "validation": 37, "test": 37}
    assert opened("[a.txt,d/*.txt]").fingerprint == together.fingerprint
    assert opened("[a.txt]").fingerprint == opened("a.txt").fingerprint
    write(tmp_path, {"[a.txt,z.txt]": "a file " * 90})
    assert "f" in opened("[a.txt,z.txt]").tokenizer.characters  # a name that exists is that file
    for wrong, reason in {"[a.txt,]": "is empty", "[a.txt,no.txt]": "data.path=no.txt: no such file"}.items():
        with pytest.raises(DataError, match=reason):
            opened(wrong)


def test_a_remote_list_is_the_documents_in_it(tmp_path, opened):
    folder = write(tmp_path / "text", differing(3))
    listed = opened(f"[file://{folder}/00.txt,{folder}/01.txt,file://{folder}/02.txt]")
    assert listed.fingerprint == opened(f"file://{folder}").fingerprint


# -- The cache -------------------------------------------------------------------------------------


def bytes_in(folder):
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_size if file.suffix in (".bin", ".copy", ".tmp") else 0
        except FileNotFoundError:
            pass
    return total


def test_the_bound_is_held_and_the_batches_are_the_same(tmp_path, opened):
    folder = write(tmp_path / "text", differing(48))
    large = opened(f"file://{folder}", "large")
    small = opened(f"file://{folder}", "small", cache_gb=2.4e-4)
    whole, evaluated = len(small.train), len(small.validation) + len(small.test)
    assert whole > 2.4e5 - evaluated
    most, stop = [0], threading.Event()

    def watch():
        while not stop.is_set():
            most.append(bytes_in(tmp_path / "small" / "shards"))

    watching = threading.Thread(target=watch)
    watching.start()
    for step in range(60):
        one, other = (train_batch(text.train, 0, step, 500, CONTEXT) for text in (large, small))
        assert one.tolist() == other.tolist()
    stop.set()
    watching.join()
    assert 1e5 < max(most) <= 2.4e5 - evaluated


def test_too_small_a_cache_is_told_what_is_needed(tmp_path, opened):
    folder = write(tmp_path / "text", differing(48))
    with pytest.raises(
        DataError, match=r"data\.cache_gb=0\.0001: is too little for .* needs at least 0\.000\d+"
    ) as told:
        opened(f"file://{folder}", cache_gb=0.0001)
    needed = float(re.search(r"at least ([\d.]+)", str(told.value))[1])
    opened(f"file://{folder}", cache_gb=needed)
    with pytest.raises(DataError, match="too little"):
        opened(f"file://{folder}", cache_gb=needed - 2e-6)


def numbers(count):
    return lambda copy: iter([np.arange(count, dtype=np.uint8)])


def test_the_least_recently_used_goes_first_and_what_is_mapped_stays(tmp_path):
    cache = Cache(tmp_path, 350)
    kept = cache.open(tmp_path / "a/0", np.uint8, 100, numbers(100), 0)
    for name in ("1", "2"):
        cache.open(tmp_path / "a" / name, np.uint8, 100, numbers(100), 0)
    time.sleep(0.05)  # file systems tell times apart that differ by so much
    cache.open(tmp_path / "a/1", np.uint8, 100, numbers(0), 0)  # is there: not made again
    cache.open(tmp_path / "a/3", np.uint8, 100, numbers(100), 0)
    assert sorted(file.name for file in tmp_path.glob("a/*.bin")) == ["0.bin", "1.bin", "3.bin"]
    assert kept.tolist() == list(range(100))
    also = cache.open(tmp_path / "a/1", np.uint8, 100, numbers(0), 0)
    with pytest.raises(DataError, match="are in use"):
        cache.open(tmp_path / "a/4", np.uint8, 200, numbers(200), 0)
    del kept, also
    assert len(cache.open(tmp_path / "a/4", np.uint8, 200, numbers(200), 0)) == 200


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_shard_is_made_again(tmp_path, damage):
    cache, file = Cache(tmp_path, 10**6), tmp_path / "a/0.bin"
    cache.open(tmp_path / "a/0", np.uint8, 100, numbers(100), 0)
    content = bytearray(file.read_bytes())
    content[50] ^= 1
    file.write_bytes({"flip": bytes(content), "cut": file.read_bytes()[:-1], "empty": b""}[damage])
    assert cache.open(tmp_path / "a/0", np.uint8, 100, numbers(100), 0).tolist() == list(range(100))


def make_and_die(root, bound):
    def make(copy):
        copy.write_bytes(b"x" * 400)
        yield np.arange(50, dtype=np.uint8)
        os.kill(os.getpid(), signal.SIGKILL)

    Cache(root, bound).open(root / "a/0", np.uint8, 100, make, 400)


@pytest.mark.slow
def test_a_kill_leaves_nothing_that_counts_or_takes_room(tmp_path):
    spawn = multiprocessing.get_context("spawn")
    dying = spawn.Process(target=make_and_die, args=(tmp_path, 600))
    dying.start()
    dying.join()
    assert dying.exitcode == -signal.SIGKILL
    assert {file.suffix for file in tmp_path.glob("a/*")} == {".lock", ".copy", ".tmp", ".room"}
    dying.close()
    Cache(tmp_path, 600).open(tmp_path / "b/0", np.uint8, 550, lambda copy: [np.zeros(550, np.uint8)], 0)
    assert {file.suffix for file in tmp_path.glob("a/*")} == {".lock"}
    assert Cache(tmp_path, 600).open(tmp_path / "a/0", np.uint8, 100, numbers(100), 0).tolist() == list(range(100))


# -- Stores ----------------------------------------------------------------------------------------


def test_from_s3(tmp_path, bucket, opened):
    documents = differing(48)
    bucket.put_all((f"dir/{name}", content) for name, content in documents.items())
    bucket.put("dir/.hidden", "ø")
    bucket.put("dir/notes.md", "ø")
    here = opened(write(tmp_path / "text", documents))
    there = opened(f"{bucket.address}/dir")
    assert there.validation.tolist() == here.validation.tolist()
    assert bucket.server.read(f"{bucket.name}/dir/00.txt") in (1, 2)  # for the manifest, and for validation or test
    again = opened(f"{bucket.address}/dir")
    assert again.fingerprint == there.fingerprint == opened(f"{bucket.address}/dir/*.txt").fingerprint
    before = bucket.server.read(f"{bucket.name}/dir/00.txt")
    opened(f"{bucket.address}/dir")
    assert bucket.server.read(f"{bucket.name}/dir/00.txt") == before  # a start reads no document
    whole = [train_batch(there.train, 0, step, 100, CONTEXT).tolist() for step in range(3)]
    assert whole == [train_batch(again.train, 0, step, 100, CONTEXT).tolist() for step in range(3)]


def test_from_the_web(tmp_path, opened, monkeypatch):
    documents = differing(3)
    folder = write(tmp_path / "text", documents)
    server = web(folder)
    try:
        base = f"http://127.0.0.1:{server.port}"
        there = opened(f"[{','.join(f'{base}/{name}' for name in documents)}]")
        assert there.fingerprint == opened(f"file://{folder}").fingerprint
        with pytest.raises(DataError, match=r"no such file, directory or bucket$"):
            opened(f"{base}/03.txt")
        with pytest.raises(DataError, match=r"no such file, directory or bucket$"):
            opened(f"{base}/*.txt")  # a web server lists no files
        with pytest.raises(DataError, match=r"a web server lists no files; name each$"):
            opened(f"[{base}/00.txt,{base}/]")  # it would answer with a page about them
    finally:
        server.stop()
    with pytest.raises(DataError, match=r"^data\.path=http.*/00\.txt: cannot be read: Cannot connect to host"):
        opened(f"{base}/00.txt")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("s3://no-such-bucket/a.txt", "no such file, directory or bucket|bucket does not exist"),
        ("s3://no-such-bucket/*.txt", "no file matches"),
        ("BUCKET/no.txt", "no such file, directory or bucket"),
        ("BUCKET/no/*.txt", "no file matches"),
        ("[BUCKET/a.txt,BUCKET/b.txt]", r"data\.path=BUCKET/b\.txt: no such file"),
        ("s4://books/a.txt", "no such kind of address; nearest: s3"),
        ("file:///no/such/dir", "no such file, directory or bucket"),
        ("BUCKET/empty", r"BUCKET/empty/0\.txt: is empty"),
        ("BUCKET/latin", r"BUCKET/latin/1\.txt: byte 400 is not utf-8 .*data\.encoding="),
        ("BUCKET/mark", r"BUCKET/mark/1\.txt: is empty"),
    ],
)
def test_what_cannot_be_read_is_one_line(bucket, opened, path, reason):
    bucket.put_all([("a.txt", "abc"), ("empty/0.txt", ""), ("latin/0.txt", "ab" * 200)])
    bucket.put_all([("latin/1.txt", b"ab" * 200 + b"\xe9 "), ("mark/0.txt", "abc"), ("mark/1.txt", "\ufeff")])
    with pytest.raises(DataError, match=reason.replace("BUCKET", bucket.address)) as told:
        opened(path.replace("BUCKET", bucket.address))
    assert "\n" not in str(told.value) and len(str(told.value)) < 300


def test_access_that_is_denied(bucket, opened, monkeypatch):
    import s3fs
    from botocore.exceptions import ClientError, NoCredentialsError

    bucket.put("a.txt", "abc" * 100)
    denied = ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "GetObject")
    for error, reason in [(denied, "access is denied$"), (NoCredentialsError(), "Unable to locate credentials")]:

        async def refuse(*_, error=error, **__):
            raise s3fs.errors.translate_boto_error(error)

        monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", refuse)
        with pytest.raises(DataError, match=f"data.path={bucket.address}/a.txt: .*{reason}"):
            opened(f"{bucket.address}/a.txt")


# -- What has changed is named ---------------------------------------------------------------------


def name_of(text, shard):
    return text.train.shards[shard][0][0].name


CHANGES = {
    "other": (lambda content: content.swapcase(), "its sha256 is another"),
    "cut": (lambda content: content[:-1], r"holds [\d,]+ bytes, not"),
    "longer": (lambda content: content + " ", r"holds [\d,]+ bytes, not"),
    "gone": (lambda content: None, "no such file"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_document_that_changes_while_training_is_named(bucket, opened, change):
    documents = differing(48)
    bucket.put_all(documents.items())
    text = opened(bucket.address)
    after, how = CHANGES[change]
    name = name_of(text, text.train._plan(0, 0, CONTEXT).shards_of(2)[0])
    bucket.delete(name)
    if after(documents[name]) is not None:
        bucket.put(name, after(documents[name]))
    with pytest.raises(DataError, match=rf"^{bucket.address}/{name}: .*{how}"):
        for step in range(1000):
            train_batch(text.train, 0, step, 50, CONTEXT)
    assert step * 50 * CONTEXT > 30_000  # not before it was needed
    bucket.put(name, documents[name])
    got = train_batch(text.train, 0, step, 50, CONTEXT)  # goes on where it was
    assert got.tolist() == train_batch(opened(bucket.address, "elsewhere").train, 0, step, 50, CONTEXT).tolist()


@pytest.mark.parametrize("change", CHANGES)
def test_a_document_that_has_changed_since_is_named_or_read_anew(bucket, opened, change, capsys):
    documents = differing(5)
    bucket.put_all(documents.items())
    first = opened(bucket.address)
    content = CHANGES[change][0](documents["03.txt"])
    bucket.delete("03.txt")
    if content is not None:
        bucket.put("03.txt", content)
        documents["03.txt"] = content
    else:
        del documents["03.txt"]
    for _ in range(2):  # being told changes nothing
        with pytest.raises(DataError, match=rf"^{bucket.address}/03.txt: (is missing|has changed).*allow=\[text\]"):
            opened(bucket.address, as_before=True)
    capsys.readouterr()
    anew = opened(bucket.address)
    assert capsys.readouterr().out.startswith(f"text       {bucket.address}/03.txt: ")
    assert anew.fingerprint != first.fingerprint
    elsewhere = opened(bucket.address, "elsewhere")
    assert anew.fingerprint == elsewhere.fingerprint and anew.characters == elsewhere.characters
    assert bucket.server.read(f"{bucket.name}/00.txt") >= 2
    opened(bucket.address, as_before=True)
    assert capsys.readouterr().out == ""


def test_a_document_that_is_new_is_named(bucket, opened):
    bucket.put_all(differing(3).items())
    opened(bucket.address)
    bucket.put("new.txt", "new")
    with pytest.raises(DataError, match="/new.txt: is new"):
        opened(bucket.address, as_before=True)


# -- The manifest ----------------------------------------------------------------------------------

OPEN = """
import sys
from data import manifest
from data.arrays import open_text
from data.config import DataConfig
manifest.EACH = 1
if __name__ == "__main__":
    print(open_text(DataConfig(path=sys.argv[1], cache_dir=sys.argv[2]), 16).fingerprint)
"""


def opening(tmp_path, path):
    (tmp_path / "open.py").write_text(OPEN)
    return subprocess.Popen(
        [sys.executable, str(tmp_path / "open.py"), path, str(tmp_path / "cache")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def scanned(tmp_path):
    lines = [line for file in tmp_path.glob("cache/shards/*/scanned.jsonl") for line in file.read_text().splitlines()]
    return [json.loads(line)["address"] for line in lines if line.endswith("}")]


@pytest.mark.slow
def test_a_killed_manifest_goes_on_with_what_was_read(tmp_path, bucket, opened):
    """SIGKILL, of the process alone: those it has started end, too."""
    documents = differing(60)
    bucket.put_all(documents.items())
    process = opening(tmp_path, bucket.address)
    try:
        until = time.monotonic() + 60
        while len(scanned(tmp_path)) < 5:
            assert time.monotonic() < until and process.poll() is None, process.communicate()
        process.kill()
        process.wait(10)
        assert not list(tmp_path.glob("cache/shards/*/manifest.jsonl"))
        alive = time.monotonic() + 60
        while subprocess.run(["pgrep", "-g", str(process.pid)], capture_output=True).stdout:
            assert time.monotonic() < alive, "processes are left"
            time.sleep(0.05)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate()
    known = scanned(tmp_path)
    assert 5 <= len(known) < 60
    (file,) = tmp_path.glob("cache/shards/*/scanned.jsonl")
    with open(file, "a") as cut:
        cut.write('{"address": "s3://cut')  # as a kill in the middle of a line leaves it
    before = {address: bucket.server.read(address.removeprefix("s3://")) for address in known}
    reading = manifest._scan_all
    asked = []
    manifest._scan_all = lambda todo, *rest: asked.extend(todo) or reading(todo, *rest)
    try:
        text = opened(bucket.address)
    finally:
        manifest._scan_all = reading
    assert set(asked) == {f"{bucket.address}/{name}" for name in documents} - set(known)
    assert all(bucket.server.read(address.removeprefix("s3://")) <= count + 1 for address, count in before.items())
    assert text.fingerprint == opened(bucket.address, "elsewhere").fingerprint


@pytest.mark.slow
def test_of_processes_at_once_one_reads(tmp_path, bucket):
    bucket.put_all(differing(4).items())
    processes = [opening(tmp_path, bucket.address) for _ in range(3)]
    ended = [process.communicate(timeout=150) for process in processes]
    assert len({out for out, _ in ended}) == 1 and ended[0][0], ended
    # Once for the manifest, once for validation and test.
    assert bucket.server.read(f"{bucket.name}/00.txt") == 2


def test_ranks_share_the_cache_and_its_work(bucket, opened):
    bucket.put_all(differing(48).items())
    ranks = [opened(bucket.address) for _ in range(3)]
    train = [name_of(ranks[0], number) for number in range(len(ranks[0].train.shards))]
    before = {name: bucket.server.read(f"{bucket.name}/{name}") for name in train}
    batches = [train_batch(rank.train, 0, step, 50, CONTEXT) for step in range(20) for rank in random.sample(ranks, 3)]
    assert all(batch.shape == (50, CONTEXT + 1) for batch in batches)
    assert max(bucket.server.read(f"{bucket.name}/{name}") - before[name] for name in train) == 1
    assert ranks[0].train.room_needed() < GB
    assert isinstance(ranks[0].train.folder, Path)
