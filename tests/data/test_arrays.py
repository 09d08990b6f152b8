import hashlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from data import arrays
from data.arrays import SPLITS, open_text, split_by_file, split_within
from data.config import DataConfig
from data.corpus import CHUNK, DataError
from data.tokenizer import ByteTokenizer

ROOT = Path(__file__).resolve().parents[2]
SHARES = [0.9, 0.05, 0.05]


@pytest.fixture
def opened(tmp_path):
    """Open `tmp_path/text` (or another name there), with the cache beside it."""

    def open_it(name="text", context=4, **settings):
        return open_text(DataConfig(path=str(tmp_path / name), cache_dir=str(tmp_path / "cache"), **settings), context)

    return open_it


def decoded(text):
    return {split: text.tokenizer.decode(getattr(text, split)) for split in SPLITS}


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)


def random_text(length, alphabet="abc \n", seed=0):
    return "".join(random.Random(seed).choices(alphabet, k=length))


def cached(tmp_path):
    """The one directory of encoded text in the cache."""
    (folder,) = (tmp_path / "cache" / "encoded").iterdir()
    return folder


# -- Splitting and encoding ------------------------------------------------------------------------


@pytest.mark.parametrize("alphabet", ["abc \n", "aé\n", "a語\U0001f600\n", "".join(map(chr, range(40, 800)))])
@pytest.mark.parametrize("shares", [SHARES, [0.5, 0.25, 0.25], [0.3, 0.7, 0.0]])
def test_one_file_is_cut_at_its_shares(tmp_path, opened, alphabet, shares):
    whole = random_text(3 * CHUNK // 2 + 11, alphabet)
    write(tmp_path / "text", whole)
    text = opened(split=shares)
    number = {character: place for place, character in enumerate(sorted(set(whole)))}  # of the whole, sorted
    borders = [0, int(len(whole) * shares[0]), int(len(whole) * (shares[0] + shares[1])), len(whole)]
    if shares[2] == 0:
        borders[2] = len(whole)
    for split, begin, end in zip(SPLITS, borders[:-1], borders[1:], strict=True):
        tokens = getattr(text, split)
        assert tokens.tolist() == [number[character] for character in whole[begin:end]]
        assert tokens.dtype == (np.uint8 if len(number) <= 256 else np.uint16)
        assert text.characters[split] == end - begin
    assert text.tokenizer.vocabulary == {"kind": "char", "characters": "".join(number)}
    assert text.name == str(tmp_path / "text")


def test_arrays_are_mapped_and_cannot_be_written(tmp_path, opened):
    write(tmp_path / "text", random_text(1000))
    text = opened()
    assert isinstance(text.train, np.memmap)
    with pytest.raises(ValueError):
        text.train[0] = 1


def test_bytes_are_kept_and_characters_counted(tmp_path, opened):
    whole = "\ufeff" + random_text(2000, "aé語\r\n")
    write(tmp_path / "text", whole)
    text = opened(tokenizer="byte", split=[0.5, 0.25, 0.25])
    assert isinstance(text.tokenizer, ByteTokenizer)
    parts = [getattr(text, split).tobytes() for split in SPLITS]
    assert b"".join(parts) == whole.encode()
    assert len(parts[0]) == len(whole.encode()) // 2
    assert sum(text.characters.values()) == len(whole)
    # A character belongs to the split that its first byte lies in.
    begins = np.cumsum([0] + [len(character.encode()) for character in whole])[:-1]
    assert text.characters["train"] == np.count_nonzero(begins < len(parts[0]))


def test_few_files_are_cut_each_and_joined_by_one_newline(tmp_path, opened):
    texts = [random_text(size, "xyz", seed) for seed, size in enumerate([100, 0, 40, 60])]
    for place, part in enumerate(texts):
        write(tmp_path / "text" / f"{place}.txt", part)
    text = opened(split=[0.5, 0.25, 0.25])
    expected = {
        "train": [part[: len(part) // 2] for part in texts if part],
        "validation": [part[len(part) // 2 : len(part) * 3 // 4] for part in texts if part],
        "test": [part[len(part) * 3 // 4 :] for part in texts if part],
    }
    assert decoded(text) == {split: "\n".join(parts) for split, parts in expected.items()}
    assert text.characters == {split: len("\n".join(parts)) for split, parts in expected.items()}
    assert text.tokenizer.characters == "\nxyz"  # the newline is ours


def test_one_file_gets_no_newline_in_its_vocabulary(tmp_path, opened):
    write(tmp_path / "text" / "a.txt", random_text(300, "xyz"))
    write(tmp_path / "text" / "empty.txt", "")
    assert opened().tokenizer.characters == "xyz"


@pytest.mark.parametrize("tokenizer", ["char", "byte"])
def test_many_files_go_to_one_split_each(tmp_path, opened, tokenizer):
    texts = {f"{place:02}.txt": random_text(50 + 3 * place, "abc", place) for place in range(40)}
    for name, part in texts.items():
        write(tmp_path / "text" / name, part)
    text = opened(split=[0.7, 0.2, 0.1], tokenizer=tokenizer)
    placed = split_by_file({name: len(part) for name, part in texts.items()}, [0.7, 0.2, 0.1])
    for split in SPLITS:
        parts = [part for name, part in sorted(texts.items()) if placed[name] == split]
        assert decoded(text)[split] == "\n".join(parts)
    (tmp_path / "text" / "39.txt").unlink()
    fewer = opened(split=[0.7, 0.2, 0.1], tokenizer=tokenizer)
    assert decoded(fewer)["train"].startswith(texts["00.txt"][:35] + "\n" + texts["01.txt"][:37] + "\n")


def test_files_fill_validation_then_test_in_the_order_of_a_hash():
    rng = random.Random(0)
    for shares in (SHARES, [0.8, 0.1, 0.1], [0.5, 0.3, 0.2], [0.9, 0.1, 0.0]):
        sizes = {f"ordner/größe {place}.txt": rng.randint(0, 2000) for place in range(200)}
        placed = split_by_file(sizes, shares)
        total = sum(sizes.values())
        for split, share in zip(SPLITS, shares, strict=True):
            filled = sum(size for name, size in sizes.items() if placed[name] == split)
            assert abs(filled - share * total) < 1000 * (2 if split == "train" else 1)
        order = sorted(sizes, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
        assert placed[next(name for name in order if sizes[name])] == "validation"
        assert dict(sorted(placed.items())) == dict(
            sorted(split_by_file(dict(sorted(sizes.items(), reverse=True)), shares).items())
        )
        if shares[2] == 0:
            assert "test" not in placed.values()


def test_a_giant_file_is_for_training():
    sizes = {f"{place}": 100 for place in range(60)} | {"giant": 100_000}
    assert split_by_file(sizes, SHARES)["giant"] == "train"


def test_shares_of_the_benchmarks_are_exact():
    assert split_within(100_000_000, SHARES) == (90_000_000, 95_000_000)
    assert split_within(100_000_000, [0.3333333, 0.6666666, 0.0])[1] == 100_000_000
    assert split_within(100, [0.29, 0.71, 0.0]) == (29, 100)
    assert split_within(1_115_394, [0.9, 0.1, 0.0]) == (1_003_854, 1_115_394)  # as nanoGPT cuts tiny Shakespeare


def test_the_standard_library_is_split_by_file(tmp_path):
    text = open_text(DataConfig(cache_dir=str(tmp_path)), 256)
    total = sum(text.characters.values())
    within = 0.005 if sys.version_info[:2] == (3, 11) else 0.01  # whole files, of which others have others
    for split in ("validation", "test"):
        assert abs(text.characters[split] / total - 0.05) < within
    assert text.tokenizer.size < 128 and len(text.train) > 4e6
    assert text.name.startswith(f"Python 3.{sys.version_info.minor}.")


@pytest.mark.parametrize("known", ["abc", "xyz\n", "aé語\U0001f600"])
def test_characters_that_a_model_knows_join_the_vocabulary(tmp_path, opened, known):
    """And the text is encoded with them, whichever vocabulary it was encoded with before."""
    whole = random_text(1000, "bc \n")
    write(tmp_path / "text", whole)
    for _ in range(2):  # encoded, and from the cache
        plain, with_known = (
            opened(),
            open_text(DataConfig(path=str(tmp_path / "text"), cache_dir=str(tmp_path / "cache")), 4, known),
        )
        assert plain.tokenizer.characters == "\n bc" and plain.known == ""
        assert with_known.tokenizer.characters == "".join(sorted({*"\n bc", *known})) and with_known.known == known
        for text in (plain, with_known):
            assert "".join(decoded(text).values()) == whole
        assert plain.fingerprint != with_known.fingerprint


# -- The cache -------------------------------------------------------------------------------------


def identity(folder):
    return sorted((path.name, path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.iterdir())


def test_the_cache_is_used_again(tmp_path, opened):
    write(tmp_path / "text", random_text(1000))
    first = opened()
    before = identity(cached(tmp_path))
    again = opened(context=8)  # has nothing to do with the arrays
    assert identity(cached(tmp_path)) == before
    assert again.fingerprint == first.fingerprint and decoded(again) == decoded(first)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "text").rename(tmp_path / "elsewhere" / "text")
    assert opened("elsewhere/text").fingerprint == first.fingerprint


def test_a_changed_text_is_noticed_whatever_its_size_and_time(tmp_path, opened):
    path = tmp_path / "text"
    write(path, "abab" * 250)
    first, times = opened(), path.stat()
    write(path, "abab" * 249 + "abba")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert path.stat().st_mtime_ns == times.st_mtime_ns and path.stat().st_size == times.st_size
    second = opened()
    assert second.fingerprint != first.fingerprint
    assert decoded(second)["test"].endswith("abba")


def test_settings_that_change_the_arrays_change_the_fingerprint(tmp_path, opened):
    write(tmp_path / "text", random_text(1000))
    settings = [{}, {"split": [0.8, 0.1, 0.1]}, {"tokenizer": "byte"}, {"encoding": "latin-1"}]
    assert len({opened(**each).fingerprint for each in settings}) == 4


def test_the_version_of_python_is_part_of_the_fingerprint(tmp_path, monkeypatch):
    prints = set()
    for version in ("3.11.0", "3.11.1"):
        monkeypatch.setattr("platform.python_version", lambda version=version: version)
        prints.add(open_text(DataConfig(cache_dir=str(tmp_path)), 16).fingerprint)
    assert len(prints) == 2


def spoil_meta(folder):
    (folder / "meta.json").write_text((folder / "meta.json").read_text()[:-5])


def spoil_vocabulary(folder):
    meta = json.loads((folder / "meta.json").read_text())
    meta["vocabulary"]["characters"] = meta["vocabulary"]["characters"][::-1]
    (folder / "meta.json").write_text(json.dumps(meta))


def spoil_train(folder):
    os.truncate(folder / "train.bin", 10)


def spoil_keys(folder):
    (folder / "meta.json").write_text("{}")


def remove_test(folder):
    (folder / "test.bin").unlink()


def remove_all(folder):
    for path in folder.iterdir():
        path.unlink()


@pytest.mark.parametrize("spoil", [spoil_meta, spoil_vocabulary, spoil_train, spoil_keys, remove_test, remove_all])
def test_a_damaged_cache_is_redone(tmp_path, opened, spoil):
    write(tmp_path / "text", random_text(1000))
    good = decoded(opened())
    spoil(cached(tmp_path))
    assert decoded(opened()) == good
    before = identity(cached(tmp_path))  # and there is nothing beside it
    assert decoded(opened()) == good and identity(cached(tmp_path)) == before


KILLED = """
import os, signal, sys
from data import arrays
from data.config import DataConfig
real, calls = os.fsync, []
def die_at(file):
    calls.append(file)
    if len(calls) == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    real(file)
os.fsync = die_at
arrays.open_text(DataConfig(path=sys.argv[1], cache_dir=sys.argv[2]), 4)
"""


@pytest.mark.parametrize("moment", [1, 5])  # before the folder and its four files are on the disk, before the last is
def test_a_killed_process_leaves_nothing_that_is_used(tmp_path, opened, moment):
    whole = random_text(1000)
    write(tmp_path / "text", whole)
    arguments = [sys.executable, "-c", KILLED, str(tmp_path / "text"), str(tmp_path / "cache"), str(moment)]
    assert subprocess.run(arguments, cwd=ROOT).returncode == -signal.SIGKILL
    left = cached(tmp_path)
    assert left.suffix == ".tmp"
    assert "".join(decoded(opened()).values()) == whole
    assert left.exists()  # it may belong to a process that is still at work
    os.utime(left, (time.time() - 2 * 86_400,) * 2)
    opened(split=[0.8, 0.1, 0.1])
    assert not left.exists()


def test_the_slower_of_two_processes_uses_what_the_quicker_made(tmp_path, opened, monkeypatch):
    write(tmp_path / "text", random_text(1000))
    replace, seen = os.replace, []

    def late(unfinished, folder):
        monkeypatch.setattr(os, "replace", replace)
        opened()  # the quicker one, from beginning to end
        seen.append(identity(folder))
        replace(unfinished, folder)

    monkeypatch.setattr(os, "replace", late)
    opened()
    assert seen == [identity(cached(tmp_path))]


def open_in_process(path, cache, barrier, results):
    barrier.wait()
    text = open_text(DataConfig(path=path, cache_dir=cache), 4)
    results.put(hashlib.sha256(b"".join(getattr(text, split).tobytes() for split in SPLITS)).hexdigest())


def test_processes_at_once(tmp_path, opened):
    write(tmp_path / "text", random_text(400_000))
    spawn = multiprocessing.get_context("spawn")
    barrier, results = spawn.Barrier(3), spawn.SimpleQueue()
    arguments = (str(tmp_path / "text"), str(tmp_path / "cache"), barrier, results)
    processes = [spawn.Process(target=open_in_process, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert len({results.get() for _ in processes}) == 1
    assert "".join(decoded(opened()).values()) == random_text(400_000)
    assert len(list((tmp_path / "cache" / "encoded").iterdir())) == 1
    for process in processes:
        process.close()
    results.close()


@pytest.mark.parametrize("change", ["abc" * 400, "abab" * 249 + "abba", "ab?c" * 250])
def test_a_text_that_changes_while_it_is_read_is_refused(tmp_path, opened, monkeypatch, change):
    write(tmp_path / "text", "abab" * 250)
    scan = arrays.scan

    def scan_and_change(*args):
        found = scan(*args)
        write(tmp_path / "text", change)
        return found

    monkeypatch.setattr(arrays, "scan", scan_and_change)
    with pytest.raises(DataError, match="changed while it was being read"):
        opened()
    assert list((tmp_path / "cache" / "encoded").iterdir()) == []


def test_a_cache_that_cannot_be_written(tmp_path, opened):
    write(tmp_path / "text", random_text(1000))
    write(tmp_path / "cache", "a file in the way")
    with pytest.raises(DataError, match=r"cache.*data\.cache_dir="):
        opened()


# -- Texts that cannot be used ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("whole", "settings", "words"),
    [
        ("", {}, ["is empty", "0 characters"]),
        ("\ufeff", {}, ["is empty"]),
        ("", {"tokenizer": "byte"}, ["is empty"]),
        ("aaaa" * 100, {}, ["only one distinct character, 'a'"]),
        ("\n" * 400, {"tokenizer": "byte"}, ["only one distinct character"]),
        ("abcdefgh", {"context": 8}, ["8 characters", "model.context=8", "needs 9"]),
        (
            "ab" * 500,
            {"context": 50},
            ["validation holds 50 of 1,000", "at least 51", "model.context=50", "data.split="],
        ),
        ("ab" * 50, {"context": 20, "split": [0.2, 0.8, 0.0]}, ["train holds 20 of 100", "at least 21"]),
        ("ab" * 50, {"context": 4, "split": [0.89, 0.1, 0.01]}, ["test holds 1 of 100", "at least 2", "data.split="]),
        ("é" * 500 + "a", {"context": 60, "tokenizer": "byte"}, ["validation holds 50 of 1,001 bytes"]),
        (b"abc\xff", {}, ["byte 3 is not utf-8"]),
    ],
)
def test_a_bad_text_is_one_line(tmp_path, opened, whole, settings, words):
    write(tmp_path / "text", whole)
    for _ in range(2):  # and again when it is in the cache
        with pytest.raises(DataError) as caught:
            opened(**settings)
        message = str(caught.value)
        assert len(message.splitlines()) == 1
        assert all(word in message for word in [*words, str(tmp_path / "text")]), message


def test_texts_that_are_just_long_enough(tmp_path, opened):
    write(tmp_path / "text", "ab" * 500)
    assert len(opened(context=49).validation) == 50
    assert len(opened(context=4, split=[0.9, 0.1, 0.0]).test) == 0
    assert len(opened(context=4, split=[0.9, 0.098, 0.002]).test) == 2


def test_nothing_is_left_of_a_text_that_cannot_be_used(tmp_path, opened):
    write(tmp_path / "text", "a" * 100)
    with pytest.raises(DataError):
        opened()
    assert list((tmp_path / "cache").rglob("*")) == []


def test_too_many_characters_name_the_byte_tokenizer(tmp_path, opened):
    points = [point for point in range(32, 70_000) if not 0xD800 <= point <= 0xDFFF]
    write(tmp_path / "text", "".join(map(chr, points)))
    with pytest.raises(DataError, match=r"distinct characters.*data\.tokenizer=byte"):
        opened()
    assert len(opened(tokenizer="byte").train) > 100_000
