"""Download texts from addresses, such as s3:// and https://, into the cache."""

import glob
import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import fsspec
from filelock import FileLock
from fsspec.callbacks import Callback

from base.errors import InputError, nearest, one_line, printable
from base.files import atomic, remove_unfinished, write_text
from base.log import log
from base.progress import Progress
from data.decoding import texts_first, to_read_all

# the first one reported identifies a version
TAGS = ("ETag", "etag", "Last-Modified", "LastModified", "mtime")
# Without this, a whole file must arrive within 300 s and HTTPS_PROXY is ignored.
WEB = {
    "timeout": aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=30),
    "trust_env": True,
}
# Python's, botocore's and aiohttp's errors
UNREACHABLE = {"TimeoutError", "ConnectionError", "ClientConnectionError"}


def fetch(entry: str, folder: Path, notes: list[str], sha256: str = "") -> dict[str, Path]:
    """Download the files at the address `entry`, and return a dict from each file's address to its local copy.

    A file is not downloaded if `folder` has a copy with the same address, size and ETag or
    modification time. If the server cannot be reached, the copies of an earlier start are used,
    with a line in the log. With `sha256`, `entry` is one file, which must have this hash. What is
    left out is added to `notes`.
    """
    if sha256:
        with Progress("downloading the text") as progress:
            download(entry, folder / sha256, progress, sha256=sha256)
        return {entry: folder / sha256}
    # the names of the copies, for a start that cannot reach the server
    listing = folder.with_name("addresses") / f"{hashlib.sha256(entry.encode()).hexdigest()}.json"
    try:
        with Progress("listing the text"):
            store, root = _open(entry)
            files = {
                store.unstrip_protocol(name): info
                for name, info in _find(store, root, entry, notes).items()
            }
    except Exception as error:  # the library of a store may raise anything
        failed = InputError(_reason(error, entry), f"data.path={printable(entry)}")
        copies = _copies_of_last_time(error, listing, folder)
        if not copies:
            raise failed from error
        log.info(f"{failed}; using its copy in {printable(folder)}")
        return copies
    copies = {}
    missing_bytes = 0
    for address, info in files.items():
        size = info.get("size")
        tags = [str(info[tag]) for tag in TAGS if info.get(tag)]
        version = [address, size, tags[0] if tags else None]
        copy = folder / hashlib.sha256(repr(version).encode()).hexdigest()
        copies[address] = copy
        if size and not copy.exists():
            missing_bytes += size
    with Progress("downloading the text", missing_bytes, "B") as progress:
        for address, copy in copies.items():
            download(address, copy, progress, size=files[address].get("size"))
    with suppress(OSError):  # the cache may be read-only
        listing.parent.mkdir(exist_ok=True)
        write_text(listing, json.dumps({address: copy.name for address, copy in copies.items()}))
    return copies


def _copies_of_last_time(error: Exception, listing: Path, folder: Path) -> dict[str, Path]:
    """Return the copies that an earlier start of train.py downloaded, address -> path, if no server can be reached."""
    # fsspec raises `FileNotFoundError` from whatever fails on the web
    causes = (error, error.__cause__)
    kinds = {kind.__name__ for cause in causes for kind in type(cause).__mro__}
    if UNREACHABLE.isdisjoint(kinds):
        return {}  # another error, which old copies must not hide
    with suppress(OSError, ValueError):
        names = json.loads(listing.read_text("utf-8"))
        copies = {address: folder / name for address, name in names.items()}
        if all(map(Path.exists, copies.values())):
            return copies
    return {}


def _open(address: str) -> tuple[Any, str]:
    if address.startswith("http"):
        return fsspec.url_to_fs(address, client_kwargs=WEB)
    return fsspec.url_to_fs(address)


def _find(store: Any, root: str, entry: str, notes: list[str]) -> dict[str, dict[str, Any]]:
    """Return the files at the path `root` of a file system, chosen like local ones, with what fsspec knows of each."""
    store.invalidate_cache()
    is_web = "https" in store.protocol  # `protocol` is a string or a tuple of strings
    if is_web and root.endswith("/"):  # the server would send an HTML page
        raise ValueError("a web server cannot list its files; name each file")
    if not is_web and glob.has_magic(root) and not store.exists(root):
        matches = store.glob(root, detail=True)
    else:
        described = store.info(root)
        if described["type"] != "directory":
            return {root: described}
        matches = {}
        for name, info in store.find(root, detail=True).items():
            below = name.removeprefix(described["name"])
            is_hidden = "/." in "/" + below
            if not is_hidden:
                matches[name] = info
        matches = texts_first(matches, notes, to_read_all(entry))
    files = {name: info for name, info in matches.items() if info["type"] == "file"}
    if not files:
        raise ValueError("no file matches")
    return files


def download(
    address: str, target: Path, progress: Progress, *, size: int | None = None, sha256: str = ""
) -> None:
    """Download one file to `target`, atomically and by one process, unless it is there.

    It is there if `target` has this `size` and `sha256`, of which None and "" mean any.
    """

    def is_right(file: Path) -> bool:
        if not file.exists() or size not in (None, file.stat().st_size):
            return False
        with file.open("rb") as content:
            return not sha256 or hashlib.file_digest(content, "sha256").hexdigest() == sha256

    if is_right(target):
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.parent / ".lock"):
            remove_unfinished(target.parent, target.name)
            if is_right(target):  # another process has just downloaded it
                return
            store, path = _open(address)
            updates = Callback()
            updates.relative_update = progress.update
            with atomic(target) as temporary:
                store.get_file(path, str(temporary), callback=updates)
                if not is_right(temporary):
                    what = "checksum" if sha256 else "size"
                    raise ValueError(
                        f"the file there does not have the expected {what} and was discarded"
                    )
    except Exception as error:
        what = f"cannot download {printable(address)} to {printable(target)}"
        advice = "data.path= can also name a copy of your own" if sha256 else ""
        raise InputError(_reason(error, address, target.parent), what, advice) from error


def _reason(error: Exception, address: str, folder: Path | None = None) -> str:
    """Say why an address cannot be read, or its file cannot be written to `folder`."""
    if isinstance(error, ImportError) and "s3fs" in str(error):
        return "needs s3fs: pip install -c constraints.txt -e '.[s3]'"
    if isinstance(error, ValueError):
        if "Protocol not known" not in str(error):
            return one_line(error)  # such as one raised in this file
        kind, _, _ = address.partition("://")
        return f"unknown kind of address{nearest(kind, sorted(fsspec.available_protocols()))}"
    path = Path(getattr(error, "filename", None) or "-")  # "-" is never `folder` or in it
    if isinstance(error, aiohttp.ClientError):
        # `atomic` has given this error the name of the local file, too, but the connection failed,
        # not writing.
        folder = None
    if folder and (path.is_relative_to(folder) or folder.is_relative_to(path)):
        return f"{one_line(error)}; data.cache_dir= sets another folder"
    # fsspec raises `FileNotFoundError` from whatever fails on the web.
    cause = error.__cause__ if isinstance(error, FileNotFoundError) else None
    cause = cause or error
    if isinstance(cause, FileNotFoundError) or (
        isinstance(cause, aiohttp.ClientResponseError) and cause.status == 404
    ):
        return "no such file, directory or bucket"
    if isinstance(cause, PermissionError):
        return "access is denied"
    return one_line(f"cannot be read: {str(cause) or type(cause).__name__}")[:300]
