import csv
import gzip
import io
import json
import math
import os
import random
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir, redirect_stderr, redirect_stdout
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock

import numpy as np
import pytest
import torch

import score as score_script
from base.jobs.run_directory import Run
from data.config import DataConfig
from data.text import open_text
from gpt.checkpoint import load_checkpoint
from gpt.inference.decoder import Decoder
from gpt.inference.weights import weights_of
from gpt.model import GPT
from gpt.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer, tokenizer_from
from reports import scoring, text_to_score
from tests.conftest import Call, Ended, one_line, pages, summary
from tests.model_files import nats_of, write_model_file
from tests.reference import model as reference
from tests.reference.losses import read_by_document, surprisal
from tests.reference.models import fill, tiny

# Other scripts, some written from right to left, marks that join, characters that nobody sees, and
# HTML.
TEXT = (
    "Naïve Ωλ 😀\n日本語 text, ﷽ שלום עולם\tالعربية\n\n"
    "e\u0301 नमस्ते \x00\x07\x7f\u202eabc\u202c\u2028 \u00a0\u200b👩\u200d👩 "
    "</script><script>alert(1)</script> <!-- &amp; {{data}}\n"
)


def write(
    path: str,
    tokenizer: Tokenizer | None = None,
    seed: int = 0,
    documents: Any = None,
    **changes: Any,
) -> str:
    tokenizer = tokenizer or CharTokenizer(TEXT)
    config = tiny(key_offset=True, token_shift=True, dim=24, **changes)
    model = fill(GPT(config, tokenizer.size), seed, std=0.3)
    return str(write_model_file(path, model, tokenizer.vocabulary, step=7, documents=documents))


HIDDEN = {letter: f"{ord(letter):02X}" for letter in "\x00\x07\x7f"}
HIDDEN |= {letter: f"U+{ord(letter):04X}" for letter in "\u202e\u202c\u2028\u00a0\u200b"}


def refused(ended: Ended, *words: str) -> None:
    one_line(ended, 2, *words, program="score.py")


def readable(text: str) -> str:
    return text.translate(str.maketrans(HIDDEN))


@pytest.fixture
def files(workplace: Path) -> Path:
    write("model.st")
    write("bytes.st", ByteTokenizer())
    Path("text.txt").write_text(TEXT, encoding="utf-8", newline="")
    return workplace


def lines_of(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines()]


def figures(text: str) -> dict[str, tuple[float, ...]]:
    rows = re.findall(r"^(.*\S)" + r" +([-+]?\d+\.\d{6})" * 4 + "$", text, re.MULTILINE)
    return {name: tuple(map(float, numbers)) for name, *numbers in rows}


def naive(checkpoint: str, stride: int | None) -> Iterator[tuple[float, dict[str, float]]]:
    """What each token of `TEXT` costs, and the probabilities of the five likeliest, by one forward for each."""
    model, meta = load_checkpoint(checkpoint)
    tokenizer, context = tokenizer_from(meta["vocabulary"]), model.config.context
    tokens = tokenizer.encode(TEXT).tolist()
    yield math.log(tokenizer.size), {}
    for place in range(1, len(tokens)):
        # The first window predicts `context` tokens, each further one the last `stride` of its
        # own.
        step = stride or context
        start = max(0, math.ceil((place - context) / step)) * step
        with torch.no_grad():
            logits = model.double()(torch.tensor([tokens[start:place]]))[0, -1].tolist()
        chances = {kind: math.exp(-surprisal(logits, kind)) for kind in range(tokenizer.size)}
        best = sorted(chances, key=lambda kind: -chances[kind])[:5]
        yield (
            surprisal(logits, tokens[place]),
            {tokenizer.names[kind]: chances[kind] for kind in best},
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "stride", "piece"),
    [
        pytest.param(["--window", "disjoint"], None, 50, id="disjoint"),
        pytest.param([], 3, 4096, id="strided by default"),
        pytest.param(["--stride", "1"], 1, 7, id="stride 1"),
        pytest.param(["--stride", "7", "--window", "strided"], 7, 1, id="stride of a context"),
    ],
)
def test_characters_cost_what_a_naive_loop_says(
    files: Path,
    score: Call,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    stride: int | None,
    piece: int,
) -> None:
    monkeypatch.setattr("gpt.scoring.PIECE", piece)
    ended = score("model.st", "text.txt", "--per-char", *arguments)
    assert ended.status == 0, ended
    lines = lines_of(ended.out)
    assert "".join(line["character"] for line in lines) == TEXT
    assert [line["position"] for line in lines] == list(range(len(TEXT)))
    for line, (nats, likely) in zip(lines, naive("model.st", stride), strict=True):
        assert line["nats"] == pytest.approx(nats, abs=2e-5)
        assert list(line["likely"]) == list(likely)
        assert line["likely"] == pytest.approx(likely, abs=1e-5)
    name = f"strided windows of 7, stride {stride}" if stride else "disjoint windows of 7"
    nats = math.fsum(line["nats"] for line in lines)
    bits = nats / math.log(2)
    by_hand = (
        nats / len(TEXT),
        math.exp(nats / len(TEXT)),
        bits / len(TEXT),
        bits / len(TEXT.encode()),
    )
    assert figures(ended.err)[name] == pytest.approx(by_hand, abs=2e-6)
    assert f"{len(TEXT):,} characters, {len(TEXT.encode()):,} bytes" in ended.err


