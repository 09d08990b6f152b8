"""Texts whose splits are files of their own."""

import random
import re

import numpy as np

from base.errors import InputError
from data.splits import SPLITS
from reports.log_lines import describe_documents
from tests.conftest import refusal
from tests.data.test_text import decoded
from tests.stores import make


def lines(number, seed=0, letters="abcd"):
    rng = random.Random(seed)
    return "".join("".join(rng.choices(letters, k=6)) + f"{seed}{place}\n" for place in range(number))


def test_each_split_is_exactly_its_files(tmp_path, opened):
    texts = {"train.txt": lines(50), "v a,l.txt": lines(9, 1, "xyz")}
    texts |= {"t/1.txt": lines(3, 2), "t/2.txt": lines(3, 3, "é")}
    make(tmp_path, texts)
    own = {"validation": "v a,l.txt", "test": "t/*.txt"}
    text = opened("train.txt", **own)
    wanted = {"train": texts["train.txt"], "validation": texts["v a,l.txt"]}
    wanted["test"] = f"{texts['t/1.txt']}\n{texts['t/2.txt']}"
    assert decoded(text) == wanted and dict(text.characters) == {split: len(each) for split, each in wanted.items()}
    assert text.tokenizer.characters == "".join(sorted(set("".join(wanted.values()))))
    other = opened("train.txt", validation="[t/1.txt,t/2.txt]")
    assert decoded(other) == {**wanted, "validation": wanted["test"], "test": ""}
    bytes_ = opened("train.txt", **own, tokenizer="byte")
    assert [getattr(bytes_, split).tobytes().decode() for split in SPLITS] == list(wanted.values())
    assert len({text.fingerprint, other.fingerprint, bytes_.fingerprint, opened("train.txt").fingerprint}) == 4
    documents = opened("train.txt", **own, documents="line")
    for split, whole in wanted.items():
        assert sorted(decoded(documents)[split].split()) == sorted(whole.split())
        assert documents.documents.counts[split] == len(whole.split())
    make(tmp_path, {"one.txt": "one document\n"})
    alone = opened("train.txt", validation="one.txt", documents="line")
    assert decoded(alone)["validation"] == "one document\n" and alone.documents.counts["validation"] == 1


def test_held_out_documents_that_stand_in_training_are_counted(tmp_path, opened, monkeypatch):
    monkeypatch.setattr("data.hash_order.BUCKET", 16)
    train, validation, test = (lines(30, seed).split() for seed in (1, 2, 3))
    files = {"train": train + train[:3], "valid": [*validation, *train[:4], train[0]], "test": [*test, train[9]]}
    make(tmp_path, {f"{name}.txt": "\n".join(documents) for name, documents in files.items()})
    documents = opened("train.txt", validation="valid.txt", test="test.txt", documents="line").documents
    assert documents.copied == 6 and documents.repeated == 4
    said = "; 6 of those for validation and test are also in training: they are not held out"
    assert describe_documents(documents).endswith(said)
    assert not opened("train.txt", documents="line").documents.copied


def test_own_splits_that_cannot_be_are_one_line(tmp_path, opened):
    make(tmp_path, {"a.txt": lines(50), "b.txt": "ab", "c.txt": " \n\n"})
    for settings, said in [
        ({"test": "a.txt"}, r"data\.test=a\.txt: needs data\.validation="),
        ({"validation": "a.txt", "split": [0.8, 0.1, 0.1]}, r"data\.split=\[0\.8,0\.1,0\.1\]: .*leave data\.split out"),
        ({"validation": "none.txt"}, r"data\.validation=none\.txt: no such file"),
        ({"validation": "a.txt", "test": "[a.txt,]"}, r"data\.test=.*an empty name"),
        ({"validation": "b.txt"}, r"^b\.txt: validation holds 2 characters but needs at least 5.*name a longer text$"),
        ({"validation": "c.txt", "documents": "line"}, r"a\.txt \(validation\): has 0 documents.*at least one is"),
    ]:  # fmt: skip
        assert re.search(said, refusal(InputError, opened, "a.txt", **settings)), said


def test_overfit_reaches_the_whole_text_and_a_poem_is_told_of_it(tmp_path, opened):
    poem = lines(40)
    make(tmp_path, {"text": poem})
    size = len(poem)
    message = refusal(InputError, opened, context=100)
    assert f"data.overfit={size}" in message
    text = opened(context=100, overfit=size)
    assert decoded(text) == dict.fromkeys(SPLITS, poem) and np.array_equal(text.train, text.test)
    assert decoded(opened(overfit=size - 9))["validation"] == poem[:-9]
