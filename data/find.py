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
from pathlib import Path
from urllib.parse import parse_qsl

from base.errors import InputError, nearest, printable
from base.progress import count
from data.config import DataConfig
from data.read import (
    NotText,
    SourceFile,
    Tick,
    WrongEncoding,
    archive,
    decode,
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
RULER = re.compile(r"([!-/:-@\[-`{-~])\1{4}")  # five equal ASCII punctuation marks in a row


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

    def size(self) -> int:
        return sum(size for size, _ in self.stamps())  # bytes on disk, before decompression

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
            if self.python:
                code = file.read()
                tick(code, None)
                yield without_rulers(code.decode("ascii").replace("\r\n", "\n"))
            else:
                yield from decode(file, source.label, self.encoding, tick)


def without_rulers(source: str) -> str:
    """Return Python source without comment lines and lines with a `RULER`: five equal punctuation marks in a row.

    A model trained with these lines writes endless rows of dashes.
    """
    lines = []
    for line in source.split("\n"):
        is_comment = line.lstrip().startswith("#")
        if not is_comment and not RULER.search(line):
            lines.append(line)
    return "\n".join(lines)


def find(config: DataConfig) -> Corpus:
    """Return the corpus that `config` names: its files, downloaded if they are at addresses, without binary files."""
    encoding = None if config.tokenizer == "byte" else config.encoding
    cache = cache_dir(config)
    if config.path is None:
        for key, value in (("field", config.field), ("validation", config.validation)):
            if value is not None:
                raise InputError(f"data.{key}={value}: needs data.path=, the text for training")
        return _stdlib(encoding, cache)
    names = [name for _, name, _ in map(split_fragment, entries(config.path))]
    name = names[0] if len(names) == 1 else f"[{','.join(names)}]"
    notes = list[str]()
    files = _texts(config.path, config, cache, notes)
    if config.validation is None:
        notes += _about_roles(files)
    else:
        files = [replace(source, split="train") for source in files]
    for split, path in (("validation", config.validation), ("test", config.test)):
        if path is None:
            continue
        try:
            held_out = _texts(path, config, cache, notes)
        except InputError as error:
            raise InputError(str(error).replace("data.path=", f"data.{split}=")) from None
        files += [replace(source, split=split) for source in held_out]
    lines = tuple(map(printable, notes))
    return Corpus(printable(name), tuple(files), encoding, cache, notes=lines)


def cache_dir(config: DataConfig) -> Path:
    """Return the folder in which encoded texts and downloads are stored.

    The folder is `data.cache_dir` or, if this option is null, `chargpt` in $XDG_CACHE_HOME or else
    in ~/.cache.
    """
    user_cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    path = Path(config.cache_dir or Path(user_cache, "chargpt"))
    try:
        return path.expanduser()
    except RuntimeError:  # no HOME and no entry of the user in the list of users
        raise InputError(
            f"data.cache_dir={path}: there is no such home directory; name another folder"
        ) from None


def _stdlib(encoding: str | None, cache: Path) -> Corpus:
    """Return the default text: the source files of the running Python's standard library that contain only ASCII."""
    root = Path(sysconfig.get_paths()["stdlib"])
    # some Pythons store it in a zip file
    sources = _walk(root, [], STDLIB_WITHOUT) if root.is_dir() else []
    files = []
    for source in sources:
        # `_sysconfigdata` says how this Python was built
        is_code = source.name.endswith(".py") and not source.name.startswith("_sysconfigdata")
        if is_code and source.path.read_bytes().isascii():
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
    names = [name.strip() for name in path[1:-1].split(",")]
    if not all(names):
        form = "the list has an empty name; write 'data.path=[a.txt,b.txt]'"
        raise InputError(form, f"data.path={printable(path)}")
    return names


def split_fragment(entry: str) -> tuple[str, str, str]:
    """Split an address such as `https://a.org/b.txt#name=Book&sha256=HASH` into the tuple (address, name, sha256)."""
    address, *fragment = re.split(r"#(?=name=|sha256=)", entry, maxsplit=1)
    if "://" not in entry or not fragment:
        return entry, entry, ""
    values: dict[str, str] = dict(parse_qsl(fragment[0]))
    sha256 = values.get("sha256", "").lower()
    if values.keys() - {"name", "sha256"} or not re.fullmatch("[0-9a-f]{64}", sha256):
        form = "#sha256=HASH or #name=NAME&sha256=HASH, with 64 hexadecimal digits"
        raise InputError(f"must end with {form}", f"data.path={printable(entry)}")
    return address, values.get("name", address), sha256


def _texts(path: str, config: DataConfig, cache: Path, notes: list[str]) -> list[SourceFile]:
    """Return the files of text that `path` stands for, and add to `notes` what was left out."""
    found = _find(path, cache / "downloads", config, notes)
    files = []
    for source in found:
        members = unzipped(source)
        files += _preferred(members, config, notes, f"unpack {source.label} to read all")
    if len(found) == 1:  # the names in it need not say from which zip file they come
        files = [replace(source, name=source.member or source.name) for source in files]
    files = _without_binary(files, config, notes)
    tables = [source for source in files if suffix(source.place) in TABLES]
    if tables and config.field is None:
        what = "with the syntax of its table; data.field=NAME reads a field of each row"
        notes.append(f"{tables[0].label} is read as plain text, {what}")
    return files


def _find(path: str, downloads: Path, config: DataConfig, notes: list[str]) -> list[SourceFile]:
    """Return each file that `path`, a value of `data.path`, stands for, sorted by name.

    It is a file, a directory (of which only `*.txt` are read if there are any or, with data.field,
    tables), a glob, an address, or a list of these. A name that exists is never a glob, so
    `[a].txt` is found. Hidden files and links to directories must be named, and so must a folder
    that `_is_apart`.
    """
    names = entries(path)
    if len(names) > 1 or "://" in path:
        return _listed(names, downloads, config, notes)
    path = names[0]
    key = f"data.path={printable(path)}"
    expanded = os.path.expanduser(path)
    if os.path.isdir(expanded):
        files = _walk(Path(expanded), notes)
        if not files:
            raise InputError("the directory holds no files", key)
        everything = shlex.quote(f"data.path={glob.escape(path).rstrip('/')}/**/*")
        return _preferred(files, config, notes, f"to read all: {everything}")
    if os.path.isfile(expanded):
        return _sources([Path(expanded)], Path(expanded).parent)
    if os.path.exists(expanded):
        raise InputError("is neither a file nor a directory", key)
    if not glob.has_magic(path):
        raise InputError(f"no such file or directory{_alternative(path)}", key)
    files = _matches(expanded, notes)
    if not files:
        raise InputError("no file matches", key)
    return files


def _alternative(path: str) -> str:
    """Return the end of an error line: what a path that does not exist may have meant, or ""."""
    names = [os.path.expanduser(name) for name in path.split(",")]
    if len(names) > 1 and all(map(os.path.exists, names)):
        whole = shlex.quote(f"data.path=[{printable(path)}]")
        return f"; for one text: {whole}; for a run on each: add -m"
    expanded = Path(os.path.expanduser(path))
    folder = expanded.parent
    if not path or not folder.is_dir() or not os.access(folder, os.R_OK):
        return ""
    return printable(nearest(expanded.name, os.listdir(folder), expanded.suffix))


def _is_apart(folder: Path) -> bool:
    """Return whether a folder is an environment, a run, or contains runs, as a sweep does: it is not part of a text."""
    if folder.name == "node_modules" or (folder / "conda-meta").is_dir():
        return True
    checkpoints = (*folder.glob("checkpoints"), *folder.glob("*/checkpoints"))
    return os.path.exists(folder / "pyvenv.cfg") or any(
        os.path.exists(path.with_name("config.yaml")) for path in checkpoints
    )


def _walk(root: Path, notes: list[str], without: Iterable[str] = ()) -> list[SourceFile]:
    """Return each file in and below `root` that is not hidden, in a folder in `without` or in one that `_is_apart`."""
    closed = dict[str, str]()  # by folder, why it cannot be read
    apart = list[str]()
    paths = list[Path]()

    def close(error: OSError) -> None:
        closed[os.fsdecode(error.filename)] = str(error.strerror)

    for folder, subfolders, files in os.walk(root, onerror=close):
        for name in [*subfolders]:
            if name.startswith(".") or name in without:
                subfolders.remove(name)  # so `os.walk` does not enter it
            elif not os.access(Path(folder, name), os.R_OK | os.X_OK):
                subfolders.remove(name)
                closed[f"{folder}/{name}"] = "permission denied"
            elif _is_apart(Path(folder, name)):
                subfolders.remove(name)
                apart.append(name)
        visible = [Path(folder, name) for name in files if not name.startswith(".")]
        paths += filter(os.path.isfile, visible)
    if str(root) in closed:
        raise InputError(f"{printable(root)}: cannot be read: {closed[str(root)]}")
    if closed:
        notes.append(
            f"left out {count(len(closed), 'folder')} that cannot be read: {_some(list(closed))}"
        )
    if apart:
        what = f"left out {count(len(apart), 'folder')} of runs or environments"
        notes.append(f"{what}: {_some(apart)}; name one to read it")
    return _sources(paths, root)


def _matches(pattern: str, notes: list[str]) -> list[SourceFile]:
    """Return each file that matches a glob, of which `**` follows no links."""
    fixed, *_ = re.split(r"[*?[]", pattern, maxsplit=1)
    root = Path(fixed + "_").parent  # the folder before the first wildcard: a for a/* and a/b*/c
    if "**" not in pattern:
        matches = {Path(match) for match in glob.glob(pattern) if os.path.isfile(match)}
        return _sources(matches, root)
    if not root.is_dir():
        return []
    below = os.path.relpath(pattern, root)
    # Of `a*/**`, which walks all of the folder, what is left out may have nothing to do with `a*`.
    sources = _walk(root, notes if below.startswith("**") else [])
    regex = _regex(below)
    return [source for source in sources if regex.fullmatch(source.name)]


def _regex(pattern: str) -> re.Pattern[str]:
    """Translate a glob that may contain `**`, as `glob.translate` of Python 3.13 does."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[!?\]?[^]]*\])", pattern)
    meanings = {"**/": "(?:.+/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    whole = ""
    for part in parts:
        is_class = part.startswith("[") and part.endswith("]")
        if is_class:
            inner = re.sub(r"([\[\\])", r"\\\1", part[1:-1])
            whole += f"[{inner.replace('!', '^', 1) if inner.startswith('!') else inner}]"
        else:
            whole += meanings.get(part, re.escape(part))
    return re.compile(whole)


def _sources(paths: Iterable[Path], root: Path) -> list[SourceFile]:
    """Return each file in `paths`, named by its path relative to `root`, sorted by name."""
    files = [SourceFile(path.relative_to(root).as_posix(), path) for path in paths]
    return sorted(files, key=lambda source: source.name)


def _listed(
    names: list[str], downloads: Path, config: DataConfig, notes: list[str]
) -> list[SourceFile]:
    """Return each file at `names` (paths or addresses) once, named without the folders that all files share."""
    sources: dict[str, SourceFile] = {}  # by absolute path or address
    for entry in names:
        if "://" in entry:
            from data.addresses import fetch  # loads fsspec and aiohttp, which few runs need

            address, _, sha256 = split_fragment(entry)
            sources[address] = SourceFile("", fetch(address, downloads, sha256), address=address)
        else:
            for source in _find(entry, downloads, config, notes):
                sources[source.path.absolute().as_posix()] = source
    places = sorted(sources)
    folders = [place.split("/")[:-1] for place in places]
    shared = len(os.path.commonprefix(folders))  # folders, because these are lists, not strings
    return [replace(sources[place], name=place.split("/", shared)[-1]) for place in places]


def unzipped(source: SourceFile) -> list[SourceFile]:
    """Return each file in a zip file, or [source] if it is not one."""
    if suffix(source.place) != ".zip":
        return [source]
    with readable(source.label):
        refuse_pointer(source.path, source.label)
        members = archive(source.path).infolist()
    names = set[str]()  # a zip file may contain a name twice
    for info in members:
        if info.is_dir():
            continue
        is_encrypted = info.flag_bits & 1
        if is_encrypted:
            what = f"{source.label}: {printable(info.filename)} needs a password"
            raise InputError(f"{what}; unpack the zip file and name its folder")
        names.add(info.filename)
    if not names:
        raise InputError(f"{source.label}: the zip file holds no files")
    hidden = {name for name in names if "/." in f"/{name}"}
    chosen = sorted(names - hidden or hidden)  # hidden files only if all are hidden
    return [replace(source, name=f"{source.name}/{name}", member=name) for name in chosen]


def _preferred(
    files: Sequence[SourceFile], config: DataConfig, notes: list[str], way: str
) -> list[SourceFile]:
    """Return the `*.txt` of files or, with data.field, the tables, or all if there are none.

    A note counts the others, and ends with the `way` to read them.
    """
    preferred = TABLES if config.field is not None else (".txt",)
    chosen = [source for source in files if suffix(source.place) in preferred]
    others = Counter(suffix(source.place) or "without a suffix" for source in files)
    for kind in preferred:
        others.pop(kind, None)
    if not chosen or not others:
        return list(files)
    kind = "*.txt file"
    if config.field is not None:  # which reads only tables
        kind = "table"
        way = "data.field reads tables"
    kinds = [f"{number:,} {kind}" for kind, number in others.most_common()]
    left_out = f"{count(others.total(), 'other file')} left out: {_some(kinds)}"
    notes.append(f"{count(len(chosen), kind)} read, {left_out}; {way}")
    return chosen


def _some(names: list[str]) -> str:
    more = ", …" if len(names) > 3 else ""
    return ", ".join(map(printable, names[:3])) + more


def _without_binary(
    files: list[SourceFile], config: DataConfig, notes: list[str]
) -> list[SourceFile]:
    """Return `files` without binary files, which a line in `notes` names; a single file is never left out."""
    if len(files) == 1:
        return files
    texts = []
    binary = list[str]()
    wrong = list[str]()
    only_ascii = True  # whether the other files are the same in another encoding
    for source in files:
        is_table = config.field is not None and suffix(source.place) in TABLES
        encoding = "latin-1" if config.tokenizer == "byte" else config.encoding
        try:
            if not is_table:
                with source.open() as file:
                    only_ascii &= next(decode(file, source.label, encoding), "").isascii()
        except NotText:
            binary.append(source.name)
            continue
        except WrongEncoding:
            wrong.append(source.label)
        except InputError:  # raised where the text is read
            pass
        texts.append(source)
    # No data.encoding is right for all files, so the advice of `decode` would not help.
    if wrong and not only_ascii and config.encoding == "utf-8" and config.tokenizer != "byte":
        what = f"not utf-8: {len(wrong):,} of {len(texts):,} files ({_some(wrong)})"
        raise InputError(what, advice="convert these: iconv -f ENCODING -t utf-8 FILE")
    if binary:
        notes.append(f"left out {count(len(binary), 'binary file')}: {_some(binary)}")
    return texts or files[:1]  # a binary file is refused where it is read


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