def test_both_windows_are_scored_unless_one_is_chosen(files: Path, score: Call) -> None:
    disjoint, strided = (
        figures(score("model.st", "text.txt", "--window", mode).out)
        for mode in ("disjoint", "strided")
    )
    assert list(disjoint) == ["disjoint windows of 7"]
    assert list(strided) == ["strided windows of 7, stride 3"]
    assert figures(score("model.st", "text.txt").out) == disjoint | strided
    assert figures(score("model.st", "text.txt", "--per-char").err) == disjoint | strided


@pytest.mark.slow
def test_the_characters_of_a_model_of_bytes_are_sums(
    files: Path, score: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpt.scoring.PIECE", 5)
    lines = lines_of(score("bytes.st", "text.txt", "--per-char").out)
    assert "".join(line["character"] for line in lines) == TEXT
    octets = naive("bytes.st", 3)
    for line in lines:
        nats, likely = zip(*islice(octets, len(line["character"].encode())), strict=True)
        assert line["nats"] == pytest.approx(sum(nats), abs=1e-4)
        assert line["likely"] == pytest.approx(likely[0], abs=1e-5)
    assert not list(octets)


def test_a_model_of_bytes_reads_any_file(workplace: Path, score: Call) -> None:
    """No line end changes, and what is not UTF-8 counts as a character that it begins."""
    write("bytes.st", ByteTokenizer())
    Path("odd.bin").write_bytes(b"\x80\x81a\r\n\xff\xe6\x97\xe6\x97\xa5\xef\xbb\xbf\x9fz")
    ended = score("bytes.st", "odd.bin", "--per-char")
    letters = [line["character"] for line in lines_of(ended.out)]
    assert letters == ["\ufffd", "a", "\r", "\n", "\ufffd", "\ufffd", "日", "\ufffd", "z"]
    assert "8 characters, 16 bytes" in ended.err  # the first two bytes continue what is not there


def test_bytes_without_a_character_have_a_loss_for_each_byte_only(
    workplace: Path, score: Call
) -> None:
    write("bytes.st", ByteTokenizer())
    Path("odd.bin").write_bytes(b"\x80\x81")
    ended = score("bytes.st", "odd.bin", "--window", "disjoint")
    assert ended.status == 0
    assert re.search(r" nan +nan +nan +\d", ended.out)


DOCUMENTS = {
    "line": ("\n", "abc\n\n  \nface fade bead\nabc\nédé", {1: "abc", 4: "face fade bead", 5: "abc", 6: "édé"}),
    "paragraph": ("\n\n", "\nab\ncd\n\n\n\nface fade bead\n \né\n", {2: "ab\ncd", 7: "face fade bead", 9: "é"}),
    "file": ("\x03", "ab\n\ncd face fade\n", {1: "ab\n\ncd face fade\n"}),
    "part": (
        "\x03", "ab\n\ncd%%\n\n%%\nface fade bead\n%%" + "bad " * 20,
        {1: "ab\n\ncd", 6: "face fade bead", 7: "bad " * 20},
    ),
    "row": ("\x03", 'id,%%\n1,"face\nfade"\n2,\n\n3,"é\nbad"\n', {2: "face\nfade", 6: "é\nbad"}),
}  # fmt: skip


@pytest.mark.parametrize("kind", DOCUMENTS)
@pytest.mark.parametrize(
    "tokenizer", [CharTokenizer("abcdefé \n\x03"), ByteTokenizer()], ids=["char", "byte"]
)
@torch.no_grad()
def test_documents_cost_what_a_naive_loop_says(
    workplace: Path, score: Call, kind: str, tokenizer: Tokenizer
) -> None:
    mark, text, documents = DOCUMENTS[kind]
    write(
        "model.st",
        tokenizer,
        documents={"kind": kind, "end": mark, "name": "%%"},
        positions="learned",
    )
    name = "text.csv" if kind == "row" else "text.txt"
    Path(name).write_bytes(text.encode())
    ended = score("model.st", name, "--per-document", "--csv", "out.csv", "--stride", "2")
    assert ended.status == 0 and ended.err == "wrote out.csv\n", ended
    model, end, expected = (
        load_checkpoint("model.st")[0].double(),
        tuple(tokenizer.encode(mark).tolist()),
        [],
    )
    for number, (line, document) in enumerate(documents.items(), 1):
        read = read_by_document([tuple(tokenizer.encode(document + mark).tolist())], end, 7, 2)
        nats = [
            surprisal(model(torch.tensor([before]))[0, -1].tolist(), token)
            for before, token in read
        ]
        size = len(document + mark)
        beginning = " ".join(document.split())[:60]
        expected.append(
            (number, line, sum(nats) / size, math.exp(sum(nats) / size), size, beginning)
        )
    rows = list(csv.reader(Path("out.csv").read_text("utf-8").splitlines()))
    columns = [
        "document",
        "line",
        "nats_per_character",
        "perplexity",
        "characters",
        "unknown",
        "beginning",
    ]
    assert rows[0] == columns
    losses = [float(row[2]) for row in rows[1:]]
    assert losses == sorted(losses, reverse=True)
    for row, (number, line, loss, perplexity, size, words) in zip(
        sorted(rows[1:]), expected, strict=True
    ):
        assert (int(row[0]), int(row[1]), int(row[4]), row[5], row[6]) == (
            number,
            line,
            size,
            "0",
            words,
        )
        assert (float(row[2]), float(row[3])) == pytest.approx((loss, perplexity), rel=1e-5)
    size = sum(one[4] for one in expected)
    _, _, _, whole, *lines = ended.out.splitlines()
    assert float(whole.split()[0]) == pytest.approx(
        sum(one[2] * one[4] for one in expected) / size, abs=2e-6
    )
    assert [line.split(maxsplit=5)[4:] for line in lines] == [[row[1], row[6]] for row in rows[1:]]
    if kind in ("part", "row"):  # without the option, the text is divided, too
        assert f"{name}: {size} characters, " in score("model.st", name).out


@pytest.mark.parametrize(
    ("choice", "scored"),
    [("skip", ["abc", "ed", "", "de"]), ("replace", ["abc", "eed", "", "de"])],
)
def test_the_lines_with_characters_that_the_model_has_never_seen(
    workplace: Path, score: Call, choice: str, scored: list[str]
) -> None:
    write(
        "model.st", CharTokenizer("abcde\n"), documents={"kind": "line", "end": "\n", "name": ""}
    )
    Path("new.log").write_bytes("abc\r\n\r\n  \r\néed\r\nжж\r\nde日".encode())
    said = "new.log, line 4: character 'é' (U+00E9) at position 0 is not in"
    refused(score("model.st", "new.log", "--per-document"), said)
    ended = score("model.st", "new.log", "--per-document", "--csv", "out.csv", "--unknown", choice)
    with open("out.csv", encoding="utf-8", newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: int(row["document"]))
    assert [(row["document"], row["line"], row["unknown"]) for row in rows] == [
        ("1", "1", "0"), ("2", "4", "1"), ("3", "5", "2"), ("4", "6", "1"),
    ]  # fmt: skip
    assert [row["beginning"] for row in rows] == scored
    assert [int(row["characters"]) for row in rows] == [len(text) + 1 for text in scored]
    assert re.search(r"^ .* 4 +all, each from a fresh start$", ended.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("interrupted", "calls", "html"),
    [
        pytest.param("measure", [DEFAULT, KeyboardInterrupt], [], id="in the second windows"),
        pytest.param(
            "page", [KeyboardInterrupt], ["--html", "a.html", "--overwrite"], id="at the page"
        ),
    ],
)
def test_an_interrupt_keeps_lines_and_the_old_page(
    files: Path,
    score: Call,
    monkeypatch: pytest.MonkeyPatch,
    interrupted: str,
    calls: list[Any],
    html: list[str],
) -> None:
    Path("a.html").write_text("old")
    before = sorted(os.listdir())
    original = getattr(scoring, interrupted)
    monkeypatch.setattr(scoring, interrupted, Mock(wraps=original, side_effect=calls))
    ended = score("model.st", "text.txt", "--per-char", *html)
    assert ended.status == 130
    assert len(ended.out.splitlines()) == len(TEXT)
    assert sorted(os.listdir()) == before
    assert Path("a.html").read_text() == "old"


def test_a_text_too_long_for_a_page_is_refused(
    files: Path, score: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_to_score, "MAX_PAGE", len(TEXT) - 1)
    ended = score("model.st", "text.txt", "--html", "a.html")
    refused(ended, "--html", "more characters")
    assert not Path("a.html").exists()


@pytest.mark.parametrize(
    "length", [8, 7, 1], ids=["one more than a context", "a context", "one character"]
)
def test_texts_as_short_as_can_be(files: Path, score: Call, length: int) -> None:
    text = TEXT[:length]
    Path("short.txt").write_text(text, encoding="utf-8", newline="")
    ended = score("model.st", "short.txt", "--per-char", "--html", "short.html")
    assert ended.status == 0, ended
    assert "".join(line["character"] for line in lines_of(ended.out)) == text


PLAIN = "Naïve text\nabc\nabc\n"


@pytest.mark.parametrize(
    ("content", "options"),
    [
        pytest.param(
            b"\xef\xbb\xbf" + PLAIN.replace("\n", "\r\n").encode(), [], id="marked, of Windows"
        ),
        pytest.param(
            PLAIN.replace("\n", "\r").encode("latin-1"), ["--encoding", "latin-1"], id="latin-1"
        ),
    ],
)
def test_line_ends_and_encodings_change_no_loss(
    files: Path, score: Call, content: bytes, options: list[str]
) -> None:
    Path("plain.txt").write_bytes(PLAIN.encode())
    Path("other.txt").write_bytes(content)
    expected = score("model.st", "plain.txt", "--per-char").out
    assert score("model.st", "other.txt", "--per-char", *options).out == expected != ""


def test_a_text_from_standard_input(
    files: Path, score: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("plain.txt").write_bytes(PLAIN.encode())
    expected = score("model.st", "plain.txt", "--per-char").out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(PLAIN.encode())))
    ended = score("model.st", "-", "--per-char")
    assert ended.out == expected
    assert "standard input: 19 characters" in ended.err


