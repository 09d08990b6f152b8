"""Makes the demo and the pictures of docs/images anew with the present recipe: `python docs/pictures.py`.

It trains the runs `demo` and `first` if runs/ has none of these names (docs/first_run.py leaves
the `first` that README.md shows), writes the model and the page of docs/demo from `demo`, and shows
the pages and those of TensorBoard in Chromium. recipe.png shows docs/experiments/recipe.csv.
`--fixed` trains nothing and makes only the pictures of docs/demo and of the recipe; `--quick` tries
everything in a temporary folder. Pictures need `pip install -c constraints.txt -e '.[dev]'` and
chromium.
"""

import argparse
import base64
import csv
import html
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(1, str(ROOT))

from gpt.checkpoint import read_training_checkpoint  # noqa: E402
from reports.history import History  # noqa: E402

IMAGES, DEMO = Path("docs/images"), Path("docs/demo/shakespeare.html")
# relative: TensorBoard shows them
TRAINED, RUN = Path("runs/demo"), Path("runs/first")
SETTINGS = {
    TRAINED: "data=shakespeare data.split=[0.9,0.1,0.0] minutes=10 seed=1",
    RUN: "minutes=2",
}
QUICK = (
    f"data.path={ROOT / 'docs/demo/passages.txt'} minutes=null model.layers=1 model.heads=1 model.dim=16 "
    "model.context=32 trainer.max_steps=40 trainer.val_check_interval=20 compile=false"
)
TITLE = "Shakespeare, learned in ten minutes on two CPU cores"
# What a page must show before it is shot, as a selector that looks into TensorBoard's components.
PAGES = {"custom_scalars": "tf-custom-scalar-multi-line-chart-card vz-line-chart2 path"}


def tensorboard(logs: Path) -> str:
    """Start TensorBoard on the loopback interface, and return its address when it has read the runs."""
    from tensorboard import default, program

    empty = {"ProjectorPlugin"}  # whose page has nothing of a run
    server = program.TensorBoard(
        [each for each in default.get_plugins() if getattr(each, "__name__", "") not in empty]
    )
    server.configure(
        ["", "--logdir", str(logs), "--port", "0", "--samples_per_plugin", "images=100,text=100"]
    )
    address = server.launch()
    until = time.monotonic() + 60
    while not json.load(urllib.request.urlopen(f"{address}data/runs", timeout=5)):
        if time.monotonic() > until:
            raise RuntimeError(f"TensorBoard shows no run of {logs}")
        time.sleep(0.2)
    return address


def shoot(page: Any, address: str, name: str) -> None:
    """Open a page of TensorBoard, and shoot it when it shows something and has come to rest.

    Args:
        page: playwright's.
        address: of TensorBoard.
        name: one of `PAGES`.
    """
    page.goto(f"{address}?#{name}&_smoothingWeight=0&regexInput=^{RUN.name}(/|$)")
    page.reload()  # a new fragment alone opens nothing
    page.locator(PAGES[name]).first.wait_for(state="attached", timeout=60_000)
    before = None
    for _ in range(40):
        now = page.screenshot()
        if now == before:
            break
        before = now
        page.wait_for_timeout(500)
    save(page, name)


def save(shown: Any, name: str) -> None:
    """Write a screenshot of a page, or of a part of it, in at most 256 colours."""
    from PIL import Image

    Image.open(io.BytesIO(shown.screenshot())).quantize(256).save(
        IMAGES / f"{name}.png", optimize=True
    )


