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
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.config import DataConfig
from data.text import open_text
from gpt.checkpoint import load_checkpoint
from gpt.inference.continuation import Continuation
from gpt.inference.generate import random_numbers
from gpt.tokenizer import CharTokenizer, tokenizer_from
from sample import unescaped
from tests.base.test_progress import Terminal
from tests.conftest import ROOT, Call, less_progress, one_line
from tests.model_files import filled, write_model_file
from tests.reference import model as reference
from tests.reference import sampling
from tests.reference.ngrams import longest_copy

COMMAND = [sys.executable, str(ROOT / "sample.py")]


RULES = [
    {"temperature": 0.0}, {"temperature": 0.7}, {"temperature": 1.5, "top_k": 5}, {"temperature": 1.5, "top_p": 0.6},
    {"temperature": 1.5, "min_p": 0.3},
    {"temperature": 2.0, "top_k": 9, "top_p": 0.8, "min_p": 0.2},
]  # fmt: skip


def test_text_is_that_of_a_naive_loop(trained: Path, sample: Call) -> None:
    model, meta = load_checkpoint(trained)
    tokenizer = tokenizer_from(meta["vocabulary"])
    texts = set()
    for rules in RULES:
        tokens = tokenizer.encode("Abc de").tolist()
        numbers = random_numbers(5, np.array(tokens)).random(36)
        for number in numbers:
            logits = reference.gpt(
                model.state_dict(), model.config, np.array([tokens]), window=32
            )[0, -1]
            chances = sampling.probabilities(logits.tolist(), **rules)
            tokens.append(int(np.searchsorted(chances.cumsum(), number, side="right")))
        options = [f"--{key.replace('_', '-')}={value}" for key, value in rules.items()]
        ended = sample("--prompt", "Abc de", "--num-chars", "36", "--seed", "5", *options)
        assert ended.status == 0 and ended.out == tokenizer.decode(np.array(tokens)) + "\n", rules
        texts.add(ended.out)
    assert len(texts) == len(RULES), "each rule has an effect"


def test_seeds_and_what_may_stand_for_a_model(trained: Path, sample: Call, train: Call) -> None:
    first = sample("--num-chars", "50")
    seed = re.search(r"--seed (\d+)", first.err)
    assert seed
    assert sample("--num-chars", "50", "--seed", seed[1]).out == first.out
    assert sample("--num-chars", "50", "--seed", str(int(seed[1]) + 1)).out != first.out
    folder, settings = trained.parent, ["--num-chars", "40", "--seed", "1"]
    checkpoint = str(folder / "last.ckpt")
    every = ([], ["first"], ["runs/first"], [str(folder)], [str(trained)], [checkpoint])
    texts = {sample(*given, *settings).out for given in every}
    (folder / "last.safetensors").unlink()
    assert sample("first").status == sample(checkpoint).status == 0
    train("name=second", "trainer.max_steps=1")
    assert "runs/second/checkpoints/best.safetensors" in sample("--num-chars", "1").err
    trained.rename("mine.safetensors")  # the file alone is enough
    for gone in ("runs", "cache"):
        shutil.rmtree(gone)
    assert texts == {sample("mine.safetensors", *settings).out}
    one_line(sample(), 2, "python train.py", program="sample.py")


def test_as_a_command_it_starts_quickly_and_a_reader_that_leaves_early_is_no_error(
    trained: Path,
) -> None:
    code = "import sys, sample; status = sample.cli(['--num-chars', '3']); print(status, sorted("
    code += "{'torch', 'lightning', 'hydra', 'omegaconf', 'tensorboard', 'aiohttp'} & set(sys.modules)))"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert ended.stdout.endswith("0 []\n"), ended.stdout + ended.stderr
    command = (
        f"echo The | '{sys.executable}' '{ROOT / 'sample.py'}' --num-chars 300000 | head -c 10"
    )
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True
    )
    assert (
        ended.returncode == 0
        and len(ended.stdout) == 10
        and "--prompt-file - uses it" in ended.stderr
    )
    assert "Traceback" not in ended.stderr and "BrokenPipe" not in ended.stderr


