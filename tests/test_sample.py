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
from unittest.mock import DEFAULT, Mock

import numpy as np
import pytest

from data.config import DataConfig
from data.novelty import longest_copies
from data.text import open_text
from gpt.checkpoint import load_checkpoint
from gpt.inference.continuation import Continuation
from gpt.tokenizer import ByteTokenizer, CharTokenizer, tokenizer_from
from tests.base.test_progress import Terminal
from tests.conftest import ROOT, less_progress, one_line
from tests.reference import model as reference
from tests.reference import sampling
from tests.reference.ngrams import longest_copy
from tests.test_score import divided, write

COMMAND = [sys.executable, str(ROOT / "sample.py")]


RULES = [
    "temperature=0.0", "temperature=0.7", "temperature=1.5 top_k=5", "temperature=1.5 top_p=0.6",
    "temperature=1.5 min_p=0.3", "temperature=2.0 top_k=9 top_p=0.8 min_p=0.2",
]  # fmt: skip


def refused(ended, *words):
    one_line(ended, 2, *words, program="sample.py")


def test_text_is_that_of_a_naive_loop_and_each_rule_has_an_effect(trained, sample):
    model, meta = load_checkpoint(trained)
    tokenizer = tokenizer_from(meta["vocabulary"])
    prompt = tokenizer.encode("Abc de").tolist()
    numbers = np.random.default_rng([5, zlib.crc32(np.array(prompt, "<i8").tobytes())]).random(36)
    written = set()
    for rules in RULES:
        options = [f"--{rule.replace('_', '-')}" for rule in rules.split()]
        ended = sample("--prompt", "Abc de", "--num-chars", "36", "--seed", "5", *options)
        pairs = (rule.split("=") for rule in rules.split())
        params = {key: json.loads(value) for key, value in pairs}
        tokens = [*prompt]
        for number in numbers:
            given = np.array([tokens])
            logits = reference.gpt(model.state_dict(), model.config, given, window=32)[0, -1]
            chances = sampling.probabilities(logits.tolist(), **params)
            tokens.append(int(np.searchsorted(chances.cumsum(), number, side="right")))
        assert ended.out == tokenizer.decode(np.array(tokens)) + "\n"
        written.add(ended.out)
    assert len(written) == len(RULES)


def test_the_seed_that_is_printed_repeats_the_text(trained, sample):
    first = sample("--num-chars", "50")
    (seed,) = re.findall(r"--seed (\d+)", first.err)
    assert sample("--num-chars", "50", "--seed", seed).out == first.out
    assert sample("--num-chars", "50", "--seed", str(int(seed) + 1)).out != first.out


def test_what_may_stand_for_a_model(trained, sample, train):
    settings = ["--num-chars", "40", "--seed", "1"]
    folder = str(trained.parent)
    checkpoint = f"{folder}/last.ckpt"
    trained.with_name("last.safetensors").unlink()  # which nobody asks for
    every = ([], ["first"], ["runs/first"], [folder], [str(trained)], [checkpoint])
    texts = {sample(*given, *settings).out for given in every}
    train("name=second", "trainer.max_steps=1")
    assert "runs/second/checkpoints/best.safetensors" in sample(*settings).err, "the newest"
    trained.rename("mine.safetensors")  # the file alone is enough
    for gone in ("runs", "cache"):
        shutil.rmtree(gone)
    assert texts == {sample("mine.safetensors", *settings).out}
    refused(sample(), "python train.py")


