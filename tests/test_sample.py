import gzip
import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock

import numpy as np
import pytest

import sample as sample_script
from data.config import DataConfig
from data.text import open_text
from gpt.checkpoint import load_checkpoint
from gpt.inference.continuation import Continuation
from gpt.tokenizer import CharTokenizer, tokenizer_from
from sample import Sample, unescaped
from tests.base.test_progress import Terminal
from tests.conftest import ROOT, Call, Ended, less_progress, one_line
from tests.model_files import filled, write_model_file
from tests.reference import model as reference
from tests.reference import sampling
from tests.reference.ngrams import longest_copy

COMMAND = [sys.executable, str(ROOT / "sample.py")]


RULES = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.7},
    "top-k": {"temperature": 1.5, "top_k": 5},
    "top-p": {"temperature": 1.5, "top_p": 0.6},
    "min-p": {"temperature": 1.5, "min_p": 0.3},
    "all": {"temperature": 2.0, "top_k": 9, "top_p": 0.8, "min_p": 0.2},
}


def refused(ended: Ended, *words: str) -> None:
    one_line(ended, 2, *words, program="sample.py")


def sampled(sample: Call, rules: dict[str, float]) -> str:
    options = [f"--{key.replace('_', '-')}={value}" for key, value in rules.items()]
    ended = sample("--prompt", "Abc de", "--num-chars", "36", "--seed", "5", *options)
    assert ended.status == 0, ended
    return ended.out


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_text_is_that_of_a_naive_loop(
    trained: Path, sample: Call, rules: dict[str, float]
) -> None:
    model, meta = load_checkpoint(trained)
    tokenizer = tokenizer_from(meta["vocabulary"])
    tokens = tokenizer.encode("Abc de").tolist()
    numbers = np.random.default_rng([5, zlib.crc32(np.array(tokens, "<i8").tobytes())]).random(36)
    for number in numbers:
        logits = reference.gpt(model.state_dict(), model.config, np.array([tokens]), window=32)[
            0, -1
        ]
        chances = sampling.probabilities(logits.tolist(), **rules)
        tokens.append(int(np.searchsorted(chances.cumsum(), number, side="right")))
    assert sampled(sample, rules) == tokenizer.decode(np.array(tokens)) + "\n"


def test_each_rule_has_an_effect(trained: Path, sample: Call) -> None:
    texts = {sampled(sample, rules) for rules in RULES.values()}
    assert len(texts) == len(RULES)


def test_the_seed_that_is_printed_repeats_the_text(trained: Path, sample: Call) -> None:
    first = sample("--num-chars", "50")
    seed = re.search(r"--seed (\d+)", first.err)
    assert seed
    assert sample("--num-chars", "50", "--seed", seed[1]).out == first.out
    assert sample("--num-chars", "50", "--seed", str(int(seed[1]) + 1)).out != first.out


def test_what_may_stand_for_a_model(trained: Path, sample: Call) -> None:
    settings = ["--num-chars", "40", "--seed", "1"]
    folder = str(trained.parent)
    checkpoint = f"{folder}/last.ckpt"
    every = ([], ["first"], ["runs/first"], [folder], [str(trained)], [checkpoint])
    texts = {sample(*given, *settings).out for given in every}
    trained.rename("mine.safetensors")  # the file alone is enough
    for gone in ("runs", "cache"):
        shutil.rmtree(gone)
    assert texts == {sample("mine.safetensors", *settings).out}
    refused(sample(), "python train.py")


@pytest.mark.parametrize("model", ["first", "runs/first/checkpoints/last.ckpt"])
def test_a_run_without_its_last_model_can_be_sampled(
    trained: Path, sample: Call, model: str
) -> None:
    trained.with_name("last.safetensors").unlink()
    assert sample(model).status == 0


def test_the_newest_run_is_sampled(trained: Path, sample: Call, train: Call) -> None:
    train("name=second", "trainer.max_steps=1")
    assert "runs/second/checkpoints/best.safetensors" in sample("--num-chars", "1").err


def test_as_a_command_it_starts_quickly(trained: Path) -> None:
    code = "import sys, sample; status = sample.cli(['--num-chars', '3']); print(status, sorted("
    code += "{'torch', 'lightning', 'hydra', 'omegaconf', 'tensorboard', 'aiohttp'} & set(sys.modules)))"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert ended.stdout.endswith("0 []\n"), ended.stdout + ended.stderr


