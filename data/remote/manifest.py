"""Text at addresses such as `s3://bucket/dir/*.txt`: what is there, and what reading it once has found.

The manifest is `<cache>/shards/<path>/manifest.jsonl`, a line for each document. Making it reads every document once,
in several processes. What has been read is kept in `scanned.jsonl` beside it until all is: a kill costs little.
"""

import hashlib
import json
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import numpy as np

from base.errors import printable
from base.files import remove_unfinished, write_text
from base.log import log
from base.processes import end_with_parent
from base.progress import Progress
from data.corpus import Corpus, DataError, Document
from data.encode import cannot_keep, count_characters, scan
from data.remote.store import Version, download, list_documents

EACH = 2**27  # bytes: starting another process to read pays from so many on


@dataclass(frozen=True)
class Scanned:
    """What reading a document once has found."""

    address: str
    version: Version
    bytes: int
    sha256: str
    tokens: int
    characters: int
    distinct: str  # characters, or bytes as the characters of these numbers, sorted


@contextmanager
def fetch(scanned: Scanned, copy: Path) -> Iterator[IO[bytes]]:
    """Fetch a document of a manifest, and open it when it is what it was, to the last byte.

    Raises:
        DataError: it is not there, cannot be read, or is not what it was.
        OSError: `copy` cannot be written.
    """
    try:
        download(scanned.address, copy)
        with open(copy, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != scanned.bytes:
                raise changed(scanned.address, f"holds {size:,} bytes, not {scanned.bytes:,}")
            if hashlib.file_digest(file, "sha256").hexdigest() != scanned.sha256:
                raise changed(scanned.address, "its sha256 is another")
            file.seek(0)
            yield file
    finally:
        copy.unlink(missing_ok=True)


def changed(address: str, how: str) -> DataError:
    """What to tell of a document that is not what it was."""
    return DataError(f"{printable(address)}: has changed since it was read: {how}")


def make_manifest(path: str, encoding: str | None, folder: Path, room: float, *, as_before: bool) -> list[Scanned]:
    """Open the manifest of the text that `path` names; where it is missing or out of date, read what it lacks.

    Args:
        path: as `data.path`.
        encoding: of the documents; None where tokens are bytes.
        folder: where the manifest is kept.
        room: bytes of disk that reading may take.
        as_before: refuse what has changed since the manifest was made, instead of reading it anew.

    Returns:
        Every document, sorted by address.

    Raises:
        DataError: one line with the document and what is wrong with it.
        OSError: `folder` cannot be written.
    """
    with Progress("listing the text"):
        listed = list_documents(path)
    for address, (size, _) in listed.items():
        if size == 0:
            raise DataError(f"{printable(address)}: is empty")
    manifest, scanned = folder / "manifest.jsonl", folder / "scanned.jsonl"
    before = _read(manifest)
    differing = _differing(before, listed) if before else []
    if before and not differing:
        return [before[address] for address in sorted(listed)]
    if differing and as_before:
        more = f", and {len(differing) - 1:,} more differ" if len(differing) > 1 else ""
        raise DataError(f"{differing[0]}{more}; allow=[text] goes on with what is there now")
    if differing:
        log.info(f"text       {differing[0]}, {len(differing):,} of {len(listed):,} in all: read anew")
    known = before | _read(scanned)
    known = {address: known[address] for address in listed if address in known}
    todo = {address: version for address, version in listed.items() if address not in known}
    todo |= {address: listed[address] for address in known if known[address].version != listed[address]}
    folder.mkdir(parents=True, exist_ok=True)
    remove_unfinished(folder)
    for left in folder.glob("*.copy"):  # of processes that were killed
        left.unlink()
    with open(scanned, "a", encoding="ascii") as file:
        for each in _scan_all(todo, encoding, folder, room):
            known[each.address] = each
            file.write(f"\n{json.dumps(asdict(each))}\n")  # the line before may have been cut by a kill
            file.flush()
    found = [known[address] for address in sorted(listed)]
    write_text(manifest, "".join(f"{json.dumps(asdict(each))}\n" for each in found))
    scanned.unlink()
    return found


def _read(file: Path) -> dict[str, Scanned]:
    """What a manifest holds, by address; a line that is not whole holds nothing."""
    found = {}
    try:
        with open(file, encoding="ascii", errors="replace") as lines:
            for line in lines:
                try:
                    each = Scanned(**json.loads(line))
                except (ValueError, TypeError):
                    continue
                found[each.address] = each
    except FileNotFoundError:
        pass
    return found


def _differing(before: dict[str, Scanned], listed: dict[str, Version]) -> list[str]:
    """What is not as the manifest has it, in words."""
    return [
        f"{printable(address)}: " + ("is missing" if address not in listed else "is new")
        if address not in listed or address not in before
        else str(changed(address, f"size and tag are {listed[address]}, not {before[address].version}"))
        for address in sorted(before | listed)
        if address not in listed or address not in before or before[address].version != listed[address]
    ]


def _scan_all(todo: dict[str, Version], encoding: str | None, folder: Path, room: float) -> Iterator[Scanned]:
    """Read documents once, in as many processes as there are processors, where that pays and their copies fit."""
    sizes = [size or 0 for size, _ in todo.values()]
    processors = getattr(os, "process_cpu_count", os.cpu_count)() or 1
    workers = max(1, min(processors, len(todo), 1 + sum(sizes) // EACH, int(room // max([1, *sizes]))))
    jobs = [
        (address, version, encoding, folder / f"{number}.copy")
        for number, (address, version) in enumerate(todo.items())
    ]
    with Progress("reading", sum(sizes), "B") as progress:

        def counted(each: Scanned) -> Scanned:
            progress.update(each.bytes)
            return each

        if workers == 1:
            yield from (counted(scan_document(*job)) for job in jobs)
            return
        others = multiprocessing.active_children()
        # Forking would leave the threads of fsspec behind.
        with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), end_with_parent) as pool:
            try:
                for done in as_completed([pool.submit(scan_document, *job) for job in jobs]):
                    yield counted(done.result())
            except BaseException:
                for process in set(multiprocessing.active_children()) - set(others):
                    process.terminate()
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def scan_document(address: str, version: Version, encoding: str | None, copy: Path) -> Scanned:
    """Read a document for the first time.

    Args:
        address: where it is.
        version: as its store tells it.
        encoding: of the text; None where tokens are bytes.
        copy: where to keep it meanwhile.

    Raises:
        DataError: it cannot be read, is empty, is not in `encoding`, or was not all that its store says there is.
    """
    try:
        download(address, copy)
        with open(copy, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if version[0] not in (None, size):
                raise changed(address, f"holds {size:,} bytes, not {version[0]:,}")
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            (tokens,), distinct = scan(Corpus(address, (Document(address, copy, address=address),), encoding))
            if not tokens:
                raise DataError(f"{printable(address)}: is empty")
            characters = tokens
            if encoding is None:
                file.seek(0)
                characters = sum(
                    count_characters(np.frombuffer(chunk, np.uint8), are_bytes=True)
                    for chunk in iter(lambda: file.read(1 << 20), b"")
                )
            return Scanned(address, version, size, sha256, tokens, characters, distinct)
    except OSError as error:
        raise cannot_keep(copy.parent, error) from None
    finally:
        copy.unlink(missing_ok=True)
