"""What a run shows of its model in TensorBoard, in real processes, some of them killed."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
import warnings
from collections.abc import Callable
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from torch.utils.tensorboard import SummaryWriter

from gpt.checkpoint import load_checkpoint
from gpt.config import ModelConfig
from gpt.fit.pictures import HEADS_DRAWN, as_markdown, spread_over
from gpt.generate import generate
from tests.conftest import Ended
from tests.faults import faults
from tests.faults.processes import run, run_ranks, start, wait_for
from tests.faults.test_resume import assert_same

WATCHED = ["watch.pictures=true", "trainer.max_steps=20"]
TAGS = [f"view_attention/L{layer}H{head}" for layer in range(2) for head in range(2)]
TAGS += ["view/calibration", "view/surprisal"]


def images(name: str) -> dict[tuple[str, int], bytes]:
    """Every picture in the event files of a run, by tag and step; none may be there twice."""
    found: dict[tuple[str, int], bytes] = {}
    for file in sorted(Path("runs", name).glob("events.*")):
        for event in LegacyEventFileLoader(str(file)).Load():
            for value in event.summary.value:
                if value.HasField("image"):
                    assert (value.tag, event.step) not in found, "twice"
                    found[value.tag, event.step] = value.image.encoded_image_string
    return found


def summaries(name: str) -> list[tuple[str, int]]:
    """Tag and step of all that is in the event files of a run, in order."""
    files = sorted(Path("runs", name).glob("events.*"))
    events = (event for file in files for event in LegacyEventFileLoader(str(file)).Load())
    return [(value.tag, event.step) for event in events for value in event.summary.value]


def drawers(parent: int) -> list[psutil.Process]:
    """The processes that draw for another."""
    return [each for each in psutil.Process(parent).children() if "gpt.fit.draw" in each.cmdline()]


@pytest.mark.slow
def test_pictures_are_drawn_elsewhere(workplace: Path, tmp_path: Path) -> None:
    """Each validation's are there once, also where a run was stopped and goes on."""
    run("name=whole", *WATCHED, "trainer.max_steps=30", fault=(faults.nothing_is_drawn_here,))
    whole = images("whole")
    assert sorted(whole) == sorted((tag, step) for tag in TAGS for step in (10, 20, 30))
    for (tag, step), png in whole.items():
        (tmp_path / "picture.png").write_bytes(png)
        with Image.open(tmp_path / "picture.png") as picture:
            assert picture.format == "PNG" and picture.size[0] == 720, (tag, step)
            assert len(np.unique(np.asarray(picture.convert("L")))) > 10
    for tag in TAGS:
        assert len({whole[tag, step] for step in (10, 20, 30)}) == 3, "the steps differ"
    assert len({whole[tag, 30] for tag in TAGS}) == len(TAGS)

    stopped = run("name=stopped", "watch.pictures=true", fault=(faults.signal_at, 16, signal.SIGTERM))
    assert stopped.status == 143 and set(images("stopped")) <= {(tag, 10) for tag in TAGS}, stopped
    assert run("resume=runs/stopped", defaults=False, fault=(faults.nothing_is_drawn_here,)).status == 0
    resumed = images("stopped")
    assert {(tag, step) for tag in TAGS for step in (20, 30)} <= set(resumed) <= set(whole)
    assert all(png == whole[key] for key, png in resumed.items())
    ours, theirs = (torch.load(f"runs/{name}/checkpoints/last.ckpt") for name in ("whole", "stopped"))
    assert_same(ours["callbacks"], theirs["callbacks"], "callbacks")
    assert [step for step, _ in ours["callbacks"]["Samples"]["history"]["entries"]] == [10, 20, 30]

    # Trained, evaluated and drawn, but not yet called finished.
    ended = run("name=ended", "watch.pictures=true", fault=(faults.killed_at_the_end,))
    assert ended.status == -signal.SIGKILL and images("ended") == whole
    assert run("resume=runs/ended", defaults=False, fault=(faults.nothing_is_drawn_here,)).status == 0
    assert images("ended") == whole and "report" in Path("runs/ended/train.log").read_text()


