"""Takes the README's pictures from real runs: `python docs/pictures.py RUN SWEEP`.

RUN is a finished run with many validations, SWEEP the directory of a sweep; the README was made with

    python train.py name=pictures trainer.val_check_interval=60 watch.attention_heads=[L0H0,L0H1,L1H0,L1H1]
    python train.py -m name=sweep data=shakespeare trainer.max_steps=200 optim.lr=2e-3,6e-3 model.heads=2,4

TensorBoard and Chromium are started on them, its pages are shot as a person sees them, and learning.gif goes through
the validations of RUN. It needs `pip install -c constraints.txt -e '.[dev]'` and chromium.
"""

import argparse
import base64
import html
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).parent / "images"
# What a page must show before it is shot, as a selector that looks into TensorBoard's components.
PAGES = {
    "custom_scalars": "tf-custom-scalar-multi-line-chart-card vz-line-chart2 path",
    "timeseries": "scalar-card line-chart",
    "text": "tf-text-loader code",
    "images": "tf-image-loader img",
    "hparams": "tf-hparams-table-view vaadin-grid-cell-content",
}


@contextmanager
def tensorboard(logs: Path) -> Iterator[str]:
    """TensorBoard on the loopback interface, when it has read the runs: its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logs), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--samples_per_plugin", "images=100,text=100"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    address = f"http://127.0.0.1:{port}/"
    try:
        until = time.monotonic() + 60
        while True:
            with suppress(OSError), urllib.request.urlopen(address + "data/runs", timeout=5) as answer:
                if json.load(answer):
                    break
            if time.monotonic() > until or server.poll() is not None:
                raise RuntimeError(f"TensorBoard shows no run of {logs}")
            time.sleep(0.2)
        yield address
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def visit(page: Any, address: str, name: str) -> None:
    """Open a page of TensorBoard and wait until it shows something and has come to rest.

    Args:
        page: playwright's.
        address: of TensorBoard.
        name: one of `PAGES`.
    """
    page.goto(f"{address}#{name}&_smoothingWeight=0")
    page.reload()  # a new fragment alone opens nothing
    page.locator(PAGES[name]).first.wait_for(state="attached", timeout=60_000)
    before = None
    for _ in range(40):
        now = page.screenshot()
        if now == before:
            return
        before = now
        page.wait_for_timeout(500)


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
<div><h1>step {step:,} of {steps:,}</h1><p>{nats:.2f} nats ({bpc:.2f} bits) per character on unseen text</p>
<svg viewBox="0 0 {steps} 100" preserveAspectRatio="none"><path d="{path}"/></svg>
<pre><i>{begun}
</i>{text}</pre></div><img src="data:image/png;base64,{picture}">"""


def frames(run: Path) -> Iterator[tuple[int, str]]:
    """A page for each validation of a run: how far it is, its loss, what it writes and what surprises it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from gpt.training_checkpoint import TrainingRecord, read

    events = EventAccumulator(str(run), size_guidance={"images": 0, "scalars": 0, "tensors": 0}).Reload()
    record = TrainingRecord.of(read(run / "checkpoints/last.ckpt")["callbacks"])
    losses, texts = record.losses, dict(record.samples)
    validation = EventAccumulator(str(run / "validation"), size_guidance={"scalars": 0}).Reload()
    nats, bits = ({point.step: point.value for point in validation.Scalars(tag)} for tag in ("val/loss", "val/bpc"))
    steps, top, bottom = losses[-1][0], losses[0][1], min(loss for _, loss in losses)
    for picture in events.Images("view/surprisal"):
        step = picture.step
        if step not in texts:
            continue
        points = [f"{at} {100 - 96 * (loss - bottom) / (top - bottom):.2f}" for at, loss in losses if at <= step]
        (_, prompt, text), *_ = texts[step]
        begun = "\n".join(prompt.rstrip("\n").splitlines()[-3:])
        yield (
            step,
            FRAME.format(
                step=step, steps=steps, nats=nats[step], bpc=bits[step], path="M" + "L".join(points),
                begun=html.escape(begun), text=html.escape(text),
                picture=base64.b64encode(picture.encoded_image_string).decode(),
            ),
        )  # fmt: skip


def animate(browser: Any, run: Path, file: Path) -> None:
    """Write the validations of a run as an animation that rests on the last one."""
    from PIL import Image

    page = browser.new_page(viewport={"width": 1000, "height": 470})
    shots = []
    for _, content in frames(run):
        page.set_content(content)
        page.locator("img").evaluate("image => image.decode()")
        shots.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
    page.close()
    palette = shots[0].quantize(128)  # in which there are all colours
    pictures = [shot.quantize(palette=palette, dither=Image.Dither.NONE) for shot in shots]
    rests = [600] * (len(pictures) - 1) + [4000]
    pictures[0].save(file, save_all=True, append_images=pictures[1:], duration=rests, loop=0, optimize=True)


def main() -> None:
    """Take them all."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="directory of a finished run")
    parser.add_argument("sweep", type=Path, help="directory of a sweep")
    given = parser.parse_args()
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"),
            args=["--no-sandbox", "--disable-gpu"],
        )
        animate(browser, given.run, IMAGES / "learning.gif")
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        for logs, names in ((given.run, ("custom_scalars", "images")), (given.sweep, ("hparams",))):
            with tensorboard(logs) as address:
                page.set_viewport_size({"width": 1920 if names == ("hparams",) else 1280, "height": 860})
                for name in names:
                    visit(page, address, name)
                    page.screenshot(path=IMAGES / f"{name}.png")
        page.goto((given.run / "report.html").absolute().as_uri())
        page.wait_for_timeout(1000)
        page.screenshot(path=IMAGES / "report.png")
        browser.close()


if __name__ == "__main__":
    main()