def test_a_reader_that_leaves_early_is_no_error(trained: Path) -> None:
    command = (
        f"echo The | '{sys.executable}' '{ROOT / 'sample.py'}' --num-chars 300000 | head -c 10"
    )
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True
    )
    assert ended.returncode == 0
    assert len(ended.stdout) == 10
    assert "--prompt-file - uses it" in ended.stderr
    assert "Traceback" not in ended.stderr and "BrokenPipe" not in ended.stderr


def test_where_a_prompt_comes_from(
    trained: Path, sample: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("p.txt").write_bytes(b"The of\r\n")
    settings = ["--num-chars", "20", "--seed", "3"]
    expected = sample("--prompt", "The of\n", *settings).out
    assert sample("--prompt-file", "p.txt", *settings).out == expected
    Path("p.txt.gz").write_bytes(gzip.compress(b"The of\r\n"))
    assert sample("--prompt-file", "p.txt.gz", *settings).out == expected
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfThe of\n")))
    assert sample("--prompt-file", "-", *settings).out == expected


@pytest.mark.parametrize(
    ("name", "words"),
    [("empty.txt", "empty"), ("bytes.txt", "UTF-8"), ("none.txt", "No such file")],
)
def test_a_file_without_a_prompt_is_refused(
    trained: Path, sample: Call, name: str, words: str
) -> None:
    Path("empty.txt").touch()
    Path("bytes.txt").write_bytes(b"\xff\xfe")
    refused(sample("--prompt-file", name), f"--prompt-file {name}: ", words)


@pytest.mark.parametrize(
    ("choice", "begin", "changes"),
    [
        (
            "replace",
            "ne fi",
            "'日' dropped (2 times), 'é' replaced by 'e' (1 time), 'ﬁ' replaced by 'fi' (1 time)",
        ),
        ("skip", "n ", "'日' dropped (2 times), 'é' dropped (1 time), 'ﬁ' dropped (1 time)"),
    ],
)
def test_characters_of_a_prompt_that_the_model_does_not_know(
    trained: Path, sample: Call, choice: str, begin: str, changes: str
) -> None:
    settings = ["--num-chars", "1", "--unknown", choice]
    ended = sample(*settings, "--prompt", "né ﬁ日日")
    assert ended.out.startswith(begin)
    assert ended.err.startswith(f"--unknown {choice}: {changes}\n")
    assert "--unknown" not in sample(*settings, "--prompt", "ne").err


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (["né"], ["'é' (U+00E9)", "position 1", "nearest: 'e'", "--unknown skip"]),
        (["日", "--unknown", "skip"], ["--prompt: ", "empty"]),
        ([""], ["--prompt: ", "empty"]),
    ],
    ids=["unknown", "only unknown ones", "empty"],
)
def test_a_prompt_that_cannot_be_used_is_refused(
    trained: Path, sample: Call, prompt: list[str], words: list[str]
) -> None:
    ended = sample("--prompt", *prompt)
    assert ended.status == 2
    error = ended.err.splitlines()[-1]
    assert [word for word in words if word not in error] == []


def test_json_lines_hold_the_texts(trained: Path, sample: Call) -> None:
    each_text = ["--num-chars", "20", "--seed"]
    settings = [*each_text, "3", "--num-samples", "9", "--prompt", "The ", "--prompt", "An"]
    lines = [json.loads(line) for line in sample(*settings, "--json").out.splitlines()]
    texts = re.split(r"^--- \d+\n", sample(*settings).out, flags=re.MULTILINE)[1:]
    assert [line["prompt"] + line["text"] + "\n" for line in lines] == texts
    assert [(line["prompt"], line["seed"]) for line in lines] == [
        (p, 3 + i) for p in ("The ", "An") for i in range(9)
    ]
    alone = [
        sample(*each_text, str(line["seed"]), "--prompt", line["prompt"]).out
        for line in lines[::4]
    ]
    assert alone == texts[::4], "each text is the one that is written alone"


