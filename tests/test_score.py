import csv
import gzip
import io
import json
import math
import os
import re
import sys
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import numpy as np
import pytest
import torch

import score as score_script
from data.config import DataConfig
from data.text import open_text
from gpt.checkpoint import load_checkpoint
from gpt.model import GPT
from gpt.tokenizer import ByteTokenizer, CharTokenizer, tokenizer_from
from reports import scoring
from tests.conftest import ROOT, one_line, pages, summary
from tests.folders import make
from tests.model_files import nats_of, write_model_file
from tests.reference.losses import read_by_document, surprisal
from tests.reference.models import fill, tiny

# Other scripts, some written from right to left, marks that join, characters that nobody sees, and
# HTML.
TEXT = (
    "Naïve Ωλ 😀\n日本語 text, ﷽ שלום עולם\tالعربية\n\n"
    "e\u0301 नमस्ते \x00\x07\x7f\u202eabc\u202c\u2028 \u00a0\u200b👩\u200d👩 "
    "</script><script>alert(1)</script> <!-- &amp; {{data}}\n"
)


def write(path, tokenizer=None, seed=0, documents=None, **changes):
    tokenizer = tokenizer or CharTokenizer(TEXT)
    config = tiny(key_offset=True, token_shift=True, dim=24, **changes)
    model = fill(GPT(config, tokenizer.size), seed, std=0.3)
    return str(write_model_file(path, model, tokenizer.vocabulary, step=7, documents=documents))


def divided(kind, end):
    return {"kind": kind, "end": end, "name": "%"}


HIDDEN = {letter: f"{ord(letter):02X}" for letter in "\x00\x07\x7f"}
HIDDEN |= {letter: f"U+{ord(letter):04X}" for letter in "\u202e\u202c\u2028\u00a0\u200b"}


def refused(ended, *words):
    one_line(ended, 2, *words, program="score.py")


def readable(text):
    return text.translate(str.maketrans(HIDDEN))


@pytest.fixture
def files(workplace):
    write("model.st")
    write("bytes.st", ByteTokenizer(), window=4)
    Path("text.txt").write_text(TEXT, encoding="utf-8", newline="")
    return workplace


def lines_of(printed):
    return [json.loads(line) for line in printed.splitlines()]


def figures(text):
    rows = re.findall(r"^(.*\S)" + r" +([-+]?\d+\.\d{6})" * 4 + "$", text, re.MULTILINE)
    return {name: tuple(map(float, numbers)) for name, *numbers in rows}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "stride", "piece"),
    [
        ("model.st --window disjoint", None, 50),
        ("model.st", 3, 4096),
        ("model.st --stride 1", 1, 7),
        ("model.st --stride 7 --window strided", 7, 1),
        ("bytes.st", 3, 5),
    ],
)
@torch.no_grad()
def test_characters_cost_what_a_naive_loop_says(files, score, monkeypatch, given, stride, piece):
    """A character of several tokens costs their sum; the likely ones are those of its first token."""
    monkeypatch.setattr("reports.scoring.PIECE", piece)
    name, *options = given.split()
    ended = score(name, "text.txt", "--per-char", *options)
    assert ended.status == 0, ended
    lines = lines_of(ended.out)
    assert "".join(line["character"] for line in lines) == TEXT
    assert [line["position"] for line in lines] == list(range(len(TEXT)))
    model, meta = load_checkpoint(name)
    tokenizer = tokenizer_from(meta["vocabulary"])
    tokens = tokenizer.encode(TEXT).tolist()
    costs = [[math.log(tokenizer.size)] * tokenizer.size]  # of all tokens at each place
    for place in range(1, len(tokens)):
        # The first window predicts 7 tokens, each further one the last `stride` of its own.
        step = stride or 7
        start = max(0, math.ceil((place - 7) / step)) * step
        logits = model.double()(torch.tensor([tokens[start:place]]))[0, -1].tolist()
        costs.append([surprisal(logits, kind) for kind in range(tokenizer.size)])
    place = 0
    for line in lines:
        best = np.argsort(costs[place])[:5] if place else []
        likely = {tokenizer.names[kind]: math.exp(-costs[place][kind]) for kind in best}
        assert list(line["likely"]) == list(likely)
        assert line["likely"] == pytest.approx(likely, abs=1e-5)
        size = len(line["character"].encode()) if name == "bytes.st" else 1
        nats = sum(costs[i][tokens[i]] for i in range(place, place + size))
        assert line["nats"] == pytest.approx(nats, abs=2e-5 * size)
        place += size
    assert place == len(tokens)
    row = f"strided windows of 7, stride {stride}" if stride else "disjoint windows of 7"
    nats = math.fsum(line["nats"] for line in lines)
    mean = nats / len(TEXT)
    octets = len(TEXT.encode())
    by_hand = (mean, math.exp(mean), mean / math.log(2), nats / math.log(2) / octets)
    table = figures(ended.err)
    assert table[row] == pytest.approx(by_hand, rel=2e-6, abs=2e-6)
    assert len(table) == 2 - ("--window" in options), "both windows, unless one is chosen"
    assert f"{len(TEXT):,} characters, {octets:,} bytes" in ended.err


