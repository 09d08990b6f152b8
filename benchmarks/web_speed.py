"""How fast the page of `export.py --to web` writes, and how large it is.

    python benchmarks/web_speed.py CHECKPOINT [--rounds 5]

Opens the page in headless Chromium without a network and writes 1,000 characters from a prompt of one, at temperature
0.8, as a person would: typing, pressing Generate, reading the page's own figure. The model alone, without a page to
keep up to date, is measured beside it in the same browser. The first round warms the browser's compiler up.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpt.checkpoint import load_checkpoint  # noqa: E402
from gpt.export.to_web_page import write_web  # noqa: E402

ALONE = """() => {
  const seen = chargpt.model.tokens[0], begun = performance.now();
  model.reset();
  model.read(seen);
  while (model.tokens.length <= 1000)
    model.read(pick(probabilities(model.predict(), 0.8, 0), random(1, model.tokens.length)));
  return 1e6 / (performance.now() - begun);
}"""


def main() -> None:
    """Measure and print."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    model, meta = load_checkpoint(options.checkpoint)
    prompt = meta["vocabulary"].get("characters", "A")[-1]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "model.html"
        write_web(model, meta, path)
        print(f"{model.num_parameters():,} parameters, {path.stat().st_size / 1e6:.2f} MB")
        program = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_context(offline=True).new_page()
        page.goto(path.as_uri())
        page.wait_for_selector("#clear:enabled")
        loaded = page.evaluate("performance.now()")
        print(f"ready {loaded / 1000:.2f} s after the page was opened")
        shown, alone = [], []
        for _ in range(1 + options.rounds):
            page.fill("#prompt", prompt)
            page.fill("#length", "1000")
            page.click("#generate")
            page.wait_for_selector("#continue:enabled", timeout=300_000)
            shown.append(float(page.text_content("#status").split()[2].replace(",", "")))
            alone.append(page.evaluate(ALONE))
            page.click("#clear")
        for name, rates in (("the page", shown[1:]), ("the model alone", alone[1:])):
            spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
            print(f"{name}: {statistics.median(rates):,.0f} characters/s ({spread} in {options.rounds} rounds)")
        browser.close()


if __name__ == "__main__":
    main()