def test_a_stop_ends_a_text_before_it(trained: Path, sample: Call) -> None:
    settings = ["--num-chars", "800", "--seed", "2", "--prompt", "The"]
    whole = sample(*settings).out[3:-1]
    word = whole[40:43]
    before_word = sample(*settings, "--stop", word.replace("\n", r"\n"), "--stop", "\0never")
    assert before_word.out == "The" + whole[: whole.find(word)] + "\n"
    before_line = sample(*settings, "--stop", r"\n", "--stop", "\0never")
    assert before_line.out == "The" + whole[: whole.find("\n")] + "\n"
    assert sample(*settings, "--stop", "\0").out == "The" + whole + "\n"


def test_the_stop_that_ended_a_text_can_be_kept(trained: Path, sample: Call) -> None:
    settings = ["--num-chars", "800", "--seed", "2", "--prompt", "The"]
    whole = sample(*settings).out[3:-1]
    end = whole[40:43]
    kept = [*settings, "--stop", end.replace("\n", r"\n"), "--keep-stop"]
    assert sample(*kept).out == f"The{whole[: whole.find(end) + 3]}\n"
    (line,) = sample(*kept, "--json").out.splitlines()
    assert json.loads(line)["text"].endswith(end)
    refused(sample("--keep-stop"), "--keep-stop: needs --stop")


@pytest.mark.parametrize(
    ("escaped", "text"),
    [(r"\n\t", "\n\t"), (r"\\n", r"\n"), (r"a\b\\", "a\\b\\"), ("\n", "\n"), ("\\", "\\")],
)
def test_escapes_of_a_stop(escaped: str, text: str) -> None:
    assert unescaped(escaped) == text


@pytest.mark.parametrize("stops", [["ab"], ["aab", "c"], ["aba"], ["b", "aa"]])
@pytest.mark.parametrize("prompt", ["", "a", "ba", "aa", "aba", "caab"])
def test_every_text_is_cut_where_its_first_stop_is_complete(stops: list[str], prompt: str) -> None:
    """A stop may begin in the prompt, but ends in the text."""
    tokenizer = CharTokenizer("abc")
    for text in map("".join, itertools.product("abc", repeat=6)):
        growing, shown = Continuation(tokenizer, stops, prompt), ""
        keeping = Continuation(tokenizer, stops, prompt, kept_stops=stops)
        for character in text:
            growing.add(int(tokenizer.encode(character)[0]))
            assert growing.text[: len(shown)] == shown
            shown = "".join(growing.pieces)
            keeping.add(int(tokenizer.encode(character)[0]))
            if growing.stopped_by:
                break
        growing.close()
        keeping.close()
        # The stop that is complete first ends the text, before the first beginning of those that
        # end there.
        whole, earliest = prompt + text, len(prompt) + 1
        found = {stop: whole.find(stop, max(0, earliest - len(stop))) for stop in stops}
        ends = {stop: begin + len(stop) for stop, begin in found.items() if begin >= 0}
        begins = [end - len(stop) for stop, end in ends.items() if end == min(ends.values())]
        cut = whole[len(prompt) : max(len(prompt), min(begins))] if begins else text
        assert growing.text == cut and growing.text.startswith(shown)
        assert keeping.text == whole[len(prompt) : min(ends.values(), default=len(whole))]
        assert growing.stop_in_prompt == max(0, len(prompt) - min(begins, default=len(whole)))


