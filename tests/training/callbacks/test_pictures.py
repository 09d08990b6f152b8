import html
import os
import re
import signal
import warnings
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

from gpt.checkpoint import load_checkpoint
from gpt.inference.generate import generate
from reports.picture_data import NUM_HEADS, spread_over
from reports.tensorboard import as_markdown
from tests.conftest import Ended, assert_same_weights, last
from tests.faults import faults
from tests.faults.processes import Process, run, wait_for
from tests.faults.test_resume import assert_same

WATCHED = ["watch.pictures=true", "trainer.max_steps=20"]
TAGS = [f"view_attention/L{layer}H{head}" for layer in range(2) for head in range(2)]
TAGS += ["view/surprisal"]


def values(name: str) -> list[tuple[Any, int]]:
    files = sorted(Path("runs", name).glob("events.*"))
    events = [event for file in files for event in LegacyEventFileLoader(str(file)).Load()]
    return [(value, event.step) for event in events for value in event.summary.value]


def images(name: str) -> dict[tuple[str, int], bytes]:
    shown = [(each, step) for each, step in values(name) if each.HasField("image")]
    found = [((each.tag, step), each.image.encoded_image_string) for each, step in shown]
    assert len(found) == len(dict(found)), "twice"
    return dict(found)


@pytest.mark.slow
def test_pictures_are_drawn_elsewhere(workplace: Path) -> None:
    assert run("name=whole", *WATCHED, fault=(faults.nothing_is_drawn_here,)).status == 0
    whole = images("whole")
    assert sorted(whole) == sorted((tag, step) for tag in TAGS for step in (10, 20))
    for png in whole.values():
        with Image.open(BytesIO(png)) as picture:
            assert picture.format == "PNG" and picture.size[0] == 720
            assert len(np.unique(np.asarray(picture.convert("L")))) > 10
    assert len(set(whole.values())) == len(whole), "each is another"
    stopped = run("name=stopped", *WATCHED, fault=(faults.signal_at, 14, signal.SIGTERM))
    assert stopped.status == 143 and set(images("stopped")) <= {(tag, 10) for tag in TAGS}, stopped
    assert run("resume=runs/stopped", defaults=False, fault=(faults.nothing_is_drawn_here,)).status == 0
    resumed = images("stopped")
    assert {(tag, 20) for tag in TAGS} <= set(resumed) and resumed.items() <= whole.items()
    ours, theirs = (last(name)["callbacks"] for name in ("whole", "stopped"))
    assert_same(ours, theirs, "callbacks")
    assert [step for step, _ in ours["Samples"]["history"]["entries"]] == [10, 20]
    # Trained, evaluated and drawn, but not yet called finished.
    ended = run("name=ended", *WATCHED, fault=(faults.killed_at_the_end,))
    assert ended.status == -signal.SIGKILL and images("ended") == whole
    assert run("resume=runs/ended", defaults=False, fault=(faults.nothing_is_drawn_here,)).status == 0
    assert images("ended") == whole and "report" in Path("runs/ended/train.log").read_text()


@pytest.mark.slow
def test_watching_changes_nothing_and_a_drawer_that_fails_neither(workplace: Path) -> None:
    everything = [*WATCHED, "watch.attention_heads=[L1H0]"]
    said = {}
    for name, arguments, *fault in (
        ("unwatched", ["trainer.max_steps=20"]), ("watched", everything, faults.nothing_is_drawn_here),
        ("killed", everything, faults.drawer_gets, signal.SIGKILL),
        ("hung", [*everything, "trainer.val_check_interval=2"], faults.drawer_gets, signal.SIGSTOP, 5),
    ):  # fmt: skip
        ended = run(f"name={name}", *arguments, fault=tuple(fault) or None)
        assert ended.status == 0 and ended.err == "", ended
        said[name] = [line for line in ended.out.splitlines() if line.startswith("pictures ")]
        assert_same_weights("unwatched", name)
    assert said["unwatched"] == said["watched"] == [] and images("unwatched") == {}
    assert said["killed"] == ["pictures   are not drawn any more: the process that draws has ended"]
    # Three validations of two pictures reach the limit; the last validation's are sent all the same.
    more_slowly = "pictures   are drawn more slowly than validations come: some are left out"
    assert said["hung"] == [more_slowly, "pictures   8 were not drawn within 1 seconds"]
    assert {tag for tag, _ in images("watched")} == {"view_attention/L1H0", "view/surprisal"}


