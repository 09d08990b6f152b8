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
from data.decoding import (
    CHUNK,
    TABLE_FILES,
    Corpus,
    NotText,
    SourceFile,
    WrongEncoding,
    decode,
    first_three,
    suffix,
    texts_first,
    to_read_all,
)
from data.splits import about_roles
from data.tables import TABLES

# What a text is wrapped in, by the suffix of its file.
WRAPPED = dict.fromkeys(
    (".html", ".htm", ".xhtml", ".xml"),
    "its tags; convert it to plain text (.txt) to leave them out",
)
# for the byte tokenizer
WRAPPED[".parquet"] = "its columns compressed; data.field=NAME reads one of them"
WRAPPED[".ipynb"] = (
    "the JSON around its cells; export it from Jupyter as a script (.py) or as text to leave it out"
)
# JSON in JavaScript, such as window.YTD.tweets.part0 = [{"id"
ASSIGNED = re.compile(rb'[\w.$ ]+=\s*[{[][\s{[]*"')

STDLIB_WITHOUT = {
    "__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "encodings", "lib2to3",
    "pydoc_data", "turtledemo", "ensurepip",
}  # fmt: skip


def _stdlib(encoding: str | None, cache: Path) -> Corpus:
    """Return the default text: the source files of the running Python's standard library that contain only ASCII."""
    root = Path(sysconfig.get_paths()["stdlib"])
    # some Pythons store it in a zip file
    sources = _walk(root, STDLIB_WITHOUT) if root.is_dir() else []
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
    return Corpus(
        f"Python {version} standard library", tuple(files), encoding, cache, python=version
    )


def _is_apart(folder: Path) -> bool:
    """Return whether a folder is an environment, a run, or contains runs, as a sweep does: it is not part of a text."""
    if (
        folder.name == "node_modules"
        or (folder / "pyvenv.cfg").exists()
        or (folder / "conda-meta").is_dir()
    ):
        return True
    checkpoints = (*folder.glob("checkpoints"), *folder.glob("*/checkpoints"))
    return any(path.with_name("config.yaml").exists() for path in checkpoints)


def _walk(root: Path, without: Collection[str] = ()) -> list[SourceFile]:
    """Return each file in and below `root` that is not hidden, in a folder in `without` or in one that `_is_apart`."""

    def fail(error: OSError) -> None:
        raise InputError(f"{printable(error.filename)}: cannot be read: {error.strerror}")

    paths = []
    for folder, subfolders, files in os.walk(root, onerror=fail):
        for name in [*subfolders]:
            if name.startswith(".") or name in without or _is_apart(Path(folder, name)):
                subfolders.remove(name)  # so `os.walk` does not enter it
        for name in files:
            path = Path(folder, name)
            if not name.startswith(".") and os.path.isfile(path):
                paths.append(path)
    return _sources(paths, root)


def _sources(paths: Iterable[Path], root: Path) -> list[SourceFile]:
    """Return each file in `paths`, named by its path relative to `root`, sorted by name."""
    files = [SourceFile(path.relative_to(root).as_posix(), path) for path in paths]
    return sorted(files, key=lambda source: source.name)


def entries(path: str) -> list[str]:
    """Return the paths in `path` if it is a list such as `[a.txt,b.txt]` but not an existing file, otherwise [path]."""
    if not (path.startswith("[") and path.endswith("]")) or os.path.exists(
        os.path.expanduser(path)
    ):
        return [path]
    names = [name.strip() for name in path[1:-1].split(",")]
    if not all(names):
        raise InputError(
            "the list has an empty name; write 'data.path=[a.txt,b.txt]'",
            f"data.path={printable(path)}",
        )
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


def find_files(path: str, downloads: Path, notes: list[str]) -> list[SourceFile]:
    """Return each file that `path`, a value of `data.path`, stands for, sorted by name.

    It is a file, a directory (of which only `*.txt` are read if there are any), a glob, an
    address, or a list of these. A name that exists is never a glob, so `[a].txt` is found. Hidden
    files and links to directories must be named, and so must a folder that `_is_apart`.
    """
    names = entries(path)
    if len(names) > 1 or "://" in path:
        return _listed(names, downloads, notes)
    path = names[0]
    key = f"data.path={printable(path)}"
    expanded = os.path.expanduser(path)
    if os.path.isdir(expanded):
        files = {source.name: source for source in _walk(Path(expanded))}
        if not files:
            raise InputError("the directory holds no files", key)
        return list(texts_first(files, notes, to_read_all(glob.escape(path))).values())
    if os.path.isfile(expanded):
        return _sources([Path(expanded)], Path(expanded).parent)
    if os.path.exists(expanded):
        raise InputError("is neither a file nor a directory", key)
    if not glob.has_magic(path):
        raise InputError(f"no such file or directory{_alternative(path)}", key)
    matches = _matches(expanded)
    if not matches:
        raise InputError("no file matches", key)
    return matches


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


def _matches(pattern: str) -> list[SourceFile]:
    """Return each file that matches a glob and is not in a folder that `_is_apart`."""
    fixed, *_ = re.split(r"[*?[]", pattern, maxsplit=1)
    root = Path(fixed + "_").parent  # the folder before the first wildcard: a for a/* and a/b*/c
    if "**" in pattern:
        _walk(root)  # raises for a folder that cannot be read, which `glob` would skip
    matches = {
        Path(match) for match in glob.glob(pattern, recursive=True) if os.path.isfile(match)
    }
    folders = set[Path]()
    for match in matches:
        folders.update(match.parents)
    apart = {folder for folder in folders if root in folder.parents and _is_apart(folder)}
    return _sources([match for match in matches if apart.isdisjoint(match.parents)], root)


