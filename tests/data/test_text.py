import hashlib
import itertools
import json
import os
import random
import re
from pathlib import Path

import numpy as np
import pytest

import data.hash_order
import data.text
from base.errors import InputError
from data.config import DataConfig
from data.decoding import CHUNK
from data.splits import SPLITS, split_by_file, split_within
from data.text import open_text
from gpt.tokenizer import ByteTokenizer
from reports.log_lines import describe_documents
from tests.conftest import refusal
from tests.faults import faults
from tests.faults.processes import fork
from tests.stores import make

SHARES = [0.9, 0.05, 0.05]


def decoded(text):
    return {split: text.tokenizer.decode(getattr(text, split)) for split in SPLITS}


def random_text(length, alphabet="abc \n", seed=0):
    return "".join(random.Random(seed).choices(alphabet, k=length))


def test_one_file_is_cut_at_its_shares_in_characters_or_bytes(tmp_path, opened):
    wide = "".join(map(chr, range(40, 800)))
    for alphabet, shares in (
        ("a語\U0001f600\n", [0.5, 0.25, 0.25]),
        (wide[:256], SHARES),
        (wide, [0.3, 0.7, 0.0]),
    ):
        whole = random_text(3 * CHUNK // 2 + 11, alphabet)
        make(tmp_path, {"text": whole})
        text = opened(split=shares)
        # of the whole, sorted
        number = {character: place for place, character in enumerate(sorted(set(whole)))}
        begin, end = int(len(whole) * shares[0]), int(len(whole) * (shares[0] + shares[1]))
        parts = (
            [whole[:begin], whole[begin:end], whole[end:]]
            if shares[2]
            else [whole[:begin], whole[begin:], ""]
        )
        for split, part in zip(SPLITS, parts, strict=True):
            tokens = getattr(text, split)
            assert tokens.tolist() == [number[character] for character in part], (alphabet, split)
            assert tokens.dtype == (np.uint8 if len(number) <= 256 else np.uint16)
            assert text.characters[split] == len(part)
        assert (
            text.tokenizer.vocabulary == {"kind": "char", "characters": "".join(number)}
            and text.name == "text"
        )
        assert not text.train.flags.writeable
    # Bytes are kept, and characters counted.
    whole = "\ufeff" + random_text(2000, "aé語\r\n")
    make(tmp_path, {"text": whole})
    text = opened(tokenizer="byte", split=[0.5, 0.25, 0.25])
    assert isinstance(text.tokenizer, ByteTokenizer)
    parts = [getattr(text, split).tobytes() for split in SPLITS]
    assert b"".join(parts) == whole.encode() and len(parts[0]) == len(whole.encode()) // 2
    assert sum(text.characters.values()) == len(whole)
    # A character belongs to the split that its first byte lies in.
    begins = np.cumsum([0] + [len(character.encode()) for character in whole])[:-1]
    assert text.characters["train"] == np.count_nonzero(begins < len(parts[0]))


def test_few_files_are_cut_each_and_joined_by_one_newline(tmp_path, opened):
    texts = [random_text(size, "xyz", seed) for seed, size in enumerate([100, 0, 40, 60])]
    make(tmp_path / "text", {f"{place}.txt": part for place, part in enumerate(texts)})
    text = opened(split=[0.5, 0.25, 0.25])
    borders = [(0, len(part) // 2, len(part) * 3 // 4, len(part)) for part in texts]
    for nth, split in enumerate(SPLITS):
        parts = [
            part[border[nth] : border[nth + 1]]
            for part, border in zip(texts, borders, strict=True)
            if part
        ]
        assert decoded(text)[split] == "\n".join(parts) and text.characters[split] == len(
            "\n".join(parts)
        )
    assert text.tokenizer.characters == "\nxyz"  # the newline is ours


def test_a_list_is_the_files_in_it(tmp_path, opened):
    make(tmp_path, {"a.txt": "abc " * 90, "d/b, c.txt": "bcd " * 90, "z.txt": "never"})
    together = opened("[d/b? c.txt, a.txt,a.txt]")
    assert together.characters == {"train": 649, "validation": 37, "test": 37}
    assert opened("[a.txt,d/*.txt]").fingerprint == together.fingerprint
    assert opened("[a.txt]").fingerprint == opened("a.txt").fingerprint
    make(tmp_path, {"[a.txt,z.txt]": "a file " * 90})
    assert "f" in opened("[a.txt,z.txt]").tokenizer.characters  # a name that exists is that file
    for wrong, reason in {
        "[a.txt,]": "an empty name",
        "[a.txt,no.txt]": "data.path=no.txt: no such file",
    }.items():
        assert reason in refusal(InputError, opened, wrong)


def test_many_files_go_to_one_split_each(tmp_path, opened):
    texts, shares = (
        {f"{n:02}.txt": random_text(50 + 3 * n, "abc", n) for n in range(40)},
        [0.7, 0.2, 0.1],
    )
    folder = make(tmp_path / "text", texts)
    placed = split_by_file({name: len(part) for name, part in texts.items()}, shares)
    for tokenizer, split in itertools.product(("char", "byte"), SPLITS):
        parts = [part for name, part in sorted(texts.items()) if placed[name] == split]
        assert decoded(opened(split=shares, tokenizer=tokenizer))[split] == "\n".join(parts), (
            tokenizer,
            split,
        )
    (folder / "39.txt").unlink()
    assert decoded(opened(split=shares))["train"].startswith(
        texts["00.txt"][:35] + "\n" + texts["01.txt"][:37] + "\n"
    )


def test_files_fill_validation_then_test_in_the_order_of_a_hash():
    rng = random.Random(0)
    for shares in (SHARES, [0.5, 0.3, 0.2], [0.9, 0.1, 0.0]):
        sizes = {f"ordner/größe {place}.txt": rng.randint(0, 2000) for place in range(200)}
        placed = split_by_file(sizes, shares)
        for split, share in zip(SPLITS, shares, strict=True):
            filled = sum(size for name, size in sizes.items() if placed[name] == split)
            assert abs(filled - share * sum(sizes.values())) < 1000 * (
                2 if split == "train" else 1
            )
        order = sorted(sizes, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
        assert placed[next(name for name in order if sizes[name])] == "validation"
        assert placed == split_by_file(dict(sorted(sizes.items(), reverse=True)), shares)
    assert (
        split_by_file({f"{place}": 100 for place in range(60)} | {"giant": 100_000}, SHARES)[
            "giant"
        ]
        == "train"
    )
    # The shares of the benchmarks are exact.
    assert split_within(100_000_000, SHARES) == (90_000_000, 95_000_000)
    # as nanoGPT cuts tiny Shakespeare
    assert split_within(1_115_394, [0.9, 0.1, 0.0]) == (1_003_854, 1_115_394)


def test_characters_that_a_model_knows_join_the_vocabulary(tmp_path, opened):
    whole = random_text(1000, "bc \n")
    make(tmp_path, {"text": whole})
    for known in ("abc", "xyz\n", "aé語\U0001f600"):
        for _ in range(2):  # encoded, and from the cache
            plain, with_known = opened(), opened(extra=known)
            assert plain.tokenizer.characters == "\n bc" and plain.extra_chars == ""
            assert with_known.tokenizer.characters == "".join(sorted({*"\n bc", *known}))
            assert with_known.extra_chars == known and plain.fingerprint != with_known.fingerprint
            for text in (plain, with_known):
                assert "".join(decoded(text).values()) == whole


def cached(tmp_path):
    """The one directory of encoded text in the cache, beside the lock."""
    (folder,) = (
        path for path in (tmp_path / "cache" / "encoded").iterdir() if path.name != ".lock"
    )
    return folder


def identity(folder):
    return sorted(
        (path.name, path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.iterdir()
    )


def test_what_changes_the_arrays_changes_the_fingerprint_and_all_else_uses_the_cache(
    tmp_path, opened, monkeypatch
):
    path = tmp_path / "text"
    make(tmp_path, {"text": "abab" * 250})
    first, before = opened(), identity(cached(tmp_path))
    make(tmp_path, {"elsewhere/text": "abab" * 250})
    # which have nothing to do with the arrays
    for again in (opened(context=8), opened("elsewhere/text")):
        assert again.fingerprint == first.fingerprint and decoded(again) == decoded(first)
        assert identity(cached(tmp_path)) == before
    settings = [{}, {"split": [0.8, 0.1, 0.1]}, {"tokenizer": "byte"}, {"encoding": "latin-1"}]
    prints, before = {opened(**each).fingerprint for each in settings}, path.stat()
    make(tmp_path, {"text": "abab" * 249 + "abba"})
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert decoded(opened())["test"].endswith("abba")
    prints.add(opened().fingerprint)
    make(tmp_path, {"lib/a.py": random_text(1000)})
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path / "lib")})
    for version in ("3.11.0", "3.11.1"):
        monkeypatch.setattr("platform.python_version", lambda version=version: version)
        prints.add(open_text(DataConfig(cache_dir=str(tmp_path)), 16).fingerprint)
    assert len(prints) == 4 + 1 + 2


def test_a_cache_that_is_damaged_is_redone_and_one_that_cannot_be_written_is_one_line(
    tmp_path, opened
):
    make(tmp_path, {"text": random_text(1000)})
    good = decoded(opened())
    whole = {path.name: path.read_bytes() for path in cached(tmp_path).iterdir()}
    meta, reverse = json.loads(whole["meta.json"]), {"kind": "char", "characters": "cba \n"}
    for name, content in [
        ("meta.json", whole["meta.json"][:-5]), ("meta.json", json.dumps({**meta, "vocabulary": reverse}).encode()),
        ("meta.json", b"{}"), ("train.bin", whole["train.bin"][:10]), ("test.bin", whole["test.bin"][::-1]),
        ("test.bin", None),
    ]:  # fmt: skip
        damaged = cached(tmp_path) / name
        damaged.unlink() if content is None else damaged.write_bytes(content)
        assert decoded(opened()) == good, (name, content)
        before = identity(cached(tmp_path))  # and there is nothing beside it
        assert decoded(opened()) == good and identity(cached(tmp_path)) == before
    # What a process has left that was killed before the last rename is cleared away.
    whole_one = cached(tmp_path)
    whole_one.rename(whole_one.with_name(f".{whole_one.name}.0123abcd.tmp"))
    assert decoded(opened()) == good and cached(tmp_path) == whole_one
    make(tmp_path, {"file": "in the way"})
    with pytest.raises(InputError, match=r"file.*data\.cache_dir="):
        opened(cache="file")


def test_a_bad_or_short_text_is_one_line(tmp_path, opened):
    every = "".join(chr(point) for point in range(32, 70_000) if not 0xD800 <= point <= 0xDFFF)
    for whole, settings, said in [
        ("\ufeff", {}, "(?=.*is empty).*0 characters"), ("", {"tokenizer": "byte"}, "is empty"),
        ("aaaa" * 100, {}, "only one distinct character.*'a'"), (b"abc\xff", {}, "byte 3"),
        (every, {}, r"distinct characters.*data\.tokenizer=byte"),
        ("abcdefgh", {"context": 8}, r"train holds 7 characters.*at least 9 for model\.context=8"),
        ("ab" * 500, {"context": 50}, r"(?=.*at least 51)(?=.*context=50).*validation holds 50 characters"),
        ("ab" * 50, {"split": [0.89, 0.1, 0.01]}, r"test holds 1 characters.*at least 2"),
        ("é" * 500 + "a", {"context": 60, "tokenizer": "byte"}, "validation holds 50 bytes"),
    ]:  # fmt: skip
        make(tmp_path, {"text": whole})
        for _ in range(2):  # and again when it is in the cache
            message = refusal(InputError, opened, **settings)
            assert re.match("text(, line 1)?: ", message) and re.search(said, message), message
        if "context" not in settings and "split" not in settings:
            assert [path.name for path in (tmp_path / "cache").rglob("*")] in (
                [],
                ["encoded", ".lock"],
            )
    # Splits of their own.
    make(tmp_path, {"a.txt": lines(50), "b.txt": "ab", "c.txt": " \n\n"})
    for settings, said in [
        ({"test": "a.txt"}, r"data\.test=a\.txt: needs data\.validation="),
        ({"validation": "a.txt", "split": [0.8, 0.1, 0.1]}, r"data\.split=\[0\.8,0\.1,0\.1\]: cannot be combined with"),
        ({"validation": "none.txt"}, r"data\.validation=none\.txt: no such file"),
        ({"validation": "a.txt", "test": "[a.txt,]"}, r"data\.test=.*an empty name"),
        ({"validation": "b.txt"}, r"^b\.txt: validation holds 2 characters but needs at least 5.*name a longer text$"),
        ({"validation": "c.txt", "documents": "line"}, r"a\.txt \(validation\): has 0 documents.*at least one is"),
    ]:  # fmt: skip
        assert re.search(said, refusal(InputError, opened, "a.txt", **settings)), said


def test_a_text_may_be_just_long_enough(tmp_path, opened):
    make(tmp_path, {"text": "abcde " * 17})
    context = int(
        re.search(r"set model\.context=(\d+) or ", refusal(InputError, opened, context=31))[1]
    )
    opened(context=context)
    refusal(InputError, opened, context=context + 1)
    make(tmp_path, {"text": "ab" * 500})  # just long enough
    assert len(opened(context=49).validation) == 50
    assert len(opened(split=[0.9, 0.1, 0.0]).test) == 0
    assert len(opened(split=[0.9, 0.098, 0.002]).test) == 2


@pytest.mark.parametrize(
    ("owner", "name", "settings"),
    [(data.text, "scan", {}), (data.hash_order, "_check_distinct", {"documents": "line"})],
)
def test_a_text_that_changes_while_it_is_read_is_refused(
    tmp_path, opened, monkeypatch, owner, name, settings
):
    make(tmp_path, {"text": lines(50)})
    os.utime(tmp_path / "text", (0, 0))  # clocks of file systems may tick every few milliseconds
    monkeypatch.setattr(owner, name, getattr(owner, name))  # put back afterwards
    faults.after(owner, name, lambda *_: make(tmp_path, {"text": lines(50, seed=1)}))
    with pytest.raises(InputError, match="changed while it was being read"):
        opened(**settings)
    assert os.listdir(tmp_path / "cache/encoded") == [".lock"]


def cut_and_read(config):
    text = open_text(config, 8)
    for file in Path(config.cache_dir).glob("encoded/*/*.bin"):
        os.truncate(file, 0)
    assert text.train[:8].tolist() == text.train[-8:].tolist() == list(range(8))


def test_a_small_text_survives_that_its_encoded_file_is_cut(tmp_path):
    """Reading a mapped file beyond its end kills the process (SIGBUS), so a small one is not mapped."""
    make(tmp_path, {"text": "abcdefgh" * 5000})
    process = fork(
        cut_and_read, DataConfig(path=str(tmp_path / "text"), cache_dir=str(tmp_path / "cache"))
    )
    process.join(60)
    assert process.exitcode == 0


def lines(number, seed=0, letters="abcd"):
    rng = random.Random(seed)
    return "".join(
        "".join(rng.choices(letters, k=6)) + f"{seed}{place}\n" for place in range(number)
    )


def test_each_split_is_exactly_its_files(tmp_path, opened):
    texts = {"train.txt": lines(50), "v a,l.txt": lines(9, 1, "xyz")}
    texts |= {"t/1.txt": lines(3, 2), "t/2.txt": lines(3, 3, "é")}
    make(tmp_path, texts)
    own = {"validation": "v a,l.txt", "test": "t/*.txt"}
    text = opened("train.txt", **own)
    wanted = {"train": texts["train.txt"], "validation": texts["v a,l.txt"]}
    wanted["test"] = f"{texts['t/1.txt']}\n{texts['t/2.txt']}"
    assert decoded(text) == wanted and dict(text.characters) == {
        split: len(each) for split, each in wanted.items()
    }
    assert text.tokenizer.characters == "".join(sorted(set("".join(wanted.values()))))
    other = opened("train.txt", validation="[t/1.txt,t/2.txt]")
    assert decoded(other) == {**wanted, "validation": wanted["test"], "test": ""}
    bytes_ = opened("train.txt", **own, tokenizer="byte")
    assert [getattr(bytes_, split).tobytes().decode() for split in SPLITS] == list(wanted.values())
    assert (
        len(
            {
                text.fingerprint,
                other.fingerprint,
                bytes_.fingerprint,
                opened("train.txt").fingerprint,
            }
        )
        == 4
    )
    documents = opened("train.txt", **own, documents="line")
    for split, whole in wanted.items():
        assert sorted(decoded(documents)[split].split()) == sorted(whole.split())
        assert documents.documents.counts[split] == len(whole.split())
    make(tmp_path, {"one.txt": "one document\n"})
    alone = opened("train.txt", validation="one.txt", documents="line")
    assert (
        decoded(alone)["validation"] == "one document\n"
        and alone.documents.counts["validation"] == 1
    )


def test_held_out_documents_that_stand_in_training_are_counted(tmp_path, opened, monkeypatch):
    monkeypatch.setattr("data.hash_order.BLOCK", 16)
    train, validation, test = (lines(30, seed).split() for seed in (1, 2, 3))
    files = {
        "train": train + train[:3],
        "valid": [*validation, *train[:4], train[0]],
        "test": [*test, train[9]],
    }
    make(tmp_path, {f"{name}.txt": "\n".join(documents) for name, documents in files.items()})
    documents = opened(
        "train.txt", validation="valid.txt", test="test.txt", documents="line"
    ).documents
    assert documents.copied == 6 and documents.repeated == 4
    said = "; 6 of those for validation and test are also in training: they are not held out"
    assert describe_documents(documents).endswith(said)
    assert not opened("train.txt", documents="line").documents.copied


def test_a_text_that_is_too_short_names_the_files_that_were_left_out(tmp_path, opened):
    make(tmp_path / "text", {"sample.txt": "one line\n", "a.md": "# a" * 99, "b.md": "# b" * 99})
    said = refusal(InputError, opened)
    left = "1 *.txt file read, 2 other files left out: 2 .md; to read all: 'data.path=text/**/*'"
    assert said.startswith("text: validation holds ") and said.endswith(
        f"; name a longer text; {left}"
    ), said
    assert opened("text/**/*").notes
