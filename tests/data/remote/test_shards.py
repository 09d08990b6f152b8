import json
import os
import re
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count, product
from unittest.mock import Mock

import numpy as np
import psutil
import pytest

from base.log import to_console
from data.batches import train_batch
from data.config import DataConfig
from data.corpus import DataError
from data.open_text import open_text
from data.remote import manifest, shard_cache, shards, store
from data.remote.epoch import plan_epoch
from data.remote.shard_cache import GB, Cache
from tests.conftest import refusal
from tests.faults import faults
from tests.faults.processes import fork, wait_for
from tests.stores import Folder, differing, web

CONTEXT = 16


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(shards, "SHARD", 8_000)
    monkeypatch.setattr(shards, "BLOCK", 30_000)
    monkeypatch.setattr(store, "RETRY_SECONDS", 1.0)
    monkeypatch.setattr(shard_cache, "WAIT_SECONDS", 1.0)


@pytest.fixture
def fetched(monkeypatch):
    """Tells how often each document of a store was fetched since it was last asked."""
    addresses = []
    monkeypatch.setattr(manifest, "download", manifest.download)  # so that it is restored
    faults.before(manifest, "download", lambda address, copy: addresses.append(address))

    def tell(store):
        prefix = f"{store.address}/"  # threads of earlier tests, of other stores, may be left
        found = Counter(address.removeprefix(prefix) for address in addresses if address.startswith(prefix))
        addresses.clear()
        return found

    return tell


LENGTHS = np.array([100, 17, 33, 400, 65, 1000, 34, 18, 250, 49], np.int64)


def everything(plan):
    return plan.locate(np.arange(plan.blocks[-1]))


def test_an_epoch_takes_every_window_once_block_by_block():
    given = (1, 5, 16), (1, 200, 700, 10**9), [(0, 0), (0, 1), (7, 0), (2**70 + 3, 5)]
    for context, block, (seed, epoch) in product(*given):
        blocks, shard, start = everything(plan := plan_epoch(LENGTHS, seed, epoch, context, block))
        seen, expected = Counter(zip(shard.tolist(), start.tolist(), strict=True)), Counter()
        for number, length in enumerate(LENGTHS.tolist()):
            first = min(place for each, place in seen if each == number)
            windows = (length - min(context, length - context)) // context
            assert 0 <= first <= length - 1 - windows * context
            expected.update((number, first + window * context) for window in range(windows))
        assert seen == expected and blocks.tolist() == sorted(blocks)  # a block is finished before the next
        taken = [plan.shards_of(each) for each in range(len(plan.blocks))]
        assert sorted(sum(taken, [])) == list(range(len(LENGTHS)))
        for each, its in enumerate(taken):
            assert set(shard[blocks == each].tolist()) == set(its)
            assert LENGTHS[its[:-1]].sum() <= block + 2 * context * len(its)
        assert {1: 10, 200: 4}.get(block, 1) <= len(taken) <= {10**9: 1}.get(block, 10)
    # Over the epochs, every token but a shard's first is a target.
    lengths = LENGTHS[[1, 2, 4, 6, 7]]
    targets = [set() for _ in lengths]
    for epoch in range(150):
        _, shard, start = everything(plan_epoch(lengths, 3, epoch, CONTEXT, 300))
        for number, place in zip(shard.tolist(), start.tolist(), strict=True):
            targets[number].update(range(place + 1, place + CONTEXT + 1))
    assert targets == [set(range(1, length)) for length in lengths.tolist()]


def test_epochs_and_seeds_have_orders_and_phases_of_their_own_today_and_tomorrow():
    orders = [everything(plan_epoch(LENGTHS, seed, epoch, 16, 300)) for seed, epoch in [(0, 0), (0, 1), (1, 0)]]
    assert len({tuple(map(tuple, order[1:])) for order in orders}) == 3
    # Written down once: a change here means that old runs can no longer be resumed exactly.
    assert orders[1][1][::9].tolist() == [5, 5, 5, 5, 5, 5, 5, 8, 8, 3, 3, 3, 9]
    assert orders[1][2][::9].tolist() == [278, 118, 966, 198, 182, 22, 534, 123, 171, 115, 179, 211, 19]


@pytest.mark.parametrize(("count", "tokenizer"), [(1, "byte"), (2, "char"), (12, "byte"), (48, "char")])
def test_the_same_text_as_from_files(tmp_path, opened, count, tokenizer):
    documents = differing(count)
    documents["00.txt"] = "\ufeff" + documents["00.txt"].replace(" ", "\r\n")
    folder = Folder(tmp_path / "text", documents)
    here, there = (opened(path, tokenizer=tokenizer) for path in (folder.path, f"{folder.address}/*.txt"))
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


