"""score.py in this process and as a command: its figures against loops, its page in a real browser."""

import io
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import score as score_script
from data.batches import evaluation_windows
from data.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer, tokenizer_from
from gpt.checkpoint import load_checkpoint
from gpt.evaluate import evaluate
from gpt.model import GPT
from tests.conftest import ROOT, Ended
from tests.model_files import write_model_file
from tests.reference.losses import surprisal
from tests.reference.models import fill, tiny

Call = Callable[..., Ended]
# Other scripts, some written from right to left, marks that join, characters that nobody sees, and HTML.
TEXT = (
    "Naïve Ωλ 😀\n日本語 text, ﷽ שלום עולם\tالعربية\n\n"
    "e\u0301 नमस्ते \x00\x07\x7f\u202eabc\u202c\u2028 \u00a0\u200b👩\u200d👩 "
    "</script><script>alert(1)</script> <!-- &amp; {{data}}\n"
) * 3


def write(path: str, tokenizer: Tokenizer | None = None, seed: int = 0, std: float = 0.3, **changes: Any) -> str:
    """The file of a model whose parameters are all drawn from N(0, std)."""
    tokenizer = tokenizer or CharTokenizer(TEXT)
    config = tiny(key_offset=True, token_shift=True, dim=24, **changes)
    model = fill(GPT(config, tokenizer.size), seed, std)
    return str(write_model_file(path, model, tokenizer.vocabulary, step=7))


@pytest.fixture
def files(workplace: Path) -> Path:
    """model.st of characters, bytes.st of bytes, text.txt."""
    write("model.st")
    write("bytes.st", ByteTokenizer())
    Path("text.txt").write_text(TEXT, encoding="utf-8", newline="")
    return workplace


def naive(checkpoint: str, stride: int | None) -> Iterator[tuple[float, dict[str, float]]]:
    """What each token of `TEXT` costs, and the probabilities of the five likeliest, by one forward for each."""
    model, meta = load_checkpoint(checkpoint)
    tokenizer, context = tokenizer_from(meta["vocabulary"]), model.config.context
    tokens = tokenizer.encode(TEXT).tolist()
    yield math.log(tokenizer.size), {}
    for place in range(1, len(tokens)):
        # The first window predicts `context` tokens, each further one the last `stride` of its own.
        step = stride or context
        start = max(0, math.ceil((place - context) / step)) * step
        with torch.no_grad():
            logits = model.double()(torch.tensor([tokens[start:place]]))[0, -1].tolist()
        chances = {kind: math.exp(-surprisal(logits, kind)) for kind in range(tokenizer.size)}
        best = sorted(chances, key=lambda kind: -chances[kind])[:5]
        name = (lambda kind: f"\\x{kind:02x}" if kind > 127 else chr(kind)) if tokenizer.size == 256 else None
        names = {(name(kind) if name else tokenizer.decode([kind])): chances[kind] for kind in best}
        yield surprisal(logits, tokens[place]), names


def check_lines(lines: list[dict[str, Any]], expected: list[tuple[float, dict[str, float]]]) -> None:
    assert "".join(line["character"] for line in lines) == TEXT
    assert [line["position"] for line in lines] == list(range(len(TEXT)))
    for line, (nats, likely) in zip(lines, expected, strict=True):
        assert line["nats"] == pytest.approx(nats, abs=2e-5)
        assert list(line["likely"]) == list(likely)
        assert line["likely"] == pytest.approx(likely, abs=1e-5)


def figures(text: str) -> dict[str, tuple[float, ...]]:
    """The rows of the table: nats per character, bits per character, bits per byte."""
    rows = re.findall(r"^(.*\S) +([-+]?\d+\.\d{6}) +([-+]?\d+\.\d{6}) +([-+]?\d+\.\d{6})$", text, re.MULTILINE)
    return {name: tuple(map(float, numbers)) for name, *numbers in rows}


# -- Figures ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "stride"),
    [(["--window", "disjoint"], None), ([], 3), (["--stride", "1"], 1), (["--stride", "7", "--window", "strided"], 7)],
)
def test_characters_cost_what_a_naive_loop_says(
    files: Path, score: Call, monkeypatch: pytest.MonkeyPatch, arguments: list[str], stride: int | None
) -> None:
    """Whatever the batch and the pieces."""
    expected_lines = list(naive("model.st", stride))
    for batch, piece in ((1, 50), (30, 4096), (10_000, 1)):
        monkeypatch.setattr(score_script, "BATCH", batch)
        monkeypatch.setattr(score_script, "PIECE", piece)
        ended = score("model.st", "text.txt", "--per-char", *arguments)
        assert ended.status == 0
        lines = [json.loads(line) for line in ended.out.splitlines()]
        check_lines(lines, expected_lines)
    model, meta = load_checkpoint("model.st")
    tokenizer = tokenizer_from(meta["vocabulary"])
    tokens = tokenizer.encode(TEXT)
    sizes = torch.from_numpy(tokenizer.characters_per_token), torch.from_numpy(tokenizer.bytes_per_token)
    expected = evaluate(model, evaluation_windows(tokens, 7, 5, stride=stride), int(tokens[0]), *sizes)
    total = math.fsum(line["nats"] for line in lines)
    assert total == pytest.approx(expected.loss * len(TEXT), rel=1e-6)
    name = f"strided windows of 7, stride {stride}" if stride else "disjoint windows of 7"
    bits = total / math.log(2)
    by_hand = (total / len(TEXT), bits / len(TEXT), bits / len(TEXT.encode()))
    assert figures(ended.err)[name] == pytest.approx(by_hand, abs=2e-6)
    assert f"{len(TEXT):,} characters, {len(TEXT.encode()):,} bytes" in ended.err