@pytest.mark.parametrize(
    ("kind", "end", "tokens"),
    [("line", "\n", "char"), ("paragraph", "\n\n", "byte"), ("part", "\x03", "char")],
)
def test_documents(
    kind: str,
    end: str,
    tokens: str,
    workplace: Path,
    sample: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vocabulary = (
        {"kind": "byte"} if tokens == "byte" else {"kind": "char", "characters": "\x03\nabcdefghi"}
    )
    tokenizer, given = tokenizer_from(vocabulary), list[str]()
    # the last one is longer than --num-chars
    written = ["abc", "d\ne" if kind != "line" else "de", "ihgfedcba"]

    def scripted(
        _: object, prompts: list[np.ndarray], count: int, params: object, seeds: list[int]
    ) -> Any:
        given.extend(map(tokenizer.decode, prompts))
        rows = [tokenizer.encode(written[seed] + end + "fg" + end + "hi") for seed in seeds]
        for k in range(count):
            yield np.array([row[min(k, len(row) - 1)] for row in rows])

    monkeypatch.setattr("sample.stream", scripted)
    documents = {"kind": kind, "end": end, "name": ""}
    write_model_file(
        "m.safetensors", filled(vocabulary=tokenizer.size), vocabulary, documents=documents
    )
    settings = ["m.safetensors", "--seed", "0", "--num-chars", "8", "--num-samples", "3"]
    texts = [*written[:2], "ihgfedcb"]
    ended = sample(*settings)
    assert given == [end] * 3
    assert ended.out == "".join(
        ("" if kind == "line" else f"--- {n}\n") + f"{t}\n" for n, t in enumerate(texts, 1)
    )
    assert "\n1 of 3 texts reached --num-chars 8 before the end" in ended.err
    found = [json.loads(line) for line in sample(*settings, "--json").out.splitlines()]
    assert [each["text"] for each in found] == texts and [each["ended"] for each in found] == [
        True,
        True,
        False,
    ]
    given.clear()
    assert (
        sample(*settings[:3], "--prompt", f"hi{end}b").out
        == f"hi{end if end != chr(3) else chr(10) * 2}babc\n"
    )
    assert given == [f"{end}hi{end}b"]
    both = json.loads(sample(*settings[:3], "--json", "--stop", "c", "--no-stop").out)
    assert both["text"] == "ab" and not both["ended"]


def test_an_end_mark_may_begin_in_the_prompt(
    workplace: Path, sample: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary = {"kind": "char", "characters": "\nabc"}
    tokenizer = tokenizer_from(vocabulary)

    def scripted(_: object, prompts: list[np.ndarray], *__: object) -> Any:
        for token in tokenizer.encode("\nc\nb"):
            yield np.full(len(prompts), token)

    monkeypatch.setattr("sample.stream", scripted)
    documents = {"kind": "paragraph", "end": "\n\n", "name": ""}
    write_model_file("m.st", filled(vocabulary=4), vocabulary, documents=documents)
    expected = {  # by arguments: the text, and whether an end mark is in it
        ("--prompt", "a\n"): ("", True),
        ("--prompt", "a\n", "--no-stop"): ("\nc\nb", True),
        ("--prompt", "a"): ("\nc\nb", False),
        ("--prompt", "ab", "--stop", r"b\nc"): ("", False),
        (): ("\nc\nb", False),  # the end mark before a text is no part of another one
    }
    for arguments, (text, ended) in expected.items():
        (line,) = sample("m.st", "--json", *arguments).out.splitlines()
        found = json.loads(line)
        assert (found["text"], found["ended"]) == (text, ended), arguments
    whole = Continuation(tokenizer, ["\n\n"], "b\n\na\n")
    whole.add(0)
    assert Sample("b\n\na\n", 0, whole).document("\n\n") == "a"


def test_how_many_documents_are_new(train: Call, sample: Call) -> None:
    names = ["".join(pair) for pair in itertools.permutations("abcdefgh", 3)]
    Path("names.txt").write_text("".join(f"{name}\n" for name in [*names, " "]), encoding="utf-8")
    ended = train("name=a", "data.path=names.txt", "data.documents=line", "watch.sample_length=60")
    assert ended.status == 0
    text = open_text(DataConfig(path="names.txt", documents="line"), 32)
    trained = text.tokenizer.decode(text.train).split("\n")[:-1]
    ended = sample(
        "a", *"--novelty --num-samples 40 --seed 1 --json --num-chars 3 --temperature 3".split()
    )
    lines = [json.loads(line) for line in ended.out.splitlines()]
    complete = [bool(line["ended"] and line["text"].strip()) for line in lines]
    assert 0 < sum(complete) < 40
    expected = [
        line["text"] not in trained if whole else None
        for line, whole in zip(lines, complete, strict=True)
    ]
    assert [line["new"] for line in lines] == expected
    new = expected.count(True)
    assert ended.err.splitlines()[-1] == f"{new} of {sum(complete)} complete lines are new"


@pytest.mark.parametrize(
    ("settings", "written", "said"),
    [
        ("--num-samples 4", ["bb", "hhhh"], "2 of 12 lines tried are new"),
        ("--num-samples 1", ["bb"], "1 of 2 lines tried are new"),
        ("--num-samples 3", ["bb", "hhhh", "bbbbbb"], "3 of 5 lines tried are new"),
        (
            "--num-samples 3 --num-chars 3",
            ["bb"],
            "1 of 9 lines tried are new, 6 reached --num-chars 3 before the end",
        ),
        ("--prompt d --prompt d", ["dKNOWN", "dbb"], "2 of 3 lines tried are new"),
    ],
)
def test_only_new_documents(
    train: Call,
    sample: Call,
    monkeypatch: pytest.MonkeyPatch,
    settings: str,
    written: list[str],
    said: str,
) -> None:
    names = ["".join(triple) for triple in itertools.permutations("abcdefgh", 3)]
    Path("names.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    assert (
        train("name=a", "data.path=names.txt", "data.documents=line", "trainer.max_steps=1").status
        == 0
    )
    text = open_text(DataConfig(path="names.txt", documents="line"), 32)
    known = text.tokenizer.decode(text.train).split("\n")[0]

    def scripted(_: object, prompts: object, count: int, params: object, seeds: list[int]) -> Any:
        kinds = [[known, "b" * (seed + 1), "", "hhhh"][seed % 4] for seed in seeds]
        rows = [text.tokenizer.encode(f"{kind}\n".ljust(count, "a")) for kind in kinds]
        yield from np.array([row[:count] for row in rows]).T

    monkeypatch.setattr("sample.stream", scripted)
    ended = sample("a", "--new", "--seed", "0", *settings.split())
    assert ended.out.split() == [document.replace("KNOWN", known) for document in written]
    assert ended.err.splitlines()[1:] == [said]
    lines = sample(
        "a", "--new", "--seed", "0", "--json", "--novelty", *settings.split()
    ).out.splitlines()
    assert [(line["prompt"] + line["text"], line["new"]) for line in map(json.loads, lines)] == [
        (document.replace("KNOWN", known), True) for document in written
    ]
    stopped = sample("a", "--new", "--seed", "3", "--stop", "hhhh").err
    assert stopped.endswith("1 of 3 lines tried are new, 1 ended at --stop before the end\n")
    monkeypatch.setattr("data.novelty.MAX_SEARCHED", 100)
    refused(sample("a", "--new"), "--new: ", "more than 100")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("lines.safetensors --new --no-stop", ("--new: ", "--no-stop")),
        ("lines.safetensors --new --interactive", ("--interactive: ", "--new")),
        ("lines.safetensors --new", ("--new: lines.safetensors", "run directory")),
        ("text.safetensors --new", ("--new: text.safetensors", "data.documents", "data.field")),
    ],
)
def test_new_documents_need_a_run_that_was_trained_on_documents(
    workplace: Path, sample: Call, arguments: str, words: tuple[str, ...]
) -> None:
    vocabulary = {"kind": "char", "characters": "\nabc"}
    documents = {"kind": "line", "end": "\n", "name": ""}
    write_model_file("lines.safetensors", filled(vocabulary=4), vocabulary, documents=documents)
    write_model_file("text.safetensors", filled(vocabulary=4), vocabulary)
    refused(sample(*arguments.split()), *words)


