"""Find the documents of a corpus: the standard library, a built-in corpus or `data.path`."""

import glob
import os
import platform
import re
import sysconfig
from collections.abc import Collection, Iterable
from pathlib import Path

from base.errors import nearest, printable
from data.config import DataConfig
from data.corpus import Corpus, DataError, Document
from data.downloads import DOWNLOADS, NAMES, cache_dir, download

STDLIB_WITHOUT = {
    "__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "encodings", "lib2to3",
    "pydoc_data", "turtledemo", "ensurepip",
}  # fmt: skip


def _is_ascii(document: Document) -> bool:
    with document.open() as file:
        return file.read().isascii()


def _stdlib(encoding: str | None) -> Corpus:
    """Return the pure-ASCII source files of the running Python's standard library."""
    root = Path(sysconfig.get_paths()["stdlib"])
    documents = [
        document
        for document in (_walk(root, STDLIB_WITHOUT) if root.is_dir() else [])  # some Pythons have it in a zip
        if document.name.endswith(".py") and not document.name.startswith("_sysconfigdata") and _is_ascii(document)
    ]
    if not documents:
        raise DataError(
            f"{printable(root)}: holds no source of the standard library; name a text of your own: data.path="
        )
    version = platform.python_version()
    return Corpus(f"Python {version} standard library", tuple(documents), encoding, python=version)


def _walk(root: Path, without: Collection[str] = ()) -> list[Document]:
    """Return the files below `root` as documents, without hidden ones and directories named in `without`."""

    def fail(error: OSError) -> None:
        raise DataError(f"{printable(error.filename)}: cannot be read: {error.strerror}")

    paths = []
    for folder, folders, files in os.walk(root, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in without]
        paths += [Path(folder, name) for name in files if not name.startswith(".")]
    return _documents(filter(os.path.isfile, paths), root)


def _documents(paths: Iterable[Path], root: Path) -> list[Document]:
    """Make a document of each file, named by its path below `root`; sort the documents by name."""
    documents = [Document(path.relative_to(root).as_posix(), path) for path in paths]
    return sorted(documents, key=lambda document: document.name)


def is_remote(path: str | None) -> bool:
    """Whether `data.path` contains an address, such as `s3://bucket/dir`."""
    return path is not None and any("://" in entry for entry in entries(path))


def entries(path: str) -> list[str]:
    """Split `data.path` at the commas if it is a list such as `[a.txt,b.txt]` and no file has that name."""
    if not (path.startswith("[") and path.endswith("]")) or os.path.exists(os.path.expanduser(path)):
        return [path]
    names = [name.strip() for name in path[1:-1].split(",")]
    if not all(names):
        raise DataError(f"data.path={printable(path)}: a name in the list is empty; write [a.txt,b.txt]")
    return names


def find_documents(path: str) -> list[Document]:
    """Find the files that `data.path` names, sorted by name.

    - A list, `[a.txt,b.txt]`: the files of its entries, each once. Write a comma in a name as `?`.
    - A file: that file. A name that exists is never a pattern, so `[a].txt` is found.
    - A directory: the files in it and below; those named `*.txt` if there are any, else all.
    - Else a glob, where `**` stands for any number of directories: the files that match.

    Hidden files and directories, and links to directories, are left out unless they are named.
    """
    names = entries(path)
    if len(names) > 1:
        found = {document.path.absolute() for name in names for document in find_documents(name)}
        return _documents(found, Path(os.path.commonpath([each.parent for each in found])))
    path = names[0]
    typed = os.path.expanduser(path)
    whole = Path(os.path.abspath(typed))
    if whole == whole.parent or whole.parts[1] in ("proc", "sys"):  # some files there never end or block for ever
        raise DataError(f"data.path={printable(path)}: holds files of the system, not text; name a folder of texts")
    if os.path.isdir(typed):
        documents = _walk(Path(typed))
        if not documents:
            raise DataError(f"data.path={printable(path)}: the directory holds no files")
        texts = [document for document in documents if document.name.lower().endswith(".txt")]
        return texts or documents
    if os.path.isfile(typed):
        return _documents([Path(typed)], Path(typed).parent)
    if os.path.exists(typed):
        raise DataError(f"data.path={printable(path)}: is neither a file nor a directory")
    if not glob.has_magic(path):
        folder = Path(typed).parent
        others = os.listdir(folder) if path and folder.is_dir() and os.access(folder, os.R_OK) else []
        raise DataError(
            f"data.path={printable(path)}: no such file or directory{printable(nearest(Path(typed).name, others))}"
        )
    matches = {Path(match) for match in glob.glob(typed, recursive=True) if os.path.isfile(match)}
    if not matches:
        raise DataError(f"data.path={printable(path)}: no file matches")
    fixed = Path(typed[: re.search(r"[*?[]", typed).start()] + "_").parent  # type: ignore[union-attr]
    return _documents(matches, fixed)


def open_corpus(config: DataConfig) -> Corpus:
    """Find the text that `config` names, without reading it; download a built-in corpus if it is missing."""
    encoding = None if config.tokenizer == "byte" else "utf-8"
    if config.path is not None:
        documents = tuple(find_documents(config.path))
        return Corpus(printable(config.path), documents, encoding and config.encoding)
    if config.corpus == "stdlib":
        return _stdlib(encoding)
    path = download(config.corpus, cache_dir(config) / "downloads")
    document = Document(config.corpus, path, DOWNLOADS[config.corpus].member)
    return Corpus(NAMES.get(config.corpus, config.corpus), (document,), encoding)
