"""report.html: what is in it against score.py, loops and what was put in; the page itself in a real browser."""

import base64
import io
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conf.defaults import differences
from conf.schema import from_yaml
from data.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer
from gpt.checkpoint import load_checkpoint, read, save
from gpt.fit.page import HEADS, LOOKED_AT, page
from gpt.model import GPT
from tests.conftest import Ended, needs
from tests.reference.models import fill, tiny
from tests.test_score import TEXT, write

Call = Callable[..., Ended]
SUMMARY = {
    "val_loss": 1.25, "val_bpc": 1.8034, "last_val_loss": 1.3, "test_loss": 1.5, "test_bpc": 2.1640, "best_step": 40,
    "evaluation": {"mode": "disjoint", "context": 24, "characters": 55_770}, "steps": 60, "characters": 1_234_567,
    "seconds": 187.2, "characters_per_second": 7288.4, "parameters": 812_288, "device": "cpu",
    "precision": "bf16-mixed", "seed": 7, "init_from": None, "versions": {"python": "3.11.7", "torch": "2.13.0"},
}  # fmt: skip
# Numbers that a text of a model can have: falling, uneven, the first far above the rest.
LOSSES = [[step, 4.2 * step**-0.3 + 0.05 * math.sin(step)] for step in range(2, 61, 2)]
VALIDATIONS = [[20, 1.9, 2.7411], [40, 1.25, 1.8034], [60, 1.3, 1.8755]]
SAMPLES = [[step, [[heat, "Once\n", f"{TEXT} {step} at {heat:g}"] for heat in (0.5, 1.0)]] for step in (20, 40, 60)]


def kept(losses: list = LOSSES, validations: list = VALIDATIONS, samples: list = SAMPLES) -> dict[str, Any]:
    """What a checkpoint keeps of the callbacks, as far as the page reads it."""
    history = {"losses": {"entries": losses}, "validations": {"entries": validations}}
    return {"Watch": {"history": history}, "Samples": {"history": {"entries": samples}}}


def report(
    text: str = TEXT[:90],
    tokenizer: Tokenizer | None = None,
    model: GPT | None = None,
    callbacks: dict[str, Any] | None = None,
    **summary: Any,
) -> dict[str, Any]:
    """Make report.html of a filled model for a passage; returns the data in it."""
    tokenizer = tokenizer or CharTokenizer(TEXT)
    config = tiny(key_offset=True, token_shift=True, dim=24, context=100)
    model = model or fill(GPT(config, tokenizer.size)).eval()
    about = {
        "name": "x</script><b>&{{data}}", "text": f"{TEXT}: 12 train", "sample": [0.6, "Once\n", TEXT],
        "differences": [("data.path", TEXT, "null"), ("compile", "true", "auto")],
        "command": f"python train.py 'data.path={TEXT}'", "config": f"data:\n  path: {TEXT}",
    }  # fmt: skip
    made = page(
        about, SUMMARY | summary, kept() if callbacks is None else callbacks, model,
        torch.from_numpy(tokenizer.encode(text)), tokenizer.names, torch.from_numpy(tokenizer.characters_per_token),
        tokenizer.decode,
    )  # fmt: skip
    Path("report.html").write_text(made, encoding="utf-8")
    return data_of(made)


def data_of(made: str) -> dict[str, Any]:
    """What the page draws."""
    (found,) = re.findall('<script type="application/json" id="data">(.*?)</script>', made, re.DOTALL)
    return json.loads(found)


# -- What is in it ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", [CharTokenizer(TEXT), ByteTokenizer()], ids=["characters", "bytes"])
def test_characters_cost_what_score_says(workplace: Path, score: Call, tokenizer: Tokenizer) -> None:
    write("model.safetensors", tokenizer, context=200)
    model, _ = load_checkpoint("model.safetensors")
    Path("passage.txt").write_text(TEXT[:90], encoding="utf-8", newline="")
    ended = score("model.safetensors", "passage.txt", "--per-char", "--window", "disjoint")
    lines = [json.loads(line) for line in ended.out.splitlines()]
    passage = report(tokenizer=tokenizer, model=model)["passage"]
    assert passage["letters"] == TEXT[:90] and len(lines) == 90 == len(passage["bits"])
    for line, thousandths, likely in zip(lines, passage["bits"], passage["likely"], strict=True):
        assert thousandths == pytest.approx(1000 * line["nats"] / math.log(2), abs=0.6)
        assert dict(likely) == pytest.approx(line["likely"], abs=6e-5)