PROMPT_FILES = {  # a kind of documents, a file, its content, and the prompts
    "line": ("p.txt", b"\xef\xbb\xbfab\r\n\r\n  \r\nc d\r\n", ["ab", "c d"]),
    "paragraph": ("p.txt", b"ab\ncd\n\n\nd\n", ["ab\ncd", "d"]),
    "file": ("p.txt", b"ab\n\nc\n", ["ab\n\nc\n"]),
    "part": ("p.txt", b"ab\nc%\n%\nd\n%", ["ab\nc", "d"]),
    "row": ("p.csv", b'a,%\n1,"b\nd"\n2,\n3,c\n', ["b\nd", "c"]),
    "row in a text": ("p.txt", b"ab\nc\n", ["ab\nc\n"]),
    "": ("p.txt", b"ab\n\nc\n", ["ab\n\nc\n"]),
}


@pytest.mark.parametrize("kind", PROMPT_FILES)
@pytest.mark.parametrize(
    "vocabulary",
    [{"kind": "char", "characters": "\x03\n abcd"}, {"kind": "byte"}],
    ids=["char", "byte"],
)
def test_a_file_of_prompts_is_divided_as_the_text_was(
    workplace: Path, sample: Call, kind: str, vocabulary: dict[str, str]
) -> None:
    name, content, prompts = PROMPT_FILES[kind]
    end = {"line": "\n", "paragraph": "\n\n"}.get(kind, "\x03")
    documents = {"kind": kind.split()[0], "end": end, "name": "%"} if kind else None
    write_model_file(
        "m.st", filled(vocabulary=tokenizer_from(vocabulary).size), vocabulary, documents=documents
    )
    Path(name).write_bytes(content)
    ended = sample("m.st", "--prompt-file", name, "--num-chars", "3", "--json")
    assert [json.loads(line)["prompt"] for line in ended.out.splitlines()] == prompts
    if kind == "line":
        Path(name).write_bytes(b" \n\n")
        refused(sample("m.st", "--prompt-file", name), f"--prompt-file {name}: ")