def test_a_model_of_bytes_reads_any_file(workplace, score):
    """No line end changes, and what is not UTF-8 counts as a character that it begins."""
    write("bytes.st", ByteTokenizer())
    Path("odd.bin").write_bytes(b"\x80\x81a\r\n\xff\xe6\x97\xe6\x97\xa5\xef\xbb\xbf\x9fz")
    ended = score("bytes.st", "odd.bin", "--per-char")
    letters = [line["character"] for line in lines_of(ended.out)]
    assert letters == ["\ufffd", "a", "\r", "\n", "\ufffd", "\ufffd", "日", "\ufffd", "z"]
    assert "8 characters, 16 bytes" in ended.err  # the first two bytes continue what is not there
    Path("odd.bin").write_bytes(b"\x80\x81")
    no_character = score("bytes.st", "odd.bin", "--window", "disjoint").out
    assert re.search(r" nan +nan +nan +\d", no_character), "only the loss per byte"


DOCUMENTS = {
    "line": ("\n", "abc\n\n  \nface fade bead\nabc\nédé", {1: "abc", 4: "face fade bead", 5: "abc", 6: "édé"}),
    "paragraph": ("\n\n", "\nab\ncd\n\n\n\nface fade bead\n \né\n", {2: "ab\ncd", 7: "face fade bead", 9: "é"}),
    "file": ("\x03", "ab\n\ncd face fade\n", {1: "ab\n\ncd face fade\n"}),
    "part": (
        "\x03", "ab\n\ncd%\n\n%\nface fade bead\n%" + "bad " * 20,
        {1: "ab\n\ncd", 6: "face fade bead", 7: "bad " * 20},
    ),
    "row": ("\x03", 'id,%\n1,"face\nfade"\n2,\n\n3,"é\nbad"\n', {2: "face\nfade", 6: "é\nbad"}),
}  # fmt: skip