def animate(name: str, shots: Iterable[tuple[int, bytes]]) -> None:
    """Write an animation of screenshots, each with the milliseconds that it stays."""
    import numpy as np
    from PIL import Image

    rests, pictures = zip(
        *((rest, Image.open(io.BytesIO(shot)).convert("RGB")) for rest, shot in shots), strict=True
    )
    sheet = Image.fromarray(np.concatenate(pictures[:: len(pictures) // 10 + 1]))
    # keeps colours of small areas
    palette = sheet.quantize(64, Image.Quantize.MAXCOVERAGE, kmeans=1)
    first, *others = (
        picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures
    )
    first.save(
        IMAGES / f"{name}.gif",
        save_all=True,
        append_images=others,
        duration=rests,
        loop=0,
        optimize=True,
    )


FRAME = """<meta charset="utf-8"><style>
body {{ margin: 0; width: 1000px; height: 470px; box-sizing: border-box; padding: 18px 22px; background: #fff;
  color: #16181d; font: 15px/1.45 system-ui, "DejaVu Sans", sans-serif; display: grid;
  grid-template-columns: 455px 1fr; gap: 0 28px }}
h1 {{ font-size: 22px; margin: 0 0 4px; font-weight: 600; font-variant-numeric: tabular-nums }}
p {{ margin: 0 0 8px; color: #5a606b }}
pre {{ margin: 8px 0 0; font: 13px/1.4 "DejaVu Sans Mono", monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  height: 200px; overflow: hidden }}
i {{ font-style: normal; color: #8a909b }}
svg {{ display: block; width: 100%; height: 130px; border-bottom: 1px solid #dfe2e7 }}
path {{ fill: none; stroke: #1d4fd7; stroke-width: 2; vector-effect: non-scaling-stroke }}
img {{ width: 100%; height: 430px; object-fit: contain; object-position: top left }}
</style>
<div><h1>step {step:,} of {steps:,}</h1><p>{nats:.2f} nats ({bpc:.2f} bits) per character on held-out text</p>
<svg viewBox="0 0 {steps} 100" preserveAspectRatio="none"><path d="{path}"/></svg>
<pre><i>{begun}
</i>{text}</pre></div><img src="data:image/png;base64,{picture}">"""


def frames() -> Iterator[str]:
    """A page for each validation of the run: how far it is, its loss, what it writes and what it looks at."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(
        str(RUN), size_guidance={"images": 0, "scalars": 0, "tensors": 0}
    ).Reload()
    history = History.of(read_training_checkpoint(RUN / "checkpoints/last.ckpt")["history"])
    losses = history.losses.entries
    texts = dict(history.samples.entries)
    validation = EventAccumulator(str(RUN / "validation"), size_guidance={"scalars": 0}).Reload()
    nats, bits = (
        {point.step: point.value for point in validation.Scalars(tag)}
        for tag in ("val/loss", "val/bpc")
    )
    steps, top, bottom = losses[-1][0], losses[0][1], min(loss for _, loss in losses)
    for picture in events.Images("view_attention/L0H0"):
        step = picture.step
        if step not in texts:
            continue
        points = [
            f"{at} {100 - 96 * (loss - bottom) / (top - bottom):.2f}"
            for at, loss in losses
            if at <= step
        ]
        (_, prompt, text), *_ = texts[step]
        begun = "\n".join(prompt.rstrip("\n").splitlines()[-3:])
        yield FRAME.format(
            step=step, steps=steps, nats=nats[step], bpc=bits[step], path="M" + "L".join(points),
            begun=html.escape(begun), text=html.escape(text),
            picture=base64.b64encode(picture.encoded_image_string).decode(),
        )  # fmt: skip


def validations(page: Any) -> Iterator[tuple[int, bytes]]:
    """Shoot a frame for each validation of the run; the last one stays longest."""
    *others, last = frames()
    for rest, content in [(600, each) for each in others] + [(4000, last)]:
        page.set_content(content)
        page.locator("img").evaluate("image => image.decode()")
        yield rest, page.screenshot()


def writing(page: Any) -> Iterator[tuple[int, bytes]]:
    """Shoot the demo while it writes five characters at a time, and while the most likely next ones are chosen."""
    page.clock.install(time=0)
    page.clock.pause_at(1)  # the page writes only when the clock is moved
    page.goto(DEMO.absolute().as_uri())
    page.wait_for_selector("#clear:enabled")
    while page.text_content("#status") == "Writing…":
        yield 100, page.screenshot()
        page.clock.run_for(5 * 32)
    yield 600, page.screenshot()
    for _ in range(3):
        page.hover("#bars button")
        yield 300, page.screenshot()
        page.click("#bars button")
    page.mouse.move(0, 0)
    yield 1200, page.screenshot()


def play(page: Any) -> None:
    """Guess 62 characters of the game, some of them wrong at first and some not at all."""
    rng = random.Random(1)
    page.focus("#typed")
    for _ in range(62):
        right = page.evaluate("passage[position()]")
        wrong = rng.sample("bcdfgkpw".replace(right, ""), rng.choice([0, 0, 0, 0, 0, 1, 2, 5]))
        for letter in (*wrong, right)[:5]:
            page.keyboard.press("Enter" if letter == "\n" else letter)


BARS = """<meta charset="utf-8"><style>
body { margin: 0; width: 860px; box-sizing: border-box; padding: 16px 20px; background: #fff; color: #16181d;
  font: 15px/1.3 system-ui, "DejaVu Sans", sans-serif; display: grid; grid-template-columns: 400px 1fr; gap: 9px 14px }
i { display: inline-block; height: 13px; background: #1d4fd7; margin-right: 8px; vertical-align: -1px }
</style>"""


def recipe(page: Any) -> None:
    """Draw how much each kept change lowered the loss on the built-in corpus, from docs/experiments/recipe.csv."""
    with (ROOT / "docs/experiments/recipe.csv").open(newline="") as file:
        kept = [
            row
            for row in csv.DictReader(file)
            if row["text"] == "corpus" and re.match("yes$|until", row["kept"])
        ]
    rows = [
        (-float(row["difference"]), re.split(r"[,:;] ", row["change"])[0].replace("`", ""))
        for row in kept
    ]
    rows = sorted((row for row in rows if row[0] > 0.008), reverse=True)  # smaller gains are noise
    bars = (
        f"<span>{name}</span><span><i style='width:{gain / rows[0][0] * 340:.0f}px'></i>{gain:.3f}</span>"
        for gain, name in rows
    )
    heading = "<b>Change</b><b>Lower validation loss, nats per character</b>"
    page.set_content(BARS + heading + "".join(bars))
    save(page.locator("body"), "recipe")


def demo(browser: Any) -> None:
    """Take the pictures of the demo."""
    page = browser.new_page(viewport={"width": 1000, "height": 790}, device_scale_factor=0.9)
    animate("writing", writing(page))
    page = browser.new_page(viewport={"width": 1280, "height": 780}, reduced_motion="reduce")
    page.goto(DEMO.absolute().as_uri())
    page.get_by_text("Written by this model").wait_for()
    save(page, "demo")
    play(page)
    save(page.locator("#game"), "guess")


def run(script: str, *arguments: str) -> None:
    subprocess.run([sys.executable, str(ROOT / script), *arguments], check=True)


def renew_demo() -> None:
    """Write the model of the run `demo` and its page into docs/demo."""
    model = DEMO.with_suffix(".safetensors")
    shutil.copyfile(TRAINED / "checkpoints/best.safetensors", model)
    guessed = ("--guess", str(ROOT / "docs/demo/passages.txt"), "--title", TITLE)
    run("export.py", str(model), "--to", "web", str(DEMO), *guessed, "--overwrite")
    summary = json.loads((TRAINED / "summary.json").read_text("utf-8"))
    print(
        f"the new demo: {summary['steps']:,} steps, {summary['val_loss']:.4f} nats per character"
    )
    print("now change these figures in README.md, CONTRIBUTING.md and tests/test_docs.py")


def main() -> None:
    """Make them all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--fixed", action="store_true", help="only writing.gif, demo.png, guess.png, recipe.png"
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny runs in a temporary folder, to test this script"
    )
    given = parser.parse_args()
    from playwright.sync_api import sync_playwright

    os.chdir(tempfile.mkdtemp() if given.quick else ROOT)
    for folder in (IMAGES, DEMO.parent):
        folder.mkdir(parents=True, exist_ok=True)
    if not given.fixed:
        for path, settings in SETTINGS.items():
            if not path.exists():
                run(
                    "train.py",
                    f"name={path.name}",
                    *settings.split(),
                    *(QUICK.split() if given.quick else ()),
                )
        renew_demo()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"),
            args=["--no-sandbox", "--disable-gpu"],
        )
        demo(browser)
        recipe(browser.new_page(viewport={"width": 860, "height": 400}))
        if given.fixed:
            return
        animate("learning", validations(browser.new_page(viewport={"width": 1000, "height": 470})))
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.set_viewport_size({"width": 1280, "height": 1090})
        page.goto((RUN / "report.html").absolute().as_uri())
        page.wait_for_timeout(1000)
        save(page, "report")
        page.set_viewport_size({"width": 1280, "height": 860})
        address = tensorboard(RUN.parent)
        shoot(page, address, "custom_scalars")


if __name__ == "__main__":
    main()