def test_a_text_from_a_pipe(files: Path, score: Call) -> None:
    Path("plain.txt").write_bytes(PLAIN.encode())
    expected = score("model.st", "plain.txt", "--per-char").out
    os.mkfifo("pipe")
    with ThreadPoolExecutor() as writer:
        writing = writer.submit(Path("pipe").write_bytes, PLAIN.encode())
        assert score("model.st", "pipe", "--per-char").out == expected
        writing.result()


WRONG = {
    "model.st latin.txt": "(line 1) is not utf-8",
    "model.st text.txt --encoding utf-9": "--encoding utf-9: ",
    "model.st empty.txt": "empty.txt: ",
    "bytes.st text.txt --encoding latin-1": "--encoding latin-1: ",
    "model.st .": ".: cannot be read",
    "model.st txet.txt": "nearest: text.txt",
    "model.st text.txt --window sample": "--window: invalid choice: 'sample'",
    "model.st text.txt --compare nothing": "nothing: no such model",
    "model.st text.txt --compare less.st": "line 1: less.st: character 'Ω' (U+03A9) at position 6",
    "model.st text.txt --stride 2 --window disjoint": "--stride 2: only works with --window strided",
    "model.st text.txt --context 5 --stride 6": "--stride 6: must be at most 5",
    "learned.st text.txt --context 8": "--context 8: must be at most 7",
    "model.st text.txt --html nowhere/a.html": "--html nowhere/a.html: ",
    "model.st text.txt --html text.txt --overwrite": "--html text.txt: is also an input",
    "model.st text.txt --device cuda:99": "--device cuda:99",
    "model.st text.txt --html a.html more.txt": ": more.txt",
    "model.st text.txt --per-document": "--per-document: model.st",
    "lines.st text.txt --csv a.csv": "--csv a.csv: needs --per-document",
    "lines.st text.txt --per-document --html a.html": "cannot be combined with --html",
    "lines.st text.txt --per-document --window strided": "cannot be combined with --window",
    "lines.st blank.txt --per-document --csv a.csv": "blank.txt has only whitespace",
}  # fmt: skip