def test_batches_hold_the_windows_of_the_order(tmp_path, opened):
    text = opened(f"{Folder(tmp_path / 'text', differing(48)).address}/*.txt")
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


def test_a_text_that_is_moved_or_listed_is_the_same_and_one_that_differs_is_not(tmp_path, opened):
    documents = differing(3)
    one, two = (Folder(tmp_path / name, documents) for name in ("one/dir", "two"))
    first = opened(one.address)
    listed = f"[{one.address}/00.txt,{one.path}/01.txt,{one.address}/02.txt]"
    assert opened(f"{two.address}/*.txt").fingerprint == opened(listed).fingerprint == first.fingerprint
    two.put("03.txt", "new")
    with pytest.raises(DataError, match="/two/03.txt: is new"):
        opened(f"{two.address}/*.txt", as_before=True)
    assert opened(two.address).fingerprint != first.fingerprint


def test_a_list_is_the_files_in_it(tmp_path, opened):
    folder = Folder(tmp_path, {"a.txt": "abc " * 90, "d/b, c.txt": "bcd " * 90, "z.txt": "never"})
    together = opened("[d/b? c.txt, a.txt,a.txt]")
    assert together.characters == {"train": 649, "validation": 37, "test": 37}
    assert opened("[a.txt,d/*.txt]").fingerprint == together.fingerprint
    assert opened("[a.txt]").fingerprint == opened("a.txt").fingerprint
    folder.put("[a.txt,z.txt]", "a file " * 90)
    assert "f" in opened("[a.txt,z.txt]").tokenizer.characters  # a name that exists is that file
    for wrong, reason in {"[a.txt,]": "is empty", "[a.txt,no.txt]": "data.path=no.txt: no such file"}.items():
        with pytest.raises(DataError, match=reason):
            opened(wrong)


def test_the_bound_is_held_and_the_batches_are_the_same(tmp_path, opened):
    folder = Folder(tmp_path / "text", differing(48))
    large, small = opened(folder.address, "large"), opened(folder.address, "small", cache_gb=2.4e-4)
    evaluated = len(small.validation) + len(small.test)
    assert len(small.train) > 2.4e5 - evaluated
    most, stop = [0], threading.Event()

    def watch():
        while not stop.is_set():
            total = 0
            for file in (tmp_path / "small" / "shards").rglob("*"):
                with suppress(FileNotFoundError):
                    total += file.stat().st_size if file.suffix in (".bin", ".copy", ".tmp") else 0
            most.append(total)

    watching = threading.Thread(target=watch)
    watching.start()
    for step in range(60):
        one, other = (train_batch(text.train, 0, step, 500, CONTEXT) for text in (large, small))
        assert one.tolist() == other.tolist()
    stop.set()
    watching.join()
    assert 1e5 < max(most) <= 2.4e5 - evaluated
    told = r"data\.cache_gb=0\.0001: is too little for .* needs at least (0\.000\d+)"
    with pytest.raises(DataError, match=told) as caught:
        opened(folder.address, cache_gb=0.0001)
    needed = float(re.search(told, str(caught.value))[1])
    assert opened(folder.address, cache_gb=needed).train.room_needed() < needed * GB
    with pytest.raises(DataError, match="too little"):
        opened(folder.address, cache_gb=needed - 2e-6)


def get(cache, name, count=100, make=None, scratch_bytes=0):
    """Open 0, 1, 2, ... in a cache."""
    return cache.open(
        cache.root / name, np.uint8, count, make or (lambda _: [np.arange(count, dtype=np.uint8)]), scratch_bytes
    )


def test_the_least_recently_used_goes_first_and_what_is_mapped_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(shard_cache, "WAIT_SECONDS", 0.1)
    cache = Cache(tmp_path, 350)
    kept = get(cache, "a/0")
    for name in ("a/1", "a/2"):
        get(cache, name)
    time.sleep(0.05)  # file systems tell times apart that differ by so much
    get(cache, "a/1", make=lambda copy: [])  # is there: not made again
    get(cache, "a/3")
    assert sorted(file.name for file in tmp_path.glob("a/*.bin")) == ["0.bin", "1.bin", "3.bin"]
    assert kept.tolist() == list(range(100))
    also = get(cache, "a/1")
    with pytest.raises(DataError, match="are in use"):
        get(cache, "a/4", 200)
    del kept, also
    assert len(get(cache, "a/4", 200)) == 200


def test_a_damaged_shard_is_made_again(tmp_path):
    cache, file = Cache(tmp_path, 10**6), tmp_path / "a/0.bin"
    get(cache, "a/0")
    good = file.read_bytes()
    for damaged in (good[:50] + b"?" + good[51:], good[:-1], b""):
        file.write_bytes(damaged)
        assert get(cache, "a/0").tolist() == list(range(100)) and file.read_bytes() == good


