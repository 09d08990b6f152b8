"""Download built-in corpora once, and choose the cache folder."""

import logging
from dataclasses import dataclass
from pathlib import Path

import pooch

from base.errors import printable
from base.progress import Progress
from data.config import DataConfig
from data.corpus import CHUNK, DataError


@dataclass(frozen=True)
class Download:
    """A built-in corpus on the web."""

    url: str
    sha256: str  # of the downloaded file
    member: str | None = None  # name of the text in the file, if that is a zip


DOWNLOADS = {
    "shakespeare": Download(
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    ),
    "enwik8": Download(
        "http://mattmahoney.net/dc/enwik8.zip",
        "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
        "enwik8",
    ),
    "text8": Download(
        "http://mattmahoney.net/dc/text8.zip",
        "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
        "text8",
    ),
}
NAMES = {"shakespeare": "tiny Shakespeare"}  # names in messages, where they differ from the key


def cache_dir(config: DataConfig) -> Path:
    """Return the folder for encoded text and downloads."""
    return Path(config.cache_dir).expanduser() if config.cache_dir else Path(pooch.os_cache("chargpt"))


def download(name: str, folder: Path) -> Path:
    """Return the path of the corpus `name` in `folder`. Download it if it is missing or its sha256 is wrong."""
    remote = DOWNLOADS[name]
    file_name = name + (".zip" if remote.member else ".txt")
    pooch.get_logger().setLevel(logging.WARNING)
    try:
        with Progress(f"downloading {name}", unit="B") as progress:
            downloader = pooch.HTTPDownloader(progressbar=progress, timeout=30, chunk_size=CHUNK)
            return Path(pooch.retrieve(remote.url, f"sha256:{remote.sha256}", file_name, folder, downloader=downloader))
    except (OSError, ValueError) as error:  # requests raises OSErrors, pooch a ValueError for a wrong checksum
        raise DataError(
            f"data.corpus={name}: cannot download {remote.url} to {printable(folder / file_name)}: {_reason(error)}; "
            "or get the text in another way and name it with data.path="
        ) from None


def _reason(error: Exception) -> str:
    """Say in a few words why a download failed."""
    import requests  # most runs download nothing

    if isinstance(error, requests.HTTPError) and error.response is not None:
        error.response.close()  # pooch leaves it open
        return f"the server answered {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the connection was cut"
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    if isinstance(error, ValueError) and "hash" in str(error):
        return "the file there has another checksum than expected, and was thrown away"
    return printable(getattr(error, "strerror", None) or error)
