"""Find the files that `data.path` names: local ones, downloads, those in zip files, Python's standard library."""

import glob
import os
import platform
import re
import shlex
import sysconfig
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl

from base.errors import InputError, nearest, printable
from base.progress import count
from data.config import DataConfig
from data.decoding import CHUNK, TABLE_FILES, Corpus, Document, NotText, decode, part_of, suffix
from data.tables import TABLES, columns

# What a text is wrapped in, by the suffix of its file.
WRAPPED = dict.fromkeys(
    (".html", ".htm", ".xhtml", ".xml"), "its tags; convert it to plain text (.txt) to leave them out"
)
WRAPPED[".parquet"] = "its columns compressed; data.field=NAME reads one of them"  # for the byte tokenizer
WRAPPED[".ipynb"] = "the JSON around its cells; export it from Jupyter as a script (.py) or as text to leave it out"
ASSIGNED = re.compile(rb'[\w.$ ]+=\s*[{[][\s{[]*"')  # JSON in JavaScript, such as window.YTD.tweets.part0 = [{"id"

STDLIB_WITHOUT = {
    "__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "encodings", "lib2to3",
    "pydoc_data", "turtledemo", "ensurepip",
}  # fmt: skip


def _stdlib(encoding: str | None, cache: Path) -> Corpus:
    """Return the default text: the source files of the running Python's standard library that contain only ASCII."""
    root = Path(sysconfig.get_paths()["stdlib"])
    documents = [
        document
        for document in (_walk(root, STDLIB_WITHOUT) if root.is_dir() else [])  # some Pythons store it in a zip file
        if document.name.endswith(".py") and not document.name.startswith("_sysconfigdata")
    ]
    documents = [document for document in documents if document.path.read_bytes().isascii()]
    if not documents:
        raise InputError(
            f"{printable(root)}: contains no source of the standard library; name your own text with data.path="
        )
    version = platform.python_version()
    return Corpus(f"Python {version} standard library", tuple(documents), encoding, cache, python=version)


def _walk(root: Path, without: Collection[str] = ()) -> list[Document]:
    """Return a document for each file in and below `root`, except hidden files and folders and folders in `without`."""

    def fail(error: OSError) -> None:
        raise InputError(f"{printable(error.filename)}: cannot be read: {error.strerror}")

    paths = []
    for folder, folders, files in os.walk(root, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in without]
        paths += [Path(folder, name) for name in files if not name.startswith(".")]
    return _documents(filter(os.path.isfile, paths), root)


def _documents(paths: Iterable[Path], root: Path) -> list[Document]:
    """Return a document for each file in `paths`, named by the file's path relative to `root`, sorted by name."""
    documents = [Document(path.relative_to(root).as_posix(), path) for path in paths]
    return sorted(documents, key=lambda document: document.name)


def entries(path: str) -> list[str]:
    """Return the paths in `path` if it is a list such as `[a.txt,b.txt]` but not an existing file, otherwise [path]."""
    if not (path.startswith("[") and path.endswith("]")) or os.path.exists(os.path.expanduser(path)):
        return [path]
    names = [name.strip() for name in path[1:-1].split(",")]
    if not all(names):
        raise InputError("the list has an empty name; write 'data.path=[a.txt,b.txt]'", f"data.path={printable(path)}")
    return names


def split_fragment(entry: str) -> tuple[str, str, str]:
    """Split an address such as `https://a.org/b.txt#name=Book&sha256=HASH` into the tuple (address, name, sha256)."""
    address, *fragment = re.split(r"#(?=name=|sha256=)", entry, maxsplit=1)
    if "://" not in entry or not fragment:
        return entry, entry, ""
    given: dict[str, str] = dict(parse_qsl(fragment[0]))
    sha256 = given.get("sha256", "").lower()
    if given.keys() - {"name", "sha256"} or not re.fullmatch("[0-9a-f]{64}", sha256):
        form = "#sha256=HASH or #name=NAME&sha256=HASH, with 64 hexadecimal digits"
        raise InputError(f"must end with {form}", f"data.path={printable(entry)}")
    return address, given.get("name", address), sha256


