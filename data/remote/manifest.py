"""Make the manifest of a remote text, `<cache>/shards/<hash>/manifest.jsonl`: a line for each document.

Several processes read the documents, each document once. The lines are collected in `scanned.jsonl`: after a kill, only
the documents without a line are read again.
"""

import hashlib
import json
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import numpy as np

from base.errors import printable
from base.files import remove_unfinished, write_text
from base.log import log
from base.processes import init_worker
from base.progress import Progress
from data.corpus import Corpus, DataError, Document
from data.encode import cannot_save, count_characters, scan
from data.remote.store import Version, download, list_documents

MIN_BYTES = 2**27  # bytes to read for which another process is worth starting


@dataclass(frozen=True)
class ScannedDocument:
    """The result of reading a document once."""

    address: str
    version: Version
    bytes: int
    sha256: str
    tokens: int
    characters: int
    distinct: str  # distinct characters, sorted; with bytes as tokens, `chr` of the distinct bytes


@contextmanager
def _downloaded(address: str, copy: Path, expected: int | None) -> Iterator[tuple[IO[bytes], int, str]]:
    """Download a document of `expected` bytes. Yield the open file, its size and its sha256; then delete the file."""
    try:
        download(address, copy)
        with open(copy, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if expected not in (None, size):
                raise changed(address, f"holds {size:,} bytes, not {expected:,}")
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            yield file, size, sha256
    finally:
        copy.unlink(missing_ok=True)


@contextmanager
def fetch(scanned: ScannedDocument, copy: Path) -> Iterator[IO[bytes]]:
    """Download a document of a manifest to `copy` and open it; raise `DataError` if it has changed."""
    with _downloaded(scanned.address, copy, scanned.bytes) as (file, _, sha256):
        if sha256 != scanned.sha256:
            raise changed(scanned.address, "its sha256 is another")
        yield file


def changed(address: str, how: str) -> DataError:
    """Return the error for a document that has changed."""
    return DataError(f"{printable(address)}: has changed since it was read: {how}")


def make_manifest(
    path: str, encoding: str | None, folder: Path, room: float, *, as_before: bool
) -> list[ScannedDocument]:
    """Open the manifest of a text in `folder`, or make it; return all documents, sorted by address.

    Documents that are new or have changed since the manifest was made are read; with `as_before` they are an error.
    Temporary copies take at most `room` bytes. An `encoding` of None reads bytes.
    """
    with Progress("listing the text"):
        listed = list_documents(path)
    for address, (size, _) in listed.items():
        if size == 0:
            raise DataError(f"{printable(address)}: is empty")
    manifest, scanned = folder / "manifest.jsonl", folder / "scanned.jsonl"
    before = _read(manifest)
    differing = list(_differing(before, listed)) if before else []
    if before and not differing:
        return [before[address] for address in sorted(listed)]
    if differing and as_before:
        more = f", and {len(differing) - 1:,} more differ" if len(differing) > 1 else ""
        raise DataError(f"{differing[0]}{more}; allow=[text] continues with the text as it is now")
    if differing:
        log.info(f"text       {differing[0]}, {len(differing):,} of {len(listed):,} in all: read again")
    scans = (before | _read(scanned)).items()
    done = {address: each for address, each in scans if listed.get(address) == each.version}
    todo = {address: version for address, version in listed.items() if address not in done}
    remove_unfinished(folder)
    for left in folder.glob("*.copy"):  # by processes that were killed
        left.unlink()
    total = sum(size or 0 for size, _ in todo.values())
    with open(scanned, "a", encoding="ascii") as file, Progress("reading", total, "B") as progress:
        for each in _scan_all(todo, encoding, folder, room):
            progress.update(each.bytes)
            done[each.address] = each
            file.write(f"\n{json.dumps(asdict(each))}\n")  # begins a new line: a kill may have cut the last one
            file.flush()
    found = [done[address] for address in sorted(listed)]
    write_text(manifest, "".join(f"{json.dumps(asdict(each))}\n" for each in found))
    scanned.unlink()
    return found


def _read(file: Path) -> dict[str, ScannedDocument]:
    """Read the documents of a manifest by their address. Skip incomplete lines."""
    found = {}
    with suppress(FileNotFoundError), open(file, encoding="ascii", errors="replace") as lines:
        for line in lines:
            with suppress(ValueError, TypeError):
                each = ScannedDocument(**json.loads(line))
                found[each.address] = each
    return found


def _differing(before: dict[str, ScannedDocument], listed: dict[str, Version]) -> Iterator[str]:
    """Say for each document that is new, missing or changed what differs from the manifest."""
    for address in sorted(before | listed):
        if address not in listed:
            yield f"{printable(address)}: is missing"
        elif address not in before:
            yield f"{printable(address)}: is new"
        elif before[address].version != listed[address]:
            yield str(changed(address, f"size and tag are {listed[address]}, not {before[address].version}"))


def _scan_all(todo: dict[str, Version], encoding: str | None, folder: Path, room: float) -> Iterator[ScannedDocument]:
    """Read documents in several processes: fewer if there is little to read, few CPUs or little `room` for copies."""
    sizes = [size or 0 for size, _ in todo.values()]
    processors = getattr(os, "process_cpu_count", os.cpu_count)() or 1
    workers = max(1, min(processors, len(todo), 1 + sum(sizes) // MIN_BYTES, int(room // max([1, *sizes]))))
    jobs = [
        (address, version, encoding, folder / f"{number}.copy")
        for number, (address, version) in enumerate(todo.items())
    ]
    if workers == 1:
        yield from (scan_document(*job) for job in jobs)
        return
    others = multiprocessing.active_children()
    # A forked process would lack the threads of fsspec.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), init_worker) as pool:
        try:
            for done in as_completed([pool.submit(scan_document, *job) for job in jobs]):
                yield done.result()
        except BaseException:
            for process in set(multiprocessing.active_children()) - set(others):
                process.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def scan_document(address: str, version: Version, encoding: str | None, copy: Path) -> ScannedDocument:
    """Read a document for the first time, from a temporary `copy`."""
    try:
        with _downloaded(address, copy, version[0]) as (file, size, sha256):
            (tokens,), distinct = scan(Corpus(address, (Document(address, copy, address=address),), encoding))
            if not tokens:
                raise DataError(f"{printable(address)}: is empty")
            characters = tokens
            if encoding is None:
                characters = sum(
                    count_characters(np.frombuffer(chunk, np.uint8), are_bytes=True)
                    for chunk in iter(lambda: file.read(1 << 20), b"")
                )
            return ScannedDocument(address, version, size, sha256, tokens, characters, distinct)
    except OSError as error:
        raise cannot_save(copy.parent, error) from None
