"""A text that is split and encoded: from the cache, where the first start leaves it."""

import hashlib
import json
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from base.errors import InputError, one_line, printable
from base.jobs import run_directory
from base.jobs.run_directory import Run
from data.config import DataConfig
from data.divide import DocumentRule, DocumentStats
from data.encode import encode, is_whole, open_tokens
from data.find import Corpus, find
from data.ngrams import describe_likeness
from data.seen import was_read
from data.split import SPLITS
from gpt.model_file import TextRead, read_description
from gpt.tokenizer import Tokenizer, tokenizer_from
from gpt.windows import EvaluationText

FORMAT = 4  # of a folder in the cache: increment it when the same text would be stored differently
SEEN = (
    "the starting model was trained on files of this text, perhaps on what is held out here, "
    "so the loss may say nothing about new text"
)


@dataclass(frozen=True)
class Text:
    """A text that is split and encoded, and what is known about it."""

    train: np.ndarray  # tokens of the training split, (N,) uint8 or uint16, read-only
    validation: np.ndarray  # tokens of the validation split, of the same dtype
    test: np.ndarray  # tokens of the test split, of the same dtype, empty if its fraction is 0
    tokenizer: Tokenizer  # the tokenizer, whose vocabulary contains the characters of all splits
    name: str  # name of the text, for messages
    fingerprint: str  # hexadecimal hash that is equal for equal content, settings and tokenizer
    # Number of characters by split. With the byte tokenizer, a character may be several tokens.
    characters: Mapping[str, int]
    extra_chars: str  # characters that are in the vocabulary whether the text contains them or not
    sha256: str  # SHA-256 of the file or, if there are several, a hash of their names and hashes
    texts: Sequence[TextRead]  # this text, then those that the model of `init_from` has read
    # how the text was divided into documents, or None if it was not divided
    documents: DocumentStats | None = None
    notes: tuple[str, ...] = ()  # lines about the text, logged when a run starts
    held_out: Sequence[str] = ()  # hashes of the files of which parts are held out (`data.seen`)

    @property
    def end(self) -> np.ndarray | None:
        """The end mark that follows each document, (M,) tokens, or None if the text is not a list of documents."""
        return self.tokenizer.pack(self.documents.rule.end) if self.documents else None

    @property
    def mode(self) -> str:
        """How windows are placed in an evaluation: they begin at `documents`, or are `disjoint`."""
        return "documents" if self.documents else "disjoint"

    @property
    def evaluated(self) -> EvaluationText:
        """The validation split with what an evaluation needs to know about it."""
        return EvaluationText(self.validation, self.tokenizer.token_sizes, self.end)

    def read_before(self, texts: Sequence[TextRead]) -> "Text":
        """Return a copy to whose `texts` those are added that the model of `init_from` has read.

        A line in its `notes` warns if these may contain what is held out here.
        """
        this = self.texts[0]
        others = [
            text
            for text in texts
            if (text["sha256"], text["split"]) != (this["sha256"], this["split"])
        ]
        notes = self.notes
        # no split with data.overfit, which holds nothing out
        if this["split"] and was_read(others, self.sha256, self.held_out):
            notes += (SEEN,)
        return replace(self, texts=[this, *others], notes=notes)


def open_text(config: DataConfig, context: int, extra_chars: str = "") -> Text:
    return open_corpus(find(config), config, context, extra_chars)


def open_corpus(corpus: Corpus, config: DataConfig, context: int, extra_chars: str = "") -> Text:
    """Return a text, split and encoded, from the cache if it is there.

    With `data.validation`, each split has files of its own. Otherwise documents are split by a
    hash of their content, many files as wholes, and other texts by position. Within a split, the
    texts of different files are joined by newlines.
    """
    rule = DocumentRule.of(config)
    files = [
        [source.name, str(source.path.absolute()), source.member, source.split]
        for source in corpus.files
    ]
    made_from = [FORMAT, files, corpus.encoding, corpus.python, config.split]
    made_from += [rule and vars(rule), sorted(set(extra_chars))]
    keys = [
        hashlib.sha256(json.dumps(part).encode()).hexdigest()[:32]
        for part in (made_from, corpus.stamps())
    ]
    folder = corpus.cache / "encoded" / "-".join(keys)
    if not is_whole(folder):
        encode(corpus, rule, config.split, extra_chars, folder)
    meta = json.loads((folder / "meta.json").read_text(encoding="ascii"))
    tokenizer = tokenizer_from(meta["vocabulary"])
    arrays: dict[str, Any] = {
        split: open_tokens(folder / f"{split}.bin", tokenizer) for split in SPLITS
    }
    notes = (*corpus.notes, *meta["notes"])
    check_lengths(arrays, config, context, corpus.name, notes)
    text = Text(
        **arrays,
        **meta["text"],
        tokenizer=tokenizer,
        name=corpus.name,
        extra_chars=extra_chars,
        documents=DocumentStats(rule, **meta["documents"]) if rule else None,
        notes=notes,
    )
    if config.overfit is not None:
        return _overfitted(text, config.overfit, context)
    # no warning if validation has files of its own
    is_ordered = meta["ordered"] and config.validation is None
    return replace(text, notes=text.notes + describe_likeness(meta["losses"], is_ordered))