@pytest.fixture
def odd_files(files: Path) -> None:
    Path("latin.txt").write_bytes("aï".encode("latin-1"))
    Path("empty.txt").touch()
    Path("blank.txt").write_text("  \n \n")
    write("learned.st", positions="learned")
    write("less.st", CharTokenizer(TEXT.replace("Ω", "")))
    write("lines.st", documents={"kind": "line", "end": "\n", "name": ""})


@pytest.mark.parametrize("arguments", WRONG)
def test_wrong_words_get_one_line(odd_files: None, score: Call, arguments: str) -> None:
    before = sorted(os.listdir())
    ended = score(*arguments.split())
    refused(ended, WRONG[arguments])
    assert ended.out in ("", "lines.st, step 7\n")
    assert sorted(os.listdir()) == before


def test_an_unknown_character_beyond_the_first_chunk_is_named(files: Path, score: Call) -> None:
    Path("unknown.txt").write_bytes(("Naïve\r\n" + "a" * 69_993 + "\ntż").encode())
    refused(
        score("model.st", "unknown.txt"),
        "unknown.txt, line 3: character 'ż' (U+017C) at position 70001",
        "--unknown skip drops it, --unknown replace",
    )


@pytest.mark.parametrize(("choice", "same"), [("skip", "abc"), ("replace", "abic")])
def test_unknown_characters_are_skipped_or_replaced_for_both_models(
    files: Path, score: Call, choice: str, same: str
) -> None:
    write("less.st", CharTokenizer(TEXT.replace("Ω", "").replace("ï", "")))
    Path("strange.txt").write_text("aΩbïжΩc" * 9, encoding="utf-8")
    Path("same.txt").write_text(same * 9, encoding="utf-8")
    both = ["--compare", "less.st", "--window", "disjoint"]
    ended = score("model.st", "strange.txt", *both, "--unknown", choice)
    assert ended.status == 0
    assert figures(ended.out) == figures(score("model.st", "same.txt", *both).out)
    assert f"--unknown {choice}: " in ended.err
    assert "'Ω' dropped (18 times)" in ended.err


def test_a_text_is_scored_in_the_form_of_its_letters_that_the_model_knows(
    files: Path, score: Call
) -> None:
    words = ["naïve", "Ωmega", "abc", "\n"]
    # several chunks, which end within letters
    text = "".join(random.Random(0).choices(words, k=30_000))
    write("wide.st", CharTokenizer(text))
    for form in ("NFC", "NFD"):
        Path(f"{form}.txt").write_text(unicodedata.normalize(form, text), encoding="utf-8")
    expected, ended = (
        score("wide.st", f"{form}.txt", "--window", "disjoint") for form in ("NFC", "NFD")
    )
    assert ended.status == 0 and "--unknown" not in ended.err
    (found,), (wanted,) = figures(ended.out).values(), figures(expected.out).values()
    assert found == wanted and len(text) != len(unicodedata.normalize("NFD", text))


