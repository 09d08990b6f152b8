"""Text at addresses such as `s3://bucket/dir/*.txt`: what is there, and what reading it once has found.

The manifest is `<cache>/shards/<path>/manifest.jsonl`, a line for each document. Making it reads every document once,
in several processes. What has been read is kept in `scanned.jsonl` beside it until all is: a kill costs little.
"""

import errno
import glob
import hashlib
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import fsspec
import numpy as np

from base.files import remove_unfinished, write_text
from conf.fields import nearest, one_line, printable
from conf.progress import Progress
from data.arrays import cannot_keep, count_characters, scan
from data.corpus import Corpus, DataError, Document, entries

PATIENCE = 60.0  # seconds for which a store that does not answer is asked again
NO_MATCH = "no file matches"
NO_LIST = "a web server lists no files; name each"
EACH = 2**27  # bytes: starting another process to read pays from so many on
EXTRAS = {"s3fs": "s3", "aiohttp": "https"}
Version = list[Any]  # of a document, as its store tells it: size and tag, which differ when the document does


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


# -- Stores ----------------------------------------------------------------------------------------


def list_documents(path: str) -> dict[str, Version]:
    """Find what `data.path` names at its addresses, and the version of each; reads no document.

    What exists is taken as it is named. Of a directory, its files named `*.txt` if there are any, else all; hidden
    ones left out. Else the address is a glob, but on the web, where no server lists its files.

    Raises:
        DataError: there is nothing, or the store cannot be asked.
    """
    found: dict[str, Version] = {}
    for entry in entries(path):
        try:
            store, root = fsspec.url_to_fs(entry)
            found |= {store.unstrip_protocol(name): _version(info) for name, info in _find(store, root).items()}
        except Exception as error:  # whatever the store's own library raises
            raise DataError(f"data.path={printable(entry)}: {_reason(error, entry)}") from None
    return found


def _find(store: fsspec.AbstractFileSystem, root: str) -> dict[str, dict[str, Any]]:
    store.invalidate_cache()
    if _protocol(store) == "https" and root.endswith("/"):  # what comes is a page about the files
        raise FileNotFoundError(NO_LIST)
    try:
        info = store.info(root)
    except FileNotFoundError:
        if not glob.has_magic(root) or _protocol(store) == "https":
            raise
        found = store.glob(root, detail=True)
    else:
        if info["type"] != "directory":
            return {root: info}
        found = store.find(root, detail=True)
        inside = {name: name.removeprefix(info["name"]).split("/") for name in found}
        found = {name: found[name] for name in found if not any(part.startswith(".") for part in inside[name])}
        found = {name: found[name] for name in found if name.lower().endswith(".txt")} or found
    found = {name: info for name, info in found.items() if info["type"] == "file"}
    if not found:
        raise FileNotFoundError(NO_MATCH)
    return found


def _protocol(store: fsspec.AbstractFileSystem) -> str:
    names = (store.protocol,) if isinstance(store.protocol, str) else store.protocol
    return "https" if "https" in names else names[0]


def _version(info: dict[str, Any]) -> Version:
    tags = ("ETag", "etag", "Last-Modified", "LastModified", "mtime")
    return [info.get("size"), next((str(info[tag]) for tag in tags if info.get(tag)), None)]


def download(address: str, copy: Path) -> None:
    """Fetch a file; a store that does not answer is asked again for `PATIENCE` seconds.

    Raises:
        DataError: one line with the address and the reason.
        OSError: `copy` cannot be written.
    """
    until, pause = time.monotonic() + PATIENCE, 0.5
    while True:
        try:
            store, path = fsspec.url_to_fs(address)
            store.get_file(path, str(copy))
            return
        except Exception as error:  # whatever the store's own library raises
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS):
                raise
            final = isinstance(error, FileNotFoundError | PermissionError | ImportError)
            if final or time.monotonic() + pause > until:
                raise DataError(f"{printable(address)}: {_reason(error, address)}") from None
            time.sleep(pause)
            pause = min(2 * pause, 8.0)


def _reason(error: Exception, address: str) -> str:
    """Say in a few words why an address cannot be read."""
    cause = error.__cause__ or error
    if isinstance(error, ImportError):
        package = next((package for package in EXTRAS if package in str(error)), None)
        if package is None:
            return one_line(error)
        return f"needs {package}: pip install -c constraints.txt -e '.[{EXTRAS[package]}]'"
    if isinstance(error, ValueError) and "Protocol not known" in str(error):
        known = sorted(fsspec.available_protocols())
        return f"no such kind of address{nearest(address.partition('://')[0], known)}"
    if isinstance(error, PermissionError):
        return "access is denied"
    # On the web, whatever has happened is said to be a file that is not there.
    if isinstance(error, FileNotFoundError) and (cause is error or not isinstance(cause, OSError)):
        status = getattr(cause, "status", 404)
        nothing = error.args[0] if error.args in ((NO_MATCH,), (NO_LIST,)) else "no such file, directory or bucket"
        return nothing if status == 404 else f"the server answers {status}"
    return one_line(f"cannot be read: {cause or type(cause).__name__}")[:300]


# -- The manifest ----------------------------------------------------------------------------------


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
        print(f"text       {differing[0]}, {len(differing):,} of {len(listed):,} in all: read anew", flush=True)
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


def end_with_parent() -> None:
    """Have this process, which a Ctrl-C reaches too, end with the one that has started it, however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


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
                    count_characters(np.frombuffer(chunk, np.uint8), bytes=True)
                    for chunk in iter(lambda: file.read(1 << 20), b"")
                )
            return Scanned(address, version, size, sha256, tokens, characters, distinct)
    except OSError as error:
        raise cannot_keep(copy.parent, error) from None
    finally:
        copy.unlink(missing_ok=True)
