"""Does a sample read like its corpus? `python benchmarks/readability.py [RUN]`.

For the sample that `train.py` prints and for more of the same length: the share of words of four or more
letters that occur in the training text, how often the most frequent line stands, and whether a passage of 50
characters (runs of white space counted as one blank) is copied from the training text.
"""

import argparse
import re
import sys
from collections import Counter
from pathlib import Path

import torch

from base import run_directory

sys.path.insert(0, str(Path(__file__).parent.parent))

from conf.schema import from_yaml  # noqa: E402
from data.open_text import open_text  # noqa: E402
from data.passages import prompt  # noqa: E402
from gpt.checkpoint import load_checkpoint  # noqa: E402
from gpt.inference.generate import generate  # noqa: E402
from training.callbacks.samples import FINAL_SAMPLE_LENGTH, FINAL_SAMPLE_TEMPERATURE  # noqa: E402

WORD = re.compile(r"[^\W\d_]{4,}")


def measure(sample: str, words: set[str], flat: str) -> tuple[float, int, bool]:
    """Share of known words, count of the most frequent line, whether 50 characters are copied."""
    found = WORD.findall(sample)
    lines = Counter(line.strip() for line in sample.split("\n") if line.strip())
    content = " ".join(sample.split())
    copied = any(content[place : place + 50] in flat for place in range(len(content) - 49))
    known = sum(word in words for word in found) / max(1, len(found))
    return known, max(lines.values(), default=0), copied


def main() -> None:
    """Print a row per sample and how many pass."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", help="run directory (default: the newest)")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--temperature", type=float, default=FINAL_SAMPLE_TEMPERATURE)
    options = parser.parse_args()
    checkpoint = run_directory.find_model(options.run)
    config = from_yaml((checkpoint.parent.parent / "config.yaml").read_text("utf-8"))
    text = open_text(config.data, config.model.context)
    train = text.tokenizer.decode(text.train)
    words, flat = set(WORD.findall(train)), " ".join(train.split())
    model, _ = load_checkpoint(checkpoint)
    begun = prompt(text)
    shares = []
    passed = 0
    for seed in range(config.seed, config.seed + options.samples):
        tokens = generate(model, begun, FINAL_SAMPLE_LENGTH, temperature=options.temperature, seed=seed)[0]
        known, repeated, copied = measure(text.tokenizer.decode(tokens[len(begun) :].numpy()), words, flat)
        good = known >= 0.85 and repeated <= 3 and not copied
        passed += good
        shares.append(known)
        verdict = f"{known:6.1%} known words  most frequent line {repeated}x  copied {copied}"
        print(f"seed {seed:3}  {verdict}  {'ok' if good else ''}")
    print(f"{checkpoint}: {passed} of {options.samples} pass; known words on average {sum(shares) / len(shares):.1%}")
    print("the first row is the sample that train.py printed")


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
