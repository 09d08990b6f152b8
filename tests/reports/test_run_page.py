import base64
import json
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from base.jobs.run_directory import Run
from conf.compose import compose, read_config
from gpt.analysis import attention_maps
from gpt.checkpoint import load_checkpoint
from gpt.model import GPT
from gpt.tokenizer import ByteTokenizer, CharTokenizer
from reports.history import BoundedSeries, History
from reports.run_page import MAX_HEADS, NUM_ATTENDED, page
from tests.conftest import last, pages, summary
from tests.gpt.test_facts import SUMMARY
from tests.reference.models import fill, tiny
from tests.test_score import EVERY_MEDIUM, TEXT, check_card, contrasts, lines_of, readable, write

# Numbers that a text of a model can have: falling, uneven, the first far above the rest.
LOSSES = [[step, 4.2 * step**-0.3 + 0.05 * math.sin(step)] for step in range(2, 61, 2)]
VALIDATIONS = [[20, 1.9, 2.7411], [40, 1.25, 1.8034], [60, 1.3, 1.8755]]
SAMPLES = [
    [step, [[heat, "Once\n", f"{TEXT} {step} at {heat:g}"] for heat in (0.5, 1.0)]]
    for step in (20, 40, 60)
]


LETTERS = CharTokenizer(TEXT)


def report(
    text=TEXT[:90],
    tokenizer=LETTERS,
    model=None,
    validations=VALIDATIONS,
    skip=0,
    file="report.html",
):
    """Make the page of a passage, which begins at its token `skip`; returns the data in it."""
    history = History(*(BoundedSeries(1000, each) for each in (LOSSES, validations, SAMPLES)))
    summary = replace(SUMMARY, uniform_loss=3.2, ngram_loss=1.4, ngram_order=5)
    config = tiny(key_offset=True, token_shift=True, dim=24, context=100)
    model = model or fill(GPT(config, tokenizer.size)).eval()
    about = {
        "name": "x</script><b>&{{data}}", "text": f"{TEXT}: 12 train", "verdict": ["Counting is better"],
        "notes": ["2 of 3 files are <copies>"],
        "written": [[0.9, "Once\n", TEXT], [0.9, "", TEXT[::-1]]],
        "copied": None,
        "command": f"python train.py 'data.path={TEXT}'", "exact_command": f"python train.py 'data.path={TEXT}' seed=0",
        "config": f"data:\n  path: {TEXT}",
    }  # fmt: skip
    tokens = torch.from_numpy(tokenizer.encode(text))[skip:]
    made = page(about, summary, history, model, tokens, tokenizer)
    Path(file).write_text(made, encoding="utf-8")
    return data_of(made)


def data_of(made):
    return json.loads(
        re.findall('<script type="application/json" id="data">(.*?)</script>', made, re.DOTALL)[0]
    )


@pytest.mark.parametrize(
    ("tokenizer", "length"), [(LETTERS, 1), (LETTERS, 90), (ByteTokenizer(), 90)]
)
def test_characters_cost_what_score_says(tokenizer, length, workplace, score):
    write("model.safetensors", tokenizer, context=200)
    model, _ = load_checkpoint("model.safetensors")
    Path("passage.txt").write_text(TEXT[:length], encoding="utf-8", newline="")
    ended = score("model.safetensors", "passage.txt", "--per-char", "--window", "disjoint")
    assert ended.status == 0, ended
    lines = lines_of(ended.out)
    passage = report(text=TEXT[:length], tokenizer=tokenizer, model=model)["passage"]
    assert passage["letters"] == TEXT[:length]
    assert passage["nats"] == pytest.approx([1000 * line["nats"] for line in lines], abs=0.6)
    assert [dict(likely) for likely in passage["likely"]] == [
        pytest.approx(line["likely"], abs=6e-5) for line in lines
    ]


def weights_of(attention):
    """(heads, T, T) as the page has it."""
    heads, count = len(attention["heads"]), len(attention["tokens"])
    found = np.zeros((heads, count, count))
    raw = np.frombuffer(base64.b64decode(attention["weights"]), np.uint8)
    found[:, *np.tril_indices(count)] = raw.reshape(heads, -1)  # row by row
    return found


