"""Find the files that `data.path` names: local ones, downloads, those in zip files, Python's standard library."""

import glob
import os
import platform
import re
import shlex
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from urllib.parse import unquote_plus

from base.errors import InputError, nearest, one_line, printable
from base.progress import count
from data.cache import cache_dir
from data.config import DataConfig
from data.read import (
    SourceFile,
    Tick,
    archive,
    decode,
    is_binary,
    no_tick,
    readable,
    refuse_pointer,
    suffix,
)
from data.tables import TABLES

STDLIB_WITHOUT = {
    "__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "encodings", "lib2to3",
    "pydoc_data", "turtledemo", "ensurepip",
}  # fmt: skip
# In the name of a file, the split that it belongs to.
ROLE = re.compile(r"(?:^|[/._-])(train|valid|validation|val|dev|test)(?=[/._-]|$)", re.IGNORECASE)
# In a line of Python: a comment alone, or five equal ASCII punctuation marks in a row.
RULER = re.compile(r"^\s*#|([!-/:-@\[-`{-~])\1{4}")


@dataclass(frozen=True)
class Corpus:
    """The `files` of a text, how to read them, and the text's `name` for messages."""

    name: str  # for messages, such as `Python 3.11.7 standard library` or `book.txt`
    files: tuple[SourceFile, ...]  # sorted by name; with data.validation, within each split
    encoding: str | None  # of the files; None reads bytes
    cache: Path  # folder of downloads and encoded texts
    # version of Python if this is its standard library, which is read through `without_rulers`
    python: str = ""
    notes: tuple[str, ...] = ()  # lines about the files, logged when a run starts

    def stamps(self) -> list[tuple[int, int]]:
        """Return (size in bytes, modification time in ns) of each file, which differ if a file has changed."""
        # a zip file may contain several of them
        stats = {}
        for source in self.files:
            with readable(source.label):
                stats[source.path] = source.path.stat()
        return [(stat.st_size, stat.st_mtime_ns) for stat in stats.values()]

    def read(self, source: SourceFile, tick: Tick = no_tick) -> Iterator[str]:
        """Yield the text of a file in chunks; each byte is a character if `encoding` is None."""
        with source.open() as file:
            texts = decode(file, source.label, self.encoding, tick)
            if self.python:
                yield without_rulers("".join(texts).replace("\r\n", "\n"))
            else:
                yield from texts


def without_rulers(source: str) -> str:
    """Return Python source without each `RULER`: a model trained with these lines writes endless rows of dashes."""
    lines = [line for line in source.split("\n") if not RULER.search(line)]
    return "\n".join(lines)


def find(config: DataConfig) -> Corpus:
    """Return the corpus that `config` names: its files, downloaded if they are at addresses. Reads none of them."""
    encoding = None if config.tokenizer == "byte" else config.encoding
    cache = cache_dir(config)
    if config.path is None:
        return _stdlib(encoding, cache)
    names = [name for _, name, _ in map(split_fragment, entries(config.path))]
    name = names[0] if len(names) == 1 else f"[{','.join(names)}]"
    notes = list[str]()
    files = _texts(config.path, config, notes)
    if config.validation is None:
        notes += _about_roles(files)
    else:
        files = [replace(source, split="train") for source in files]
    for split, path in (("validation", config.validation), ("test", config.test)):
        if path is None:
            continue
        try:
            held_out = _texts(path, config, notes)
        except InputError as error:
            raise InputError(str(error).replace("data.path=", f"data.{split}=")) from None
        files += [replace(source, split=split) for source in held_out]
    lines = tuple(map(printable, notes))
    return Corpus(printable(name), tuple(files), encoding, cache, notes=lines)


