"""The loss of counting n-grams, which each run compares its model with, for a text of your own.

    python benchmarks/ngrams.py [--path TEXT]

Counts the training split and predicts the validation split. It uses no seed.
"""

import argparse

import numpy as np
from measuring import print_machine

from data.config import DataConfig
from data.ngrams import ngram_losses
from data.text import open_text


def main() -> None:
    """Print a line for each order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", help="another text than the built-in corpus")
    options = parser.parse_args()
    corpus = open_text(DataConfig(path=options.path), 256)
    print_machine()
    for n, loss in enumerate(ngram_losses(np.asarray(corpus.train), corpus.validation, corpus.tokenizer.size), start=1):
        print(f"{n}-grams: {loss:.4f} nats per {corpus.tokenizer.unit}")


if __name__ == "__main__":
    main()