def text_of_run(model: Path) -> Text:
    """Return the text on which the model in the file `model`, such as RUN/checkpoints/best.safetensors, was trained.

    The run's config.yaml says where the text is; the model file contains hashes of the text and of
    its splits.
    """
    architecture, meta = read_description(model)
    run = Run(model.resolve().parent.parent)
    if not run.config.is_file():
        raise InputError(f"{printable(model)} is not in a run directory, so its text is unknown")
    try:
        settings = yaml.safe_load(run.config.read_text(encoding="utf-8"))
        config = DataConfig(**settings["data"])
        started_from = settings["init_from"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError, yaml.YAMLError) as error:
        raise InputError(f"{printable(run.config)}: {one_line(error)[:300]}") from None
    # A run with init_from= also has the characters of the model from which it started.
    extra_chars = ""
    if started_from is not None:
        try:
            _, start = read_description(run_directory.find(started_from, "model"))
        except InputError:  # it is gone, so its characters are among those of this model
            start = meta
        extra_chars = start["vocabulary"].get("characters", "")
    text = open_text(config, architecture.context, extra_chars)
    trained_on = [(read["sha256"], read["split"]) for read in meta["texts"][:1]]
    opened = [(read["sha256"], read["split"]) for read in text.texts]
    if trained_on != opened or text.tokenizer.vocabulary != meta["vocabulary"]:
        raise InputError(
            f"{text.name} has changed since {printable(run.name)} was trained, and so have its splits"
        )
    return text


def _overfitted(text: Text, length: int, context: int) -> Text:
    """Return a copy whose validation and test are the first `length` training tokens (`data.overfit`)."""
    if length <= context:
        raise InputError(f"data.overfit={length}: must be above model.context={context}")
    # An epoch begins at a random phase and may miss the last `context` tokens, hence the 2 *
    # context extra tokens.
    train_length = length + 2 * context
    train = text.train[:train_length]
    if len(train) < train_length:
        train = np.concatenate((text.train, text.validation, text.test))[:train_length]
    part = train[:length]  # of training, and all of validation and test

    characters_of = text.tokenizer.token_sizes[:, 0]  # (V,), characters of each token
    arrays: dict[str, Any] = {"train": train, "validation": part, "test": part}
    characters = {split: int(characters_of[tokens].sum()) for split, tokens in arrays.items()}
    texts: list[TextRead] = [{**text.texts[0], "split": ""}]  # because no text is held out
    return replace(text, **arrays, characters=characters, texts=texts)


def check_lengths(
    arrays: Mapping[str, Sized], config: DataConfig, context: int, name: str, notes: Sequence[str]
) -> None:
    """Raise an `InputError` if train or validation is shorter than one window, or test is shorter than two tokens."""
    if config.overfit is not None and sum(map(len, arrays.values())) > context:
        return  # each split is then the beginning of the whole text
    # Windows of the test split may be shorter than `context`, since it is only evaluated.
    has_test = config.split[2] > 0 if config.validation is None else config.test is not None
    least_of = dict.fromkeys(SPLITS, context + 1) | {"test": 2 * has_test}
    for split, tokens in arrays.items():
        if len(tokens) >= least_of[split]:
            continue
        unit = "bytes" if config.tokenizer == "byte" else "characters"
        reason = f"{split} holds {len(tokens):,} {unit} but needs at least {least_of[split]:,}"
        if split != "test":
            reason += f" for model.context={context}"
        way = "name a longer text"
        largest = min(len(arrays["train"]), len(arrays["validation"])) - 1
        if 0 < largest < context:
            way = f"set model.context={largest} or {way}"
        # files that were left out may be why
        raise InputError(f"{name}: {reason}", advice="; ".join([way, *notes]))