@pytest.mark.parametrize("kind", DOCUMENTS)
@torch.no_grad()
def test_documents_cost_what_a_naive_loop_says(workplace, score, monkeypatch, kind):
    assert f"lists the {scoring.ROWS} most" in (ROOT / "docs/score.md").read_text("utf-8")
    monkeypatch.setattr(scoring, "ROWS", 3)
    mark, text, documents = DOCUMENTS[kind]
    tokenizer = ByteTokenizer() if kind in ("line", "row") else CharTokenizer("abcdef \n\x03é")
    write("model.st", tokenizer, documents=divided(kind, mark), positions="learned")
    name = "text.csv" if kind == "row" else "text.txt"
    Path(name).write_bytes(text.encode())
    ended = score("model.st", name, "--per-document", "--csv", "out.csv", "--stride", "2")
    assert (ended.status, ended.err) == (0, "wrote out.csv\n")
    model = load_checkpoint("model.st")[0].double()
    end = tuple(tokenizer.encode(mark).tolist())
    rows = list(csv.DictReader(Path("out.csv").read_text("utf-8").splitlines()))
    losses = []
    for row in rows:
        document = documents[int(row["line"])]
        tokens = tuple(tokenizer.encode(document + mark).tolist())
        nats = 0.0
        for before, token in read_by_document([tokens], end, 7, 2):
            nats += surprisal(model(torch.tensor([before]))[0, -1].tolist(), token)
        losses.append(nats / len(document + mark))
        assert float(row["nats_per_character"]) == pytest.approx(losses[-1], rel=1e-5)
        assert float(row["perplexity"]) == pytest.approx(math.exp(losses[-1]), rel=1e-5)
        assert (row["characters"], row["unknown"]) == (str(len(document + mark)), "0")
        assert row["beginning"] == " ".join(document.split())[:60]
    assert losses == sorted(losses, reverse=True)
    numbers = {int(row["document"]): int(row["line"]) for row in rows}
    assert sorted(numbers.items()) == [*enumerate(documents, 1)]
    sizes = [int(row["characters"]) for row in rows]
    _, _, _, whole, *lines = ended.out.splitlines()
    mean = np.average(losses, weights=sizes)
    assert float(whole.split()[0]) == pytest.approx(mean, abs=2e-6)
    assert ("and 1 more" in lines) == (len(rows) > 3)
    printed = [line.split(maxsplit=5)[4:] for line in lines[:3]]
    assert printed == [[row["line"], row["beginning"]] for row in rows[:3]]
    if kind in ("part", "row"):  # without the option, the text is divided, too
        assert f"{name}: {sum(sizes)} characters, " in score("model.st", name).out


@pytest.mark.parametrize(("choice", "second"), [("skip", "3,1,ed"), ("replace", "4,1,eed")])
def test_the_lines_with_characters_that_the_model_has_never_seen(workplace, score, choice, second):
    write("model.st", CharTokenizer("abcde\n"), documents=LINES)
    Path("new.log").write_bytes("abc\r\n\r\n  \r\néed\r\nжж\r\nde日".encode())
    given = ["model.st", "new.log", "--per-document"]
    refused(score(*given), "new.log, line 4: character 'é' (U+00E9) at position 0 is not in")
    ended = score(*given, "--csv", "out.csv", "--unknown", choice)
    table = Path("out.csv").read_text("utf-8")
    written = re.findall(r"^(\d,\d),[^,]+,[^,]+,(.*)$", table, re.MULTILINE)
    expected = [("1,1", "4,0,abc"), ("2,4", second), ("3,5", "1,2,"), ("4,6", "3,1,de")]
    assert sorted(written) == expected
    assert re.search(r"^ .* 4 +all, each from a fresh start$", ended.out, re.MULTILINE)


def test_an_interrupt_keeps_the_lines_that_were_written(files, score, monkeypatch):
    second = Mock(wraps=scoring.measure, side_effect=[DEFAULT, KeyboardInterrupt])
    monkeypatch.setattr(scoring, "measure", second)
    ended = score("model.st", "text.txt", "--per-char")
    assert ended.status == 130
    assert len(ended.out.splitlines()) == len(TEXT)


LINES = divided("line", "\n")
PLAIN = "Naïve text\nabc\nabc\n"


SOURCES = {  # the arguments, what is there, and what it is called
    "windows.txt": (b"\xef\xbb\xbf" + PLAIN.replace("\n", "\r\n").encode(), "windows.txt"),
    "old.txt --encoding latin-1": (PLAIN.replace("\n", "\r").encode("latin-1"), "old.txt"),
    "decomposed.txt": (unicodedata.normalize("NFD", PLAIN).encode(), "decomposed.txt"),
    "-": (PLAIN.encode(), "standard input"),
    "pipe": (PLAIN.encode(), "pipe"),
}