def make_and_die(root):
    def make(copy):
        copy.write_bytes(b"x" * 400)
        yield np.arange(50, dtype=np.uint8)
        faults.die()

    get(Cache(root, 600), "a/0", make=make, scratch_bytes=400)


@pytest.mark.slow
def test_a_kill_leaves_nothing_that_counts_or_takes_room(tmp_path):
    dying = fork(make_and_die, tmp_path)
    dying.join(60)
    assert dying.exitcode == -signal.SIGKILL
    assert {file.suffix for file in tmp_path.glob("a/*")} == {".lock", ".copy", ".tmp", ".room"}
    get(Cache(tmp_path, 600), "b/0", 550)
    assert {file.suffix for file in tmp_path.glob("a/*")} == {".lock"}
    assert get(Cache(tmp_path, 600), "a/0").tolist() == list(range(100))


def test_from_s3(tmp_path, bucket, opened, fetched):
    documents = differing(12)
    bucket.put_all((f"dir/{name}", content) for name, content in documents.items())
    bucket.put_all([("dir/.hidden", "ø"), ("dir/notes.md", "ø")])
    here, there = opened(Folder(tmp_path / "text", documents).path), opened(f"{bucket.address}/dir")
    assert there.validation.tolist() == here.validation.tolist()
    assert fetched(bucket) == {f"dir/{name}": 2 for name in documents}  # for the manifest, and for validation and test
    again = opened(f"{bucket.address}/dir")
    assert not fetched(bucket)  # a start reads no document
    assert again.fingerprint == there.fingerprint == opened(f"{bucket.address}/dir/*.txt").fingerprint
    batches = [train_batch(text.train, 0, 2, 100, CONTEXT).tolist() for text in (there, again)]
    assert batches[0] == batches[1]


def test_from_the_web(tmp_path, opened):
    documents = differing(3)
    folder = Folder(tmp_path / "text", documents)
    server = web(folder.path)
    base = f"http://127.0.0.1:{server.port}"
    try:
        there = opened(f"[{','.join(f'{base}/{name}' for name in documents)}]")
        assert there.fingerprint == opened(folder.address).fingerprint
        for wrong in (f"{base}/03.txt", f"{base}/*.txt"):  # a web server lists no files
            with pytest.raises(DataError, match="no such file, directory or bucket$"):
                opened(wrong)
        with pytest.raises(DataError, match="a web server lists no files; name each$"):
            opened(f"[{base}/00.txt,{base}/]")  # it would answer with a page
    finally:
        server.stop()
    with pytest.raises(DataError, match=r"^data\.path=http.*/00\.txt: cannot be read: Cannot connect to host"):
        opened(f"{base}/00.txt")


def test_what_cannot_be_read_is_one_line(bucket, opened, monkeypatch):
    bucket.put_all([("a.txt", "abc"), ("empty/0.txt", ""), ("latin/0.txt", "ab" * 200)])
    bucket.put_all([("latin/1.txt", b"ab" * 200 + b"\xe9 "), ("mark/0.txt", "abc"), ("mark/1.txt", "\ufeff")])
    for path, reason in {
        "s3://no-such-bucket/a.txt": "no such file, directory or bucket|bucket does not exist",
        "s3://no-such-bucket/*.txt": "no file matches", "BUCKET/no/*.txt": "no file matches",
        "BUCKET/no.txt": "no such file, directory or bucket",
        "[BUCKET/a.txt,BUCKET/b.txt]": r"data\.path=BUCKET/b\.txt: no such file",
        "s4://books/a.txt": "no such kind of address; nearest: s3",
        "file:///no/such/dir": "no such file, directory or bucket",
        "BUCKET/empty": r"BUCKET/empty/0\.txt: is empty", "BUCKET/mark": r"BUCKET/mark/1\.txt: is empty",
        "BUCKET/latin": r"BUCKET/latin/1\.txt: byte 400 is not utf-8 .*data\.encoding=",
    }.items():  # fmt: skip
        message = refusal(DataError, opened, path.replace("BUCKET", bucket.address))
        assert re.search(reason.replace("BUCKET", bucket.address), message) and len(message) < 300, (path, message)
    for error, reason in [
        (PermissionError("no"), "access is denied"), (RuntimeError("not\nnow"), "cannot be read: not now"),
        (ImportError("Install s3fs to access S3"), r"needs s3fs: pip install .* -e '\.\[s3\]'"),
    ]:  # fmt: skip
        monkeypatch.setattr(store, "_find", Mock(side_effect=error))
        with pytest.raises(DataError, match=f"^data.path=file:///a.txt: {reason}$"):
            opened("file:///a.txt")