@pytest.mark.slow
def test_watching_changes_nothing_and_a_drawer_that_fails_neither(workplace: Path) -> None:
    everything = [*WATCHED, "watch.histograms=true", "watch.attention_heads=[L1H0]"]
    cases: dict[str, tuple[list[str], Any]] = {
        "unwatched": (["trainer.max_steps=20"], None),
        "watched": (everything, None),
        "killed": (everything, (faults.drawer_gets, signal.SIGKILL)),
        "hung": (everything, (faults.drawer_gets, signal.SIGSTOP)),
        "slow": ([*everything, "trainer.val_check_interval=2"], (faults.drawer_gets, signal.SIGSTOP, 5)),
    }
    states, said = {}, {}
    for name, (arguments, fault) in cases.items():
        ended = run(f"name={name}", *arguments, fault=fault)
        assert ended.status == 0 and ended.err == "", ended
        states[name] = torch.load(f"runs/{name}/checkpoints/last.ckpt")["state_dict"]
        said[name] = [line for line in ended.out.splitlines() if line.startswith("pictures ")]
    for name in cases:
        assert_same(states["unwatched"], states[name], name)
    assert said["unwatched"] == said["watched"] == [] and images("unwatched") == {}
    assert said["killed"] == ["pictures   are not drawn any more: the process that draws has ended"]
    assert said["hung"] == ["pictures   6 were not drawn within 1 seconds"]
    # Two validations of three pictures reach the limit; the last validation's are sent all the same.
    assert said["slow"] == [
        "pictures   are drawn more slowly than validations come: some are left out",
        "pictures   9 were not drawn within 1 seconds",
    ]
    drawn = {tag for tag, _ in images("watched")}
    assert drawn == {"view_attention/L1H0", *(tag for tag in TAGS if "attention" not in tag)}
    histograms = {
        tag for tag, step in summaries("watched") if tag.startswith(("weights/", "activations/")) and step == 20
    }
    assert {f"weights/{name.removeprefix('net.')}" for name in states["watched"]} | {
        f"activations/{name}" for name in ("logits", "blocks.0", "blocks.1.attention", "blocks.1.mlp", "blocks.0.mlp")
    } <= histograms