@pytest.mark.parametrize("source", SOURCES)
def test_line_ends_encodings_forms_of_letters_and_streams_change_no_loss(
    files, score, monkeypatch, source
):
    content, label = SOURCES[source]
    make(Path(), {"plain.txt": PLAIN})
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    os.mkfifo("pipe")
    expected = score("model.st", "plain.txt", "--per-char").out
    with ThreadPoolExecutor() as writer:
        writing = writer.submit(Path(label).write_bytes, content)
        if source != "pipe":
            writing.result()
        ended = score("model.st", *source.split(), "--per-char")
    assert ended.out == expected != ""
    assert f"{label}: 19 characters" in ended.err


def test_an_unknown_character_beyond_the_first_chunk_is_named(files, score):
    Path("unknown.txt").write_bytes(("Naïve\r\n" + "a" * 69_993 + "\ntż").encode())
    refused(
        score("model.st", "unknown.txt"),
        "unknown.txt, line 3: character 'ż' (U+017C) at position 70001",
        "--unknown skip drops it, --unknown replace",
    )


@pytest.mark.parametrize(("choice", "same"), [("skip", "abc"), ("replace", "abic")])
def test_unknown_characters_are_skipped_or_replaced_for_both_models(files, score, choice, same):
    write("less.st", CharTokenizer(TEXT.replace("Ω", "").replace("ï", "")))
    Path("strange.txt").write_text("aΩbïжΩc" * 9, encoding="utf-8")
    Path("same.txt").write_text(same * 9, encoding="utf-8")
    both = ["--compare", "less.st", "--window", "disjoint"]
    ended = score("model.st", "strange.txt", *both, "--unknown", choice)
    assert ended.status == 0
    assert figures(ended.out) == figures(score("model.st", "same.txt", *both).out)
    assert f"--unknown {choice}: " in ended.err
    assert "'Ω' dropped (18 times)" in ended.err


def test_a_context_may_be_as_long_as_a_list(workplace, score):
    """And its first end mark: one window then reads the whole list, and its first character is predicted, too."""
    write("lines.st", documents=LINES)
    Path("list.txt").write_text("abc\ntext\n", encoding="utf-8")
    ended = score("lines.st", "list.txt", "--context", "100", "--per-char")
    assert list(figures(ended.err)) == ["windows of 100 at documents"]
    assert len(lines_of(ended.out)[0]["likely"]) == 5


def test_windows_of_another_length(files, score):
    write("other.st", context=3)
    expected = figures(score("other.st", "text.txt").out)
    # options come anywhere
    ended = score("--context", "3", "model.st", "--", "text.txt")
    assert figures(ended.out) == expected != {}


def test_two_models_read_the_same_characters(files, score):
    write("wide.st", ByteTokenizer(), seed=1, context=10)
    ended = score("model.st", "text.txt", "--compare", "wide.st", "--per-char")
    assert "contexts differ" in ended.err
    table = figures(ended.err)
    columns = [lines_of(ended.out)]
    for letter, name in (("A", "model.st"), ("B", "wide.st")):
        alone = score(name, "text.txt", "--per-char")
        columns.append(lines_of(alone.out))
        rows = figures(alone.err)
        assert {row: table[f"{letter}  {row}"] for row in rows} == rows
    for line, first, second in zip(*columns, strict=True):
        other = line.pop("other")
        assert (line, second | other) == (first, second)
    for mode in ("strided", "disjoint"):
        a, b, difference = (numbers for row, numbers in table.items() if f"{mode} windows" in row)
        assert difference == pytest.approx(np.subtract(b, a), abs=2e-5)


HTML = "x</script><img src=x onerror=alert(1)>&{{data}}.txt"  # the name of the text


