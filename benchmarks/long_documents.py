"""What a model learns of documents that are longer than its context.

    python benchmarks/long_documents.py --text book.txt [--steps 800] [--rounds 2]

Trains a small model on documents of 273 characters at a context of 128: text, a field of 28 random
digits from 0 to 7 in brackets at characters 129 to 158, and text. Prints the loss of new such
documents in nats per character, in disjoint and in overlapping windows of one document: of the field,
whose digits cost ln 8 = 2.08, and of the text before and after it. The number of the round is the
seed.
"""

import argparse
import random
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from measuring import ROOT, print_table, run

from gpt import load
from gpt.windows import windows_of_groups

CONTEXT = 128
BEFORE = 128  # characters of text before the field
FIELD = 30
AFTER = 115


def documents(text: str, seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    while True:
        begin = rng.randrange(len(text) - BEFORE - AFTER)
        field = "".join(rng.choices("01234567", k=FIELD - 2))
        middle = begin + BEFORE
        yield f"{text[begin:middle]}[{field}]{text[middle : middle + AFTER]}"


@torch.no_grad()
def losses(run_path: Path, lines: list[str], stride: int) -> list[float]:
    """Return the loss of the text before the field, of the field, and of the text after it."""
    model, tokenizer = load(run_path)
    tokens = torch.stack([torch.as_tensor(tokenizer.encode(f"\n{line}\n")) for line in lines])
    of_each = torch.zeros(tokens.shape[1])  # (T,), the mean loss of each token of a document
    # one group, after its first token
    windows = windows_of_groups(np.array([1]), np.array([tokens.shape[1]]), CONTEXT, stride, 1)
    for begin, length, first in zip(*map(list, windows), strict=True):
        logits = model(tokens[:, begin : begin + length])  # (B, length, V)
        targets = tokens[:, begin + 1 : begin + 1 + length]  # (B, length)
        nats = F.cross_entropy(logits.mT, targets, reduction="none").mean(0)  # (length,)
        of_each[begin + 1 + first : begin + 1 + length] = nats[first:]
    parts = of_each[1:].split([BEFORE, FIELD, AFTER + 1])
    return [float(part.mean()) for part in parts]


def main() -> None:
    """Train and score one model per round."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    # Only characters that surely occur in training.
    text = re.sub(r"[^a-zA-Z.,;:!?']+", " ", options.text.read_text("utf-8"))
    lines = documents(text, 0)
    rows = []
    for seed in range(1, options.rounds + 1):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "records.txt").write_text("\n".join(next(lines) for _ in range(4400)))
            settings = (
                f"model.layers=2 model.dim=64 model.context={CONTEXT} data.batch=16 logger=none"
            )
            settings += " data.path=records.txt data.documents=line compile=false name=run"
            command = [ROOT / "train.py", f"seed={seed}", f"trainer.max_steps={options.steps}"]
            run([*command, *settings.split()], folder)
            unseen = [next(lines) for _ in range(300)]
            for mode, stride in (("disjoint", CONTEXT), ("strided", CONTEXT // 2)):
                nats = losses(Path(folder, "runs/run"), unseen, stride)
                rows.append([str(seed), mode, *(f"{part:.4f}" for part in nats)])
    print_table(["seed", "windows", "before", "field", "after"], rows)


if __name__ == "__main__":
    main()