def test_where_a_prompt_comes_from(
    trained: Path, sample: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("p.txt").write_bytes(b"The of\r\n")
    settings = ["--num-chars", "20", "--seed", "3"]
    expected = sample("--prompt", "The of\n", *settings).out
    assert sample("--prompt-file", "p.txt", *settings).out == expected
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfThe of\n")))
    assert sample("--prompt-file", "-", *settings).out == expected
    for content, said in (
        (b"", "is empty"),
        (b"\xff\xfe", "is not UTF-8"),
        (None, "No such file"),
    ):
        Path("p.txt").unlink() if content is None else Path("p.txt").write_bytes(content)
        one_line(
            sample("--prompt-file", "p.txt"), 2, "--prompt-file p.txt: ", said, program="sample.py"
        )


def test_characters_of_a_prompt_that_the_model_does_not_know(trained: Path, sample: Call) -> None:
    for choice, begin, said in (
        (
            "replace",
            "ne fi",
            "'日' dropped (2 times), 'é' replaced by 'e' (1 time), 'ﬁ' replaced by 'fi' (1 time)",
        ),
        ("skip", "n ", "'日' dropped (2 times), 'é' dropped (1 time), 'ﬁ' dropped (1 time)"),
    ):
        ended = sample("--num-chars", "1", "--prompt", "né ﬁ日日", "--unknown", choice)
        assert ended.out.startswith(begin) and ended.err.startswith(
            f"--unknown {choice}: {said}\n"
        )
        assert (
            "--unknown"
            not in sample("--num-chars", "1", "--prompt", "ne", "--unknown", choice).err
        )
    for given, said in {
        ("né",): "'é' (U+00E9) at position 1 is not in the vocabulary of this model; nearest: 'e'; --unknown skip",
        ("日", "--unknown", "skip"): "--prompt: a prompt is empty", ("",): "--prompt: a prompt is empty",
    }.items():  # fmt: skip
        assert said in (ended := sample("--prompt", *given)).err and ended.status == 2


def test_json_lines_hold_the_texts(trained: Path, sample: Call) -> None:
    settings = [
        "--num-samples",
        "9",
        "--num-chars",
        "20",
        "--seed",
        "3",
        "--prompt",
        "The ",
        "--prompt",
        "An",
    ]
    lines = [json.loads(line) for line in sample(*settings, "--json").out.splitlines()]
    texts = re.split(r"^--- \d+\n", sample(*settings).out, flags=re.MULTILINE)[1:]
    assert [line["prompt"] + line["text"] + "\n" for line in lines] == texts
    assert [(line["prompt"], line["seed"]) for line in lines] == [
        (p, 3 + i) for p in ("The ", "An") for i in range(9)
    ]
    for line in lines[::4]:  # each text is the one that is written alone
        alone = sample(
            "--num-chars", "20", "--seed", str(line["seed"]), "--prompt", line["prompt"]
        ).out
        assert alone == line["prompt"] + line["text"] + "\n"


def test_a_stop_ends_a_text_before_it(trained: Path, sample: Call) -> None:
    settings = ["--num-chars", "800", "--seed", "2", "--prompt", "The"]
    whole = sample(*settings).out[3:-1]
    for stop in (whole[40:43], "\n"):
        ended = sample(*settings, "--stop", stop.replace("\n", r"\n"), "--stop", "\0never")
        assert ended.out == "The" + whole[: whole.find(stop)] + "\n"
    assert sample(*settings, "--stop", "\0").out == "The" + whole + "\n"
    for typed, meant in (
        (r"\n\t", "\n\t"),
        (r"\\n", r"\n"),
        (r"a\b\\", "a\\b\\"),
        ("\n", "\n"),
        ("\\", "\\"),
    ):
        assert unescaped(typed) == meant


@pytest.mark.parametrize("stops", [["ab"], ["aab", "c"], ["aba"]])
def test_every_text_is_cut_where_its_first_stop_is_complete(stops: list[str]) -> None:
    tokenizer = CharTokenizer("abc")
    for text in map("".join, itertools.product("abc", repeat=6)):
        growing, shown = Continuation(tokenizer, stops), ""
        for character in text:
            growing.add(int(tokenizer.encode(character)[0]))
            assert growing.text[: len(shown)] == shown
            shown = "".join(growing.pieces)
            if growing.ended:
                break
        growing.close()
        # The stop that is complete first ends the text, before the first beginning of those that
        # end there.
        ends = {stop: text.find(stop) + len(stop) for stop in stops if stop in text}
        begins = [end - len(stop) for stop, end in ends.items() if end == min(ends.values())]
        cut = text[: min(begins)] if begins else text
        assert growing.text == cut and growing.text.startswith(shown)


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


def test_how_many_documents_are_new(train: Call, sample: Call) -> None:
    names = ["".join(pair) for pair in itertools.permutations("abcdefgh", 3)]
    Path("names.txt").write_text("".join(f"{name}\n" for name in [*names, " "]), encoding="utf-8")
    assert (
        train(
            "name=a", "data.path=names.txt", "data.documents=line", "watch.sample_length=60"
        ).status
        == 0
    )
    text = open_text(DataConfig(path="names.txt", documents="line"), 32)
    trained = text.tokenizer.decode(text.train).split("\n")[:-1]
    ended = sample(
        "a", *"--novelty --num-samples 40 --seed 1 --json --num-chars 3 --temperature 3".split()
    )
    lines = [json.loads(line) for line in ended.out.splitlines()]
    # not cut short
    whole = [line["text"] for line in lines if line["ended"] and line["text"].strip()]
    assert 0 < len(whole) < 40
    new = sum(name not in trained for name in whole)
    for line in lines:
        is_whole = line["ended"] and line["text"].strip()
        assert line["new"] == (line["text"] not in trained if is_whole else None)
    assert ended.err.splitlines()[-1] == f"{new} of {len(whole)} complete lines are new"


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
    monkeypatch.setattr("data.novelty.MAX_SEARCHED", 100)
    one_line(
        sample("a", "--new"), 2, "--new: the training text has more than 100", program="sample.py"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("lines.safetensors --new --no-stop", "--new: cannot be combined with --no-stop"),
        ("lines.safetensors --new --interactive", "--interactive: cannot be combined with --new"),
        ("lines.safetensors --new", "--new: lines.safetensors is not in a run directory"),
        (
            "text.safetensors --new",
            "--new: text.safetensors was not trained on documents (data.documents, data.field)",
        ),
    ],
)
def test_new_documents_need_a_run_that_was_trained_on_documents(
    workplace: Path, sample: Call, arguments: str, said: str
) -> None:
    vocabulary = {"kind": "char", "characters": "\nabc"}
    documents = {"kind": "line", "end": "\n", "name": ""}
    write_model_file("lines.safetensors", filled(vocabulary=4), vocabulary, documents=documents)
    write_model_file("text.safetensors", filled(vocabulary=4), vocabulary)
    one_line(sample(*arguments.split()), 2, said, program="sample.py")


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
        one_line(
            sample("m.st", "--prompt-file", name),
            2,
            f"--prompt-file {name}: has only",
            program="sample.py",
        )