@pytest.fixture(scope="module")
def shown(browser, tmp_path_factory):
    """For one model and for two: the page in the browser, the JSON lines and the table."""
    place = tmp_path_factory.mktemp("pages")
    make(place, dict.fromkeys((HTML, "text.txt"), TEXT))
    write(place / "model.st")
    write(place / "other.st", ByteTokenizer(), seed=1, context=10)
    results = []
    with pages(browser) as open_page:
        for given in ([HTML], ["text.txt", "--compare", "other.st"]):
            command = ["model.st", *given, "--per-char", "--html", "a.html", "--overwrite"]
            with chdir(place), redirect_stdout(io.StringIO()) as out:
                with redirect_stderr(io.StringIO()) as err:
                    assert score_script.cli(command) == 0
            page = open_page(place / "a.html", has_touch=True)
            results.append((page, lines_of(out.getvalue()), err.getvalue()))
        yield results


def check_card(page, line):
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
def test_the_card_says_what_the_json_lines_say(shown):
    page, lines, _ = shown[1]
    page.focus("#text")
    for line in lines:
        page.keyboard.press("ArrowRight")
        check_card(page, line)
        change = line["other"]["nats"] - line["nats"]
        (nats,) = re.findall(r"[+−][\d.]+(?= nats)", page.inner_text("#card header"))
        assert float(nats.replace("−", "-")) == pytest.approx(change, abs=0.006)
    page.keyboard.press("Escape")
    assert not page.is_visible("#card")


def test_a_pointer_or_a_finger_opens_and_closes_the_card(shown):
    page, lines, _ = shown[0]
    span = page.locator("#text span").first
    assert len(span.text_content()) == 1
    for open_card, close in ((span.hover, lambda: page.mouse.move(5, 5)), (span.tap, span.tap)):
        open_card()
        check_card(page, lines[0])
        close()
        assert not page.is_visible("#card")


def test_the_page_shows_the_text_and_its_name_as_they_are(shown):
    page, _, _ = shown[0]
    assert page.title() == Path(HTML).name == page.inner_text("h1")
    assert page.query_selector("img") is None
    assert "".join(page.locator("#text span").all_text_contents()) == readable(TEXT)
    marks = page.locator("#text .line").evaluate_all(
        "all => all.map((mark) => getComputedStyle(mark, '::before').content)"
    )
    assert marks == ['"↵"'] * TEXT.count("\n")


def test_colours_are_steps_of_the_loss(shown):
    page, lines, _ = shown[0]
    # a character that cannot be seen is its code, in a span of its own
    steps = page.locator(
        "#text span"
    ).evaluate_all("""all => all.flatMap(({ className, textContent }) =>
      Array(className.includes("code") ? 1 : [...textContent].length).fill(Number(className.split("s").pop())))""")
    assert steps == [min(20, math.floor(round(1000 * line["nats"]) / 350)) for line in lines]
    assert len(set(steps)) > 5


def test_the_page_of_two_models_has_the_figures_of_strided_windows(shown):
    page, _, printed = shown[1]
    table = page.inner_text("#figures")
    rows = figures(printed)
    on_page = [row for row in rows if all(f"{abs(number):.4f}" in table for number in rows[row])]
    assert on_page == [row for row in rows if "strided" in row] != []


MARKS = "".join(letter for letter in TEXT if unicodedata.category(letter) in ("Mn", "Mc"))
PIECES = {"#words": rf"[\w'{MARKS}]{{3,}}", "#lines": r"[^\n]{10,}"}


@pytest.mark.parametrize("compared", [False, True])
@pytest.mark.parametrize("kind", PIECES)
def test_the_page_lists_the_words_and_lines_of_the_largest_values(shown, compared, kind):
    page, lines, _ = shown[compared]
    values = [line["nats"] for line in lines]
    if compared:
        values = [line["other"]["nats"] - line["nats"] for line in lines]
    expected = {}
    for found in re.finditer(PIECES[kind], TEXT):
        words = readable(found[0])
        mean = np.mean(values[found.start() : found.end()])
        expected[words] = max(mean, expected.get(words, mean), key=abs)
    page.evaluate("document.querySelector('#lists').open = true")
    page.locator(f"{kind} button").first.wait_for()
    listed = page.locator(f"{kind} button span").all_text_contents()
    means = page.locator(f"{kind} button b").all_inner_texts()
    numbers = [float(mean.replace("−", "-").split()[0]) for mean in means]
    assert dict(zip(listed, numbers, strict=True)) == pytest.approx(expected, abs=0.006)
    sizes = [abs(expected[words]) for words in listed]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) > 2


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