def _listed(entries: list[str], downloads: Path, notes: list[str]) -> list[SourceFile]:
    """Return each file at `entries` (paths or addresses) once, named without the folders that all files share."""
    sources: dict[str, SourceFile] = {}  # by absolute path or address
    for entry in entries:
        if "://" in entry:
            from data.addresses import fetch  # loads fsspec and aiohttp, which few runs need

            address, _, sha256 = split_fragment(entry)
            for place, path in fetch(address, downloads, notes, sha256).items():
                sources[place] = SourceFile("", path, address=place)
        else:
            for source in find_files(entry, downloads, notes):
                sources[source.path.absolute().as_posix()] = source
    places = sorted(sources)
    folders = [place.split("/")[:-1] for place in places]
    shared = len(os.path.commonprefix(folders))  # folders, because these are lists, not strings
    return [replace(sources[place], name=place.split("/", shared)[-1]) for place in places]


def _unzipped(files: list[SourceFile], notes: list[str]) -> list[SourceFile]:
    """Return `files`, each zip file replaced by its `*.txt` files or, if it has none, by all files in it."""
    unzipped = list[SourceFile]()
    for source in files:
        members = {member.name: member for member in source.unzip()}
        unzipped += texts_first(members, notes, f"unpack {source.label} to read all").values()
    if len(files) == 1:  # the names in it need not say from which zip file they come
        unzipped = [replace(source, name=source.member or source.name) for source in unzipped]
    return unzipped


def _texts(
    files: list[SourceFile], encoding: str, notes: list[str], field: str | None
) -> list[SourceFile]:
    """Return `files` without binary files, which a line in `notes` names; a single file is never left out.

    Tables of which a `field` is read are not left out, either.
    """
    if len(files) == 1:
        return files
    texts = []
    binary = list[str]()
    wrong = list[str]()
    only_ascii = True  # whether the other files are the same in another encoding
    for source in files:
        if field and suffix(source.label) in TABLES:
            texts.append(source)
            continue
        try:
            with source.open() as file:
                beginning = next(decode(file, source.label, encoding), "")
            only_ascii &= beginning.isascii()
        except NotText:
            binary.append(source.name)
            continue
        except WrongEncoding:
            wrong.append(source.label)
        except InputError:  # raised where the text is read
            pass
        texts.append(source)
    # No data.encoding is right for all files, so the advice of `decode` would not help.
    if wrong and not only_ascii and encoding == "utf-8":
        what = f"not {encoding}: {len(wrong):,} of {len(texts):,} files ({first_three(wrong)})"
        raise InputError(what, advice="convert these: iconv -f ENCODING -t utf-8 FILE")
    if binary:
        notes.append(f"left out {count(len(binary), 'binary file')}: {first_three(binary)}")
    return texts or files[:1]  # a binary file is refused where it is read


def about_format(source: SourceFile) -> str:
    """Return a line about a file that contains more than a person reads in it, otherwise ""."""
    kind = suffix(source.label)
    with source.open() as file:
        if kind in WRAPPED:
            what = WRAPPED[kind]
        elif kind in TABLES:
            what = "the syntax of its table; data.field=NAME makes a field of each row a document"
        else:
            what = _about_beginning(file.read(CHUNK), kind)
    return what and f"{source.label} is read as plain text, with {what}"


def _about_beginning(chunk: bytes, kind: str) -> str:
    """Return what a file that begins with `chunk` contains besides its text, and how to leave it out, or ""."""
    if b"\x1b[" in chunk:
        return r"its escape codes; sed 's/\x1b\[[0-9;]*[A-Za-z]//g' removes them"
    if chunk.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        return WRAPPED[".html"]
    if kind == ".js" and ASSIGNED.match(chunk):
        return f"the assignment and syntax of its JSON; {TABLE_FILES[kind]}"
    return ""


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


def open_corpus(config: DataConfig) -> Corpus:
    """Return the corpus that `config` names: its files, downloaded if they are at addresses, without binary files."""
    encoding = None if config.tokenizer == "byte" else config.encoding
    cache = cache_dir(config)
    if config.path is None:
        if config.field is not None:
            raise InputError(
                f"data.field={config.field}: needs data.path= with a table ({', '.join(TABLES)})"
            )
        if config.validation is not None:
            raise InputError(
                f"data.validation={config.validation}: needs data.path=, the text for training"
            )
        return _stdlib(encoding, cache)
    names = [name for _, name, _ in map(split_fragment, entries(config.path))]
    name = names[0] if len(names) == 1 else f"[{','.join(names)}]"
    notes = list[str]()
    files = _open_files(config.path, config, cache, notes)
    if config.validation is None:
        notes += about_roles(files)
    else:
        files = [replace(source, split="train") for source in files]
    for split, path in (("validation", config.validation), ("test", config.test)):
        if path is None:
            continue
        try:
            held_out = _open_files(path, config, cache, notes)
        except InputError as error:
            raise InputError(str(error).replace("data.path=", f"data.{split}=")) from None
        files += [replace(source, split=split) for source in held_out]
    lines = tuple(map(printable, notes))
    return Corpus(printable(name), tuple(files), encoding, cache, notes=lines)


def _open_files(path: str, config: DataConfig, cache: Path, notes: list[str]) -> list[SourceFile]:
    """Return the files of text that `path` stands for, and add to `notes` what was left out and what is not text."""
    files = _unzipped(find_files(path, cache / "downloads", notes), notes)
    if config.tokenizer != "byte":
        files = _texts(files, config.encoding, notes, config.field)
    if config.field is not None:
        return files
    formatted = [source for source in files if suffix(source.label) in (*TABLES, *WRAPPED)]
    first = (formatted or files)[0]
    about = about_format(first)
    if about:
        notes.append(about)
    return files
