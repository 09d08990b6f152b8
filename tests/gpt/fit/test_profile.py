"""`debug=profile`: what the page says of a step, against clocks and counts of our own, and the page in a browser."""

import json
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import data.datamodule
from gpt.fit.trace import BETWEEN, Event, covered, digest, nest
from tests.conftest import Ended

Train = Callable[..., Ended]
LAYERS = 3
SMALL = (
    f"debug=profile data.path=book.txt model.layers={LAYERS} model.heads=2 model.dim=64 model.context=64 "
    "data.batch=8 trainer.accelerator=cpu trainer.devices=1 trainer.precision=32-true"
).split()
PAGE = Path("runs/debug-profile/profile.html")
SLEEP = 0.03


@pytest.fixture(autouse=True)
def quick_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.SAMPLE_LENGTH", 5)


def shown() -> dict[str, Any]:
    """What a page was given to show."""
    found = re.search(r'<script type="application/json" id="about">(.*?)</script>', PAGE.read_text("utf-8"), re.DOTALL)
    assert found
    return json.loads(found[1])


def test_a_step_takes_what_our_own_clock_says(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[float] = []
    make = data.datamodule.train_batch

    def slow(*arguments: Any) -> Any:
        fetched.append(time.perf_counter())
        time.sleep(SLEEP)
        return make(*arguments)

    monkeypatch.setattr("data.datamodule.train_batch", slow)
    ended = train(*SMALL, defaults=False)
    assert (ended.status, ended.err) == (0, "")
    about = shown()
    steps = np.diff(fetched) * 1000
    trace = json.loads(PAGE.with_name("trace.json").read_text("utf-8"))
    recorded = [event["dur"] / 1000 for event in trace["traceEvents"] if event["name"] == "step"]
    assert len(fetched) == 20 and len(recorded) == 3
    # Others keep the machine busy between the two clocks' readings. After the third, recording is ended.
    assert recorded[:2] == pytest.approx(steps[10:12], rel=0.15)
    assert about["step"] == pytest.approx(np.mean(recorded))
    otherwise = re.search(r", (\S+) ms when it is not", about["sentences"][0])
    assert otherwise and float(otherwise[1]) == pytest.approx(np.median(steps[1:10]), rel=0.15)
    # All of the waiting, and little else, is in the part that fetches.
    (bar,) = about["bars"]
    assert sum(bar["parts"].values()) == pytest.approx(about["step"], rel=1e-6)
    assert 1000 * SLEEP <= bar["parts"]["data"] < 1000 * SLEEP * 1.5
    assert all(bar["parts"][part] > 0 for part in ("forward", "backward", "optimizer", "other"))

    alone, calls = Counter[str](), Counter[str]()
    for name, _, _, count, own, _, _ in about["operators"]:
        alone[name] += own
        calls[name] += count
    assert sum(alone.values()) == pytest.approx(about["step"], rel=0.01)
    assert alone[BETWEEN] >= 1000 * SLEEP  # to sleep is no operator
    assert calls["aten::linear"] == 4 * LAYERS + 1  # two of attention, two of the MLP, and the head
    assert sum(event.get("name") == "aten::linear" for event in trace["traceEvents"]) == 3 * (4 * LAYERS + 1)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [2, 12])
def test_short_runs_are_recorded_at_their_end(train: Train, steps: int) -> None:
    ended = train(*SMALL, f"trainer.max_steps={steps}", "trainer.val_check_interval=1", defaults=False)
    assert (ended.status, ended.err) == (0, "")
    assert f"profile    {PAGE}" in ended.out
    about = shown()
    assert 0 < sum(about["bars"][0]["parts"].values()) == pytest.approx(about["step"])
    assert not any("validation" in name for name in about["timeline"]["names"])
    assert ("when it is not" in about["sentences"][0]) == (steps == 12)


# -- Traces made by hand -------------------------------------------------------------------------


def test_what_lies_within_another_is_not_its_own_time() -> None:
    """Random nested spans on a grid, against counting for each cell which is the innermost."""
    rng = np.random.default_rng(0)
    spans: list[tuple[int, int]] = []

    def split(start: int, end: int, deep: int) -> None:
        spans.append((start, end))
        cuts = sorted({int(cut) for cut in rng.integers(start, end + 1, 6)})
        for left, right in zip(cuts[:-1], cuts[1:], strict=True):
            if deep and right - left > 1 and rng.random() < 0.8 and (left, right) not in spans:
                split(left, right, deep - 1)

    split(0, 400, 5)
    events = nest(Event(str(n), start, end - start, BETWEEN) for n, (start, end) in enumerate(spans))
    around = [[event for event in events if event.start <= at < event.end] for at in range(400)]
    owners = [min(each, key=lambda event: event.length) for each in around]
    assert len(events) > 20 and max(event.depth for event in events) > 2
    for event in events:
        assert event.alone == sum(owner is event for owner in owners), event
        assert event.depth == sum(other.start <= event.start and event.end <= other.end for other in events) - 1


def test_covered_time_counts_once() -> None:
    rng = np.random.default_rng(1)
    spans = [(int(start), int(start + length)) for start, length in rng.integers(0, 90, (30, 2))]
    assert covered(spans) == len({at for start, end in spans for at in range(start, end)})
    assert covered([]) == 0