@pytest.mark.parametrize(
    ("positions", "window"),
    [
        pytest.param("rotary", None, id="rotary"),
        pytest.param("learned", None, id="learned"),
        pytest.param("rotary", 4, id="a short attention window"),
        pytest.param("none", 20, id="no positions"),
    ],
)
def test_sampling_and_scoring_agree(
    workplace: Path, sample: Call, score: Call, positions: str, window: int | None
) -> None:
    """The losses of what sample.py draws, by NumPy: in the first context, in every mode those of score.py."""
    write("model.st", CharTokenizer("abcdefgh \n"), positions=positions, window=window)
    options = "--prompt abc --num-chars 40 --temperature 2 --top-k 9 --seed 3 --json"
    drawn = json.loads(sample("model.st", *options.split()).out)["text"]
    Path("written.txt").write_text("abc" + drawn, encoding="utf-8", newline="")
    model, meta = load_checkpoint("model.st")
    tokens = tokenizer_from(meta["vocabulary"]).encode("abc" + drawn)
    logits = reference.text(model.state_dict(), model.config, tokens.tolist())[0]
    assert Decoder(weights_of(model)).read(tokens[None])[0] == pytest.approx(logits, abs=1e-5)
    expected = [surprisal(row, token) for row, token in zip(logits[2:-1], tokens[3:], strict=True)]
    for mode in ("disjoint", "strided"):
        lines = lines_of(score("model.st", "written.txt", "--per-char", "--window", mode).out)
        nats = [line["nats"] for line in lines[3:]]
        assert nats[: 8 - 3] == pytest.approx(expected[: 8 - 3], abs=1e-5)
        assert nats != pytest.approx(expected, abs=1e-5), "later ones have other contexts"


def test_a_context_may_be_as_long_as_a_list(workplace: Path, score: Call) -> None:
    """And its first end mark: one window then reads the whole list."""
    write("lines.st", documents={"kind": "line", "end": "\n", "name": ""})
    Path("list.txt").write_text("abc\ntext\n", encoding="utf-8")
    table = figures(score("lines.st", "list.txt", "--context", "100").out)
    assert list(table) == ["windows of 9 at documents"]


@pytest.mark.parametrize("context", [3, 20])
@pytest.mark.parametrize("mode", ["disjoint", "strided"])
def test_windows_of_another_length(files: Path, score: Call, context: int, mode: str) -> None:
    write("other.st", context=context)
    expected = figures(score("other.st", "text.txt", "--window", mode).out)
    own = figures(score("model.st", "text.txt", "--window", mode).out)
    # options come anywhere
    ended = score("--context", str(context), "model.st", "--window", mode, "--", "text.txt")
    assert figures(ended.out) == expected != own


@pytest.mark.parametrize(
    "tokenizer", [ByteTokenizer(), CharTokenizer(TEXT + "xyzXYZ")], ids=["byte", "char"]
)
def test_two_models_read_the_same_characters(
    files: Path, score: Call, tokenizer: Tokenizer
) -> None:
    write("wide.st", tokenizer, seed=1, context=10)
    ended = score("model.st", "text.txt", "--compare", "wide.st", "--per-char")
    assert ended.status == 0
    assert "contexts differ" in ended.err
    assert "wide.st, step 7" in ended.err
    a, b = (score(name, "text.txt", "--per-char") for name in ("model.st", "wide.st"))
    assert lines_of(ended.out) == [
        line | {"other": {"nats": other["nats"], "likely": other["likely"]}}
        for line, other in zip(lines_of(a.out), lines_of(b.out), strict=True)
    ]
    table = figures(ended.err)
    of_a, of_b = (figures(alone.err) for alone in (a, b))
    rows = {f"A  {row}": numbers for row, numbers in of_a.items()}
    rows |= {f"B  {row}": numbers for row, numbers in of_b.items()}
    assert {row: table[row] for row in rows} == rows
    differences = [table[f"B - A  {mode} windows"] for mode in ("strided", "disjoint")]
    by_hand = np.subtract(list(of_b.values()), list(of_a.values()))
    np.testing.assert_allclose(differences, by_hand, rtol=0, atol=2e-5)


# a page in the browser, and what was printed with it
Shown = tuple[Any, list[dict[str, Any]], str]


def scored(
    place: Path, open_page: Callable[..., Any], model: str, text: str, *more: str, **options: Any
) -> Shown:
    with (
        chdir(place),
        redirect_stdout(io.StringIO()) as out,
        redirect_stderr(io.StringIO()) as err,
    ):
        assert (
            score_script.cli([model, text, "--per-char", "--html", "a.html", "--overwrite", *more])
            == 0
        )
    return open_page(place / "a.html", **options), lines_of(out.getvalue()), err.getvalue()


HTML = "x</script><img src=x onerror=alert(1)>&{{data}}.txt"  # the name of the text