def contrasts(page):
    """Of all text of a page; each is at least 4.5 (WCAG 2.2, 1.4.3)."""
    found = page.evaluate(CONTRASTS)
    assert len(found) > 60 and min(found)[0] >= 4.5, min(found)
    return found


EVERY_MEDIUM = pytest.mark.parametrize(
    ("scheme", "media"), [("dark", "screen"), ("light", "screen"), ("dark", "print")]
)


@EVERY_MEDIUM
@pytest.mark.parametrize("compared", [False, True])
def test_every_colour_can_be_read_on(shown, scheme, media, compared):
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


def test_the_loss_of_the_test_split_is_saved_and_no_other(trained, score):
    text = open_text(DataConfig(path="book.txt"), 32)
    before = summary("first")
    score("first", "--split", "validation")
    assert summary("first") == before
    score("first", "--split", "test", "--compare", str(trained))
    assert summary("first") == before
    score("first", "--split", "test")
    after = summary("first")
    model, _ = load_checkpoint(trained)
    assert after["test_loss"] == pytest.approx(np.mean(nats_of(model, text.test)), abs=1e-6)
    assert before | {"test_loss": after["test_loss"], "test_bpc": after["test_bpc"]} == after


TRAINED_ON = "the model was trained on files of this text; the loss on held-out text is higher"


def test_a_text_that_was_trained_on_is_named_and_so_are_its_copies(train, score):
    text = Path("book.txt").read_text().replace("e", "é")
    copies = {
        "line-ends.txt": text.replace("\n", "\r\n"),
        "decomposed.txt": unicodedata.normalize("NFD", text),
        "compressed.txt.gz": gzip.compress(text.encode()),
        "shorter.txt": text[:-1],
    }
    make(Path(), copies | {"accents.txt": text})
    train("data.path=[accents.txt,book.txt]", "name=both", "trainer.max_steps=2")
    for name in ("book.txt", *copies):
        ended = score("both", name, "--window", "disjoint", "--html", f"{name}.html")
        assert ended.status == 0, ended
        known = name != "shorter.txt"
        assert ended.out.splitlines()[1].endswith(TRAINED_ON) == known, name
        assert ('"trained": true' in Path(f"{name}.html").read_text()) == known


def test_a_split_of_which_another_run_has_read_is_named(trained, train, score):
    assert train("data.split=[0.5,0.3,0.2]", "name=other", "trainer.max_steps=2").status == 0
    assert train("seed=5", "name=same", "trainer.max_steps=2").status == 0
    split = ("first", "--split", "test", "--window", "disjoint", "--compare")
    assert f"B  {TRAINED_ON}\n" in score(*split, "other").out
    assert "trained on" not in score(*split, "same").out


NEEDS_TEXT = {  # a command, and what it says where the text is not there
    "score first --split test --window disjoint": "python score.py first FILE",
    "sample first --novelty --num-chars 9": "",
    "export first --to web page.html --guess validation": "",
}


@pytest.mark.parametrize("command", NEEDS_TEXT)
def test_what_needs_a_text_that_has_moved_or_changed_is_refused(trained, request, command):
    program, *arguments = command.split()
    call = request.getfixturevalue(program)
    Path("book.txt").rename("moved.txt")
    named = ("data.path=book.txt: ", NEEDS_TEXT[command])
    one_line(call(*arguments), 2, *named, program=f"{program}.py")
    Path("book.txt").write_text("Another text.\n" * 1000)
    one_line(call(*arguments), 2, "has changed since", program=f"{program}.py")
    Path("book.txt").unlink()
    Path("book.txt").symlink_to("moved.txt")
    assert call(*arguments).status == 0