def traced(cat: str, name: str, ts: float, dur: float, tid: Any = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": tid, "ts": ts, "dur": dur, "args": args}


def test_a_device_s_work_belongs_to_the_part_that_has_launched_it() -> None:
    """Two steps of 1 ms; the backward pass runs on a thread of its own, kernels later than their launches."""
    events = [{"ph": "M", "name": "process_name", "ts": 0, "pid": 0, "tid": 0}]
    for n, at in enumerate((0, 1000)):
        events += [
            traced("user_annotation", "step", at, 1000),
            traced("user_annotation", "forward", at + 100, 200),
            traced("cpu_op", "aten::mm", at + 150, 50, **{"External id": 10 + n, "Input Dims": [[2, 3], [3, 4], []]}),
            traced("cuda_runtime", "cudaLaunchKernel", at + 160, 10, **{"External id": 10 + n}),
            traced("user_annotation", "backward", at + 300, 300),
            traced("cpu_op", "autograd::engine::evaluate_function: MmBackward0", at + 350, 200, tid=2),
            traced("cpu_op", "aten::mul", at + 400, 100, tid=2, **{"External id": 20 + n}),
            traced("kernel", "gemm", at + 250, 400, tid=7, **{"External id": 10 + n}),
            traced("kernel", "elementwise_kernel", at + 650, 100, tid=7, **{"External id": 20 + n}),
            traced("kernel", "elementwise_kernel", at + 600, 100, tid=8, **{"External id": 20 + n}),
        ]
    about = digest({"traceEvents": events}, unrecorded=0.0005)
    on_cpu, on_device = (bar["parts"] for bar in about["bars"])
    assert on_cpu == {"data": 0, "forward": 0.2, "backward": 0.3, "optimizer": 0, "other": 0.5}
    assert on_device == pytest.approx(
        {"data": 0, "forward": 0.4, "backward": 0.2, "optimizer": 0, "other": 0, "idle": 0.5}
    )
    operators = {row[0]: row[1:] for row in about["operators"]}
    assert operators["aten::mm"] == pytest.approx(["2×3 3×4", "matrix products", 1, 0.04, 0.05, 0.4])
    assert operators["aten::mul"] == pytest.approx(["", "elementwise", 1, 0.1, 0.1, 0.2])
    assert operators["cudaLaunchKernel"][1] == "calls to the device"
    assert operators[BETWEEN][3] == pytest.approx(1 - 0.05 - 0.1)
    assert about["sentences"][:2] == [
        "A training step takes 1 ms while it is recorded, 0.5 ms when it is not. Its longest part is other, 50 %.",
        "The device computes for 50 % of the time: 40 % matrix products, 20 % elementwise.",
    ]
    assert "the device waits" in about["sentences"][2]
    assert [row["title"] for row in about["timeline"]["rows"]] == [
        "training", "thread 2", "device 0, stream 7", "device 0, stream 8",
    ]  # fmt: skip


# -- The page ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_page_in_a_browser(train: Train, browser: Any) -> None:
    assert train(*SMALL, "name=a & b <i>", defaults=False).status == 0
    path = Path("runs/a & b <i>/profile.html").absolute()
    context = browser.new_context(offline=True, viewport={"width": 1200, "height": 900})
    page = context.new_page()
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    try:
        page.goto(path.as_uri())
        assert page.title() == "Where a step's time goes: a & b <i>" == page.text_content("h1")
        assert "A training step takes" in page.text_content("#sentences")
        assert page.locator("#bars li").count() == 5

        # The timeline: what the pointer is on is named, a click looks closer, Escape goes back.
        drawn = "document.querySelector('#timeline').toDataURL()"
        whole = page.evaluate(drawn)
        page.hover("#timeline", position={"x": 300, "y": 22 + 9})
        assert page.text_content("#card b") == "step" and "100 % of the step" in page.text_content("#card")
        page.hover("#timeline", position={"x": 300, "y": 22 + 18 * 3 + 9})
        assert page.text_content("#card b") in ("forward", "backward")
        page.mouse.down()
        page.mouse.up()
        assert page.locator("#whole").is_enabled()
        page.focus("#timeline")
        page.keyboard.press("Escape")
        page.mouse.move(0, 0)
        assert page.locator("#card").is_hidden() and page.locator("#whole").is_disabled()
        assert page.evaluate(drawn) == whole
        page.emulate_media(color_scheme="dark")
        for _ in range(200):  # the browser tells the page a moment later
            if page.evaluate(drawn) != whole:
                break
            page.wait_for_timeout(20)
        assert page.evaluate(drawn) != whole
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 22, 26)"

        # The table: sorted by time alone, by any column, searched, and with each shape apart.
        def column(number: int) -> list[str]:
            return page.locator(f"#operators tbody td:nth-child({number})").all_text_contents()

        shares = [float(share.rstrip(" %")) for share in column(2)]
        assert shares == sorted(shares, reverse=True) and sum(shares) == pytest.approx(100, abs=3)
        page.click("#operators th:nth-child(1) button")
        assert column(1) == sorted(column(1)) and len(column(1)) > 20
        page.click("#operators th:nth-child(5) button")
        calls = [float(count or 0) for count in column(5)]
        assert calls == sorted(calls, reverse=True)
        page.fill("#search", "linear")
        assert column(1) == ["aten::linear"]
        page.check("#apart")
        assert len(column(1)) > 2 and all("×" in name for name in column(1))
        page.fill("#search", "no such operator")
        assert column(1) == [] and page.text_content("#found").startswith("0 of ")
        assert (asked, said) == ([path.as_uri()], [])
    finally:
        context.close()
