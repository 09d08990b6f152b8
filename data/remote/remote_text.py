"""Open a remote text: make its manifest, plan its shards, encode validation and test."""

import math
import os
from functools import partial
from pathlib import Path

import numpy as np
from filelock import FileLock

from base.errors import printable
from base.progress import Progress
from data.config import DataConfig
from data.corpus import Corpus, DataError, Document
from data.downloads import cache_dir
from data.encode import cannot_save, fingerprint_of, load, load_saved, make_tokenizer, save
from data.remote.manifest import ScannedDocument, fetch, make_manifest
from data.remote.shard_cache import GB, Cache
from data.remote.shards import BLOCK, SHARD, Shards, fetch_parts, group_into_shards, length_of
from data.splits import SPLITS, check_lengths, split_documents
from data.text import Text


def open_shards(config: DataConfig, context: int, extra_chars: str, *, as_before: bool) -> Text:
    """Open a remote text; see `data.open_text.open_text`."""
    assert config.path is not None
    encoding = None if config.tokenizer == "byte" else config.encoding
    folder = cache_dir(config) / "shards" / fingerprint_of(config.path, encoding)[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):  # of several processes, one makes the manifest and the others wait
            room = config.cache_gb * GB
            scanned = make_manifest(config.path, encoding, folder, room, as_before=as_before)
            return _open(config, context, extra_chars, scanned, folder / "held_out.copy")
    except OSError as error:
        raise cannot_save(folder, error) from None


def _open(config: DataConfig, context: int, extra_chars: str, scanned: list[ScannedDocument], copy: Path) -> Text:
    """Open a text whose documents are `scanned`. Each document that must be read is downloaded to `copy`."""
    names = _names([each.address for each in scanned])
    encoding = None if config.tokenizer == "byte" else config.encoding
    contents = [[name, each.sha256] for name, each in zip(names, scanned, strict=True)]
    shares = [float(share) for share in config.split]
    fingerprint = fingerprint_of(SHARD, BLOCK, contents, encoding, shares, extra_chars)
    documents = tuple(
        Document(name, copy, address=each.address, fetch=partial(fetch, each))
        for name, each in zip(names, scanned, strict=True)
    )
    corpus = Corpus(printable(config.path), documents, encoding)
    distinct = "".join(set().union(*(each.distinct for each in scanned)))
    tokenizer = make_tokenizer(corpus, distinct, extra_chars, joined=len(scanned) > 1)
    parts = split_documents(corpus, [each.tokens for each in scanned], shares)
    whole = [
        (document, (split, begin, end))
        for document, cut in zip(documents, parts, strict=True)
        for split, begin, end in cut
        if begin < end
    ]
    by_split = {name: [(document, part) for document, part in whole if part[0] == name] for name in SPLITS}
    shards = group_into_shards(by_split["train"])

    largest = max(each.bytes for each in scanned)
    held_out = {split: range(length_of(by_split[split])) for split in SPLITS[1:]}  # as long as the tokens of the split
    reserved = sum(map(len, held_out.values())) * np.dtype(tokenizer.dtype).itemsize
    cache = Cache(cache_dir(config) / "shards", config.cache_gb * GB - reserved)
    train = Shards(shards, cache, cache.root / fingerprint, encoding, tokenizer, largest)
    check_lengths({"train": train, **held_out}, config, context, corpus)
    needed = (reserved + train.room_needed()) / GB
    if needed > config.cache_gb:
        raise DataError(
            f"data.cache_gb={config.cache_gb:g}: is too little for {corpus.name}, which needs at least "
            f"{math.ceil(1e6 * needed) / 1e6:g}, of which {reserved / GB:.2g} for validation and test (data.split)"
        )
    folder = cache_dir(config) / "encoded" / fingerprint
    opened = load(folder)
    if opened is None:
        with Progress("encoding validation and test"):
            held_out_parts = [(document, part) for document, part in whole if part[0] != "train"]
            save(folder, tokenizer, fetch_parts(held_out_parts, encoding, tokenizer))
        opened = load_saved(folder)
    arrays, _, characters = opened
    # The newlines that join the parts of a shard, of validation or of test are in no document.
    newlines = len(by_split["train"]) - len(shards) + sum(max(0, len(by_split[split]) - 1) for split in SPLITS[1:])
    characters["train"] = sum(each.characters for each in scanned) + newlines - sum(characters.values())
    return Text(
        train, arrays["validation"], arrays["test"], tokenizer, name=corpus.name, fingerprint=fingerprint,
        characters=characters, extra_chars=extra_chars,
    )  # fmt: skip


def _names(addresses: list[str]) -> list[str]:
    """Strip the directories that all addresses share: a text keeps its fingerprint when it is moved."""
    parts = [address.split("/") for address in addresses]
    common = len(os.path.commonprefix([each[:-1] for each in parts]))
    return ["/".join(each[common:]) for each in parts] if len(parts) > 1 else [""]