def test_an_unknown_character_in_one_of_many_prompts(trained: Path, sample: Call) -> None:
    ended = sample("--prompt", "The", "--prompt", "n\né")
    refused(ended, "'n é'", "'é' (U+00E9)", "position 2")
    ended = sample("--prompt", "Té", "--prompt", "né", "--num-chars", "1", "--unknown", "replace")
    assert ended.err.startswith("--unknown replace: 'é' replaced by 'e' (2 times)\n")


def test_what_many_texts_copy_is_one_summary(trained: Path, sample: Call) -> None:
    text = open_text(DataConfig(path="book.txt"), 32)
    book = text.tokenizer.decode(text.train)
    ended = sample(
        "--num-samples", "22", "--num-chars", "30", "--seed", "1", "--novelty", "--json"
    )
    lines = [json.loads(line) for line in ended.out.splitlines()]
    lengths = [longest_copy(line["text"], book) for line in lines]
    assert [line["longest_copy"] for line in lines] == lengths and "new" not in lines[0]
    *_, median, longest = ended.err.splitlines()
    assert len(ended.err.splitlines()) == 3
    assert (
        median
        == f"longest copy: median {np.median(lengths):g} characters, and the longest of all:"
    )
    number = 1 + lengths.index(max(lengths))
    assert longest.startswith(f'{number}: longest copy: {max(lengths)} of 30 characters, "')


def test_what_is_copied(trained: Path, sample: Call) -> None:
    text = open_text(DataConfig(path="book.txt"), 32)
    book = text.tokenizer.decode(text.train)
    ended = sample("--num-samples", "3", "--num-chars", "60", "--seed", "1", "--novelty", "--json")
    texts = [json.loads(line)["text"] for line in ended.out.splitlines()]
    assert [line.partition(', "')[0] for line in ended.err.splitlines()[1:]] == [
        f"{number}: longest copy: {longest_copy(text, book)} of 60 characters"
        for number, text in enumerate(texts, 1)
    ]