def find_documents(path: str, downloads: Path, notes: list[str]) -> list[Document]:
    """Return a document for each file that `path`, a value of `data.path`, stands for, sorted by name.

    It is a file, a directory (of which only `*.txt` are read if there are any), a glob, an address, or a list of these.
    A name that exists is never a glob, so `[a].txt` is found. Hidden files and links to directories must be named.
    """
    names = entries(path)
    if len(names) > 1 or "://" in path:
        return _listed(names, downloads, notes)
    path = names[0]
    expanded, key = os.path.expanduser(path), f"data.path={printable(path)}"
    if os.path.isdir(expanded):
        documents = _walk(Path(expanded))
        if not documents:
            raise InputError("the directory holds no files", key)
        texts = [document for document in documents if suffix(document.name) == ".txt"]
        if 0 < len(texts) < len(documents):
            notes.append(part_of(len(texts), len(documents), f"{glob.escape(path).rstrip('/')}/**/*"))
        return texts or documents
    if os.path.isfile(expanded):
        return _documents([Path(expanded)], Path(expanded).parent)
    if os.path.exists(expanded):
        raise InputError("is neither a file nor a directory", key)
    if not glob.has_magic(path):
        folder = Path(expanded).parent
        others = os.listdir(folder) if path and folder.is_dir() and os.access(folder, os.R_OK) else []
        near = printable(nearest(Path(expanded).name, others, Path(expanded).suffix))
        if "," in path and all(os.path.exists(os.path.expanduser(each)) for each in path.split(",")):
            near = f"; for one text: {shlex.quote(f'data.path=[{printable(path)}]')}; for a run on each: add -m"
        raise InputError(f"no such file or directory{near}", key)
    matches = {Path(match) for match in glob.glob(expanded, recursive=True) if os.path.isfile(match)}
    if not matches:
        raise InputError("no file matches", key)
    fixed = Path(expanded[: re.search(r"[*?[]", expanded).start()] + "_").parent  # type: ignore[union-attr]
    if "**" in expanded:
        _walk(fixed)  # raises for a folder that cannot be read, which `glob` would skip
    return _documents(matches, fixed)


def _listed(entries: list[str], downloads: Path, notes: list[str]) -> list[Document]:
    """Return each file at `entries` (paths or addresses) once, named without the folders that all files share."""
    found: dict[str, Document] = {}  # by absolute path or address
    for entry in entries:
        if "://" in entry:
            from data.addresses import fetch  # loads fsspec and aiohttp, which few runs need

            address, _, sha256 = split_fragment(entry)
            fetched = fetch(address, downloads, notes, sha256)
            found |= {where: Document("", path, address=where) for where, path in fetched.items()}
        else:
            found |= {each.path.absolute().as_posix(): each for each in find_documents(entry, downloads, notes)}
    parts = {where: where.split("/") for where in sorted(found)}
    shared = len(os.path.commonprefix([each[:-1] for each in parts.values()]))
    return [replace(found[where], name="/".join(parts[where][shared:])) for where in parts]


def _unzipped(documents: list[Document], notes: list[str]) -> list[Document]:
    """Return `documents`, each zip file replaced by its `*.txt` files or, if it has none, by all files in it."""
    found = []
    for document in documents:
        files = document.unzip()
        texts = [each for each in files if suffix(each.name) == ".txt"]
        if 0 < len(texts) < len(files):
            what = f"{document.label}: {len(texts):,} of {len(files):,} files (*.txt)"
            notes.append(f"{what}; unpack it to read others")
        found += texts or files
    if len(documents) == 1:
        found = [replace(document, name=document.member or document.name) for document in found]
    return found