def test_as_a_command_it_starts_quickly(trained):
    code = """import sys, sample
status = sample.cli(["--num-chars", "3"])
slow = {"torch", "lightning", "hydra", "omegaconf", "tensorboard", "aiohttp"}
print(status, slow & set(sys.modules))"""
    own = {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    out = subprocess.check_output(command, text=True, env=os.environ | own)
    assert out.endswith("0 set()\n")


def test_a_reader_that_leaves_early_is_no_error(trained):
    pipe = f"echo The | '{COMMAND[0]}' '{COMMAND[1]}' --num-chars 300000 | head -c 10"
    command = ["bash", "-o", "pipefail", "-c", pipe]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0
    assert len(ended.stdout) == 10
    assert "--prompt-file - uses it" in ended.stderr
    assert "Traceback" not in ended.stderr and "BrokenPipe" not in ended.stderr


def test_where_a_prompt_comes_from(trained, sample, monkeypatch):
    Path("p.txt").write_bytes(b"The of\r\n")
    Path("p.txt.gz").write_bytes(gzip.compress(b"The of\r\n"))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfThe of\n")))
    settings = ["--num-chars", "20", "--seed", "3"]
    expected = sample("--prompt", "The of\n", *settings).out
    for file in ("p.txt", "p.txt.gz", "-"):
        assert sample("--prompt-file", file, *settings).out == expected


UNKNOWN = {
    "replace": ("ne fi", "'日' dropped (2 times), 'é' replaced by 'e' (1 time), 'ﬁ' replaced by 'fi' (1 time)"),
    "skip": ("n ", "'日' dropped (2 times), 'é' dropped (1 time), 'ﬁ' dropped (1 time)"),
}  # fmt: skip


@pytest.mark.parametrize("choice", UNKNOWN)
def test_characters_of_prompts_that_the_model_does_not_know(trained, sample, choice):
    begin, changes = UNKNOWN[choice]
    settings = ["--num-chars", "1", "--unknown", choice, "--prompt"]
    ended = sample(*settings, "né ﬁ日", "--prompt", "n日")
    assert f"1\n{begin}" in ended.out
    assert ended.err.startswith(f"--unknown {choice}: {changes}\n")
    assert "--unknown" not in sample(*settings, "ne").err
    assert "--prompt: a prompt is empty" in sample(*settings, "日").err


def scripted(monkeypatch, tokenizer, text_of):
    """Let every model write the text of a seed, and return the prompts that it is given."""
    given = []

    def stream(_, prompts, count, params, seeds):
        given.extend(map(tokenizer.decode, prompts))
        rows = [tokenizer.encode(text_of(seed).ljust(count, "a")[:count]) for seed in seeds]
        yield from np.array(rows).T

    monkeypatch.setattr("reports.sampling.stream", stream)
    return given


def texts_of(ended):
    assert ended.status == 0, ended
    return [json.loads(line) for line in ended.out.splitlines()]


def test_json_lines_hold_the_texts(trained, sample):
    settings = ["--num-chars", "20", "--seed", "3", "--num-samples", "9"]
    settings += ["--prompt", "The ", "--prompt", "An"]
    lines = texts_of(sample(*settings, "--json"))
    texts = re.split(r"^--- \d+\n", sample(*settings).out, flags=re.MULTILINE)[1:]
    assert [line["prompt"] + line["text"] + "\n" for line in lines] == texts
    rows = [(line["prompt"], line["seed"]) for line in lines]
    assert rows == [*itertools.product(("The ", "An"), range(3, 12))]
    alone = sample("--num-chars", "20", "--seed", "7", "--prompt", "An")
    assert alone.out == texts[rows.index(("An", 7))]


def test_a_stop_ends_a_text_before_or_after_it(trained, sample):
    settings = ["--num-chars", "800", "--seed", "2", "--prompt", "The"]
    whole = sample(*settings).out.removesuffix("\n")
    word = whole[43:46]
    end = whole.find(word, 3)
    given = [*settings, "--stop", "\0never", "--stop", word.replace("\n", r"\n")]
    assert sample(*given).out == f"{whole[:end]}\n"
    assert sample(*given, "--keep-stop").out == f"{whole[: end + 3]}\n"
    assert sample(*settings, "--stop", r"\n").out == whole.partition("\n")[0] + "\n"
    never = sample(*settings, "--stop", "\0")
    assert never.out == f"{whole}\n"
    assert "\n1 of 1 text reached --num-chars 800 before the whole TEXT of --stop" in never.err


@pytest.mark.parametrize("stops", [["ab"], ["aab", "c"], ["aba"], ["b", "aa"]])
@pytest.mark.parametrize("prompt", ["", "a", "ba", "aa", "aba", "caab"])
def test_every_text_is_cut_where_its_first_stop_is_complete(stops, prompt):
    """A stop may begin in the prompt, but ends in the text; of two that end there, the longer one counts."""
    tokenizer = CharTokenizer("abc")
    before = len(prompt)
    for text in map("".join, itertools.product("abc", repeat=6)):
        whole = prompt + text
        begin = end = len(whole)
        for place in range(before + 1, len(whole) + 1):
            complete = [stop for stop in stops if whole[:place].endswith(stop)]
            if complete:
                begin = place - max(map(len, complete))
                end = place
                break
        for is_kept, cut in ((False, max(before, begin)), (True, end)):
            growing = Continuation(tokenizer, dict.fromkeys(stops, is_kept), prompt)
            for token in tokenizer.encode(text).tolist():
                growing.add(token)
                if growing.stopped_by:
                    break
            growing.close()
            assert growing.text == whole[before:cut]
            assert growing.stop_in_prompt == max(0, before - begin)


@pytest.mark.parametrize(
    ("kind", "end", "tokenizer"),
    [
        ("line", "\n", CharTokenizer("\nabcdefghi")),
        ("paragraph", "\n\n", ByteTokenizer()),
        ("part", "\x03", CharTokenizer("\x03\nabcdefghi")),
    ],
)
def test_a_text_ends_with_its_document(workplace, sample, monkeypatch, kind, end, tokenizer):
    # the last one is longer than --num-chars
    written = ["abc", "de" if kind == "line" else "d\ne", "ihgfedcba"]
    given = scripted(monkeypatch, tokenizer, lambda seed: f"{written[seed]}{end}fg{end}hi")
    write("m.st", tokenizer, documents=divided(kind, end))
    settings = ["m.st", "--seed", "0", "--num-chars", "8", "--num-samples", "3"]
    ended = sample(*settings)
    assert given == [end] * 3
    texts = [*written[:2], "ihgfedcb"]
    if kind == "line":
        assert ended.out.splitlines() == texts
    else:
        assert ended.out == "".join(f"--- {n}\n{text}\n" for n, text in enumerate(texts, 1))
    assert "\n1 of 3 texts reached --num-chars 8 before the end" in ended.err
    given.clear()
    shown = end.replace("\x03", "\n\n")
    assert sample(*settings[:3], "--prompt", f"hi{end}b").out == f"hi{shown}babc\n"
    assert given == [f"{end}hi{end}b"]


END_MARKS = {  # by arguments: the text, and whether an end mark is in it
    ("--prompt", "a\n"): ("", True),
    ("--prompt", "a\n", "--no-stop"): ("\nc\nb", True),
    ("--stop", "b", "--no-stop"): ("\nc\n", False),
    ("--prompt", "ab", "--stop", r"b\nc"): ("", False),
    (): ("\nc\nb", False),  # the end mark before a text is no part of another one
}


@pytest.mark.parametrize("arguments", END_MARKS)
def test_an_end_mark_may_begin_in_the_prompt(workplace, sample, monkeypatch, arguments):
    tokenizer = CharTokenizer("\nabc")
    scripted(monkeypatch, tokenizer, lambda seed: "\nc\nb")
    write("m.st", tokenizer, documents=divided("paragraph", "\n\n"))
    (line,) = texts_of(sample("m.st", "--json", "--num-chars", "4", *arguments))
    assert (line["text"], line["ended"]) == END_MARKS[arguments]


ONLY_NEW = {  # what is written, and how many were tried
    "--num-samples 4": ("bb hhhh", "2 of 12 lines tried are new"),
    "--num-samples 3": ("bb hhhh bbbbbb", "3 of 5 lines tried are new"),
    "--num-samples 3 --num-chars 3": (
        "bb", "1 of 9 lines tried are new, 6 cut by --num-chars 3 or --stop",
    ),
    "--prompt d --prompt d": ("dKNOWN dbb", "2 of 3 lines tried are new"),
    "--seed 3 --stop hhhh": (
        "bbbbbb", "1 of 3 lines tried are new, 1 cut by --num-chars 500 or --stop",
    ),
}  # fmt: skip


def test_new_documents_are_counted_and_written_alone(train, sample, monkeypatch):
    names = map("".join, itertools.permutations("abcdefgh", 3))
    Path("names.txt").write_text("\n".join([*names, " "]))
    assert train("name=a", "data.path=names.txt", "data.documents=line").status == 0
    text = open_text(DataConfig(path="names.txt", documents="line"), 32)
    trained = text.tokenizer.decode(text.train).split("\n")[:-1]
    options = "--novelty --num-samples 40 --seed 1 --json --num-chars 3 --temperature 3"
    ended = sample("a", *options.split())
    complete = []
    for line in texts_of(ended):
        if line["ended"] and line["text"].strip():
            complete.append(line["text"] not in trained)
            assert line["new"] == complete[-1]
        else:
            assert line["new"] is None
    assert 0 < len(complete) < 40
    said = f"{sum(complete)} of {len(complete)} complete lines are new"
    assert ended.err.splitlines()[-1] == said

    def written_by(seed):
        kinds = (trained[0], "b" * (seed + 1), "", "hhhh")
        return f"{kinds[seed % 4]}\n"

    scripted(monkeypatch, text.tokenizer, written_by)
    for settings, (written, said) in ONLY_NEW.items():
        ended = sample("a", "--new", "--seed", "0", *settings.split())
        assert ended.out.split() == written.replace("KNOWN", trained[0]).split()
        assert ended.err.splitlines()[-1] == said
    monkeypatch.setattr("data.novelty.MAX_SEARCHED", 100)
    for option in ("--new", "--novelty"):
        refused(sample("a", option), f"{option}: ", "more than 100")


PROMPT_FILES = {  # the documents and a file: its content, and the prompts
    ("line", "p.txt"): (b"\xef\xbb\xbfab\r\n\r\n  \r\nc d\r\n", ["ab", "c d"]),
    ("row", "p.csv"): (b'a,%\n1,"b\nd"\n2,\n3,c\n', ["b\nd", "c"]),
    ("", "p.txt"): (b"ab\n\nc\n", ["ab\n\nc\n"]),
}


@pytest.mark.parametrize(("kind", "name"), PROMPT_FILES)
def test_a_file_of_prompts_is_divided_as_the_text_was(workplace, sample, kind, name):
    content, prompts = PROMPT_FILES[kind, name]
    documents = divided(kind, "\n") if kind else None
    write("m.st", ByteTokenizer(), documents=documents)
    Path(name).write_bytes(content)
    lines = texts_of(sample("m.st", "--prompt-file", name, "--num-chars", "3", "--json"))
    assert [line["prompt"] for line in lines] == prompts


def test_what_many_texts_copy_is_one_summary(trained, sample):
    text = open_text(DataConfig(path="book.txt"), 32)
    book = text.tokenizer.decode(text.train)
    given = ["--num-chars", "30", "--seed", "1", "--novelty", "--json", "--num-samples"]
    many = sample(*given, "22")
    lines = texts_of(many)
    lengths = [line["longest_copy"] for line in lines]
    assert lengths == [longest_copy(line["text"], book) for line in lines]
    assert "new" not in lines[0]
    said = [f"{n}: longest copy: {length} of 30 characters" for n, length in enumerate(lengths, 1)]
    longest = said[np.argmax(lengths)]
    median = np.median(lengths)
    summed = f"longest copy: median {median:g} characters, and the longest of all:\n{longest}"
    assert summed in many.err
    assert many.err.count(" of 30 characters") == 1
    few = sample(*given, "3").err
    assert all(line in few for line in said[:3])


def test_texts_that_were_compared_are_written_before_the_others(trained, sample, monkeypatch):
    compare = Mock(wraps=longest_copies, side_effect=[DEFAULT, KeyboardInterrupt])
    monkeypatch.setattr("reports.sampling.longest_copies", compare)
    ended = sample("--num-chars", "9", "--num-samples", "80", "--novelty", "--json")
    assert ended.status == 130
    assert 0 < len(ended.out.splitlines()) < 80


def test_output_that_replaces_a_file_follows_a_link(trained, sample):
    settings = ["--num-chars", "30", "--seed", "2", "--prompt", "The"]
    printed = sample(*settings)
    Path("out.txt").write_text("mine")
    Path("link.txt").symlink_to("out.txt")
    written = sample(*settings, "--output", "link.txt", "--overwrite")
    assert written == (0, "", f"{printed.err}wrote link.txt\n")
    assert Path("link.txt").is_symlink()
    assert Path("out.txt").read_text("utf-8") == printed.out


@pytest.mark.parametrize(
    ("documents", "end"), [(None, b"\n\n\xe2\x82\n"), (divided("paragraph", "\n\n"), b"\n")]
)
def test_the_output_of_a_byte_model_is_its_bytes(workplace, sample, monkeypatch, documents, end):
    tune = b"MThd\x00\xff\xc3\xa9\x90<\xe2\x82"
    tokens = np.array([*tune, *b"\n\n\xe2\x82"])
    monkeypatch.setattr("reports.sampling.stream", lambda *_: tokens[:, None])
    write("m.st", ByteTokenizer(), documents=documents)
    whole = tune + end
    assert sample("m.st", "--output", "a.mid").status == 0
    assert Path("a.mid").read_bytes() == whole
    assert sample("m.st").out == whole.decode(errors="replace")


@pytest.mark.slow
@pytest.mark.parametrize("options", ["--output out.txt", "--num-samples 40"])
def test_ctrl_c_ends_texts_at_once_and_leaves_what_was_written(trained, options):
    command = [*COMMAND, "--num-chars", "100000000", *options.split()]
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert any(map(less_progress, process.stderr)), "it has begun"
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert less_progress(process.stderr.read()) == ""
    assert not list(Path().glob(".*.tmp"))
    if "out.txt" in options:
        assert len(Path("out.txt").read_text("utf-8")) > 100


def test_a_conversation(trained, sample, monkeypatch):
    def talk(typed, *options):
        stdin = io.TextIOWrapper(io.BytesIO(typed), encoding="utf-8")
        monkeypatch.setattr("sys.stdin", stdin)
        settings = ["--interactive", "--num-chars", "10", "--seed", "4", "--temperature", "0"]
        ended = sample(*settings, *options)
        assert ended.status == 0, ended
        return ended.out

    out = talk("The\n日\n\n  The\n".encode())
    assert len(re.findall(r"The(.{10})\n\[seed 4\]", out, re.DOTALL)) == 2
    assert re.search("^(> )*  The", out, re.MULTILINE), "with the white space that it begins with"
    assert out.count("is not in the vocabulary") == 1 and "; --unknown skip drops it" in out
    assert talk("日The\n日\n".encode(), "--unknown", "skip").count("[seed 4]") == 1
    not_text = talk(b"\xff\nThe\n")
    assert "(U+FFFD)" in not_text and "[seed 4]" in not_text


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_a_conversation_in_a_terminal(trained):
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
