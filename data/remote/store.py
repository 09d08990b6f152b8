"""List and download remote documents with fsspec."""

import errno
import glob
import time
from pathlib import Path
from typing import Any

import fsspec

from base.errors import nearest, one_line, printable
from data.corpus import DataError
from data.sources import entries

RETRY_SECONDS = 60.0  # how long to retry a store that does not answer
NO_MATCH = "no file matches"
NO_LIST = "a web server lists no files; name each"
BUGS = (AssertionError, AttributeError, NameError, TypeError)  # programming errors: never turned into a message
EXTRAS = {"s3fs": "s3", "aiohttp": "https"}  # package: extra of this project that installs it
Version = list[Any]  # [size, tag] of a document in its store; they differ when the document has changed


def list_documents(path: str) -> dict[str, Version]:
    """List the documents at the addresses of `data.path` and their versions; read none of them.

    An address that exists is never a glob. A directory stands for its `*.txt` files or, without any, for all its files;
    hidden files are left out. An address that does not exist is a glob, except on the web: web servers list no files.
    """
    found: dict[str, Version] = {}
    for entry in entries(path):
        try:
            store, root = fsspec.url_to_fs(entry)
            found |= {store.unstrip_protocol(name): _version(info) for name, info in _find(store, root).items()}
        except BUGS:
            raise
        except Exception as error:  # whatever the store's own library raises
            raise DataError(f"data.path={printable(entry)}: {_reason(error, entry)}") from error
    return found


def _find(store: fsspec.AbstractFileSystem, root: str) -> dict[str, dict[str, Any]]:
    store.invalidate_cache()
    is_web = "https" in store.protocol  # a string or a tuple of strings
    if is_web and root.endswith("/"):  # the server would send an HTML page
        raise FileNotFoundError(NO_LIST)
    try:
        info = store.info(root)
    except FileNotFoundError:
        if is_web or not glob.has_magic(root):
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


def _version(info: dict[str, Any]) -> Version:
    tags = ("ETag", "etag", "Last-Modified", "LastModified", "mtime")
    return [info.get("size"), next((str(info[tag]) for tag in tags if info.get(tag)), None)]


def download(address: str, copy: Path) -> None:
    """Download a file to `copy`. If the store does not answer, retry for `RETRY_SECONDS`.

    Raise `DataError` if the file cannot be read, and `OSError` if `copy` cannot be written.
    """
    until, pause = time.monotonic() + RETRY_SECONDS, 0.5
    while True:
        try:
            store, path = fsspec.url_to_fs(address)
            store.get_file(path, str(copy))
            return
        except BUGS:
            raise
        except Exception as error:  # whatever the store's own library raises
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS):
                raise
            final = isinstance(error, FileNotFoundError | PermissionError | ImportError)
            if final or time.monotonic() + pause > until:
                raise DataError(f"{printable(address)}: {_reason(error, address)}") from error
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
    # On the web, fsspec raises FileNotFoundError for every failure.
    if isinstance(error, FileNotFoundError) and (cause is error or not isinstance(cause, OSError)):
        status = getattr(cause, "status", 404)
        nothing = error.args[0] if error.args in ((NO_MATCH,), (NO_LIST,)) else "no such file, directory or bucket"
        return nothing if status == 404 else f"the server answers {status}"
    return one_line(f"cannot be read: {cause or type(cause).__name__}")[:300]