CHANGES = {
    "other": (str.swapcase, "its sha256 is another"), "cut": (lambda text: text[:-1], r"holds [\d,]+ bytes, not"),
    "longer": (lambda text: text + " ", r"holds [\d,]+ bytes, not"), "gone": (lambda text: None, "no such file"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_a_document_that_changes_is_named_or_read_anew(tmp_path, request, opened, fetched, change, capsys):
    documents = differing(20)
    store = request.getfixturevalue("bucket") if change in ("other", "gone") else Folder(tmp_path / "text")
    store.put_all(documents.items())
    first = opened(store.address)
    name = first.train.shards[first.train._plan(0, 0, CONTEXT).shards_of(2)[0]][0][0].name
    changed, how = CHANGES[change]
    store.delete(name)
    if (content := changed(documents[name])) is not None:
        store.put(name, content)
    fetched(store)
    for _ in range(2):  # at a start, which changes nothing
        with pytest.raises(DataError, match=rf"^{store.address}/{name}: (is missing|has changed).*allow=\[text\]"):
            opened(store.address, as_before=True)
    assert not fetched(store)
    to_console()
    capsys.readouterr()
    anew = opened(store.address)
    assert capsys.readouterr().out.startswith(f"text       {store.address}/{name}: ")
    # The manifest lacks what has changed alone; validation and test are read anew.
    assert fetched(store) == Counter([*documents, name]) - Counter([name] * 2 if change == "gone" else [])
    elsewhere = opened(store.address, "elsewhere")
    assert anew.fingerprint == elsewhere.fingerprint != first.fingerprint and anew.characters == elsewhere.characters
    opened(store.address, as_before=True)
    assert capsys.readouterr().out == ""
    # While the first one trains, but not before it is needed; with the document back, it goes on where it was.
    with pytest.raises(DataError, match=rf"^{store.address}/{name}: .*{how}"):
        for step in range(1000):
            train_batch(first.train, 0, step, 50, CONTEXT)
    assert step * 50 * CONTEXT > 30_000
    store.put(name, documents[name])
    got = train_batch(first.train, 0, step, 50, CONTEXT)
    assert got.tolist() == train_batch(opened(store.address, "back").train, 0, step, 50, CONTEXT).tolist()


def open_and_hang(config):
    """Read a text in two processes, and hang when five documents are noted as read."""
    os.cpu_count = os.process_cpu_count = lambda: 2
    manifest.MIN_BYTES, noted = 1, count()
    faults.before(manifest, "asdict", lambda _: time.sleep(600) if next(noted) == 5 else None)
    open_text(config, CONTEXT)


@pytest.mark.slow
def test_a_killed_manifest_goes_on_with_what_was_read(tmp_path, opened, fetched):
    documents = differing(39)
    folder = Folder(tmp_path / "text", documents)

    def known():
        text = "".join(file.read_text() for file in tmp_path.glob("cache/shards/*/scanned.jsonl"))
        return [json.loads(line)["address"].rpartition("/")[2] for line in text.splitlines() if line.endswith("}")]

    process = fork(open_and_hang, DataConfig(path=folder.address, cache_dir=str(tmp_path / "cache")))
    try:
        wait_for(lambda: len(known()) == 5 or not process.is_alive())
        children = psutil.Process(process.pid).children()
    finally:
        process.kill()
        process.join()
    _, left = psutil.wait_procs(children, timeout=60)
    for each in left:
        each.kill()
    assert process.exitcode == -signal.SIGKILL and len(children) == 2 and not left
    assert len(known()) == 5 and not list(tmp_path.glob("cache/shards/*/manifest.jsonl"))
    expected = Counter([*documents] * 2) - Counter(known())  # each once for validation and test
    (file,) = tmp_path.glob("cache/shards/*/scanned.jsonl")
    with open(file, "a") as cut:
        cut.write('{"address": "s3://cut')  # as a kill in the middle of a line leaves it
    text = opened(folder.address)
    assert fetched(folder) == expected
    assert text.fingerprint == opened(folder.address, "elsewhere").fingerprint


def test_several_at_once_share_the_work(tmp_path, opened, fetched):
    folder = Folder(tmp_path / "text", differing(48))
    with ThreadPoolExecutor(3) as pool:
        texts = list(pool.map(opened, [folder.address] * 3))
    assert len({text.fingerprint for text in texts}) == 1
    train = {document.name for pieces in texts[0].train.shards for document, _ in pieces}
    # Each once for the manifest, and once more for validation and test, to which a document goes as a whole.
    assert fetched(folder) == Counter([*differing(48), *(differing(48).keys() - train)])
    for step, text in product(range(20), texts):
        train_batch(text.train, 0, step, 50, CONTEXT)
    assert max(fetched(folder).values()) == 1
