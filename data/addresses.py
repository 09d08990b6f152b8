"""Download the file at an address, such as s3:// or https://, into the cache."""

import errno
import hashlib
import os
from functools import partial
from pathlib import Path

import aiohttp
import fsspec
from fsspec.callbacks import Callback

from base.errors import InputError, one_line, printable
from base.log import log
from base.progress import Progress
from data.cache import make_once

# Without this, a whole file must arrive within 300 s and HTTPS_PROXY is ignored.
WEB = {
    "timeout": aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=30),
    "trust_env": True,
}


def fetch(address: str, folder: Path, sha256: str = "") -> Path:
    """Return the local copy of the file at `address`, which is downloaded to `folder` unless it is there.

    With `sha256`, only a file with this hash is accepted.
    """
    if address.startswith("file://"):
        return Path(fsspec.core.strip_protocol(address))
    copy = folder / (sha256 or hashlib.sha256(os.fsencode(address)).hexdigest())
    if copy.exists():
        if not sha256:
            log.info(f"{printable(address)} is read from its copy {printable(copy)}")
        return copy
    make_once(copy, partial(_download, address, sha256), "downloading the text")
    return copy


def _download(address: str, sha256: str, target: Path, progress: Progress) -> None:
    """Download one file to `target`; an `OSError` is about `target`, an `InputError` about the address."""

    def show(size: int | None, received: int) -> None:
        progress.total = size or 0
        progress.count = received

    updates = Callback(hooks={"progress": show})
    is_web = address.startswith(("http://", "https://"))
    options = {"client_kwargs": WEB} if is_web else {}
    try:
        if address.endswith("/") or address.count("/") < 3:  # a web server would send a page
            raise FileNotFoundError
        store, path = fsspec.url_to_fs(address, **options)
        store.get_file(path, str(target), callback=updates)
        if not target.is_file():  # some stores create a folder for a folder
            raise FileNotFoundError
        # aiohttp compares the size that a web server states, which may be of a compressed transfer.
        if not is_web and updates.size not in (None, target.stat().st_size):
            raise ValueError("the connection was cut")
        with target.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        if sha256 and digest != sha256:
            raise ValueError("the file there has another checksum (sha256)")
    except Exception as error:  # the library of a store may raise anything
        is_local = getattr(error, "filename", None) == str(target)
        if is_local or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise InputError(_reason(error), f"data.path={printable(address)}") from error


def _reason(error: Exception) -> str:
    """Say why a file cannot be downloaded."""
    if isinstance(error, ImportError) and "s3fs" in str(error):
        return "needs s3fs: pip install -c constraints.txt -e '.[s3]'"
    if isinstance(error, FileNotFoundError):
        return "no such file or bucket; an address names one file, not a folder or a glob"
    if isinstance(error, PermissionError) or getattr(error, "status", None) in (401, 403):
        return "access is denied"
    return one_line(f"cannot be downloaded: {str(error) or type(error).__name__}")[:300]