def test_both_modes_are_named_and_equal_to_those_alone(files: Path, score: Call) -> None:
    both = score("model.st", "text.txt")
    assert both.status == 0
    assert set(figures(both.out)) == {"disjoint windows of 7", "strided windows of 7, stride 3"}
    alone = figures(score("model.st", "text.txt", "--window", "disjoint").out)
    alone |= figures(score("model.st", "text.txt", "--window", "strided").out)
    assert alone == figures(both.out) == figures(score("model.st", "text.txt", "--per-char").err)
    assert len(set(alone.values())) == 2


def test_the_characters_of_a_model_of_bytes_are_sums(files: Path, score: Call) -> None:
    lines = [json.loads(line) for line in score("bytes.st", "text.txt", "--per-char").out.splitlines()]
    assert "".join(line["character"] for line in lines) == TEXT
    octets = list(naive("bytes.st", 3))
    for line in lines:
        own, octets = octets[: len(line["character"].encode())], octets[len(line["character"].encode()) :]
        assert line["nats"] == pytest.approx(sum(nats for nats, _ in own), abs=1e-4)
        assert line["likely"] == pytest.approx(own[0][1], abs=1e-5)
    assert not octets


def test_bytes_are_taken_as_they_are(files: Path, score: Call) -> None:
    r"""A model of bytes reads any file: no line end changes, and what is no UTF-8 counts as a character it begins."""
    Path("odd.bin").write_bytes(b"\x80\x81a\r\n\xff\xe6\x97\xe6\x97\xa5\xef\xbb\xbf\x9fz")
    ended = score("bytes.st", "odd.bin", "--per-char")
    letters = [json.loads(line)["character"] for line in ended.out.splitlines()]
    assert letters == ["\ufffd", "a", "\r", "\n", "\ufffd", "\ufffd", "日", "\ufffd", "z"]
    assert "8 characters, 16 bytes" in ended.err  # the first two bytes continue what is not there
    Path("odd.bin").write_bytes(b"\x80\x81")
    ended = score("bytes.st", "odd.bin", "--window", "disjoint")
    assert ended.status == 0 and re.search(r" nan +nan +\d", ended.out)


