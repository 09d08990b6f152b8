"""Split a corpus and encode it once, into arrays that are mapped into memory from then on.

A corpus lands in `<cache>/encoded/<fingerprint>/`: `train.bin`, `validation.bin`, `test.bin` (tokens
as uint8 or uint16, nothing else) and `meta.json`. The fingerprint covers the content of the text, so
the text itself is read (to hash it) at every start, and a change is always noticed.
"""

import hashlib
import json
from dataclasses import replace

from base.errors import printable
from base.progress import Progress
from data.config import DataConfig
from data.corpus import DataError
from data.downloads import cache_dir
from data.encode import FORMAT, cannot_keep, checked, encode
from data.sources import is_remote, open_corpus
from data.text import SPLITS, Text, check_lengths


def open_text(config: DataConfig, context: int, known: str = "", *, as_before: bool = False) -> Text:
    """Open the text that `config` names, encoded and split; from the cache when it is there.

    How it is split: 40 documents or more, as the standard library has, by file (see `split_by_file`);
    fewer, each document contiguously. The pieces of a split are joined by one newline.

    Args:
        config: what text, and how it is split and tokenized.
        context: longest window in tokens; train and validation must hold at least one window and its targets.
        known: characters that belong to the vocabulary whether the text has them or not; none for bytes.
        as_before: of a text elsewhere, refuse what has changed since it was read, instead of reading it anew.

    Raises:
        DataError: one line that says what is wrong with the text and what is needed.
    """
    if is_remote(config.path):
        from data.remote.remote_text import open_shards  # loads fsspec, which few runs need

        text = open_shards(config, context, known, as_before=as_before)
    else:
        text = _open_here(config, context, known)
    return text if config.overfit is None else _overfitted(text, config.overfit, context)


def _overfitted(text: Text, learned: int, context: int) -> Text:
    """The first `learned` tokens of the training text as all three splits."""
    if learned <= context:
        raise DataError(f"data.overfit={learned}: must be above model.context={context}")
    part = text.train[:learned]
    # No window of an epoch reaches the last `context` tokens at every phase: what is asked is covered whole.
    train, lengths = text.train[: learned + 2 * context], text.tokenizer.characters_per_token
    characters = dict.fromkeys(SPLITS, int(lengths[part].sum())) | {"train": int(lengths[train].sum())}
    return replace(text, train=train, validation=part, test=part, characters=characters)


def _open_here(config: DataConfig, context: int, known: str) -> Text:
    """Open text of this machine, as `open_text` says."""
    corpus = open_corpus(config)
    with Progress("hashing the text", corpus.size(), "B") as progress:
        digest = corpus.digest(progress.update)
    settings = [FORMAT, digest, corpus.encoding, corpus.python, [float(share) for share in config.split]]
    settings += [known] if known else []
    fingerprint = hashlib.sha256(json.dumps(settings).encode()).hexdigest()
    folder = cache_dir(config) / "encoded" / fingerprint
    opened = checked(folder)
    if opened is None:
        try:
            encode(corpus, digest, config.split, known, folder)
        except OSError as error:  # reading raises DataError: this is the cache
            raise cannot_keep(folder, error) from None
        opened = checked(folder)
        if opened is None:
            raise DataError(f"{printable(folder)}: the encoded text was damaged as soon as it was written")
    arrays, tokenizer, characters = opened
    check_lengths(arrays, config, context, corpus)
    return Text(
        **arrays, tokenizer=tokenizer, name=corpus.name, fingerprint=fingerprint, characters=characters, known=known
    )
