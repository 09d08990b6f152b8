"""How fast the page of `export.py --to web` writes, and how large it is.

    python benchmarks/web_speed.py CHECKPOINT [--rounds 5]

Opens the page in headless Chromium without a network, presses Generate and reads the speed that
the page shows. It writes 1,000 characters after a line break, at temperature 0.8 and with its own
seeds. For comparison, the model is also run alone in the same browser, without updating the page.
The first round does not count: it warms up the browser.
"""

import shutil
import tempfile
from pathlib import Path

from measuring import ROOT, make_parser, print_machine, run, spread

ALONE = """length => {
  const seen = chargpt.model.tokens[0], begun = performance.now();
  model.reset();
  model.read(seen);
  while (model.tokens.length <= length)
    model.read(pick(probabilities(model.predict(), 0.8, 0), random(1, model.tokens.length)));
  return 1000 * length / (performance.now() - begun);
}"""


def main() -> None:
    """Measure the page and its model in turn and print their characters per second."""
    options = make_parser(__doc__, rounds=5, text="model file or run directory").parse_args()
    from playwright.sync_api import sync_playwright

    length = 30 if options.quick else 1000
    print_machine()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "model.html"
        run([ROOT / "export.py", options.text, "--to", "web", path])
        program = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_context(offline=True, reduced_motion="reduce").new_page()
        page.goto(path.as_uri())
        page.wait_for_selector("#clear:enabled")
        ready = page.evaluate("performance.now()") / 1000
        print(f"{path.stat().st_size / 1e6:.2f} MB, ready {ready:.2f} s after the page was opened")
        page.click("#clear")  # stops the text that the page writes when it opens
        page.click("#settings summary")
        shown, alone = [], []
        for _ in range(1 + options.rounds):
            page.fill("#length", str(length))
            page.click("#generate")
            page.wait_for_selector("#continue:enabled", timeout=300_000)
            shown.append(float(page.text_content("#status").split()[2].replace(",", "")))
            alone.append(page.evaluate(ALONE, length))
            page.click("#clear")
        for name, rates in (("the page", shown[1:]), ("the model alone", alone[1:])):
            print(f"{name}: {spread(rates)} characters/s")
        browser.close()


if __name__ == "__main__":
    main()