def weights_of(attention: dict[str, Any]) -> np.ndarray:
    """(heads, T, T) as the page has it, by a loop."""
    raw, count = base64.b64decode(attention["weights"]), len(attention["tokens"])
    found, place = np.zeros((len(attention["heads"]), count, count)), 0
    for head in range(len(attention["heads"])):
        for row in range(count):
            for column in range(row + 1):
                found[head, row, column] = raw[place]
                place += 1
    assert place == len(raw)
    return found


@pytest.mark.parametrize("shape", [{"layers": 2, "heads": 3}, {"layers": 9, "heads": 9, "dim": 72}], ids=str)
def test_attention_is_what_the_model_computes_with(
    workplace: Path, shape: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of very many heads some of all layers, each with its name."""
    tokenizer = CharTokenizer(TEXT)
    model = fill(GPT(tiny(context=100, **shape), tokenizer.size), std=0.2).eval()
    attention = report(model=model)["attention"]
    layers: list[Tensor] = []

    def explicit(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, dropout: float = 0.0) -> Tensor:
        assert bias is None
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        for row in range(q.shape[2]):
            scores[:, :, row, row + 1 :] = -math.inf
        layers.append(scores.softmax(-1)[0])  # (H, T, T)
        return scores.softmax(-1) @ v

    for kernel in ("explicit_attention", "fused_attention"):
        monkeypatch.setattr(f"gpt.attention.{kernel}", explicit)
    tokens = tokenizer.encode(TEXT[:LOOKED_AT])
    with torch.no_grad():
        model(torch.from_numpy(tokens)[None])
    total = shape["layers"] * shape["heads"]
    assert attention["of"] == total and len(attention["heads"]) == min(total, HEADS) == len(set(attention["heads"]))
    assert attention["tokens"] == list(TEXT[:LOOKED_AT])
    found = weights_of(attention)
    for name, weights in zip(attention["heads"], found, strict=True):
        layer, head = map(int, re.fullmatch(r"L(\d+)H(\d+)", name).groups())  # type: ignore[union-attr]
        expected = 255 * layers[layer][head].sqrt().numpy()
        assert np.abs(weights - expected).max() < 0.51
    assert {name.split("H")[0] for name in attention["heads"]} == {f"L{layer}" for layer in range(shape["layers"])}


@pytest.mark.parametrize("length", [1, 2, 3])
def test_the_shortest_passages(workplace: Path, visit: Callable[..., Any], length: int) -> None:
    data = report(text="日本語"[:length])
    assert data["passage"]["letters"] == "日本語"[:length] and len(data["attention"]["tokens"]) == length
    assert data["passage"]["bits"][0] == pytest.approx(1000 * math.log2(len(set(TEXT))), abs=0.6)
    shown = visit("report.html")
    assert shown.locator("#text p").inner_text() == "日本語"[:length]
    assert shown.inner_text("#which") == "all 4 heads"


def test_bytes_that_are_no_characters(workplace: Path, visit: Callable[..., Any]) -> None:
    """A passage cut in the middle of one, and axes with the numbers of bytes."""
    tokenizer = ByteTokenizer()
    config = tiny(key_offset=True, token_shift=True, dim=24, context=100)
    made = page(
        {"name": "a", "text": "", "sample": [1, "", ""], "differences": [], "command": "", "config": ""},
        SUMMARY | {"test_loss": 1.0, "test_bpc": math.nan},
        kept(validations=[[60, 1.5, math.nan]]), fill(GPT(config, 256)), torch.from_numpy(tokenizer.encode("é😀b"))[1:],
        tokenizer.names, torch.from_numpy(tokenizer.characters_per_token), tokenizer.decode,
    )  # fmt: skip
    data = data_of(made)
    assert data["passage"]["letters"] == "\ufffd😀b" and len(data["passage"]["bits"]) == 3
    assert data["curves"]["validations"] == [[60, 1.5, None]] and data["curves"]["unit"] == "byte"
    Path("report.html").write_text(made, encoding="utf-8")
    shown = visit("report.html")
    assert shown.locator("#map .left i").all_inner_texts() == ["A9", "F0", "9F", "98", "80", "b"]
    assert "1.0000 nats per byte" in shown.inner_text("#figures")


# -- Of a run ----------------------------------------------------------------------------------------------


def reported(run: str) -> dict[str, Any]:
    return data_of(Path(f"runs/{run}/report.html").read_text("utf-8"))


@pytest.mark.slow
def test_a_finished_run_is_reported(train: Call) -> None:
    """And again where it goes on; where the evaluation was cut short, with what its last checkpoint keeps."""
    lines = Path("book.txt").read_text("utf-8").replace(". ", ".\n")
    Path("book.txt").write_text(lines, encoding="utf-8")
    ended = train("name=a")
    assert "report     runs/a/report.html" in ended.out
    summary = json.loads(Path("runs/a/summary.json").read_text())
    data, config = reported("a"), from_yaml(Path("runs/a/config.yaml").read_text("utf-8"))
    assert (
        data["figures"][0][1] == f"{summary['val_bpc']:.4f}" and data["figures"][1][1] == f"{summary['test_bpc']:.4f}"
    )
    assert data["figures"][0][3].startswith(f"{summary['val_loss']:.4f} nats")
    assert data["figures"][0][4] == f"best checkpoint, step {summary['best_step']}"
    assert data["differences"] == [list(each) for each in differences(config)] and data["name"] == "a"
    assert "data.path=book.txt" in data["command"] and data["config"] == Path("runs/a/config.yaml").read_text("utf-8")
    book = Path("book.txt").read_text("utf-8")
    assert len(data["passage"]["letters"]) == 33 and data["passage"]["letters"] in book
    assert book[book.index(data["passage"]["letters"]) - 1] == "\n"  # from the beginning of a line
    temperature, prompt, text = data["sample"]
    assert prompt in book and len(text) == 500 and text.strip("\n") in ended.out

    assert train("resume=runs/a", "trainer.max_steps=40").status == 0
    assert "40 steps" in reported("a")["figures"][2][4]
    path = Path("runs/a/checkpoints/last.ckpt")
    contents = read(path)
    for name, state in kept().items():
        contents["callbacks"].setdefault(name, {}).update(state)
    save(path, contents)
    save(path.with_name("step-00000040.ckpt"), contents)
    summary = json.loads(Path("runs/a/summary.json").read_text())
    Path("runs/a/summary.json").write_text(json.dumps(summary | {"status": "interrupted", "val_loss": None}))
    assert train("resume=runs/a").status == 0
    data = reported("a")
    assert data["curves"]["losses"] == LOSSES and data["curves"]["validations"] == VALIDATIONS
    assert data["samples"] == SAMPLES


def test_a_report_that_fails_stops_nothing_and_is_said(train: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> str:
        raise RuntimeError("no room\nfor it")

    monkeypatch.setattr("gpt.fit.page.page", fail)
    ended = train("name=a")
    assert ended.status == 0 and ended.err == ""
    assert "report     could not be made: RuntimeError: no room for it" in ended.out
    assert json.loads(Path("runs/a/summary.json").read_text())["status"] == "finished"
    assert not Path("runs/a/report.html").exists() and "sample.py runs/a" in ended.out


# -- In the browser ------------------------------------------------------------------------------------------


def drawn(shown: Any) -> dict[str, list[tuple[float, float]]]:
    """Steps and nats of every point of the curves, by the marks of the axes."""
    scales = []
    for marks, side in (("steps", "x"), ("nats", "y")):
        labels = shown.locator(f"#plot text.{marks}").evaluate_all(
            f"all => all.map((each) => [each.textContent, parseFloat(each.getAttribute('{side}'))])"
        )
        values = [float(text.replace(",", "")) for text, _ in labels]
        places = [10 * share for _, share in labels]  # in thousandths of the field
        scales.append((values, places))
    logarithmic = shown.is_checked("[value=log]")
    found = {}
    for name in ("train", "validation", "dots", "ring"):
        paths = shown.locator(f"#plot path.{name}")
        pairs = re.findall(r"[ML]([-\d.]+) ([-\d.]+)", paths.first.get_attribute("d") if paths.count() else "")
        points = []
        for pair in pairs:
            point = []
            for (values, places), coordinate, log in zip(scales, map(float, pair), (logarithmic, False), strict=True):
                ends = [math.log(each) if log else each for each in (values[0], values[-1])]
                value = ends[0] + (coordinate - places[0]) / (places[-1] - places[0]) * (ends[1] - ends[0])
                point.append(math.exp(value) if log else value)
            points.append(tuple(point))
        found[name] = points
    return found


def test_curves_are_the_numbers(workplace: Path, visit: Callable[..., Any]) -> None:
    report()
    shown = visit("report.html")
    for view in ("linear", "log"):
        shown.check(f"[value={view}]")
        lines = drawn(shown)
        expected = {"train": LOSSES, "validation": VALIDATIONS, "dots": VALIDATIONS, "ring": VALIDATIONS[1:2]}
        for name, entries in expected.items():
            assert len(lines[name]) == len(entries)
            for point, entry in zip(lines[name], entries, strict=True):
                assert point == pytest.approx(entry[:2], rel=2e-3)
        for nats, bits in zip(
            *(shown.locator(f"#plot text.{kind}").all_text_contents() for kind in ("nats", "bits")), strict=True
        ):
            assert float(bits) == pytest.approx(float(nats) / math.log(2), abs=0.006)
    assert shown.inner_text(".keys .best") == "best checkpoint, step 40"


def test_curves_say_their_numbers(workplace: Path, visit: Callable[..., Any]) -> None:
    """To the pointer and to the keys."""
    report()
    shown = visit("report.html")
    steps = [step for step, _ in LOSSES]
    field = shown.locator("#plot > svg").bounding_box()
    marks = shown.locator("#plot text.steps").evaluate_all(
        "all => all.map((each) => [Number(each.textContent), parseFloat(each.getAttribute('x')) / 100])"
    )
    (a, at_a), (b, at_b) = marks[0], marks[-1]

    def said() -> list[float]:
        return [float(number) for number in re.findall(r"[\d.]+", shown.inner_text("#card"))]

    for place in (3, 17, len(steps) - 1):
        share = at_a + (steps[place] - a) / (b - a) * (at_b - at_a)
        shown.mouse.move(field["x"] + share * field["width"], field["y"] + 60)
        step, nats, bits, *validation = said()
        assert (step, nats) == (steps[place], pytest.approx(LOSSES[place][1], abs=6e-5))
        assert bits == pytest.approx(nats / math.log(2), abs=2e-4)
        nearest = min(VALIDATIONS, key=lambda entry: abs(entry[0] - step))
        assert validation[-2:] == nearest[1:] and (step in validation or nearest[0] in (step, validation[0]))
    shown.mouse.move(5, 5)
    assert not shown.is_visible("#card")
    shown.focus("#plot")
    for place in (-1, -2, -3):
        shown.keyboard.press("ArrowLeft")
        assert said()[0] == steps[place]
    shown.keyboard.press("Escape")
    assert not shown.is_visible("#card")


def readable(text: str) -> str:
    """As the page shows it: what cannot be seen by its number."""
    for letter in "\x00\x07\x7f":
        text = text.replace(letter, f"{ord(letter):02X}")
    for letter in "\u202e\u202c\u2028\u00a0\u200b":
        text = text.replace(letter, f"U+{ord(letter):04X}")
    return text


def test_texts_are_shown_as_they_are(workplace: Path, visit: Callable[..., Any]) -> None:
    """Whatever they hold, and nothing of them as HTML; a slider goes through the samples."""
    report()
    shown = visit("report.html")
    assert shown.title() == "x</script><b>&{{data}}" == shown.inner_text("h1")
    assert shown.locator("main b, main img, main script").count() == 0
    whole = readable(f"Once\n{TEXT}")
    assert shown.locator("#sample pre").text_content() == whole
    assert shown.locator("#sample .prompt").text_content() == "Once\n"
    shown.focus("#samples input")
    for step in (60, 40, 20):
        assert shown.inner_text("#samples output") == f"step {step}"
        visible = [each for each in shown.locator("#samples .step pre").all() if each.is_visible()]
        assert [each.text_content() for each in visible] == [f"{whole} {step} at {heat:g}" for heat in (0.5, 1)]
        shown.keyboard.press("ArrowLeft")
    assert shown.locator("#text p").text_content() == readable(TEXT[:90])
    cells = shown.locator("#settings td").all_text_contents()
    assert cells == ["data.path", readable(TEXT), "null", "compile", "true", "auto"]
    assert shown.locator("#command").text_content() == readable(f"python train.py 'data.path={TEXT}'")
    assert shown.locator("#config").text_content() == readable(f"data:\n  path: {TEXT}")


PIXEL = """([x, y]) => {
  const copy = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
  const context = copy.getContext("2d", { willReadFrequently: true });
  context.drawImage(document.querySelector("#map canvas"), -x, -y);
  return [...context.getImageData(0, 0, 1, 1).data];
}"""  # red, green, blue and alpha of a pair of places


def test_attention_says_its_numbers(workplace: Path, visit: Callable[..., Any]) -> None:
    data = report()
    weights = (weights_of(data["attention"]) / 255) ** 2
    shown = visit("report.html", viewport={"width": 1280, "height": 1600})
    shown.locator("#map").scroll_into_view_if_needed()
    count = LOOKED_AT

    def agrees(head: int, row: int, column: int) -> None:
        assert shown.inner_text("#head") == data["attention"]["heads"][head]
        words = shown.inner_text("#pair")
        assert re.findall(r"at (\d+)", words) == [str(row), str(column)]
        if weights[head, row, column] >= 0.001:
            assert float(re.findall(r"([\d.]+) %", words)[0]) == pytest.approx(
                100 * weights[head, row, column], abs=0.06
            )
        first = shown.locator("#look .bars em").first.inner_text()
        assert float(first.removesuffix(" %")) == pytest.approx(100 * weights[head, row].max(), abs=0.06)

    for head, row, column in ((0, 40, 3), (2, 40, 39), (3, 63, 0)):
        shown.locator("#heads button").nth(head).click()
        field = shown.locator("#map .field canvas").bounding_box()
        at = [field[side] + (place + 0.5) / count * field["width"] for side, place in (("x", column), ("y", row))]
        shown.mouse.move(*at)
        agrees(head, row, column)
        # What is drawn there is as dense as the byte; one step is what a browser may round.
        assert shown.evaluate(PIXEL, [column, row])[3] == pytest.approx(
            255 * math.sqrt(weights[head, row, column]), abs=1
        )
    shown.focus("#map")
    shown.keyboard.press("ArrowUp")
    agrees(3, 62, 0)
    shown.keyboard.press("ArrowRight")
    agrees(3, 62, 1)
    labels = shown.locator("#map .top i").evaluate_all("all => all.map((each) => each.title)")
    assert len(labels) == count and labels[5] == "space" and labels[0] == "N"


def test_the_passage_says_its_numbers(workplace: Path, visit: Callable[..., Any]) -> None:
    passage = report()["passage"]
    shown = visit("report.html")
    shown.focus("#text")
    for place in range(40):
        shown.keyboard.press("ArrowRight")
        words = shown.inner_text("#card")
        assert f"position {place}" in words
        assert float(re.findall(r"([\d.]+) bits", words)[0]) == pytest.approx(passage["bits"][place] / 1000, abs=0.006)
        shares = [float(each.removesuffix(" %")) for each in shown.locator("#card em").all_inner_texts()]
        likely = passage["likely"][place]
        for share, (_, chance) in zip(shares[: len(likely)], likely, strict=True):  # then its own, if it is none
            assert share == pytest.approx(100 * chance, abs=0.06)
        assert (len(shares) >= 5) == (place > 0)
        span = shown.locator("#text p span").nth(place)
        assert f"s{min(20, passage['bits'][place] // 500)}" in span.get_attribute("class").split()
    shown.keyboard.press("Escape")
    shown.locator("#text p span").nth(2).hover()
    assert "position 2" in shown.inner_text("#card")
    shown.mouse.move(5, 5)
    assert not shown.is_visible("#card")


CONTRASTS = """() => {
  const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const over = (below, colour) => {
    context.globalCompositeOperation = "copy";
    context.fillStyle = `rgb(${below.join(" ")})`;
    context.fillRect(0, 0, 1, 1);
    context.globalCompositeOperation = "source-over";
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
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
    found.push([(a + 0.05) / (b + 0.05), node.textContent.slice(0, 30), node.className]);
  }
  return found;
}"""  # of every text that can be seen, by WCAG's formula


def test_light_and_dark_are_legible(workplace: Path, visit: Callable[..., Any]) -> None:
    report()
    pictures, counts = [], []
    for scheme in ("light", "dark"):
        shown = visit("report.html", color_scheme=scheme)
        shown.locator("summary").click()
        contrasts = shown.evaluate(CONTRASTS)
        counts.append(len(contrasts))
        assert min(contrasts)[0] >= 4.5, min(contrasts)
        pixel = "getComputedStyle(document.body).backgroundColor"
        pictures.append((shown.screenshot(), shown.evaluate(pixel), canvas_colour(shown)))
        shown.emulate_media(color_scheme="dark" if scheme == "light" else "light")
        pictures.append((shown.screenshot(), shown.evaluate(pixel), canvas_colour(shown)))
    light, turned_dark, dark, turned_light = pictures
    assert counts[0] == counts[1] > 150
    assert all(a != b for a, b in zip(light, dark, strict=True))
    assert light[1:] == turned_light[1:] and dark[1:] == turned_dark[1:]  # also where it changes meanwhile


def canvas_colour(shown: Any) -> list[int]:
    """Of the first pair, which is always 1."""
    return shown.evaluate(PIXEL, [0, 0])[:3]


@pytest.mark.parametrize("width", [320, 390, 800])
def test_nothing_is_wider_than_the_screen(workplace: Path, visit: Callable[..., Any], width: int) -> None:
    report()
    shown = visit("report.html", viewport={"width": width, "height": 800}, has_touch=True)
    shown.locator("summary").click()
    assert shown.evaluate("document.documentElement.scrollWidth") == width
    shown.locator("#text p span").nth(1).tap()
    card = shown.locator("#card").bounding_box()
    assert card["x"] >= 0 and card["x"] + card["width"] <= width
    assert shown.evaluate("document.documentElement.scrollWidth") == width


def test_it_can_be_printed(workplace: Path, visit: Callable[..., Any]) -> None:
    """All samples, in light colours also from a dark screen, without what only a screen has a use for."""
    needs("pypdf", extra="dev")
    from pypdf import PdfReader

    text = "".join(sorted(set("Once upon a time there was a pipeline.")))
    samples = [[step, [[heat, "Once", f" step{step}heat{heat}"] for heat in (0.5, 1.0)]] for step in (20, 40, 60)]
    report(callbacks=kept(samples=samples), tokenizer=CharTokenizer(TEXT + text))
    shown = visit("report.html", color_scheme="dark")
    printed = PdfReader(io.BytesIO(shown.pdf(format="A4")))
    words = re.sub(r"\s", "", "".join(each.extract_text() for each in printed.pages))
    for step in (20, 40, 60):
        for heat in ("0.5", "1.0"):
            assert f"step{step}heat{heat}" in words
    for said in ("1.8034", "Howitlearned", "bestcheckpoint,step40", "Whatsurprisesit", "data.path", "L1H1"):
        assert said in words
    assert "logarithmic" not in words
    dark = canvas_colour(shown)
    shown.emulate_media(media="print")
    assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(252, 252, 253)"
    assert canvas_colour(shown) != dark


def test_its_policy_stops_other_scripts(workplace: Path, browser: Any) -> None:
    report()
    harmed = (
        Path("report.html")
        .read_text("utf-8")
        .replace("<h1", "<script>harm = 1</script><img src=x onerror='harm=1'><h1")
    )
    Path("report.html").write_text(harmed, encoding="utf-8")
    shown = browser.new_page()
    shown.goto(Path("report.html").resolve().as_uri())
    shown.wait_for_selector("body[data-ready]")
    assert shown.evaluate("typeof harm") == "undefined"
    shown.close()


def test_a_large_model_and_long_run_make_no_large_page(workplace: Path) -> None:
    """As many heads, losses and samples as are kept, in fewer than half a million bytes."""
    model = fill(GPT(tiny(layers=8, heads=8, dim=64, context=1500), len(set(TEXT)))).eval()
    losses = [[1000 * step, 1.2345678901234567] for step in range(1000)]
    validations = [[*entry, 1.7811234567890123] for entry in losses]
    callbacks = kept(losses, validations, SAMPLES[:1] * 20)
    report(text=TEXT * 10, model=model, callbacks=callbacks)
    assert Path("report.html").stat().st_size < 500_000
