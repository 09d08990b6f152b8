"""The results of a run, as its summary.json stores them."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_type_hints

from base.files import write_text
from base.options import fits


@dataclass(frozen=True)
class Summary:
    """The contents of summary.json, in which unknown values are null. Losses are in nats per token."""

    status: str | None = None  # running, finished, interrupted, diverged or failed; None: no readable file
    begun: str | None = None  # when the run was first started, as an ISO 8601 time in UTC
    text: str | None = None  # the name of the text
    text_sha256: str | None = None  # hash of the text's file or, if it has several files, of their names and hashes
    notes: list[str] | None = None  # remarks about the text
    val_loss: float | None = None  # validation loss of the best model
    val_bpc: float | None = None  # `val_loss` in bits per character
    val_bpb: float | None = None  # `val_loss` in bits per byte
    uniform_loss: float | None = None  # the validation loss if all tokens are equally likely, for comparison
    ngram_loss: float | None = None  # the validation loss of an n-gram model (`data.ngrams`), for comparison
    ngram_order: int | None = None  # the length n of the n-grams of `ngram_loss`
    # The longest passages that samples share with the training text: their `median` and `longest` length in tokens, and
    # the number of `samples`, their `length` in tokens and their `temperature`.
    copies: dict | None = None
    best_step: int | None = None  # the step of the best model
    last_val_loss: float | None = None  # validation loss of the last model
    test_loss: float | None = None  # loss on the test split, which `score.py --split test` adds
    test_bpc: float | None = None  # `test_loss` in bits per character
    evaluation: dict | None = None  # how the validation loss was measured, such as the context length
    steps: int | None = None  # number of optimizer steps taken
    # Number of tokens (characters or bytes) on which the model was trained, repetitions included.
    characters: int | None = None
    epochs: float | None = None  # how often the training text was read
    seconds: float | None = None  # duration of the training, including validations and checkpoints
    characters_per_second: float | None = None  # training speed in tokens per second
    mfu: float | None = None  # model FLOPs utilization, the fraction of the devices' peak FLOP/s
    init_from: str | None = None  # the trained model from which the run started
    parameters: int | None = None  # number of parameters of the model
    precision: str | None = None  # precision of the training, such as bf16-mixed
    device: str | None = None  # cuda, mps or cpu
    seed: int | None = None  # the random seed
    versions: dict | None = None  # versions of Python, torch, Lightning and NumPy
    commit: str | None = None  # git commit of the code, with `-dirty` if the files differ from it
    validations: dict | None = None  # the loss of each validation, by step

    @property
    def mode(self) -> str | None:
        """How the text was read for the validation loss: in `disjoint` windows, or in windows at `documents`."""
        return (self.evaluation or {}).get("mode")

    @classmethod
    def read(cls, path: Path) -> "Summary":
        """Read a summary; of a missing or damaged file, what cannot be read is None."""
        try:
            found = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        except (OSError, ValueError, RecursionError):
            found = {}
        hints, found = get_type_hints(cls), found if isinstance(found, dict) else {}
        return cls(**{key: value for key, value in found.items() if key in hints and fits(value, hints[key], {})})

    def write(self, path: Path) -> None:
        write_text(path, json.dumps(asdict(self), indent=2) + "\n")