@pytest.fixture(scope="module")
def shown(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shown, Shown]]:
    place = tmp_path_factory.mktemp("pages")
    (place / "x<").mkdir()
    for name in (HTML, "text.txt"):
        (place / name).write_text(TEXT, encoding="utf-8", newline="")
    write(str(place / "model.st"))
    write(str(place / "other.st"), ByteTokenizer(), seed=1, context=10)
    with pages(browser) as open_page:
        one = scored(
            place,
            open_page,
            "model.st",
            HTML,
            viewport={"width": 900, "height": 700},
            has_touch=True,
        )
        yield one, scored(place, open_page, "model.st", "text.txt", "--compare", "other.st")


def check_card(page: Any, line: dict[str, Any]) -> None:
    """The card says what a JSON line says: position, bits, and the probabilities with bars as long as they are."""
    words, letter = page.inner_text("#card"), line["character"]
    costs = [line, line["other"]] if "other" in line else [line]
    assert f"position {line['position']}" in words and (
        letter in words or not letter.isprintable() or letter == " "
    )
    for unit, size in (("nats", 1), ("bits", math.log(2))):
        shown = [float(each) for each in re.findall(rf"([\d.]+) {unit}[ )]", words)]
        assert shown == pytest.approx([cost["nats"] / size for cost in costs], abs=0.006)
    shares = [float(each.strip("< %")) for each in page.locator("#card em").all_inner_texts()]
    expected = []
    for cost in costs if line["likely"] else ():  # nothing comes before the first of a text
        expected += [100 * chance for chance in cost["likely"].values()]
        expected += [100 * math.exp(-cost["nats"])] * (letter not in cost["likely"])
    assert shares == pytest.approx(expected, abs=0.06)
    widths = (
        "[...document.querySelectorAll('#card li i')].map((bar) => parseFloat(bar.style.width))"
    )
    assert page.evaluate(widths) == pytest.approx(expected, abs=0.06)


@pytest.mark.slow
def test_the_card_says_what_the_json_lines_say(shown: tuple[Shown, Shown]) -> None:
    page, lines, _ = shown[0]
    page.focus("#text")
    for line in lines:
        page.keyboard.press("ArrowRight")
        check_card(page, line)
    page.keyboard.press("Escape")
    assert not page.is_visible("#card")


def test_the_first_character_of_a_list_follows_an_end_mark(
    workplace: Path, visit: Callable[..., Any], score: Call
) -> None:
    lines = {"kind": "line", "end": "\n", "name": ""}
    write("lines.st", CharTokenizer("abcde\n"), documents=lines)
    Path("list.txt").write_text("abc\nde\n")
    ended = score("lines.st", "list.txt", "--per-char", "--html", "list.html")
    first = lines_of(ended.out)[0]
    assert len(first["likely"]) == 5
    page = visit("list.html")
    page.focus("#text")
    page.keyboard.press("ArrowRight")
    check_card(page, first)


def test_a_pointer_or_a_finger_opens_and_closes_the_card(shown: tuple[Shown, Shown]) -> None:
    page, lines, _ = shown[0]
    span = page.locator("#text span").first
    assert len(span.text_content()) == 1
    span.hover()
    check_card(page, lines[0])
    page.mouse.move(5, 5)
    assert not page.is_visible("#card")
    span.tap()
    check_card(page, lines[0])
    span.tap()
    assert not page.is_visible("#card")


def test_the_page_shows_the_text_and_its_name_as_they_are(shown: tuple[Shown, Shown]) -> None:
    page, _, _ = shown[0]
    assert page.title() == Path(HTML).name == page.inner_text("h1")
    assert page.query_selector("img") is None
    assert "".join(page.locator("#text span").all_text_contents()) == readable(TEXT)
    marks = "[...document.querySelectorAll('#text .line')].map((m) => getComputedStyle(m, '::before').content)"
    assert page.evaluate(marks) == ['"↵"'] * TEXT.count("\n")


def test_colours_are_steps_of_the_loss(shown: tuple[Shown, Shown]) -> None:
    page, lines, _ = shown[0]
    spans = page.locator("#text span").evaluate_all(
        "all => all.map((span) => [span.className, span.textContent])"
    )
    steps = [
        int(name.rpartition("s")[2])
        for name, text in spans
        for _ in ("?" if "code" in name else text)
    ]
    expected = [min(20, math.floor(round(1000 * line["nats"]) / 350)) for line in lines]
    assert steps == expected
    assert len(set(steps)) > 5


def test_the_card_of_two_models_shows_both(shown: tuple[Shown, Shown]) -> None:
    page, lines, _ = shown[1]
    page.focus("#text")
    for line in lines[:40]:
        page.keyboard.press("ArrowRight")
        check_card(page, line)
        change = line["other"]["nats"] - line["nats"]
        (nats,) = re.findall(r"[+−][\d.]+(?= nats)", page.inner_text("#card header"))
        assert float(nats.replace("−", "-")) == pytest.approx(change, abs=0.006)
    page.keyboard.press("Escape")


