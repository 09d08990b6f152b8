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
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import score as score_script
from base.jobs.run_directory import Run
from data.config import DataConfig
from data.text import open_text
from gpt.checkpoint import load_checkpoint
from gpt.model import GPT
from gpt.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer, tokenizer_from
from reports import scoring, text_to_score
from tests.conftest import Call, one_line, pages, summary
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
def test_characters_cost_what_a_naive_loop_says(
    files: Path, score: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments, stride, piece in (
        (["--window", "disjoint"], None, 50), ([], 3, 4096), (["--stride", "1"], 1, 7),
        (["--stride", "7", "--window", "strided"], 7, 1),
    ):  # fmt: skip
        monkeypatch.setattr("gpt.scoring.PIECE", piece)
        ended = score("model.st", "text.txt", "--per-char", *arguments)
        assert ended.status == 0, ended
        lines = lines_of(ended.out)
        assert "".join(line["character"] for line in lines) == TEXT
        assert [line["position"] for line in lines] == list(range(len(TEXT)))
        for line, (nats, likely) in zip(lines, naive("model.st", stride), strict=True):
            assert line["nats"] == pytest.approx(nats, abs=2e-5)
            assert list(line["likely"]) == list(likely) and line["likely"] == pytest.approx(
                likely, abs=1e-5
            )
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
        if not arguments:  # both modes, and they are those alone
            alone = [
                figures(score("model.st", "text.txt", "--window", mode).out)
                for mode in ("disjoint", "strided")
            ]
            both = {"disjoint windows of 7": alone[0].popitem()[1], name: alone[1].popitem()[1]}
            assert figures(ended.err) == figures(score("model.st", "text.txt").out) == both


@pytest.mark.slow
def test_the_characters_of_a_model_of_bytes_are_sums(
    files: Path, score: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpt.scoring.PIECE", 5)
    lines = lines_of(score("bytes.st", "text.txt", "--per-char").out)
    assert "".join(line["character"] for line in lines) == TEXT
    octets = list(naive("bytes.st", 3))
    for line in lines:
        own, octets = (
            octets[: len(line["character"].encode())],
            octets[len(line["character"].encode()) :],
        )
        assert line["nats"] == pytest.approx(sum(nats for nats, _ in own), abs=1e-4)
        assert line["likely"] == pytest.approx(own[0][1], abs=1e-5)
    assert not octets
    # A model of bytes reads any file: no line end changes, and what is no UTF-8 counts as a
    # character it begins.
    Path("odd.bin").write_bytes(b"\x80\x81a\r\n\xff\xe6\x97\xe6\x97\xa5\xef\xbb\xbf\x9fz")
    ended = score("bytes.st", "odd.bin", "--per-char")
    letters = [line["character"] for line in lines_of(ended.out)]
    assert letters == ["\ufffd", "a", "\r", "\n", "\ufffd", "\ufffd", "日", "\ufffd", "z"]
    assert "8 characters, 16 bytes" in ended.err  # the first two bytes continue what is not there
    Path("odd.bin").write_bytes(b"\x80\x81")
    ended = score("bytes.st", "odd.bin", "--window", "disjoint")
    assert ended.status == 0 and re.search(r" nan +nan +nan +\d", ended.out)


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
    one_line(score("model.st", "new.log", "--per-document"), 2, said, program="score.py")
    ended = score("model.st", "new.log", "--per-document", "--csv", "out.csv", "--unknown", choice)
    with open("out.csv", encoding="utf-8", newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: int(row["document"]))
    assert [(row["document"], row["line"], row["unknown"]) for row in rows] == [
        ("1", "1", "0"), ("2", "4", "1"), ("3", "5", "2"), ("4", "6", "1"),
    ]  # fmt: skip
    assert [row["beginning"] for row in rows] == scored
    assert [int(row["characters"]) for row in rows] == [len(text) + 1 for text in scored]
    assert re.search(r"^ .* 4 +all, each from a fresh start$", ended.out, re.MULTILINE)


def test_an_interrupt_keeps_lines_and_the_old_page(
    files: Path, score: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("a.html").write_text("old")
    before = sorted(os.listdir())
    # after the lines
    for name, html in (("measure", []), ("page", ["--html", "a.html", "--overwrite"])):
        with monkeypatch.context() as patched:
            patched.setattr(scoring, name, Mock(side_effect=KeyboardInterrupt))
            ended = score("model.st", "text.txt", "--per-char", *html)
        assert ended.status == 130 and len(ended.out.splitlines()) == len(TEXT), (name, ended)
        assert sorted(os.listdir()) == before and Path("a.html").read_text() == "old"
    monkeypatch.setattr(text_to_score, "MAX_PAGE", len(TEXT) - 1)
    one_line(
        score("model.st", "text.txt", *html),
        2,
        "more characters than a page can show",
        program="score.py",
    )


def test_texts_as_short_as_can_be(
    files: Path, score: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in (TEXT[:8], TEXT[:7], "a"):
        Path("short.txt").write_text(text, encoding="utf-8", newline="")
        ended = score("model.st", "short.txt", "--per-char", "--html", "short.html", "--overwrite")
        assert (
            ended.status == 0
            and "".join(line["character"] for line in lines_of(ended.out)) == text
        ), ended
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


WRONG = {
    "model.st unknown.txt": "unknown.txt, line 3: character 'ż' (U+017C) at position 70001 is not in",
    "model.st latin.txt": "(line 1) is not utf-8 (unexpected end of data); name its encoding with --encoding NAME:",
    "model.st text.txt --encoding utf-9": "--encoding utf-9: is not an encoding", "model.st empty.txt": "empty.txt: is",
    "bytes.st text.txt --encoding latin-1": "latin-1: does not apply to a byte", "model.st .": ".: cannot be read: Is",
    "model.st txet.txt": "txet.txt: no such file; nearest: text.txt",
    "model.st text.txt --compare nothing": "nothing: no such model, nor a run in runs/",
    "model.st text.txt --compare less.st": "line 1: less.st: character 'Ω' (U+03A9) at position 6",
    "model.st text.txt --stride 2 --window sample": "--stride 2: only works with --window strided, not sample",
    "model.st text.txt --context 5 --stride 6": "--stride 6: must be at most 5, the context",
    "learned.st text.txt --context 8": "--context 8: must be at most 7, the number of learned positions",
    "model.st text.txt --html nowhere/a.html": "--html nowhere/a.html: No such file or directory",
    "model.st text.txt --html text.txt --overwrite": "--html text.txt: is also an input",
    "model.st text.txt --device cuda:99": "--device cuda:99", "model.st text.txt --html a.html more.txt": ": more.txt",
    "model.st text.txt --per-document": "--per-document: model.st was not trained on documents",
    "lines.st text.txt --csv a.csv": "--csv a.csv: needs --per-document",
    "lines.st text.txt --per-document --html a.html": "--per-document: cannot be combined with --html",
    "lines.st text.txt --per-document --window sample": "--per-document: cannot be combined with --window",
    "lines.st blank.txt --per-document --csv a.csv": "blank.txt has only whitespace",
}  # fmt: skip


def test_wrong_words_get_one_line(files: Path, score: Call) -> None:
    # beyond the first chunk
    Path("unknown.txt").write_bytes(("Naïve\r\n" + "a" * 69_993 + "\ntż").encode())
    Path("latin.txt").write_bytes("aï".encode("latin-1"))
    Path("empty.txt").touch()
    Path("blank.txt").write_text("  \n \n")
    write("learned.st", positions="learned")
    write("less.st", CharTokenizer(TEXT.replace("Ω", "")))
    write("lines.st", documents={"kind": "line", "end": "\n", "name": ""})
    before = sorted(os.listdir())
    for arguments, said in WRONG.items():
        ended = score(*arguments.split())
        one_line(ended, 2, said, program="score.py")
        assert ended.out in ("", "lines.st, step 7\n") and sorted(os.listdir()) == before, (
            arguments
        )


def test_unknown_characters_are_skipped_or_replaced_for_both_models(
    files: Path, score: Call
) -> None:
    write("less.st", CharTokenizer(TEXT.replace("Ω", "").replace("ï", "")))
    Path("strange.txt").write_text("aΩbïжΩc" * 9, encoding="utf-8")
    one_line(
        score("model.st", "strange.txt"),
        2,
        "--unknown skip drops it, --unknown replace",
        program="score.py",
    )
    for choice, same in (("skip", "abc" * 9), ("replace", "abic" * 9)):
        Path("same.txt").write_text(same, encoding="utf-8")
        both = ["--compare", "less.st", "--window", "disjoint"]
        ended = score("model.st", "strange.txt", *both, "--unknown", choice)
        assert ended.status == 0 and figures(ended.out) == figures(
            score("model.st", "same.txt", *both).out
        )
        assert f"--unknown {choice}: " in ended.err and "'Ω' dropped (18 times)" in ended.err


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


def test_sampling_and_scoring_agree(workplace: Path, sample: Call, score: Call) -> None:
    """The losses of what sample.py draws, by NumPy: in every mode within the first context, everywhere in its own."""
    for positions, window in (("rotary", None), ("learned", None), ("rotary", 4), ("none", 20)):
        write("model.st", CharTokenizer("abcdefgh \n"), positions=positions, window=window)
        typed = "--prompt abc --num-chars 40 --temperature 2 --top-k 9 --seed 3 --json"
        said = json.loads(sample("model.st", *typed.split()).out)
        Path("written.txt").write_text("abc" + said["text"], encoding="utf-8", newline="")
        model, meta = load_checkpoint("model.st")
        tokens = tokenizer_from(meta["vocabulary"]).encode("abc" + said["text"]).tolist()
        logits = reference.text(model.state_dict(), model.config, tokens)[0]
        drawn = [
            surprisal(row, token) for row, token in zip(logits[2:-1], tokens[3:], strict=True)
        ]
        for mode in ("sample", "disjoint", "strided"):
            lines = lines_of(score("model.st", "written.txt", "--per-char", "--window", mode).out)
            costs = [line["nats"] for line in lines[3:]]
            assert costs[: 8 - 3] == pytest.approx(drawn[: 8 - 3], abs=1e-5)
            assert (costs == pytest.approx(drawn, abs=1e-5)) == (mode == "sample"), (
                positions,
                mode,
            )
    whole = figures(score("model.st", "written.txt", "--window", "sample").out)
    assert set(whole) == {"sample windows of 7, as sample.py reads"}


def test_windows_of_another_length(files: Path, score: Call) -> None:
    for context in ("3", "20"):
        write("other.st", context=int(context))
        for mode in ("disjoint", "strided", "sample"):
            wanted = figures(score("other.st", "text.txt", "--window", mode).out)
            own = score("model.st", "text.txt", "--window", mode)
            # options come anywhere
            given = score("--context", context, "model.st", "--window", mode, "--", "text.txt")
            assert figures(given.out) == wanted != figures(own.out)


def test_two_models_read_the_same_characters(files: Path, score: Call) -> None:
    for tokenizer in (ByteTokenizer(), CharTokenizer(TEXT + "xyzXYZ")):
        write("wide.st", tokenizer, seed=1, context=10)
        ended = score("model.st", "text.txt", "--compare", "wide.st", "--per-char")
        assert (
            ended.status == 0 and "contexts differ" in ended.err and "wide.st, step 7" in ended.err
        )
        alone = [score(name, "text.txt", "--per-char") for name in ("model.st", "wide.st")]
        for line, a, b in zip(
            lines_of(ended.out), *(lines_of(each.out) for each in alone), strict=True
        ):
            assert line.pop("other") == {"nats": b["nats"], "likely": b["likely"]}
            assert line == a
        table = figures(ended.err)
        for label, each in zip("AB", alone, strict=True):
            assert {
                f"{label}  {row}": numbers for row, numbers in figures(each.err).items()
            }.items() <= table.items()
        for mode in ("disjoint", "strided"):
            a, b = (
                next(table[row] for row in table if row.startswith(f"{label}  {mode}"))
                for label in "AB"
            )
            assert table[f"B - A  {mode} windows"] == pytest.approx(np.subtract(b, a), abs=2e-5)


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
    for cost in costs if line["position"] else ():  # nothing comes before the first
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
    assert (
        page.title() == Path(HTML).name == page.inner_text("h1")
        and page.query_selector("img") is None
    )
    spans = page.locator("#text span").evaluate_all(
        "all => all.map((span) => [span.className, span.textContent])"
    )
    assert "".join(text for _, text in spans) == readable(TEXT)
    marks = "[...document.querySelectorAll('#text .line')].map((m) => getComputedStyle(m, '::before').content)"
    assert page.evaluate(marks) == ['"↵"'] * TEXT.count("\n")
    steps = [
        int(name.rpartition("s")[2])
        for name, text in spans
        for _ in ("?" if "code" in name else text)
    ]
    expected = [min(20, math.floor(round(1000 * line["nats"]) / 350)) for line in lines]
    assert steps == expected and len(set(steps)) > 5


def test_the_page_of_two_models_shows_both(shown: tuple[Shown, Shown]) -> None:
    page, lines, said_of_both = shown[1]
    page.focus("#text")
    for line in lines[:40]:
        page.keyboard.press("ArrowRight")
        check_card(page, line)
        change = line["other"]["nats"] - line["nats"]
        (nats,) = re.findall(r"[+−][\d.]+(?= nats)", page.inner_text("#card header"))
        assert float(nats.replace("−", "-")) == pytest.approx(change, abs=0.006)
    page.keyboard.press("Escape")
    table = page.inner_text("#figures")
    for row, numbers in figures(said_of_both).items():
        assert all(f"{abs(number):.4f}" in table for number in numbers) == ("strided" in row)
    page.click("#lists summary")  # where they differ most: lines, and words
    listed = page.locator("#lines button b")
    listed.first.wait_for()
    changes = [float(each.replace("\u2212", "-").split()[0]) for each in listed.all_inner_texts()]
    assert len(changes) > 1 and changes == sorted(changes, key=abs, reverse=True)
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


def test_every_colour_can_be_read_on(shown: tuple[Shown, Shown]) -> None:
    for page, *_ in shown:
        page.evaluate("""() => {
          const shades = Object.assign(document.createElement("p"), { id: "shades" });
          for (const { className } of document.querySelectorAll("#legend i"))
            shades.append(Object.assign(document.createElement("span"), { className, textContent: "shade" }));
          document.querySelector("#text").prepend(shades);
        }""")
        for scheme, media in (("dark", "screen"), ("light", "screen"), ("dark", "print")):
            page.emulate_media(color_scheme=scheme, media=media)
            assert sum(text == "shade" for _, text in contrasts(page)) == 21
        page.evaluate("document.querySelector('#shades').remove()")
        page.emulate_media(color_scheme="light", media="screen")


def test_splits_of_a_run(trained: Path, score: Call) -> None:
    text = open_text(DataConfig(path="book.txt"), 32)
    before = vars(Run(Path("runs/first")).summary)
    for split in ("validation", "test"):
        Path("part.txt").write_bytes(text.tokenizer.decode(getattr(text, split)).encode())
        named, file = score("first", "--split", split), score("first", "part.txt")
        assert named.status == 0 and named.out.splitlines()[2:] == file.out.splitlines()[2:]
        assert f"{split} split of first" in named.out
    after = vars(Run(Path("runs/first")).summary)
    model, _ = load_checkpoint(trained)
    assert after["test_loss"] == pytest.approx(np.mean(nats_of(model, text.test)), abs=1e-6)
    assert before | {"test_loss": after["test_loss"], "test_bpc": after["test_bpc"]} == after


def test_a_text_that_was_trained_on_is_named(trained: Path, score: Call) -> None:
    ended = score("first", "book.txt", "--window", "disjoint", "--html", "seen.html")
    said = "the model was trained on this text; the loss on held-out text is higher"
    assert ended.status == 0 and ended.out.splitlines()[1].endswith(said), ended
    assert '"trained": true' in Path("seen.html").read_text()
    Path("again.txt.gz").write_bytes(gzip.compress(Path("book.txt").read_bytes()))
    assert said in score("first", "again.txt.gz", "--window", "disjoint").out, (
        "compressed, it is the same text"
    )
    Path("other.txt").write_bytes(Path("book.txt").read_bytes()[:-1])
    assert "trained on" not in score("first", "other.txt", "--window", "disjoint").out


def test_splits_that_cannot_be_scored(
    trained: Path, score: Call, sample: Call, export: Call
) -> None:
    Path("alone.safetensors").write_bytes(trained.read_bytes())
    for arguments, said in {
        "first": "name either a text file or --split", "first book.txt --split test": "either a text file or --split",
        "alone.safetensors --split test": "is not in a run directory",
        "first --split test --encoding latin-1": "--encoding latin-1",
    }.items():  # fmt: skip
        one_line(score(*arguments.split()), 2, said, program="score.py")
    scores = score("first", "--split", "test").out
    for checkpoint in Path("runs/first/checkpoints").glob("*.ckpt"):
        checkpoint.unlink()
    assert score("first", "--split", "test").out == scores, (
        "config.yaml and the model file name the text"
    )
    settings = Path("runs/first/config.yaml").read_text()
    for broken, reason in {
        settings.replace("batch: 8", "batch: eight"): "batch=eight: must be",
        settings[:60]: "'data'", "- [": "while parsing",
    }.items():  # fmt: skip
        Path("runs/first/config.yaml").write_text(broken)
        one_line(
            score("first", "--split", "test"),
            2,
            "runs/first/config.yaml: ",
            reason,
            program="score.py",
        )
    Path("runs/first/config.yaml").write_text(settings)
    Path("book.txt").rename("moved.txt")
    said = "data.path=book.txt: no such file or directory"
    one_line(
        score("first", "--split", "test"),
        2,
        said,
        "python score.py first FILE",
        program="score.py",
    )
    one_line(sample("first", "--novelty"), 2, said, program="sample.py")
    one_line(
        export("first", *"--to web page.html --guess validation".split()),
        2,
        said,
        program="export.py",
    )
    Path("book.txt").symlink_to("moved.txt")
    assert score("first", "--split", "test", "--window", "disjoint").status == 0
    Path("moved.txt").write_text("Another text.\n" * 1000)
    one_line(score("first", "--split", "test"), 2, "has changed since", program="score.py")
    one_line(
        sample("first", "--novelty"), 2, "--novelty: ", "has changed since", program="sample.py"
    )


def test_a_comparison_saves_no_test_loss(trained: Path, score: Call) -> None:
    before = summary("first")
    ended = score("first", "--split", "test", "--compare", str(trained))
    assert (
        ended.status == 0
        and "--compare: the test loss is not saved in summary.json; without --compare it is\n"
        in ended.err
    ), ended
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
    one_line(
        ended, 2, "--split test: begins or ends inside a character", "first", program="score.py"
    )


COPIES = {  # the text, as other files hold it
    "line ends": lambda text: text.replace("\n", "\r\n").encode(),
    "a byte order mark": lambda text: text.encode("utf-8-sig"),
    "decomposed accents": lambda text: unicodedata.normalize("NFD", text).encode(),
}


@pytest.mark.parametrize("kind", COPIES)
def test_a_copy_of_a_text_that_was_trained_on_is_named(
    workplace: Path, train: Call, score: Call, kind: str
) -> None:
    text = Path("book.txt").read_text().replace("e", "é")
    Path("accents.txt").write_text(text, encoding="utf-8")
    Path("copy.txt").write_bytes(COPIES[kind](text))
    assert (
        train("data.path=[accents.txt,book.txt]", "name=both", "trainer.max_steps=2").status == 0
    )
    assert "was trained on this text" in score("both", "copy.txt", "--window", "disjoint").out