def _texts(documents: list[Document], encoding: str, notes: list[str], field: str | None) -> list[Document]:
    """Return `documents` without binary files, which a line in `notes` names; a single file is never left out.

    Tables of which a `field` is read are not left out, either.
    """
    texts, refused = [], list[tuple[Document, NotText]]()
    for document in documents:
        try:
            if len(documents) > 1 and not (field and suffix(document.label) in TABLES):
                with document.open() as file:
                    next(decode(file, document.label, encoding), "")
        except NotText as error:
            refused.append((document, error))
            continue
        except InputError:  # raised where the text is read
            pass
        texts.append(document)
    if refused:
        if not texts:
            raise refused[0][1]
        names = ", ".join(printable(document.name) for document, _ in refused[:3]) + ", …" * (len(refused) > 3)
        notes.append(f"left out {count(len(refused), 'binary file')}: {names}")
    return texts


def about_format(document: Document, encoding: str) -> str:
    """Return a line about a file that contains more than a person reads in it, otherwise ""."""
    kind = suffix(document.label)
    what = WRAPPED.get(kind, "")
    with document.open() as file:
        if kind in TABLES:
            names = columns(file, document.label, encoding)
            way = f"; data.field=NAME makes a field ({', '.join(map(printable, names[:20]))}) of each row a document"
            if names or kind not in (".json", ".parquet"):
                what = "the syntax of its table" + way * bool(names)
        elif not what:
            first = file.read(CHUNK)
            if b"\x1b[" in first:
                what = r"its escape codes; sed 's/\x1b\[[0-9;]*[A-Za-z]//g' removes them"
            elif first.lstrip(b"\xef\xbb\xbf \t\r\n")[:9].lower().startswith((b"<!doctype", b"<html", b"<?xml")):
                what = WRAPPED[".html"]
            elif kind == ".js" and ASSIGNED.match(first):
                what = f"the assignment and syntax of its JSON; {TABLE_FILES[kind]}"
    return what and f"{document.label} is read as plain text, with {what}"


def cache_dir(config: DataConfig) -> Path:
    """Return the folder in which encoded texts and downloads are stored.

    The folder is `data.cache_dir` or, if this option is null, `chargpt` in $XDG_CACHE_HOME or else in ~/.cache.
    """
    path = Path(config.cache_dir or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "chargpt"))
    try:
        return path.expanduser()
    except RuntimeError:  # no HOME and no entry of the user in the list of users
        raise InputError(f"data.cache_dir={path}: there is no such home directory; name another folder") from None


def open_corpus(config: DataConfig) -> Corpus:
    """Return the corpus that `config` names: its files, downloaded if they are at addresses, without binary files."""
    encoding, cache = {"byte": None, "char": "utf-8"}[config.tokenizer], cache_dir(config)
    if config.path is None:
        if config.field is not None:
            raise InputError(f"data.field={config.field}: needs data.path= with a table ({', '.join(TABLES)})")
        if config.validation is not None:
            raise InputError(f"data.validation={config.validation}: needs data.path=, the text for training")
        return _stdlib(encoding, cache)
    names = [name for _, name, _ in map(split_fragment, entries(config.path))]
    name = names[0] if len(names) == 1 else f"[{','.join(names)}]"
    encoding, notes = encoding and config.encoding, list[str]()

    def found(path: str) -> list[Document]:
        documents = _unzipped(find_documents(path, cache / "downloads", notes), notes)
        documents = _texts(documents, encoding, notes, config.field) if encoding else documents
        if config.field is None:
            odd = [each for each in documents if suffix(each.label) in (*TABLES, *WRAPPED)]
            notes.extend(filter(None, (about_format(each, encoding or "utf-8") for each in (odd or documents)[:1])))
        return documents

    documents = found(config.path)
    if config.validation is None:
        return Corpus(printable(name), tuple(documents), encoding, cache, notes=tuple(notes))
    documents = [replace(document, split="train") for document in documents]
    for split, path in (("validation", config.validation), ("test", config.test)):
        try:
            documents += [replace(document, split=split) for document in found(path)] if path is not None else []
        except InputError as error:
            raise InputError(str(error).replace("data.path=", f"data.{split}=")) from None
    return Corpus(printable(name), tuple(documents), encoding, cache, notes=tuple(notes))