def test_lines_come_as_they_are_computed(files: Path, score: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them before another pass through the text begins."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(score_script, "measure", interrupted)
    ended = score("model.st", "text.txt", "--per-char")
    assert ended.status == 130 and len(ended.out.splitlines()) == len(TEXT)


def test_a_checkpoint_is_read_once(files: Path, score: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """What becomes of the file later, as in training it does, changes nothing."""
    expected = figures(score("model.st", "text.txt", "--window", "sample").out)
    read = score_script.read

    def read_and_remove(*arguments: Any) -> Any:
        readers = read(*arguments)
        Path("model.st").unlink()
        return readers

    monkeypatch.setattr(score_script, "read", read_and_remove)
    assert expected and figures(score("model.st", "text.txt", "--window", "sample").out) == expected


def test_texts_as_short_as_can_be(files: Path, score: Call) -> None:
    for text in ("a", "ab", TEXT[:6], TEXT[:7], TEXT[:8], TEXT[:9]):
        Path("short.txt").write_text(text, encoding="utf-8", newline="")
        ended = score("model.st", "short.txt", "--per-char", "--html", "short.html")
        assert ended.status == 0, ended.err
        assert len(ended.out.splitlines()) == len(text)
    Path("short.txt").write_text("a")
    ended = score("model.st", "short.txt", "--window", "disjoint")
    assert "short.txt: 1 character, 1 byte\n" in ended.out and ended.err.startswith("1 prediction in ")
    Path("short.txt").write_text("Na")
    assert score("model.st", "short.txt", "--per-char").out.startswith('{"position": 0, "character": "N", "nats": ')


def test_a_text_is_read_as_in_training(files: Path, score: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a file or standard input: a mark is dropped, line ends are LF, other encodings are named."""
    text = "Naïve text\nabc\nabc\n"
    Path("plain.txt").write_bytes(text.encode())
    expected = score("model.st", "plain.txt", "--per-char").out
    Path("marked.txt").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    Path("latin.txt").write_bytes(text.replace("\n", "\r").encode("latin-1"))
    assert score("model.st", "marked.txt", "--per-char").out == expected
    assert score("model.st", "latin.txt", "--per-char", "--encoding", "latin-1").out == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    ended = score("model.st", "-", "--per-char")
    assert ended.out == expected and "standard input: 19 characters" in ended.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["model.st", "unknown.txt"],
            "unknown.txt, line 3: character 'ż' (U+017C) at position 70001 is not in",
        ),
        (["model.st", "latin.txt"], "latin.txt: byte 1 is not utf-8"),
        (["model.st", "latin.txt"], "name its encoding with --encoding, such as latin-1"),
        (["model.st", "text.txt", "--encoding", "utf-9"], "--encoding utf-9: is no encoding"),
        (["bytes.st", "text.txt", "--encoding", "latin-1"], "--encoding latin-1: has no meaning"),
        (["model.st", "empty.txt"], "empty.txt: is empty"),
        (["model.st", "txet.txt"], "txet.txt: no such file; nearest: text.txt"),
        (["model.st", "nowhere/text.txt"], "nowhere/text.txt: no such file"),
        (["model.st", "."], ".: cannot be read: Is a directory"),
        (["modle.st", "text.txt"], "modle.st: no such model or run"),
        (["text.txt", "text.txt"], "is damaged or no model file"),
        (["model.st", "text.txt", "--compare", "nothing"], "nothing: no such model or run"),
        (["model.st", "text.txt", "--stride", "8"], "--stride 8: must be at most 7"),
        (
            ["model.st", "text.txt", "--stride", "0"],
            "argument --stride: 0: must be a whole number, at least 1",
        ),
        (
            ["model.st", "text.txt", "--stride", "2", "--window", "disjoint"],
            "--stride 2: has no meaning for --window dis",
        ),
        (
            ["model.st", "text.txt", "--stride", "2", "--window", "sample"],
            "--stride 2: has no meaning for --window sample",
        ),
        (
            ["model.st", "text.txt", "--context", "0"],
            "argument --context: 0: must be a whole number, at least 1",
        ),
        (
            ["model.st", "text.txt", "--context", "5", "--stride", "6"],
            "--stride 6: must be at most 5, the context",
        ),
        (
            ["learned.st", "text.txt", "--context", "8"],
            "--context 8: must be at most 7, the places that the model has learned",
        ),
        (["model.st", "text.txt", "--window", "half"], "invalid choice: 'half'"),
        (["model.st", "text.txt", "--htm", "a"], "nearest: --html"),
        (
            ["model.st", "text.txt", "--html", "nowhere/a.html"],
            "--html nowhere/a.html: No such file or directory",
        ),
        (["model.st", "text.txt", "--html", "."], "--html .: must be the name of a file"),
        (["model.st", "text.txt", "--html", "-"], "--html -: must be the name of a file"),
        (["model.st", "text.txt", "--html", ""], "--html '': must be the name of a file"),
        (["model.st", "text.txt", "--html", "./text.txt"], "--html ./text.txt: is being read"),
        (["model.st", "text.txt", "--html", "model.st"], "--html model.st: is being read"),
        (
            ["model.st", "text.txt", "--compare", "bytes.st", "--html", "bytes.st"],
            "--html bytes.st: is being read",
        ),
        (["model.st", "text.txt", "--device", "toaster"], "argument --device: toaster: must be cpu"),
        (["model.st", "text.txt", "--device", "cuda:99"], "--device cuda:99"),
        (["model.st"], "the following arguments are required: file"),
    ],
)
def test_wrong_words_get_one_line(files: Path, score: Call, arguments: list[str], said: str) -> None:
    Path("unknown.txt").write_bytes(("Naïve\r\n" + "a" * 69_993 + "\ntż").encode())  # beyond the first chunk
    Path("latin.txt").write_bytes("aï".encode("latin-1"))
    Path("empty.txt").touch()
    Path("m.st").touch()
    write("learned.st", positions="learned")
    before = sorted(os.listdir())
    ended = score(*arguments)
    assert ended.status == 2 and ended.out == ""
    assert ended.err.startswith("score.py: ") and ended.err.count("\n") == 1 and said in ended.err
    assert sorted(os.listdir()) == before


def test_a_text_too_long_for_a_page(files: Path, score: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_script, "LONGEST_PAGE", len(TEXT))
    assert score("model.st", "text.txt", "--html", "a.html").status == 0
    monkeypatch.setattr(score_script, "LONGEST_PAGE", len(TEXT) - 1)
    ended = score("model.st", "text.txt", "--html", "b.html")
    assert ended.status == 2 and "longer than a page can show" in ended.err and not Path("b.html").exists()


@pytest.mark.slow
def test_memory_stays_that_of_the_tokens(files: Path) -> None:
    """What is held does not grow with the text, but for a byte each character."""
    Path("long.txt").write_text("abc " * 2_000_000)
    code = (
        "import resource, sys, score; from pathlib import Path; options = score.parse(['model.st', sys.argv[1]]); "
        "readers = score.read([Path('model.st')], options); "
        "print(len(readers[0].tokens), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    Path("short.txt").write_text("abc ")
    peaks = []
    for name in ("short.txt", "long.txt"):
        command = [sys.executable, "-c", code, name]
        ended = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
        length, peak = map(int, ended.stdout.split())
        assert length == len(Path(name).read_text())
        peaks.append(peak * 1024)
    assert peaks[1] - peaks[0] < 3 * 8_000_000


def test_a_reader_that_leaves_early_is_no_error(files: Path) -> None:
    Path("long.txt").write_text("abc " * 20_000)
    command = f"'{sys.executable}' '{ROOT / 'score.py'}' model.st long.txt --per-char --window disjoint | head -n 2"
    ended = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert ended.returncode == 0 and len(ended.stdout.splitlines()) == 2
    assert "Traceback" not in ended.stderr and "BrokenPipe" not in ended.stderr


def test_as_a_command_it_starts_without_what_only_training_needs(files: Path) -> None:
    code = (
        "import sys, score; status = score.cli(['model.st', 'text.txt']); "
        "print(status, sorted({'lightning', 'hydra', 'omegaconf', 'tensorboard'} & set(sys.modules)))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert ended.stdout.endswith("0 []\n"), ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("positions", "window"), [("rotary", None), ("learned", None), ("alibi", 4), ("sinusoidal", 3), ("none", 20)]
)
def test_sampling_and_scoring_agree(
    workplace: Path, sample: Call, score: Call, positions: str, window: int | None
) -> None:
    """The log-probabilities that sample.py prints: in every mode within the first context, everywhere in its own."""
    write("model.st", CharTokenizer("abcdefgh \n"), positions=positions, window=window)
    written = sample("model.st", "--prompt", "abc", "--num-chars", "60", "--temperature", "1", "--seed", "3", "--json")
    said = json.loads(written.out)
    Path("written.txt").write_text("abc" + said["text"], encoding="utf-8", newline="")
    costs = {}
    for mode in ("sample", "disjoint", "strided"):
        ended = score("model.st", "written.txt", "--per-char", "--window", mode)
        costs[mode] = [json.loads(line)["nats"] for line in ended.out.splitlines()][3:]
    printed = [-value for value in said["logprobs"]]
    assert costs["sample"] == pytest.approx(printed, abs=1e-5)
    for mode in ("disjoint", "strided"):
        assert costs[mode][: 8 - 3] == pytest.approx(printed[: 8 - 3], abs=1e-5)
        assert costs[mode][8 - 3 :] != pytest.approx(printed[8 - 3 :], abs=1e-3)
    whole = figures(score("model.st", "written.txt", "--window", "sample").out)
    assert set(whole) == {"sample windows of 7, as sample.py reads"}


@pytest.mark.parametrize("context", [3, 20])
def test_windows_of_another_length(files: Path, score: Call, context: int) -> None:
    """As of a model that was trained with such windows and has the same weights."""
    write("other.st", context=context)
    for mode in score_script.MODES:
        wanted = figures(score("other.st", "text.txt", "--window", mode).out)
        assert figures(score("model.st", "text.txt", "--window", mode, "--context", str(context)).out) == wanted
        assert wanted != figures(score("model.st", "text.txt", "--window", mode).out)


# -- Two models -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["model", "bytes"])
def test_two_models_on_one_text(files: Path, score: Call, other: str) -> None:
    """Each with its own vocabulary and context; a character is compared with itself."""
    write("wide.st", ByteTokenizer() if other == "bytes" else CharTokenizer(TEXT + "xyzXYZ"), seed=1, context=10)
    ended = score("model.st", "text.txt", "--compare", "wide.st", "--per-char")
    assert ended.status == 0
    alone = [
        [json.loads(line) for line in score(name, "text.txt", "--per-char").out.splitlines()]
        for name in ("model.st", "wide.st")
    ]
    lines = [json.loads(line) for line in ended.out.splitlines()]
    for line, a, b in zip(lines, *alone, strict=True):
        assert line.pop("other") == {"nats": b["nats"], "likely": b["likely"]}
        assert line == a
    table = figures(ended.err)
    a, b = table["A  strided windows of 7, stride 3"], table["B  strided windows of 10, stride 5"]
    assert a == figures(score("model.st", "text.txt").out)["strided windows of 7, stride 3"]
    assert b == figures(score("wide.st", "text.txt").out)["strided windows of 10, stride 5"]
    assert table["B - A  strided windows"] == pytest.approx(np.subtract(b, a), abs=2e-6)
    assert {"A  disjoint windows of 7", "B  disjoint windows of 10", "B - A  disjoint windows"} <= set(table)
    assert "contexts differ" in ended.err and "model.st, step 7" in ended.err and "wide.st, step 7" in ended.err


def lines_that_differ(printed: str) -> list[tuple[int, float, str]]:
    found = re.findall(r"^ +([\d,]+)  +([-+]\d+\.\d\d)  (.*)$", printed, re.MULTILINE)
    return [(int(number.replace(",", "")), float(bits), text) for number, bits, text in found]


def test_the_lines_where_two_models_differ_most(files: Path, score: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Per character, not counting its line end; not the shortest; those that read alike are named once."""
    monkeypatch.setattr(score_script, "PIECE", 11)
    write("other.st", seed=1)
    text = TEXT + "abc " * 50 + "\ntext, abc text\nabc Naïve\n" + TEXT + "Naïve text"
    Path("long.txt").write_text(text, encoding="utf-8", newline="")
    lines = score("model.st", "long.txt", "--compare", "other.st", "--per-char").out.splitlines()
    change = [(line["other"]["nats"] - line["nats"]) / math.log(2) for line in map(json.loads, lines)]
    position, means, most = 0, {}, {}
    for number, line in enumerate(text.split("\n"), start=1):
        if len(line) >= 10:
            means[number] = math.fsum(change[position : position + len(line)]) / len(line)
            most[line] = max(means[number], most.get(line, 0), key=abs)
        position += len(line) + 1
    assert position == len(change) + 1 and len(most) == 6
    found = lines_that_differ(score("model.st", "long.txt", "--compare", "other.st").out)
    expected = sorted(most.values(), key=abs, reverse=True)[:5]
    assert [bits for _, bits, _ in found] == pytest.approx(expected, abs=0.006)
    assert [means[number] for number, *_ in found] == pytest.approx(expected, abs=1e-6)
    assert len({text for *_, text in found}) == 5 and max(len(text) for *_, text in found) >= 80


def test_no_line_differs_from_itself(files: Path, score: Call) -> None:
    ended = score("model.st", "text.txt", "--compare", "model.st")
    assert figures(ended.out)["B - A  strided windows"] == (0, 0, 0) and lines_that_differ(ended.out) == []
    assert "contexts differ" not in ended.out


def test_both_models_must_know_every_character(files: Path, score: Call) -> None:
    write("less.st", CharTokenizer(TEXT.replace("Ω", "")))
    for first, second in (("model.st", "less.st"), ("less.st", "model.st")):
        ended = score(first, "text.txt", "--compare", second)
        assert ended.status == 2 and "'Ω' (U+03A9) at position 6" in ended.err


# -- The page -------------------------------------------------------------------------------------------


def card(page: Any) -> dict[str, Any]:
    """What the card says: position, and of each model the bits, the probability and the bars."""
    facts, sections = page.evaluate(
        """() => {
          const width = (bar) => bar.getBoundingClientRect().width / bar.parentNode.clientWidth;
          const part = (item, tag) => item.querySelector(tag);
          const row = (item) => [part(item, "span").innerText, part(item, "em").innerText, width(part(item, "i"))];
          const sections = [...document.querySelectorAll("#card section")];
          return [
            document.querySelector("#card header").innerText,
            sections.map((each) => [each.querySelector("p").innerText, [...each.querySelectorAll("li")].map(row)]),
          ];
        }"""
    )
    models = []
    for said, rows in sections:
        bits, percent = re.fullmatch(r"([\d.]+) bits, (.+) %", said).groups()  # type: ignore[union-attr]
        models.append({"bits": float(bits), "percent": percent, "rows": {name: row for name, *row in rows}})
    return {"position": int(re.findall(r"position (\d+)", facts)[0]), "facts": facts, "models": models}


def named(letter: str) -> str:
    """A character as the card calls it."""
    names = {"\n": "newline", "\t": "tab", " ": "space", "\u00a0": "no-break space"}
    if letter in names or letter.startswith("\\x"):
        return names.get(letter) or "byte " + letter[2:].upper()
    if not letter.isprintable():
        return f"U+{ord(letter):04X}"
    return letter


def agrees(said: dict[str, Any], line: dict[str, Any]) -> None:
    """Check one model's part of the card against the JSON line."""
    chance = math.exp(-line["nats"])
    assert said["bits"] == pytest.approx(line["nats"] / math.log(2), abs=0.006)
    if chance >= 0.001:
        assert float(said["percent"]) == pytest.approx(100 * chance, abs=0.06)
    if line["position"] == 0:
        assert said["rows"] == {}
        return
    rows = {name.removeprefix("\u25cc"): row for name, row in said["rows"].items()}
    for letter, chance in line["likely"].items():
        percent, width = rows[named(letter)]
        assert float(percent.removesuffix(" %")) == pytest.approx(100 * chance, abs=0.06)
        assert width == pytest.approx(chance, abs=0.02)
    assert named(line["character"]) in rows


def test_the_card_says_what_the_json_lines_say(files: Path, score: Call, visit: Callable[..., Any]) -> None:
    """For every character, by keyboard; by the pointer and by touch for some."""
    lines = [
        json.loads(line) for line in score("model.st", "text.txt", "--per-char", "--html", "a.html").out.splitlines()
    ]
    page = visit("a.html", viewport={"width": 900, "height": 700}, has_touch=True)
    page.focus("#text")
    for line in lines[: len(TEXT) // 2]:
        page.keyboard.press("ArrowRight")
        said = card(page)
        assert said["position"] == line["position"] and named(line["character"]) in said["facts"].replace("\u25cc", "")
        agrees(said["models"][0], line)
    page.keyboard.press("Escape")
    assert not page.is_visible("#card")
    for word in ("Naïve", "text,", "abc"):
        place = TEXT.index(word)
        for offset in range(3):
            box = page.evaluate(PLACE, [word, offset])
            page.mouse.move(*box)
            assert card(page)["position"] == place + offset
            agrees(card(page)["models"][0], lines[place + offset])
            page.mouse.move(5, 5)
            assert not page.is_visible("#card")
            page.touchscreen.tap(*box)
            assert card(page)["position"] == place + offset
            page.touchscreen.tap(*box)
            assert not page.is_visible("#card")


PLACE = """([word, offset]) => {
  const walker = document.createTreeWalker(document.getElementById("text"), NodeFilter.SHOW_TEXT), nodes = [];
  while (walker.nextNode()) nodes.push(walker.currentNode);
  let at = nodes.map((node) => node.data).join("").indexOf(word) + offset;
  const node = nodes.find((node) => node.data.length > at || ((at -= node.data.length), false));
  const range = document.createRange();
  range.setStart(node, at); range.setEnd(node, at + 1);
  const box = range.getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2];
}"""  # the middle of a character on the screen


def test_characters_of_two_units_do_not_shift_the_others(
    workplace: Path, score: Call, visit: Callable[..., Any]
) -> None:
    """Where all cost the same, and a mark that is no longer at the start of the file stays."""
    text = "\ufeffa😀b😀😀c"
    write("same.st", CharTokenizer(text), std=0)
    Path("same.txt").write_text("\ufeff" + text, encoding="utf-8")
    assert score("same.st", "same.txt", "--html", "a.html").status == 0
    page = visit("a.html")
    assert page.locator("#text p").inner_text() == "U+FEFFa😀b😀😀c"
    for position, letter in ((1, "a"), (3, "b"), (6, "c")):
        page.mouse.move(*page.evaluate(PLACE, [letter, 0]))
        assert card(page)["position"] == position
        box = page.locator("#cursor").bounding_box()
        assert box["x"] < page.evaluate(PLACE, [letter, 0])[0] < box["x"] + box["width"]


def test_the_page_of_two_models_shows_both(files: Path, score: Call, visit: Callable[..., Any]) -> None:
    write("other.st", ByteTokenizer(), seed=1, context=10)
    ended = score("model.st", "text.txt", "--compare", "other.st", "--per-char", "--html", "a.html")
    lines = [json.loads(line) for line in ended.out.splitlines()]
    page = visit("a.html")
    page.focus("#text")
    for line in lines[: len(TEXT) // 3]:
        page.keyboard.press("ArrowRight")
        said = card(page)
        agrees(said["models"][0], line)
        agrees(said["models"][1], line["other"] | {"position": line["position"], "character": line["character"]})
        change = (line["other"]["nats"] - line["nats"]) / math.log(2)
        shown = re.search(r"([+−])([\d.]+) bits", said["facts"])
        assert shown and float(shown[2]) * (1 if shown[1] == "+" else -1) == pytest.approx(change, abs=0.006)
    table = page.inner_text("#figures")
    for row, numbers in figures(ended.err).items():
        assert all(f"{abs(number):.6f}" in table for number in numbers) == ("strided" in row)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_curve_of_two_models_has_the_colours_of_the_text(
    files: Path, score: Call, visit: Callable[..., Any], scheme: str
) -> None:
    """Orange above the line where B is the more surprised, blue below it where A is; nothing where neither is."""
    write("uniform.st", std=0)
    for models in ("model uniform", "uniform model", "model bytes"):
        a, b = (f"{name}.st" for name in models.split())
        lines = score(a, "text.txt", "--compare", b, "--per-char", "--html", "a.html").out.splitlines()
        change = [line["other"]["nats"] - line["nats"] for line in map(json.loads, lines)]
        page = visit("a.html", color_scheme=scheme)
        drawn = page.evaluate(
            """() => [...document.querySelectorAll("#spark path")].map((path) => {
              const { y, height } = path.getBBox(), zero = document.querySelector("#spark line").y1.baseVal.value;
              return [getComputedStyle(path).fill, zero - y, y + height - zero];
            })"""
        )
        swatches = page.locator("#legend i").evaluate_all("all => all.map((i) => getComputedStyle(i).backgroundColor)")
        (orange, above, none), (blue, nothing, below) = drawn
        assert (orange, blue) == (swatches[-1], swatches[0]) and orange != blue
        assert none == pytest.approx(0, abs=0.1) == nothing
        high, low = max(0, *change), max(0, *(-value for value in change))
        assert (above, below) == pytest.approx((96 * high / (high + low), 96 * low / (high + low)), abs=0.2)


def test_the_names_of_models_have_room_on_a_phone(files: Path, score: Call, visit: Callable[..., Any]) -> None:
    Path("runs-of-this-year").mkdir()
    name = "runs-of-this-year/model.st"
    Path("model.st").rename(name)
    assert score(name, "text.txt", "--compare", name, "--html", "a.html").status == 0
    page = visit("a.html", viewport={"width": 390, "height": 700})
    cell = page.locator("td").first.bounding_box()
    assert cell["width"] > 340 and cell["height"] < 3 * 24  # the name and the mode, a line each
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_the_page_lists_the_lines_that_are_printed(files: Path, score: Call, visit: Callable[..., Any]) -> None:
    write("other.st", seed=1)
    printed = lines_that_differ(score("model.st", "text.txt", "--compare", "other.st", "--html", "a.html").out)
    page = visit("a.html")
    page.click("#lists summary")
    page.locator("#lines button b").first.wait_for()
    listed = page.locator("#lines button b").all_inner_texts()
    bits = [float(each.replace("\u2212", "-").split()[0]) for each in listed]
    assert len(printed) == len(bits) > 1  # no wording twice
    assert bits == [pytest.approx(value, abs=0.011) for _, value, _ in printed]
    words = page.locator("#words button span").all_text_contents()
    assert len(words) == len(set(words)) > 5


def test_the_text_is_shown_as_it_is(files: Path, score: Call, visit: Callable[..., Any]) -> None:
    """Whatever it holds: what cannot be seen by its number, all else in its place, nothing as HTML."""
    assert score("model.st", "text.txt", "--html", "a.html").status == 0
    page = visit("a.html")
    shown = "".join(page.locator("#text p").evaluate_all("blocks => blocks.map((block) => block.textContent)"))
    expected = TEXT
    for letter in "\x00\x07\x7f":
        expected = expected.replace(letter, f"{ord(letter):02X}")
    for letter in "\u202e\u202c\u2028\u00a0\u200b":
        expected = expected.replace(letter, f"U+{ord(letter):04X}")
    assert shown == expected
    assert page.title() == "text.txt" == page.inner_text("h1")
    marks = page.evaluate(
        "[...document.querySelectorAll('#text .line')].map((m) => getComputedStyle(m, '::before').content)"
    )
    assert marks == ['"↵"'] * TEXT.count("\n")


def test_the_name_of_a_text_is_no_html(files: Path, score: Call, visit: Callable[..., Any]) -> None:
    Path("x<").mkdir()
    name = "x</script><img src=x onerror=alert(1)>&{{data}}.txt"
    Path("text.txt").rename(name)
    assert score("model.st", name, "--html", "a.html").status == 0
    page = visit("a.html")
    assert page.title() == name == page.inner_text("h1")
    assert page.query_selector("img") is None


def test_its_policy_stops_other_scripts(files: Path, score: Call, browser: Any) -> None:
    assert score("model.st", "text.txt", "--html", "a.html").status == 0
    harmed = (
        Path("a.html")
        .read_text("utf-8")
        .replace("<h1", "<script>window.harm = 1</script><img src=x onerror='harm=1'><h1")
    )
    Path("b.html").write_text(harmed, encoding="utf-8")
    page = browser.new_page()
    page.goto(Path("b.html").resolve().as_uri())
    page.wait_for_selector("body[data-ready]")
    assert page.evaluate("window.harm") is None
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
@pytest.mark.parametrize("compare", [False, True])
def test_every_colour_can_be_read_on(
    files: Path, score: Call, visit: Callable[..., Any], scheme: str, compare: bool
) -> None:
    """WCAG's contrast of ink on each colour, at least 4.5; and steps that go on in one direction, none too small."""
    write("other.st", seed=1)
    arguments = ["--compare", "other.st"] if compare else []
    assert score("model.st", "text.txt", "--html", "a.html", *arguments).status == 0
    page = visit("a.html", color_scheme="light" if scheme == "light" else "dark")
    if scheme == "print":  # on paper, whatever the screen is like
        page.emulate_media(media="print")
    found = page.evaluate(
        """() => {
          const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
          const pen = canvas.getContext("2d", { willReadFrequently: true });
          const numbers = (colour) => {
            pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1);
            return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
          };
          const shades = [...document.querySelectorAll("#legend i")].map((each) => {
            const span = document.createElement("span");
            span.className = each.className;
            document.querySelector("#text p").append(span);
            const style = getComputedStyle(span);
            return [style.color, style.backgroundColor, getComputedStyle(each).backgroundColor].map(numbers);
          });
          const soft = getComputedStyle(document.querySelector(".soft")).color;
          return [shades, numbers(soft), numbers(getComputedStyle(document.body).backgroundColor)];
        }"""
    )

    def luminance(colour: list[int]) -> float:
        linear = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
        return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))

    def contrast(a: list[int], b: list[int]) -> float:
        high, low = sorted((luminance(a), luminance(b)), reverse=True)
        return (high + 0.05) / (low + 0.05)

    shades, soft, ground = found
    assert len(shades) == 21
    for ink, shade, legend in shades:
        assert contrast(ink, shade) >= 4.5 and shade == legend
    assert contrast(soft, ground) >= 4.5
    # Away from nothing to be said, each step is darker in the light and lighter in the dark.
    sides = [shades[10:], shades[10::-1]] if compare else [shades]
    for side in sides:
        assert side[0][1] == pytest.approx(ground, abs=4)
        steps = np.diff([luminance(shade) for _, shade, _ in side])
        assert (steps > 0).all() if scheme == "dark" else (steps < 0).all()
        assert contrast(side[0][1], side[-1][1]) > 1.5


def test_colours_are_those_of_the_legend(files: Path, score: Call, visit: Callable[..., Any]) -> None:
    ended = score("model.st", "text.txt", "--per-char", "--html", "a.html")
    bits = [json.loads(line)["nats"] / math.log(2) for line in ended.out.splitlines()]
    page = visit("a.html")
    spans = page.locator("#text span").evaluate_all(
        "spans => spans.map((span) => [span.className, span.classList.contains('code') ? '?' : span.textContent])"
    )
    steps = [int(name.rpartition("s")[2]) for name, text in spans for _ in text]
    assert len(steps) == len(TEXT) and len(set(steps)) > 5
    for step, value in zip(steps, bits, strict=True):
        assert step == min(20, math.floor(round(value, 3) / 0.5))


@pytest.mark.slow
def test_a_long_text_opens_and_is_travelled(files: Path, score: Call, visit: Callable[..., Any]) -> None:
    """200,000 characters in a few seconds, with few elements; the line at the top and the lists lead anywhere."""
    words = np.random.default_rng(0).integers(0, 1000, 40_000)
    text = "".join(f"{word:03d} " + "\n" * (i % 9 == 8) for i, word in enumerate(words))[:160_000] + "x " * 20_000
    Path("long.txt").write_text(text)
    write("digits.st", CharTokenizer(text), context=16)
    lines = score("digits.st", "long.txt", "--window", "disjoint", "--per-char", "--html", "a.html").out.splitlines()
    assert len(lines) == 200_000 and Path("a.html").stat().st_size < 20 * 200_000
    page = visit("a.html")
    opened = page.evaluate("performance.now()")
    assert opened < 8000
    assert page.evaluate("document.querySelectorAll('*').length") < 20_000
    box = page.locator("#spark").bounding_box()
    for share in (0.5, 0.95, 0.1):
        page.mouse.click(box["x"] + box["width"] * share, box["y"] + 10)
        page.wait_for_timeout(300)
        said = card(page)
        assert said["position"] == pytest.approx(200_000 * share, abs=400)
        agrees(said["models"][0], json.loads(lines[said["position"]]))
        outline = page.locator("#cursor").bounding_box()
        assert 90 < outline["y"] < 700
        page.mouse.click(outline["x"] + outline["width"] / 2, outline["y"] + outline["height"] / 2)  # lets go of it
        page.mouse.move(outline["x"] + outline["width"] / 2, outline["y"] + outline["height"] / 2 + 1)
        assert card(page)["position"] == said["position"]
        page.keyboard.press("Escape")
        page.evaluate("scrollTo(0, 0)")

    page.click("#lists summary")
    bits = np.array([json.loads(line)["nats"] for line in lines]) / math.log(2)
    sums: dict[str, float] = {}
    for match in re.finditer(r"\w+", text):
        sums[match[0]] = max(bits[match.start() : match.end()].sum(), sums.get(match[0], 0))
    best = sorted(sums.values(), reverse=True)[:12]
    listed = page.locator("#words button").all_inner_texts()
    assert [float(each.split()[0]) for each in listed] == [pytest.approx(value, abs=0.02) for value in best]
    page.locator("#lines button").first.click()
    page.wait_for_timeout(300)
    row = page.locator("#lines button span").first.text_content()
    start = text.index(row)
    assert start <= card(page)["position"] < start + len(row)


def test_a_page_goes_where_a_link_leads_and_to_devices(files: Path, score: Call) -> None:
    Path("pages").mkdir()
    Path("a.html").symlink_to("pages/b.html")
    assert score("model.st", "text.txt", "--html", "a.html").status == 0
    assert Path("a.html").is_symlink() and "</html>" in Path("pages/b.html").read_text("utf-8")
    os.mkfifo("pipe")
    with subprocess.Popen(["cat", "pipe"], stdout=subprocess.PIPE) as reader:
        assert score("model.st", "text.txt", "--html", "pipe").status == 0
        assert reader.communicate()[0] == Path("a.html").read_bytes() and Path("pipe").is_fifo()


def test_ctrl_c_leaves_the_old_page(files: Path, score: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    Path("a.html").write_text("old")
    before = sorted(os.listdir())
    monkeypatch.setattr(score_script, "pieces", interrupted)
    assert score("model.st", "text.txt", "--html", "a.html").status == 130
    assert sorted(os.listdir()) == before and Path("a.html").read_text() == "old"


def test_a_page_is_the_old_or_the_whole_new_one(files: Path) -> None:
    Path("a.html").write_text("old")
    before = sorted(os.listdir())
    code = (
        "import os, score\n"
        "def fail(*_): raise OSError('disk on fire')\n"
        "os.replace = fail\n"
        "print(score.cli(['model.st', 'text.txt', '--html', 'a.html']))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert "score.py: disk on fire\n" in ended.stderr and "Traceback" not in ended.stderr
    assert sorted(os.listdir()) == before and Path("a.html").read_text() == "old"