def _stdlib(encoding: str | None, cache: Path) -> Corpus:
    """Return the default text: the source files of the running Python's standard library."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = []
    for source in _walk(root, [], STDLIB_WITHOUT):  # none if a Python stores it in a zip file
        # `_sysconfigdata` says how this Python was built
        if source.name.endswith(".py") and not source.name.startswith("_sysconfigdata"):
            files.append(source)
    if not files:
        reason = "contains no source of the standard library"
        raise InputError(reason, printable(root), "name your own text with data.path=")
    version = platform.python_version()
    name = f"Python {version} standard library"
    return Corpus(name, tuple(files), encoding, cache, python=version)


def entries(path: str) -> list[str]:
    """Return the paths in `path` if it is a list such as `[a.txt,b.txt]` but not an existing file, otherwise [path]."""
    is_list = path.startswith("[") and path.endswith("]")
    if not is_list or os.path.exists(os.path.expanduser(path)):
        return [path]
    return [name.strip() for name in path[1:-1].split(",")]


def split_fragment(entry: str) -> tuple[str, str, str]:
    """Split an address such as `https://a.org/b.txt#name=Book&sha256=HASH` into the tuple (address, name, sha256)."""
    if not re.search("://.*#(name|sha256)=", entry):
        return entry, entry, ""
    match = re.fullmatch("(.*)#(?:name=(.*)&)?sha256=([0-9a-f]{64})", entry, re.IGNORECASE)
    if not match:
        form = "#sha256=HASH or #name=NAME&sha256=HASH, with 64 hexadecimal digits"
        raise InputError(f"must end with {form}", f"data.path={printable(entry)}")
    address, name, sha256 = match.groups()
    return address, unquote_plus(name) if name else address, sha256.lower()


def _texts(path: str, config: DataConfig, notes: list[str]) -> list[SourceFile]:
    """Return the files of text that `path` stands for, and add to `notes` what was left out."""
    found = _find(path, config, notes)
    files = []
    for source in found:
        way = f"unpack {source.label} to read all"
        files += _preferred(unzipped(source), config, notes, way)
    if len(found) == 1:  # the names in it need not say from which zip file they come
        files = [replace(source, name=source.member or source.name) for source in files]
    return files


def _find(path: str, config: DataConfig, notes: list[str]) -> list[SourceFile]:
    """Return each file that `path`, a value of `data.path`, stands for, sorted by name.

    It is a file, a directory (of which only `*.txt` are read if there are any or, with data.field,
    tables), a glob, an address, or a list of these. A name that exists is never a glob, so
    `[a].txt` is found. Hidden files and links to directories must be named, and so must a folder
    that `_is_apart`.
    """
    names = entries(path)
    if len(names) > 1 or "://" in path:
        return _listed(names, config, notes)
    path = names[0]
    key = f"data.path={printable(path)}"
    expanded = os.path.expanduser(path)
    if os.path.isdir(expanded):
        files = _walk(Path(expanded), notes)
        if not files:
            raise InputError("the directory holds no files that can be read", key)
        everything = shlex.quote(f"data.path={glob.escape(path).rstrip('/')}/**/*")
        return _preferred(files, config, notes, f"to read all: {everything}")
    if os.path.isfile(expanded):
        return _sources([Path(expanded)], Path(expanded).parent)
    if os.path.exists(expanded):
        raise InputError("is neither a file nor a directory", key)
    if "," in path and not glob.has_magic(path):
        whole = shlex.quote(f"data.path=[{printable(path)}]")
        way = f"for one text: {whole}; for a run on each: add -m"
        raise InputError("no such file or directory", key, way)
    if not glob.has_magic(path):
        missing = Path(expanded)
        names = [path.name for path in missing.parent.glob("*")]
        alternative = printable(nearest(missing.name, names, missing.suffix))
        raise InputError(f"no such file or directory{alternative}", key)
    files = _matches(expanded, notes)
    if not files:
        raise InputError("no file matches", key)
    return files


def _is_apart(folder: Path) -> bool:
    """Return whether a folder is an environment, a run, or contains runs, as a sweep does: it is not part of a text."""
    if folder.name == "node_modules":
        return True
    marks = [folder / "pyvenv.cfg", folder / "conda-meta"]
    for checkpoints in (*folder.glob("checkpoints"), *folder.glob("*/checkpoints")):
        marks.append(checkpoints.with_name("config.yaml"))
    return any(map(os.path.exists, marks))


def _walk(root: Path, notes: list[str], without: Iterable[str] = ()) -> list[SourceFile]:
    """Return each file in and below `root` that is not hidden, in a folder in `without` or in one that `_is_apart`."""
    left_out = list[str]()
    paths = list[Path]()
    for folder, subfolders, files in os.walk(
        root, onerror=lambda error: left_out.append(os.fsdecode(error.filename))
    ):
        for name in [*subfolders]:
            if name.startswith(".") or name in without:
                subfolders.remove(name)  # so `os.walk` does not enter it
            elif _is_apart(Path(folder, name)):
                subfolders.remove(name)
                left_out.append(name)
        visible = [Path(folder, name) for name in files if not name.startswith(".")]
        paths += filter(os.path.isfile, visible)
    if left_out:
        what = f"left out {count(len(left_out), 'folder')} (runs, environments or closed)"
        notes.append(f"{what}: {_some(left_out)}; name one to read it")
    return _sources(paths, root)


def _matches(pattern: str, notes: list[str]) -> list[SourceFile]:
    """Return each file that matches a glob, of which `**` follows no links."""
    fixed, *_ = re.split(r"[*?[]", pattern, maxsplit=1)
    root = Path(fixed + "_").parent  # the folder before the first wildcard: a for a/* and a/b*/c
    if "**" not in pattern:
        matches = {Path(match) for match in glob.glob(pattern) if os.path.isfile(match)}
        return _sources(matches, root)
    below = os.path.relpath(pattern, root)
    sources = _walk(root, notes)
    from fsspec.utils import glob_translate  # in a few runs; Python 3.13 has it, too

    try:
        regex = re.compile(glob_translate(below))
    except ValueError as error:
        raise InputError(one_line(error), f"data.path={printable(pattern)}") from None
    return [source for source in sources if regex.match(source.name)]


def _sources(paths: Iterable[Path], root: Path) -> list[SourceFile]:
    """Return each file in `paths`, named by its path relative to `root`, sorted by name."""
    files = [SourceFile(path.relative_to(root).as_posix(), path) for path in paths]
    return sorted(files, key=lambda source: source.name)


def _listed(names: list[str], config: DataConfig, notes: list[str]) -> list[SourceFile]:
    """Return each file at `names` (paths or addresses) once, named without the folders that all files share."""
    sources: dict[str, SourceFile] = {}  # by absolute path or address
    for entry in names:
        if "://" in entry:
            from data.addresses import fetch  # loads fsspec and aiohttp, which few runs need

            address, _, sha256 = split_fragment(entry)
            copy = fetch(address, cache_dir(config) / "downloads", sha256)
            sources[address] = SourceFile("", copy, address=address)
        else:
            for source in _find(entry, config, notes):
                sources[source.path.absolute().as_posix()] = source
    places = sorted(sources)
    folders = [place.split("/")[:-1] for place in places]
    shared = len(os.path.commonprefix(folders))  # folders, because these are lists, not strings
    return [replace(sources[place], name=place.split("/", shared)[-1]) for place in places]


def unzipped(source: SourceFile) -> list[SourceFile]:
    """Return each file in a zip file, or [source] if it is not one."""
    if suffix(source.label) != ".zip":
        return [source]
    with readable(source.label):
        refuse_pointer(source.path, source.label)
        members = archive(source.path).infolist()
    names = {info.filename for info in members if not info.is_dir()}  # one may occur twice
    visible = sorted(name for name in names if "/." not in f"/{name}")
    if not visible:
        raise InputError(f"{source.label}: the zip file holds no files")
    return [replace(source, name=f"{source.name}/{name}", member=name) for name in visible]


def _preferred(
    files: Sequence[SourceFile], config: DataConfig, notes: list[str], way: str
) -> list[SourceFile]:
    """Return the `*.txt` of files or, with data.field, the tables, or all if there are none.

    A note counts the others, and ends with the `way` to read them.
    """
    preferred = TABLES if config.field is not None else (".txt",)
    chosen = list[SourceFile]()
    others = Counter[str]()
    for source in files:
        kind = suffix(source.label)
        if kind in preferred:
            chosen.append(source)
        else:
            others[kind] += 1
    if not chosen or not others:
        return list(files)
    kind = "*.txt file"
    if config.field is not None:  # which reads only tables
        kind = "table"
        way = "data.field reads tables"
    names = [f"{number:,} {kind or 'without a suffix'}" for kind, number in others.most_common()]
    left_out = f"{count(others.total(), 'other file')} left out: {_some(names)}"
    notes.append(f"{count(len(chosen), kind)} read, {left_out}; {way}")
    return chosen


def _some(names: list[str]) -> str:
    more = ", …" if len(names) > 3 else ""
    return ", ".join(map(printable, names[:3])) + more


def without_binary(corpus: Corpus, with_field: bool) -> Corpus:
    """Return a corpus without the files that are not text, of which notes tell, but with a file of each split.

    `with_field` says that tables are read by their fields. Of Python's standard library, only
    files in ASCII are text.
    """
    texts: list[SourceFile] = []
    for _, group in groupby(corpus.files, lambda source: source.split):
        files = list(group)
        chosen = []
        for source in files:
            is_table = with_field and suffix(source.label) in TABLES
            if corpus.python:
                is_text = source.path.read_bytes().isascii()
            else:
                is_text = is_table or not is_binary(source, corpus.encoding)
            if is_text:
                chosen.append(source)
        texts += chosen or files[:1]  # a binary file is refused where it is read
    kept = set(texts)
    binary = [source.name for source in corpus.files if source not in kept]
    notes = corpus.notes
    if binary and not corpus.python:
        notes += (f"left out {count(len(binary), 'binary file')}: {_some(binary)}",)
    tables = [source for source in texts if suffix(source.label) in TABLES]
    if tables and not with_field:
        what = "with the syntax of its table; data.field=NAME reads a field of each row"
        notes += (f"{tables[0].label} is read as plain text, {what}",)
    return replace(corpus, files=tuple(texts), notes=notes)


def _about_roles(files: list[SourceFile]) -> list[str]:
    """Return a line if the names of all files say which split each belongs to, such as train.txt and test.txt."""
    roles = [ROLE.search(source.name) for source in files]
    kinds = {role[1].lower() for role in roles if role}
    if not all(roles) or "train" not in kinds or len(kinds) == 1:
        return []
    names = ", ".join(printable(source.name) for source in files[:3])
    keys = "data.validation="
    if len(kinds) > 2:
        keys += " and data.test="
    return [f"{names} are joined and split anew: use {keys} to keep the published splits"]