def test_an_unknown_character_in_one_of_many_prompts(trained: Path, sample: Call) -> None:
    ended = sample("--prompt", "The", "--prompt", "n\né")
    one_line(
        ended,
        2,
        "prompt 'n é': character 'é' (U+00E9) at position 2 is not in",
        program="sample.py",
    )
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


def test_what_is_copied(trained: Path, sample: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    text = open_text(DataConfig(path="book.txt"), 32)
    book = text.tokenizer.decode(text.train)
    ended = sample("--num-samples", "3", "--num-chars", "60", "--seed", "1", "--novelty", "--json")
    _, *said = ended.err.splitlines()
    for number, line in enumerate(map(json.loads, ended.out.splitlines())):
        length = longest_copy(line["text"], book)
        assert said[number].startswith(f'{number + 1}: longest copy: {length} of 60 characters, "')
    monkeypatch.setattr("data.novelty.MAX_SEARCHED", 100)
    assert (
        "skipped, because the training text has more than 100"
        in sample("--num-chars", "5", "--novelty").err
    )
    shutil.copy(trained, "mine.safetensors")
    one_line(
        sample("mine.safetensors", "--novelty"),
        2,
        "--novelty: mine.safetensors",
        program="sample.py",
    )


def test_output_to_a_file(trained: Path, sample: Call) -> None:
    settings = ["--num-chars", "30", "--seed", "2", "--prompt", "The"]
    expected = sample(*settings).out
    ended = sample(*settings, "--output", "out.txt")
    assert ended.status == 0 and ended.out == "" and Path("out.txt").read_text("utf-8") == expected
    before = set(os.listdir())
    assert sample(*settings, "--prompt", "é", "--output", "out.txt").status == 2
    assert Path("out.txt").read_text("utf-8") == expected and set(os.listdir()) == before
    Path("book.txt").write_text("The", encoding="utf-8")
    for read in (str(trained), "book.txt"):
        ended = sample("--prompt-file", "book.txt", "--output", read)
        one_line(ended, 2, f"--output {read}: is also an input", program="sample.py")
    Path("link.txt").symlink_to("out.txt")
    one_line(
        sample(*settings, "--output", "link.txt"),
        2,
        "--output link.txt: already exists",
        program="sample.py",
    )
    assert Path("out.txt").read_text("utf-8") == expected
    assert sample(*settings, "--num-chars", "9", "--output", "link.txt", "--overwrite").status == 0
    assert (
        Path("link.txt").is_symlink()
        and Path("out.txt").read_text("utf-8") == expected[:12] + "\n"
    )


@pytest.mark.slow
def test_ctrl_c_leaves_what_was_written_and_ends_many_texts_at_once(trained: Path) -> None:
    for threads, given in (("1", ["--output", "out.txt"]), ("2", ["--num-samples", "40"])):
        command = [*COMMAND, "--num-chars", "100000000", *given]
        environment = os.environ | {"OMP_NUM_THREADS": threads}
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=environment
        ) as process:
            assert process.stderr and any(map(less_progress, process.stderr)), "it has begun"
            time.sleep(1)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130 and less_progress(process.stderr.read()) == ""
    assert len(Path("out.txt").read_text("utf-8")) > 100 and not list(Path().glob(".*.tmp"))


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