def test_texts_that_were_compared_are_written_before_the_others(
    trained: Path, sample: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare = Mock(wraps=sample_script.longest_copies, side_effect=[DEFAULT, KeyboardInterrupt])
    monkeypatch.setattr(sample_script, "longest_copies", compare)
    ended = sample("--num-chars", "9", "--num-samples", "80", "--novelty", "--json")
    assert ended.status == 130
    assert 0 < len(ended.out.splitlines()) < 80


def test_copies_of_a_long_text_are_not_searched(
    trained: Path, sample: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data.novelty.MAX_SEARCHED", 100)
    ended = sample("--num-chars", "5", "--novelty")
    assert ended.status == 0
    assert "skipped, because the training text has more than 100" in ended.err


def test_copies_of_a_model_without_its_run_are_refused(trained: Path, sample: Call) -> None:
    shutil.copy(trained, "mine.safetensors")
    refused(sample("mine.safetensors", "--novelty"), "--novelty: mine.safetensors")


WRITING = ["--num-chars", "30", "--seed", "2", "--prompt", "The"]


def test_output_to_a_file(trained: Path, sample: Call) -> None:
    expected = sample(*WRITING).out
    ended = sample(*WRITING, "--output", "out.txt")
    assert (ended.status, ended.out) == (0, "")
    assert Path("out.txt").read_text("utf-8") == expected


def test_output_that_fails_keeps_the_old_file(trained: Path, sample: Call) -> None:
    Path("out.txt").write_text("old")
    before = set(os.listdir())
    refused(sample("--prompt", "é", "--output", "out.txt", "--overwrite"), "'é'")
    assert Path("out.txt").read_text() == "old"
    assert set(os.listdir()) == before


@pytest.mark.parametrize("name", ["runs/first/checkpoints/best.safetensors", "book.txt"])
def test_output_replaces_no_input(trained: Path, sample: Call, name: str) -> None:
    Path("book.txt").write_text("The", encoding="utf-8")
    ended = sample("--prompt-file", "book.txt", "--output", name)
    refused(ended, f"--output {name}: ", "input")


def test_output_replaces_a_file_only_if_told_to_and_follows_a_link(
    trained: Path, sample: Call
) -> None:
    Path("out.txt").write_text("old")
    Path("link.txt").symlink_to("out.txt")
    into_link = [*WRITING, "--output", "link.txt"]
    refused(sample(*into_link), "--output link.txt: already exists")
    assert Path("out.txt").read_text() == "old"
    assert sample(*into_link, "--overwrite").status == 0
    assert Path("link.txt").is_symlink()
    assert Path("out.txt").read_text("utf-8") == sample(*WRITING).out


def interrupt(threads: str, *options: str) -> None:
    command = [*COMMAND, "--num-chars", "100000000", *options]
    environment = os.environ | {"OMP_NUM_THREADS": threads}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr and any(map(less_progress, process.stderr)), "it has begun"
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert less_progress(process.stderr.read()) == ""
    assert not list(Path().glob(".*.tmp"))


@pytest.mark.slow
def test_ctrl_c_leaves_what_was_written(trained: Path) -> None:
    interrupt("1", "--output", "out.txt")
    assert len(Path("out.txt").read_text("utf-8")) > 100


@pytest.mark.slow
def test_ctrl_c_ends_many_texts_at_once(trained: Path) -> None:
    interrupt("2", "--num-samples", "40")


def test_a_conversation(trained: Path, sample: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ["--interactive", "--num-chars", "10", "--seed", "4", "--temperature", "0"]
    monkeypatch.setattr("sys.stdin", io.StringIO("The\n日\n\n  The\n"))
    ended = sample(*settings)
    assert ended.status == 0, ended.err
    assert len(re.findall(r"The(.{10})\n\[seed 4\]", ended.out, re.DOTALL)) == 2
    assert re.search("^(> )*  The", ended.out, re.MULTILINE), (
        "with the white space that it begins with"
    )
    assert (
        ended.out.count("is not in the vocabulary") == 1
        and "; --unknown skip drops it" in ended.out
    )
    monkeypatch.setattr("sys.stdin", io.StringIO("日The\n日\n"))
    assert sample(*settings, "--unknown", "skip").out.count("[seed 4]") == 1


def test_a_prompt_that_is_not_text_ends_no_conversation(
    trained: Path, sample: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"\xff\nThe\n"), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", stdin)
    ended = sample("--interactive", "--num-chars", "10", "--seed", "4")
    assert ended.status == 0, ended
    assert "(U+FFFD)" in ended.out and "[seed 4]" in ended.out


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_a_conversation_in_a_terminal(trained: Path) -> None:
    terminal = Terminal(*COMMAND[1:], "--interactive", "--num-chars", "100000000", "--seed", "1")
    try:
        written = r"The of[^>]*The of[^>]{40}"
        for typed, shown in (
            # up
            (b"", "> "), (b"The of\n", written), (signal.SIGINT, "> "), (b"\x1b[A\n", written),
            (signal.SIGINT, "> "), (b"half a line", "half a line"), (signal.SIGINT, "> "),
        ):  # fmt: skip
            if isinstance(typed, bytes):
                os.write(terminal.ours, typed)
            else:
                # until it waits for more again: a signal in between is noticed with the next key
                time.sleep(0.5)
                terminal.process.send_signal(typed)
            terminal.until(shown)
        os.write(terminal.ours, b"\x04")
        assert terminal.process.wait(60) == 0
    finally:
        terminal.close()