def test_the_page_of_two_models_has_the_figures_of_strided_windows(
    shown: tuple[Shown, Shown],
) -> None:
    page, _, printed = shown[1]
    table = page.inner_text("#figures")
    rows = figures(printed)
    on_page = [
        row
        for row, numbers in rows.items()
        if all(f"{abs(number):.4f}" in table for number in numbers)
    ]
    assert on_page == [row for row in rows if "strided" in row] != []


def test_the_page_of_two_models_lists_where_they_differ_most(shown: tuple[Shown, Shown]) -> None:
    page, _, _ = shown[1]
    page.click("#lists summary")
    listed = page.locator("#lines button b")
    listed.first.wait_for()
    changes = [float(each.replace("\u2212", "-").split()[0]) for each in listed.all_inner_texts()]
    assert len(changes) > 1
    assert changes == sorted(changes, key=abs, reverse=True)
    words = [each.split()[-1] for each in page.locator("#words button").all_inner_texts()]
    assert len(set(words)) == len(words) > 5


CONTRASTS = """() => {
  const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const over = (below, colour) => {
    for (context.fillStyle of [`rgb(${below.join(" ")})`, colour]) context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const back = (node) =>
    over(node.parentElement ? back(node.parentElement) : [255, 255, 255], getComputedStyle(node).backgroundColor);
  const light = (rgb) => rgb.map((v) => (v <= 10 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement, style = getComputedStyle(node);
    if (!walker.currentNode.data.trim() || node.closest("script, noscript")) continue;
    if (!node.checkVisibility({ visibilityProperty: true })) continue;
    const below = back(node), ink = node.closest("svg") ? style.fill : style.color;
    const [a, b] = [light(over(below, ink)), light(below)].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), node.textContent.slice(0, 30)]);
  }
  return found;
}"""  # of every text that can be seen, by WCAG's formula


def contrasts(page: Any) -> list[list[Any]]:
    """Of all text of a page; each is at least 4.5 (WCAG 2.2, 1.4.3)."""
    found = page.evaluate(CONTRASTS)
    assert len(found) > 60 and min(found)[0] >= 4.5, min(found)
    return found


@pytest.mark.parametrize(
    ("scheme", "media"), [("dark", "screen"), ("light", "screen"), ("dark", "print")]
)
@pytest.mark.parametrize("compared", [False, True], ids=["one model", "two models"])
def test_every_colour_can_be_read_on(
    shown: tuple[Shown, Shown], scheme: str, media: str, compared: bool
) -> None:
    page, _, _ = shown[compared]
    page.evaluate("""() => {
      const shades = Object.assign(document.createElement("p"), { id: "shades" });
      for (const { className } of document.querySelectorAll("#legend i"))
        shades.append(Object.assign(document.createElement("span"), { className, textContent: "shade" }));
      document.querySelector("#text").prepend(shades);
    }""")
    page.emulate_media(color_scheme=scheme, media=media)
    try:
        assert sum(text == "shade" for _, text in contrasts(page)) == 21
    finally:
        page.evaluate("document.querySelector('#shades').remove()")
        page.emulate_media(color_scheme="light", media="screen")


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_split_of_a_run_is_scored_as_a_file_of_it(
    trained: Path, score: Call, split: str
) -> None:
    text = open_text(DataConfig(path="book.txt"), 32)
    Path("part.txt").write_bytes(text.tokenizer.decode(getattr(text, split)).encode())
    named = score("first", "--split", split)
    file = score("first", "part.txt")
    assert named.status == 0
    assert named.out.splitlines()[2:] == file.out.splitlines()[2:]
    assert f"{split} split of first" in named.out


def test_the_loss_of_the_test_split_is_saved_and_no_other(trained: Path, score: Call) -> None:
    text = open_text(DataConfig(path="book.txt"), 32)
    before = vars(Run(Path("runs/first")).summary)
    score("first", "--split", "validation")
    assert vars(Run(Path("runs/first")).summary) == before
    score("first", "--split", "test")
    after = vars(Run(Path("runs/first")).summary)
    model, _ = load_checkpoint(trained)
    assert after["test_loss"] == pytest.approx(np.mean(nats_of(model, text.test)), abs=1e-6)
    assert before | {"test_loss": after["test_loss"], "test_bpc": after["test_bpc"]} == after


def test_strided_windows_of_several_runs(trained: Path, score: Call) -> None:
    ended = score("fir*", "--split", "validation", "--stride", "8")
    assert ended.status == 0, ended
    assert list(figures(ended.out)) == [
        "disjoint windows of 32",
        "strided windows of 32, stride 8",
    ]


TRAINED_ON = "the model was trained on this text; the loss on held-out text is higher"


def test_a_text_that_was_trained_on_is_named(trained: Path, score: Call) -> None:
    ended = score("first", "book.txt", "--window", "disjoint", "--html", "seen.html")
    assert ended.status == 0, ended
    assert ended.out.splitlines()[1].endswith(TRAINED_ON)
    assert '"trained": true' in Path("seen.html").read_text()


def test_a_split_of_which_another_run_has_read_is_named(
    trained: Path, train: Call, score: Call
) -> None:
    assert train("data.split=[0.5,0.3,0.2]", "name=other", "trainer.max_steps=2").status == 0
    assert train("seed=5", "name=same", "trainer.max_steps=2").status == 0
    warning = "B  the model was trained on files of this text, perhaps on this split of it\n"
    split = ("first", "--split", "test", "--window", "disjoint", "--compare")
    assert warning in score(*split, "other").out
    assert "trained on" not in score(*split, "same").out


