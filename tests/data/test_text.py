import hashlib
import os
import random
import re

import numpy as np
import pytest

import data.encode
from base.errors import InputError
from conf.keys import CONF
from data.find import split_fragment
from data.read import CHUNK
from data.split import SPLITS, split_by_file, split_by_position
from gpt.tokenizer import ByteTokenizer
from reports.log_lines import describe_documents
from tests.conf.test_defaults import compose
from tests.conftest import refusal
from tests.faults import faults
from tests.folders import make

SHARES = [0.9, 0.05, 0.05]


def decoded(text):
    return {split: text.tokenizer.decode(getattr(text, split)) for split in SPLITS}


def random_text(length, alphabet="abc \n", seed=0):
    return "".join(random.Random(seed).choices(alphabet, k=length))


WIDE = "".join(map(chr, range(40, 800)))


CUT = {
    "few characters": ("a語\U0001f600\n", [0.5, 0.25, 0.25], np.uint8),
    "256 characters": (WIDE[:256], SHARES, np.uint8),
    "many characters and no test": (WIDE, [0.3, 0.7, 0.0], np.uint16),
}


@pytest.mark.parametrize(("alphabet", "shares", "dtype"), CUT.values(), ids=CUT)
def test_one_file_is_cut_at_its_shares(tmp_path, opened, alphabet, shares, dtype):
    whole = random_text(3 * CHUNK // 2 + 11, alphabet)
    make(tmp_path, {"text": whole})
    text = opened(split=shares)
    # of the whole, sorted
    number = {character: place for place, character in enumerate(sorted(set(whole)))}
    begin = int(len(whole) * shares[0])
    end = int(len(whole) * (shares[0] + shares[1]))
    parts = [whole[:begin], whole[begin:end], whole[end:]]
    for split, part in zip(SPLITS, parts, strict=True):
        tokens = getattr(text, split)
        assert tokens.tolist() == [number[character] for character in part]
        assert tokens.dtype == dtype
        assert text.characters[split] == len(part)
    assert text.tokenizer.vocabulary == {"kind": "char", "characters": "".join(number)}
    assert text.name == "text"
    assert not text.train.flags.writeable


def test_bytes_are_kept_and_their_characters_counted(tmp_path, opened):
    whole = "\ufeff" + random_text(2000, "aé語\r\n")
    make(tmp_path, {"text": whole})
    text = opened(tokenizer="byte", split=[0.5, 0.25, 0.25])
    assert isinstance(text.tokenizer, ByteTokenizer)
    parts = [getattr(text, split).tobytes() for split in SPLITS]
    assert b"".join(parts) == whole.encode()
    assert len(parts[0]) == len(whole.encode()) // 2
    assert sum(text.characters.values()) == len(whole)
    # A character belongs to the split that its first byte lies in.
    begins = np.cumsum([0] + [len(character.encode()) for character in whole])[:-1]
    assert text.characters["train"] == np.count_nonzero(begins < len(parts[0]))


def test_a_list_is_the_files_in_it(tmp_path, opened):
    make(tmp_path, {"a.txt": "abc " * 90, "d/b, c.txt": "bcd " * 90, "z.txt": "never"})
    together = opened("[d/b? c.txt, a.txt,a.txt]")
    assert together.characters == {"train": 649, "validation": 37, "test": 37}
    assert opened("[a.txt,d/*.txt]").fingerprint == together.fingerprint
    assert opened("[a.txt]").fingerprint == opened("a.txt").fingerprint
    make(tmp_path, {"[a.txt,z.txt]": "a file " * 90})
    assert "f" in opened("[a.txt,z.txt]").tokenizer.characters  # a name that exists is that file


def lines(number, seed=0, letters="abcd"):
    rng = random.Random(seed)
    return "".join(
        "".join(rng.choices(letters, k=6)) + f"{seed}{place}\n" for place in range(number)
    )


HALVES = [0.5, 0.25, 0.25]
MANY = {f"{n:02}.txt": random_text(48 + 4 * n, "abc", n) for n in range(40)}
FEWER = ["", *list(MANY.values())[2:]]
CUT_AT = [(0, 2), (2, 3), (3, 4)]  # quarters of each
PLACED = split_by_file({name: len(part) for name, part in MANY.items()}, HALVES, {})
OWN = {"validation": "v a,l.txt", "test": "t/*.txt"}
OWN_FILES = {
    "text": lines(50), "v a,l.txt": lines(9, 1, "xyz"), "t/1.txt": lines(3, 2), "t/2.txt": lines(3, 3, "é"),
}  # fmt: skip
OWN_TEST = f"{OWN_FILES['t/1.txt']}\n{OWN_FILES['t/2.txt']}"
SPLIT_TEXTS = {  # files, settings, and the text of each split
    "many files, each in one split": (
        {f"text/{name}": part for name, part in MANY.items()}, {"split": HALVES},
        ["\n".join(part for name, part in MANY.items() if PLACED[name] == split) for split in SPLITS],
    ),
    "few files, each cut": (
        {f"text/{number:02}.txt": part for number, part in enumerate(FEWER)}, {"split": HALVES},
        ["\n".join(part[len(part) * begin // 4 : len(part) * end // 4] for part in FEWER[1:])
         for begin, end in CUT_AT],
    ),
    "files of its own": (OWN_FILES, OWN, [OWN_FILES["text"], OWN_FILES["v a,l.txt"], OWN_TEST]),
    "no test": (OWN_FILES, {"validation": "[t/1.txt,t/2.txt]"}, [OWN_FILES["text"], OWN_TEST, ""]),
}  # fmt: skip


@pytest.mark.parametrize("tokenizer", ["char", "byte"])
@pytest.mark.parametrize(("files", "settings", "parts"), SPLIT_TEXTS.values(), ids=SPLIT_TEXTS)
def test_each_split_is_its_parts_of_the_files(tmp_path, opened, files, settings, parts, tokenizer):
    """Joined by a line break of ours."""
    make(tmp_path, files)
    text = opened(tokenizer=tokenizer, **settings)
    assert decoded(text) == dict(zip(SPLITS, parts, strict=True))
    assert [text.characters[split] for split in SPLITS] == list(map(len, parts))


@pytest.mark.parametrize("shares", [SHARES, [0.5, 0.3, 0.2], [0.9, 0.1, 0.0]], ids=str)
def test_files_fill_validation_then_test_in_the_order_of_a_hash(shares):
    rng = random.Random(0)
    sizes = {f"ordner/größe {place}.txt": rng.randint(0, 2000) for place in range(200)}
    placed = split_by_file(sizes, shares, {})
    for split, share in zip(SPLITS, shares, strict=True):
        filled = sum(size for name, size in sizes.items() if placed[name] == split)
        assert abs(filled - share * sum(sizes.values())) < 1000 * (2 if split == "train" else 1)
    order = sorted(sizes, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    assert placed[next(name for name in order if sizes[name])] == "validation"
    assert placed == split_by_file(dict(sorted(sizes.items(), reverse=True)), shares, {})
    assert split_by_file(sizes | {"giant": 10**6}, shares, {})["giant"] == "train"


WIKIPEDIA = [90_000_000, 95_000_000, 100_000_000]
PRESETS = {  # how the text is read, its hash, and where its splits end
    # as nanoGPT cuts it
    "shakespeare": (
        "char", "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed", [1_003_854, 1_115_394, 1_115_394],
    ),
    "enwik8": ("byte", "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc", WIKIPEDIA),
    "text8": ("char", "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232", WIKIPEDIA),
    "stdlib": ("char", "", [90, 95, 100]),
}  # fmt: skip


def test_the_presets_are_the_texts_and_splits_of_the_benchmarks():
    assert set(PRESETS) == {file.stem for file in CONF.glob("data/*.yaml")}
    for preset, expected in PRESETS.items():
        config = compose([f"data={preset}"]).data
        digest = split_fragment(config.path)[2] if config.path else ""
        *_, length = expected[2]
        ends = [end for *_, end in split_by_position(length, config.split)]
        assert (config.tokenizer, digest, ends) == expected, preset
        assert not (config.documents or config.field or config.validation)


@pytest.mark.parametrize("known", ["abc", "xyz\n", "aé語\U0001f600"])
def test_characters_that_a_model_knows_join_the_vocabulary(tmp_path, opened, known):
    whole = random_text(1000, "bc \n")
    make(tmp_path, {"text": whole})
    for _ in range(2):  # encoded, then from the cache
        plain = opened()
        with_known = opened(extra=known)
    assert plain.tokenizer.characters == "\n bc"
    assert plain.extra_chars == ""
    assert with_known.tokenizer.characters == "".join(sorted({*"\n bc", *known}))
    assert with_known.extra_chars == known
    assert plain.fingerprint != with_known.fingerprint
    assert "".join(decoded(plain).values()) == "".join(decoded(with_known).values()) == whole


def cached(tmp_path):
    """The one directory of encoded text in the cache, beside the lock."""
    (folder,) = (
        path for path in (tmp_path / "cache" / "encoded").iterdir() if path.name != ".lock"
    )
    return folder


@pytest.mark.parametrize("documents", [None, "line"])
@pytest.mark.parametrize(
    "files",
    [
        {"text": random_text(900)},
        {"text/a": random_text(900), "text/b": random_text(900, seed=1), "text/c": bytes(999)},
    ],
    ids=["a file", "a folder"],
)
def test_a_later_start_reads_the_cache_and_not_the_text(
    tmp_path, opened, monkeypatch, files, documents
):
    make(tmp_path, files)
    first = opened(documents=documents)
    monkeypatch.setattr("data.read.SourceFile.open", None)
    again = opened(context=8, documents=documents)
    assert (again.fingerprint, again.notes) == (first.fingerprint, first.notes)
    assert again.documents == first.documents
    assert decoded(again) == decoded(first)


PLAIN = {"a": "1" * 50, "b": "2" * 60}
FOLDERS = {
    "plain": PLAIN, "same": PLAIN, "content": PLAIN | {"a": "0" * 50},
    "border": {"a": "1" * 50 + "2", "b": "2" * 59}, "name": {"aa": "1" * 50, "b": "2" * 60},
}  # fmt: skip


def test_what_changes_the_arrays_changes_the_fingerprint(tmp_path, opened):
    """The content and the names of all files, but not where they lie, nor the name of a single one."""
    whole = "".join(f"{number}\n%\n" for number in range(40))
    make(tmp_path, {"text": whole, "valid": "1\n2\n", "test": "3\n", "elsewhere/renamed": whole})
    for folder, files in FOLDERS.items():
        make(tmp_path / folder, files)
    settings = [
        {}, {"split": [0.6, 0.2, 0.2]}, {"tokenizer": "byte"}, {"encoding": "latin-1"}, {"documents": "line"},
        {"documents": "\n"}, {"documents": "\n", "split": [0.6, 0.2, 0.2]}, {"documents": "\n%\n"},
        {"validation": "valid"}, {"validation": "valid", "test": "test"},
        {"validation": "valid", "test": "test", "tokenizer": "byte"},
        *[{"path": folder} for folder in FOLDERS.keys() - {"same"}],
    ]  # fmt: skip
    fingerprints = {opened(context=1, **each).fingerprint for each in settings}
    assert len(fingerprints) == len(settings)
    assert {
        opened(path, context=1).fingerprint for path in ("elsewhere/renamed", "same")
    } <= fingerprints
    assert len({opened(folder, context=1).sha256 for folder in FOLDERS}) == 4


def test_a_text_that_has_changed_or_a_cache_that_has_lost_a_file_is_read_again(tmp_path, opened):
    make(tmp_path, {"text": random_text(1000)})
    first = opened()
    (cached(tmp_path) / "test.bin").unlink()
    assert decoded(opened()) == decoded(first)
    make(tmp_path, {"text": random_text(996) + "abba"})
    os.utime(tmp_path / "text", (0, 0))
    changed = opened()
    assert decoded(changed)["test"].endswith("abba")
    assert changed.fingerprint != first.fingerprint
    cached(tmp_path)  # nothing is left of the earlier state


EVERY = "".join(chr(point) for point in range(32, 70_000) if not 0xD800 <= point <= 0xDFFF)


REFUSED = {  # files, settings, and of the refusal
    "only a mark": ({"text": "\ufeff"}, {}, "text: holds 0 distinct characters"),
    "one character": ({"text": "aaaa" * 100}, {}, "text: holds 1 distinct character: there is nothing to learn"),
    "all characters": ({"text": EVERY}, {}, r"text: .*distinct characters.*data\.tokenizer=byte"),
    "a cache in the way": ({"text": "abab" * 90, "file": ""}, {"cache": "file"}, r".*file.*data\.cache_dir="),
    "short train": ({"text": "abcdefgh"}, {"context": 8}, "text: train holds 7 characters.*at least 9 .*context=8"),
    "short validation": (
        {"text": "ab" * 500}, {"context": 50}, "text: validation holds 50 characters.*at least 51 .*context=50",
    ),
    "short test": (
        {"text": "ab" * 50}, {"split": [0.89, 0.1, 0.01]}, "text: test holds 1 characters.*at least 2",
    ),
    "files that were left out": (
        {"text/sample.txt": "one line\n", "text/a.md": "# a" * 99}, {},
        "text: validation holds .*name a longer text.* 1 .md; to read all: 'data.path=text/\\*\\*/\\*'$",
    ),
    "test alone": ({"text": "abc"}, {"test": "a.txt"}, r"data\.test=a\.txt: needs data\.validation="),
    "an empty name of a test": (
        {"text": "abc"}, {"validation": "text", "test": "[text,]"}, "data.test=: no such file or directory",
    ),
    "a short validation of its own": (
        {"text": "abab" * 90, "b.txt": "ab"}, {"validation": "b.txt"},
        "text: validation holds 2 characters.*at least 5",
    ),
    "a blank validation": (
        {"text": "a\nb\n", "c.txt": " \n\n"}, {"validation": "c.txt", "documents": "line"},
        r"text \(validation\): has 0 documents",
    ),
    "few documents": (
        {"text": "abc\nabc\nde\n"}, {"documents": "line"}, "text: has 3 documents, 2 different .*at least 3",
    ),
    "few parts": ({"text": "a\nb\n"}, {"documents": "\n%\n"}, r"text: has 1 document, .*data.documents=\\n%\\n; "),
    "few files": (
        {"text": "abc\n"}, {"documents": "file"}, "text: .*; leave data.documents out.*data.validation=NAME$",
    ),
    "an unknown kind": ({"text": "a\nb\n"}, {"documents": "lines"}, "text: .*data.documents=lines; .*nearest: line$"),
    "no separator": ({}, {"documents": ""}, "data.documents=: must not be empty"),
    "a field without a path": ({}, {"field": "a", "path": None}, "data.field=a: needs data.path="),
    "a field and documents": ({}, {"field": "a", "documents": "file"}, "data.field=a: "),
    "an end mark": (
        {"text": "ab\x03" * 9 + "c" * 999 + "%"}, {"documents": "%"},
        r"text: contains U\+0003, .*set neither data.documents nor data.field$",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_text_that_cannot_be_used_is_one_line_and_only_a_short_one_is_kept(
    tmp_path, opened, name
):
    files, settings, said = REFUSED[name]
    make(tmp_path, files)
    message = refusal(InputError, opened, **settings)
    assert re.match(said, message)
    assert refusal(InputError, opened, **settings) == message, "also from the cache"
    left = [path.name for path in (tmp_path / "cache").rglob("*")]
    assert left in ([], ["encoded", ".lock"]) or "holds" in message


def test_the_context_that_a_short_text_is_offered_is_its_longest(tmp_path, opened):
    make(tmp_path, {"text": "abcde " * 17})
    message = refusal(InputError, opened, context=31)
    context = int(re.search(r"model\.context=(\d+) or ", message)[1])
    opened(context=context)
    refusal(InputError, opened, context=context + 1)


def test_a_text_may_be_just_long_enough(tmp_path, opened):
    make(tmp_path, {"text": "ab" * 500})
    assert len(opened(split=[0.9, 0.1, 0.0]).test) == 0
    assert len(opened(split=[0.9, 0.098, 0.002]).test) == 2


@pytest.mark.parametrize(
    ("owner", "name", "settings"),
    [(data.encode, "split_files", {}), (data.encode, "_shuffle", {"documents": "line"})],
    ids=["text", "documents"],
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


def test_held_out_documents_that_stand_in_training_are_counted(tmp_path, opened):
    train, validation = (lines(30, seed).split() for seed in (1, 2))
    files = {
        "train": train + train[:3],
        "valid": [*validation, *train[:4], train[0]],
        "test": [train[9]],
    }
    make(tmp_path, {f"{name}.txt": "\n".join(documents) for name, documents in files.items()})
    text = opened("train.txt", validation="valid.txt", test="test.txt", documents="line")
    expected = [sorted(documents) for documents in files.values()]
    assert [sorted(part.split()) for part in decoded(text).values()] == expected
    documents = text.documents
    assert [documents.counts[split] for split in SPLITS] == [33, 35, 1]
    assert documents.copied == 6 and documents.repeated == 4
    said = "; 6 of those for validation and test are also in training: they are not held out"
    assert describe_documents(documents).endswith(said)
    assert not opened("train.txt", documents="line").documents.copied
