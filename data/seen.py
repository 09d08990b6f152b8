"""Whether a model was trained on a text, however its files are stored: by a hash of the text of each file."""

import codecs
import hashlib
import io
import unicodedata
from collections.abc import Iterable

from gpt.model_file import TextRead

MAX_HASHES = 1000  # of a text, the lowest ones: each is 20 characters of a model file's metadata


class FileHash:
    """The SHA-256 of a file, and a hash of its text, whatever its line ends, byte order marks and form of accents."""

    def __init__(self, encoding: str | None) -> None:
        codec = codecs.getincrementaldecoder(encoding or "utf-8")(errors="replace")
        self._decoder = io.IncrementalNewlineDecoder(codec, translate=True)
        self._rest = ""
        self._bytes = hashlib.sha256()
        self._text = hashlib.sha256()

    def update(self, chunk: bytes, text: str | None = None) -> None:
        """Add bytes of the file, with their `text` if it is known for all of them."""
        self._bytes.update(chunk)
        self._rest += self._decoder.decode(chunk) if text is None else text
        # NFC composes neither a space nor a newline with what precedes it, so the parts before and
        # after one can be normalised apart.
        # From 1 on, because the rest may begin with the last border.
        border = max(self._rest.rfind(" ", 1), self._rest.rfind("\n", 1))
        if border < 0:  # a text without spaces, such as DNA
            border = len(self._rest)
        self._text.update(_canonical(self._rest[:border]))
        self._rest = self._rest[border:]

    def finish(self) -> tuple[str, str]:
        """Return (SHA-256 of the bytes, hash of the text)."""
        rest = self._rest + self._decoder.decode(b"", final=True)
        self._text.update(_canonical(rest))
        return self._bytes.hexdigest(), self._text.hexdigest()[:16]


def _canonical(text: str) -> bytes:
    if not text.isascii():
        text = unicodedata.normalize("NFC", text.replace("\ufeff", ""))
    return text.encode("utf-8", "surrogatepass")


def was_read(texts: Iterable[TextRead], sha256: str, files: Iterable[str]) -> bool:
    """Return whether a model that was trained on `texts` has read the text `sha256` or one of the `files`, by hash."""
    files = set(files) - {EMPTY}
    return any(
        text["sha256"] == sha256 or not files.isdisjoint(text.get("files", [])) for text in texts
    )


EMPTY = hashlib.sha256().hexdigest()[:16]  # of the text of an empty file