def test_a_text_that_was_not_trained_on_is_not_named(trained: Path, score: Call) -> None:
    Path("other.txt").write_bytes(Path("book.txt").read_bytes()[:-1])
    ended = score("first", "other.txt", "--window", "disjoint")
    assert ended.status == 0
    assert "trained on" not in ended.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("first", ("--split",)),
        ("first book.txt --split test", ("text file", "--split")),
        ("alone.safetensors --split test", ("run directory",)),
        ("first --split test --encoding latin-1", ("--encoding latin-1",)),
    ],
)
def test_wrong_words_about_splits_get_one_line(
    trained: Path, score: Call, arguments: str, words: tuple[str, ...]
) -> None:
    Path("alone.safetensors").write_bytes(trained.read_bytes())
    refused(score(*arguments.split()), *words)


def test_a_split_is_scored_without_a_training_checkpoint(trained: Path, score: Call) -> None:
    scores = score("first", "--split", "test").out
    for checkpoint in Path("runs/first/checkpoints").glob("*.ckpt"):
        checkpoint.unlink()
    assert score("first", "--split", "test").out == scores, (
        "config.yaml and the model file name the text"
    )


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        pytest.param(
            lambda yaml: yaml.replace("batch: 8", "batch: eight"),
            "batch=eight",
            id="a wrong value",
        ),
        pytest.param(lambda yaml: yaml[:60], "'data'", id="cut"),
        pytest.param(lambda yaml: "- [", "while parsing", id="not YAML"),
    ],
)
def test_a_split_needs_the_run_s_configuration(
    trained: Path, score: Call, damage: Callable[[str], str], words: str
) -> None:
    config = Path("runs/first/config.yaml")
    config.write_text(damage(config.read_text()))
    refused(score("first", "--split", "test"), "runs/first/config.yaml: ", words)


def test_what_needs_a_text_that_has_moved_is_refused(
    trained: Path, score: Call, sample: Call, export: Call
) -> None:
    Path("book.txt").rename("moved.txt")
    named = "data.path=book.txt: "
    refused(score("first", "--split", "test"), named, "python score.py first FILE")
    one_line(sample("first", "--novelty"), 2, named, program="sample.py")
    one_line(
        export("first", *"--to web page.html --guess validation".split()),
        2,
        named,
        program="export.py",
    )
    Path("book.txt").symlink_to("moved.txt")
    assert score("first", "--split", "test", "--window", "disjoint").status == 0


def test_what_needs_a_text_that_has_changed_is_refused(
    trained: Path, score: Call, sample: Call
) -> None:
    Path("book.txt").write_text("Another text.\n" * 1000)
    refused(score("first", "--split", "test"), "has changed since")
    one_line(
        sample("first", "--novelty"), 2, "--novelty: ", "has changed since", program="sample.py"
    )


def test_a_comparison_saves_no_test_loss(trained: Path, score: Call) -> None:
    before = summary("first")
    ended = score("first", "--split", "test", "--compare", str(trained))
    assert ended.status == 0
    assert "the test loss is not saved in summary.json" in ended.err
    assert summary("first") == before


def test_a_split_of_bytes_that_begins_inside_a_character(
    trained: Path, train: Call, score: Call
) -> None:
    Path("greek.txt").write_text("αβγδε ζηθ " * 500, encoding="utf-8")
    split = "data.split=[0.9,0.0502,0.0498]"
    assert (
        train(
            "data.path=greek.txt",
            "data.tokenizer=byte",
            split,
            "name=bytes",
            "trainer.max_steps=2",
        ).status
        == 0
    )
    text = open_text(
        DataConfig(path="greek.txt", tokenizer="byte", split=[0.9, 0.0502, 0.0498]), 32
    )
    assert text.test[0] & 0xC0 == 0x80, "it continues a character"
    assert score("bytes", "--split", "test").status == 0
    ended = score("bytes", "--split", "test", "--compare", "first")
    refused(ended, "--split test: begins or ends inside a character", "first")


def test_a_copy_of_a_text_that_was_trained_on_is_named(
    workplace: Path, train: Call, score: Call
) -> None:
    text = Path("book.txt").read_text().replace("e", "é")
    Path("accents.txt").write_text(text, encoding="utf-8")
    ended = train("data.path=[accents.txt,book.txt]", "name=both", "trainer.max_steps=2")
    assert ended.status == 0
    copies = {
        "line-ends.txt": text.replace("\n", "\r\n").encode(),
        "byte-order-mark.txt": text.encode("utf-8-sig"),
        "decomposed.txt": unicodedata.normalize("NFD", text).encode(),
        "compressed.txt.gz": gzip.compress(text.encode()),
    }
    named = []
    for name, content in copies.items():
        Path(name).write_bytes(content)
        if TRAINED_ON in score("both", name, "--window", "disjoint").out:
            named.append(name)
    assert named == list(copies)
