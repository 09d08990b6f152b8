"""Open a text: split and encode it once, then map it into memory from `<cache>/encoded/<fingerprint>/`.

The fingerprint includes a hash of the text, which is computed at every start. So a changed text is encoded again.
"""

from dataclasses import replace

from base.progress import Progress
from data.config import DataConfig
from data.corpus import DataError
from data.downloads import cache_dir
from data.encode import cannot_save, encode_corpus, fingerprint_of, load
from data.sources import is_remote, open_corpus
from data.splits import SPLITS, check_lengths
from data.text import Text


def open_text(config: DataConfig, context: int, extra_chars: str = "", *, as_before: bool = False) -> Text:
    """Open the text that `config` names, encoded and split, from the cache if it is there.

    At least 40 documents, such as the standard library, are split by file (see `split_by_file`). With fewer, each
    document is divided into three parts. The parts of a split are joined by newlines.

    Args:
        config: source, split and tokenizer.
        context: window length in tokens; train and validation must each have at least context + 1 tokens.
        extra_chars: characters to add to the vocabulary, whether the text has them or not.
        as_before: whether to refuse remote documents that have changed; otherwise they are read again.
    """
    if is_remote(config.path):
        from data.remote.remote_text import open_shards  # loads fsspec, which few runs need

        text = open_shards(config, context, extra_chars, as_before=as_before)
    else:
        text = _open_local(config, context, extra_chars)
    return text if config.overfit is None else _overfitted(text, config.overfit, context)


def _overfitted(text: Text, length: int, context: int) -> Text:
    """Limit all three splits to the first `length` training tokens; training gets a few more."""
    if length <= context:
        raise DataError(f"data.overfit={length}: must be above model.context={context}")
    part = text.train[:length]
    # An epoch begins at a random token and may miss the last `context` tokens. So keep 2 * context extra tokens.
    train, sizes = text.train[: length + 2 * context], text.tokenizer.token_sizes[:, 0]
    characters = dict.fromkeys(SPLITS, int(sizes[part].sum())) | {"train": int(sizes[train].sum())}
    return replace(text, train=train, validation=part, test=part, characters=characters)


def _open_local(config: DataConfig, context: int, extra_chars: str) -> Text:
    """Open a text on this machine; see `open_text`."""
    corpus = open_corpus(config)
    with Progress("hashing the text", corpus.size(), "B") as progress:
        stamps, digest = corpus.stamps(), corpus.digest(progress.update)
    settings = [digest, corpus.encoding, corpus.python, [float(share) for share in config.split]]
    fingerprint = fingerprint_of(*settings, *([extra_chars] if extra_chars else []))
    folder = cache_dir(config) / "encoded" / fingerprint
    with Progress("checking the encoded text"):
        opened = load(folder)
    if opened is None:
        try:
            opened = encode_corpus(corpus, stamps, config.split, extra_chars, folder)
        except OSError as error:  # the cache cannot be written: a text that cannot be read is a DataError
            raise cannot_save(folder, error) from None
    arrays, tokenizer, characters = opened
    check_lengths(arrays, config, context, corpus)
    return Text(
        **arrays, tokenizer=tokenizer, name=corpus.name, fingerprint=fingerprint, characters=characters,
        extra_chars=extra_chars,
    )  # fmt: skip