@pytest.mark.slow
def test_the_process_that_draws_ends_with_the_one_that_trains(workplace: Path) -> None:
    process = start("name=a", "watch.pictures=true", "trainer.max_steps=100000")
    try:
        wait_for(lambda: bool(drawers(process.pid)), process)
        (drawer,) = drawers(process.pid)
        wait_for(lambda: drawer.nice() == 19, process)
        assert os.getpgid(drawer.pid) != os.getpgid(process.pid), "Ctrl-C in a terminal does not reach it"
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    wait_for(lambda: not drawer.is_running() or drawer.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.slow
def test_one_of_two_processes_draws_the_gathered_model(workplace: Path) -> None:
    ended = run_ranks(2, "name=a", "trainer=fsdp", *WATCHED, "trainer.val_check_interval=20")
    assert ended.status == 0 and "pictures " not in ended.out, ended
    assert set(images("a")) == {(tag, 20) for tag in TAGS}


def test_texts_are_what_the_model_writes(train: Callable[..., Ended]) -> None:
    assert train("name=a", "trainer.max_steps=10").status == 0
    model, meta = load_checkpoint("runs/a")
    ((step, texts),) = torch.load("runs/a/checkpoints/last.ckpt")["callbacks"]["Samples"]["history"]["entries"]
    assert step == 10 and [temperature for temperature, _, _ in texts] == [0.6, 0.6, 1.0, 1.0]
    assert texts[0][1] == texts[2][1] != texts[1][1], "the prompts"
    letters = meta["vocabulary"]["characters"]
    for number, (temperature, prompt, text) in enumerate(texts):
        assert prompt in Path("book.txt").read_text()
        tokens = torch.tensor([[letters.index(letter) for letter in prompt]])
        written = generate(model, tokens, len(text), temperature=temperature, seed=number % 2)
        assert "".join(letters[token] for token in written[0, len(prompt) :]) == text
    tags = ["samples/temperature_0.6/text_summary", "samples/temperature_1.0/text_summary"]
    assert [pair for pair in summaries("a") if pair[0].startswith("samples/")] == [(tag, 10) for tag in tags]


TEXTS = [
    ("plain text", None),
    ("  two\n\n\n   lines  \n", None),
    ("<b>&amp;</b> `a` ```\n* x\n# y\n| a | b |\n[l](javascript:x) ![i](http://h)</code></pre>", None),
    ("\ta\tb", None),
    ("   \n ", None),
    ("\n", None),
    ("中文 é 😀 \u0301 שלום", "中文 é 😀 ◌\u0301 שלום"),
    ("\x02\x03\x00\x0c\x1b\u2028\x85\ufeff", "␂␃␀␌␛U+2028U+0085U+FEFF"),
]


@pytest.mark.parametrize(("text", "shown"), TEXTS)
def test_text_comes_through_markdown(text: str, shown: str | None) -> None:
    """TensorBoard's own way from Markdown to HTML, and an independent reader of HTML at its end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of what TensorBoard uses
        from tensorboard.plugin_util import markdown_to_safe_html

    class Codes(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.codes: list[str] = []
            self.inside = False

        def handle_starttag(self, tag: str, attrs: Any) -> None:
            self.inside = tag == "code"
            self.codes += [""] if self.inside else []

        def handle_endtag(self, tag: str) -> None:
            self.inside = self.inside and tag != "code"

        def handle_data(self, data: str) -> None:
            if self.inside:
                self.codes[-1] += data

    reader = Codes()
    reader.feed(markdown_to_safe_html(as_markdown([("a prompt", text), (text, text)])))
    wanted = text if shown is None else shown
    assert reader.codes == ["a prompt", wanted, wanted, wanted]


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (4, 2), (2, 3), (12, 12), (40, 1)])
def test_heads_are_spread_over_layers(layers: int, heads: int) -> None:
    chosen = spread_over(layers, heads)
    assert len(set(chosen)) == len(chosen) == min(HEADS_DRAWN, layers * heads) and chosen == sorted(chosen)
    assert chosen[0] == (0, 0) and (len(chosen) == 1 or chosen[-1] == (layers - 1, heads - 1))
    places = [layer * heads + head for layer, head in chosen]
    assert max(np.diff(places), default=1) - min(np.diff(places), default=1) <= 1
    assert ModelConfig(layers=layers, heads=heads, dim=8 * heads)  # such a model there is


@pytest.mark.slow
def test_texts_are_read_in_a_browser(browser: Any, tmp_path: Path) -> None:
    """Each code element of TensorBoard's page holds a prompt or a text, character by character."""
    with SummaryWriter(str(tmp_path / "run")) as writer:
        for step, (text, _) in enumerate(TEXTS):
            writer.add_text("samples/temperature_1.0", as_markdown([("a prompt", text)]), step)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    host, _, port = address.partition(":")
    board = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", "--logdir", tmp_path, "--host", host, "--port", port],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def serves() -> bool:
        with suppress(OSError), urllib.request.urlopen(f"http://{address}/data/plugin/text/tags", timeout=5) as answer:
            return b"samples" in answer.read()
        return False

    try:
        wait_for(serves, board)
        page = browser.new_page()
        page.goto(f"http://{address}/#text")
        page.locator("code").nth(2 * len(TEXTS) - 1).wait_for()
        codes = [code.evaluate("code => code.textContent") for code in page.locator("code").all()]
        page.close()
    finally:
        os.killpg(board.pid, signal.SIGKILL)
        board.wait()
    wanted = [["a prompt", text if shown is None else shown] for text, shown in TEXTS]
    assert codes == [code for pair in reversed(wanted) for code in pair], "the newest is at the top"