def test_attention_is_what_the_model_computes_with(workplace):
    tokens = torch.from_numpy(LETTERS.encode(TEXT[:NUM_ATTENDED]))
    model = fill(GPT(tiny(context=100, layers=9, heads=9, dim=72), LETTERS.size), std=0.2).eval()
    attention = report(model=model)["attention"]
    names, maps = attention["heads"], attention_maps(model, tokens)
    assert attention["of"] == 81 and len(set(names)) == len(names) == MAX_HEADS
    assert attention["tokens"] == list(TEXT[:NUM_ATTENDED])
    for name, weights in zip(names, weights_of(attention), strict=True):
        layer, head = map(int, re.fullmatch(r"L(\d+)H(\d+)", name).groups())  # type: ignore[union-attr]
        assert np.abs(weights - 255 * maps[layer, head].sqrt().numpy()).max() < 0.51


def test_bytes_that_are_no_characters(workplace, browser):
    data = report("é😀b", ByteTokenizer(), validations=[[60, 1.5, math.nan]], skip=1)
    assert data["passage"]["letters"] == "\ufffd😀b" and len(data["passage"]["nats"]) == 3
    assert data["curves"]["validations"] == [[60, 1.5]] and data["curves"]["unit"] == "byte"
    with pages(browser) as open_page:
        shown = open_page(workplace / "report.html")
        assert shown.locator("#seen i").all_inner_texts() == ["·"] * 5 + ["b"]
        assert "1.2500nats per byte" in shown.inner_text("#figures").replace("\n", "")


def test_the_page_of_a_finished_run_says_what_its_files_say(trained):
    run = Path("runs/first")
    made = (run / "report.html").read_text("utf-8")
    assert f"{summary('first')['val_loss']:.4f}<small>nats per character</small>" in made
    assert '<h1 id="name">first</h1>' in made
    shown = data_of(made)
    assert shown["config"] == (run / "config.yaml").read_text("utf-8")
    assert shlex.split(shown["command"])[2:] == Run(run).arguments
    config = read_config(run)
    assert compose(shlex.split(shown["exact_command"])[2:]) == replace(config, name=None)
    book = Path("book.txt").read_text("utf-8")
    passage = shown["passage"]["letters"]
    assert len(passage) == 33 and book[book.index(passage) - 1] == "\n"
    _, prompt, text = shown["written"][0]
    assert prompt in book and len(text) == 250
    history = last("first")["history"]
    assert shown["curves"]["losses"] == history["losses"]["entries"]
    validations = [entry[:2] for entry in history["validations"]["entries"]]
    assert shown["curves"]["validations"] == validations
    assert shown["samples"] == history["samples"]["entries"]


def test_a_report_that_fails_stops_nothing_and_is_said(train, monkeypatch):
    monkeypatch.setattr("training.results.page", Mock(side_effect=RuntimeError("no room\nfor it")))
    ended = train("name=a", "trainer.max_steps=1")
    assert ended.status == 0 and ended.err == ""
    assert "report     could not be written: RuntimeError: no room for it" in ended.out
    assert summary("a")["status"] == "finished" and not Path("runs/a/report.html").exists()


SCREEN = {"width": 1280, "height": 1600}


@pytest.fixture(scope="module")
def opened(browser, tmp_path_factory):
    """One page, on a dark screen, for the tests that follow, and the data in it."""
    file = tmp_path_factory.mktemp("page") / "report.html"
    data = report(file=file)
    with pages(browser) as open_page:
        yield open_page(file, viewport=SCREEN, color_scheme="dark", has_touch=True), data


@pytest.fixture
def shown(opened):
    page = opened[0]
    page.mouse.move(5, 5)
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    return page


def test_curves_say_their_numbers(shown):
    for name, entries in (("train", LOSSES), ("validation", VALIDATIONS)):
        line = shown.locator(f"#plot path.{name}").first.get_attribute("d")
        assert line.count(" ") == len(entries)
    shown.focus("#plot")
    said = []
    for _ in range(2):
        shown.keyboard.press("ArrowLeft")
        words = shown.inner_text("#card")
        said.append([float(number) for number in re.findall(r"[\d.]+", words)[:2]])
    assert said == [pytest.approx(LOSSES[place], abs=6e-5) for place in (-1, -2)]
    shown.keyboard.press("Escape")
    assert not shown.is_visible("#card")