@pytest.mark.slow
def test_the_process_that_draws_ends_with_the_one_that_trains(workplace: Path) -> None:
    process = Process("name=a", "watch.pictures=true", "trainer.max_steps=100000")

    def drawers() -> list[psutil.Process]:
        return [
            each
            for each in psutil.Process(process.process.pid).children()
            if "reports.picture_process" in each.cmdline()
        ]

    try:
        wait_for(lambda: bool(drawers()))
        (drawer,) = drawers()
        wait_for(lambda: drawer.nice() == 19)
        assert os.getpgid(drawer.pid) != os.getpgid(process.process.pid), "Ctrl-C in a terminal does not reach it"
    finally:
        process.signal(signal.SIGKILL)
        process.wait()
    wait_for(lambda: not drawer.is_running() or drawer.status() == psutil.STATUS_ZOMBIE)


def test_texts_are_what_the_model_writes(train: Callable[..., Ended]) -> None:
    assert train("name=a", "trainer.max_steps=10").status == 0
    model, meta = load_checkpoint("runs/a")
    ((step, texts),) = last("a")["callbacks"]["Samples"]["history"]["entries"]
    assert step == 10 and [temperature for temperature, _, _ in texts] == [0.6, 0.6, 1.0, 1.0]
    assert texts[0][1] == texts[2][1] != texts[1][1], "the prompts"
    letters = meta["vocabulary"]["characters"]
    for number, (temperature, prompt, text) in enumerate(texts):
        assert prompt in Path("book.txt").read_text()
        tokens = torch.tensor([[letters.index(letter) for letter in prompt]])
        written = generate(model, tokens, len(text), temperature=temperature, seed=number % 2)
        assert "".join(letters[token] for token in written[0, len(prompt) :]) == text
    written = [(value.tag, step) for value, step in values("a") if value.tag.startswith("samples/")]
    assert written == [(f"samples/temperature_{each}/text_summary", 10) for each in (0.6, 1.0)]


TEXTS = {  # and what is shown of them, where that is something else
    "plain text": "", "  two\n\n\n   lines  \n": "", "\ta\tb": "", "   \n ": "", "\n": "",
    "<b>&amp;</b> `a` ```\n* x\n# y\n| a | b |\n[l](javascript:x) ![i](http://h)</code></pre>": "",
    "中文 é 😀 \u0301 שלום": "中文 é 😀 ◌\u0301 שלום",
    "\x02\x03\x00\x0c\x1b\u2028\x85\ufeff": "␂␃␀␌␛U+2028U+0085U+FEFF",
}  # fmt: skip


def test_text_comes_through_markdown() -> None:
    """TensorBoard's own way from Markdown to HTML leaves nothing but what was written."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of what TensorBoard uses
        from tensorboard.plugin_util import markdown_to_safe_html
    for text, shown in TEXTS.items():
        made = markdown_to_safe_html(as_markdown([("a prompt", text), (text, text)]))
        codes = [html.unescape(code) for code in re.findall("<code>([^<]*)</code>", made)]
        assert codes == ["a prompt", *3 * [shown or text]] and made.count("<code") == 4, made


def test_heads_are_spread_over_layers() -> None:
    for layers, heads in ((1, 1), (4, 2), (2, 3), (12, 12), (40, 1)):
        chosen = spread_over(layers, heads)
        assert len(set(chosen)) == len(chosen) == min(NUM_HEADS, layers * heads) and chosen == sorted(chosen)
        assert chosen[0] == (0, 0) and (len(chosen) == 1 or chosen[-1] == (layers - 1, heads - 1))
        gaps = np.diff([layer * heads + head for layer, head in chosen])
        assert len(chosen) == 1 or gaps.max() - gaps.min() <= 1