def test_the_texts_of_each_step_are_shown(shown):
    shown.focus("#samples input")
    seen = {}
    for _ in range(2):
        step = shown.inner_text("#samples output")
        texts = [each for each in shown.locator("#samples .step pre").all() if each.is_visible()]
        seen[step] = [each.text_content() for each in texts]
        shown.keyboard.press("ArrowLeft")
    whole = readable(f"Once\n{TEXT}")
    for step in (60, 40):
        assert seen[f"step {step}"] == [f"{whole} {step} at {heat}" for heat in ("0.5", "1")]


def test_texts_are_shown_as_they_are_and_never_become_markup(shown):
    assert shown.title() == "x</script><b>&{{data}}" == shown.inner_text("h1")
    assert shown.locator("main b, main img, main script").count() == 0
    command = f"python train.py 'data.path={TEXT}'"
    texts = {
        "#sample pre": f"Once\n{TEXT}",
        "#text p": TEXT[:90],
        "#config": f"data:\n  path: {TEXT}",
        "#command": command,
        "#exact_command": f"{command} seed=0",
    }
    for place, text in texts.items():
        assert shown.locator(place).first.text_content() == readable(text)


def test_attention_and_the_passage_say_their_numbers(shown, opened):
    attention = opened[1]["attention"]
    weights = (weights_of(attention)[3] / 255) ** 2
    shown.locator("#heads button").nth(3).click()
    assert shown.inner_text("#head") == attention["heads"][3]
    shown.locator("#seen i").nth(3).hover()
    assert_looks(shown, weights, 3)
    shown.focus("#seen")
    for key, row in (("ArrowRight", 4), ("ArrowLeft", 3)):
        shown.keyboard.press(key)
        assert_looks(shown, weights, row)
    shown.locator("#text p span").nth(2).hover()
    passage = opened[1]["passage"]
    nats = passage["nats"][2] / 1000
    likely = dict(passage["likely"][2])
    check_card(shown, {"position": 2, "character": TEXT[2], "nats": nats, "likely": likely})


def assert_looks(page, weights, row):
    """The page says at what a token looks most, and shades the others."""
    shares = weights[row]
    back = row - shares.argmax()
    words = f"{back} back" if back else "itself"
    letter = {" ": "space", "\n": "newline"}.get(TEXT[row], TEXT[row])
    line = rf"“{letter}” looks most at “.*”, {words}: ([\d.]+) %"
    (percent,) = re.fullmatch(line, page.inner_text("#pair")).groups()
    assert float(percent) == pytest.approx(100 * shares.max(), abs=0.051)
    assert page.locator("#look .bars em").first.inner_text() == f"{percent} %"
    shade = "(each) => +each.style.getPropertyValue('--share')"
    shades = page.locator("#seen i").evaluate_all(f"all => all.map({shade})")
    np.testing.assert_allclose(shades, shares / shares.max(), atol=0.006)


@EVERY_MEDIUM
def test_it_is_legible(shown, scheme, media):
    shown.evaluate("document.querySelector('details').open = true")
    shown.emulate_media(color_scheme=scheme, media=media)
    assert len(contrasts(shown)) > 150
    shown.emulate_media(color_scheme="dark", media="screen")


def test_all_samples_are_printed(shown):
    shown.emulate_media(media="print")
    visible = "(each) => each.checkVisibility({ visibilityProperty: true })"
    assert shown.locator("#samples .step").evaluate_all(f"all => all.every({visible})")
    shown.emulate_media(media="screen")


def test_on_a_phone_nothing_is_wider_than_the_screen(shown):
    shown.set_viewport_size({"width": 320, "height": 800})
    shown.locator("#text p span").first.tap()
    card = shown.locator("#card").bounding_box()
    assert card["x"] >= 0 and card["x"] + card["width"] <= 320
    assert shown.evaluate("document.documentElement.scrollWidth") == 320
    shown.set_viewport_size(SCREEN)
