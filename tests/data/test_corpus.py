import gzip
import os
import platform
import random
import shlex
import sysconfig

import pytest

from base.errors import InputError
from data.config import DataConfig
from data.corpus import open_corpus
from data.decoding import CHUNK, without_rulers
from tests.conftest import refusal
from tests.stores import make


def read(path, **settings):
    opened = open_corpus(DataConfig(path=path if path is None else str(path), **settings))
    return (b"" if settings.get("tokenizer") == "byte" else "").join(opened.read(opened.files[0]))


def make_named(folder, *names):
    make(folder, {name: name for name in names})


def names(path):
    return [document.name for document in open_corpus(DataConfig(path=str(path))).files]


def test_text_is_what_python_reads(tmp_path):
    # longer than a chunk and with letters of every width: chunks end within them and CRLF
    path = tmp_path / "text.txt"
    for encoding, mark in [
        ("utf-8", b""), ("utf_8", b"\xef\xbb\xbf"), ("utf-16", b""), ("utf-16-le", b"\xff\xfe"), ("cp1252", b""),
        ("gb18030", b""),
    ]:  # fmt: skip
        rng = random.Random(encoding)
        alphabet = ["a", "\n", "\r", "\r\n", " ", "ö"]
        alphabet += [] if encoding == "cp1252" else ["語", "\U0001f600"]
        for length in (1, CHUNK + 7):
            text = "x" + "".join(rng.choices(alphabet, k=length))
            path.write_bytes(mark + text.encode(encoding))
            assert read(path, encoding=encoding) == text.replace("\r\n", "\n").replace(
                "\r", "\n"
            ), (encoding, length)
    # Across the border of a chunk.
    for shift in range(-4, 2):
        begin = "a" * (CHUNK + shift)
        for end in ("\r\n\r\n\r\nb\r\n", "\r\r\rb\r", "\n\n\nb\n", "\U0001f600語é" * 2):
            path.write_bytes((begin + end).encode())
            assert read(path) == begin + end.replace("\r\n", "\n").replace("\r", "\n"), (
                shift,
                end,
            )
    content = b"\xef\xbb\xbfa\r\nb\r\xff\x00" + random.Random(0).randbytes(2 * CHUNK)
    path.write_bytes(content)
    assert read(path, tokenizer="byte") == content


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("\ufeffone\n\ufefftwo\n", id="joined files"),
        *(
            pytest.param("a" * (CHUNK + at) + "\ufeffb", id=f"{at:+d} bytes from a chunk")
            for at in range(-4, 2)
        ),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_byte_order_mark_is_dropped_wherever_it_stands(tmp_path, text, encoding):
    (tmp_path / "text.txt").write_bytes(text.encode(encoding))
    assert read(tmp_path / "text.txt", encoding=encoding) == text.replace("\ufeff", "")
    assert read(tmp_path / "text.txt", tokenizer="byte") == text.encode(encoding)


RUSSIAN = "дом мора на поле ворон\n" * 9
CHINESE = "今天天气很好我们去公园玩\n" * 9
DAMAGED = "the text around it is {}, so the file is damaged or cut there"
NAMES = "data.encoding=NAME: cp1252 (Western), cp1250 (Central European), cp1251 (Cyrillic), gbk or big5"


@pytest.mark.parametrize(
    ("content", "encoding", "what", "way"),
    [
        pytest.param("né\nñ".encode("cp1252"), "utf-8", "byte 1 (line 1) is not utf-8", NAMES, id="cp1252"),
        pytest.param(b"ab\n" * 65_536 + b"caf\xe9", "utf-8", "byte 196,611 (line 65,537)", NAMES, id="cut or cp1252"),
        pytest.param(RUSSIAN.encode("cp1251"), "utf-8", "byte 0 (line 1)", NAMES, id="Cyrillic"),
        pytest.param(CHINESE.encode("gbk"), "utf-8", "byte 0 (line 1)", NAMES, id="Chinese"),
        pytest.param(CHINESE.encode("gbk")[:-2], "gbk", "byte 222 (line 9) is not gbk", NAMES, id="cut Chinese"),
        pytest.param(b"a\0b\0", "utf-16", "is not utf-16", NAMES, id="UTF-16 without a mark"),
        pytest.param("wide".encode("utf-16"), "utf-8", "byte 0", "it is utf-16: use data.encoding=utf-16", id="UTF-16"),
        pytest.param("größe".encode(), "ascii", "byte 2", "it is utf-8: use data.encoding=utf-8", id="UTF-8"),
        pytest.param(RUSSIAN.encode()[:-2], "utf-8", "byte 366 (line 9)", DAMAGED.format("utf-8"), id="cut UTF-8"),
        *(
            pytest.param(
                b"a" * at + RUSSIAN.encode() + b"\xff" + RUSSIAN.encode(),
                "utf-8", f"byte {at + 369:,} (line 10) is not utf-8", DAMAGED.format("utf-8"), id=f"damaged after {at}",
            )
            for at in (0, CHUNK - 400, CHUNK)
        ),
        pytest.param(
            (RUSSIAN.encode("utf-16") + b"\x00\xd8x\x00"), "utf-16", "byte 416 (line 10)", DAMAGED.format("utf-16"),
            id="damaged UTF-16",
        ),
        pytest.param(b"6162", "hex", "data.encoding=hex", "is not an encoding of text files", id="no encoding of text"),
    ],
)  # fmt: skip
def test_what_cannot_be_decoded_is_named_with_its_byte_and_line(
    tmp_path, content, encoding, what, way
):
    (tmp_path / "text.txt").write_bytes(content)
    with gzip.open(tmp_path / "text.gz", "wb") as packed:
        packed.write(content)
    for name in ("text.txt", "text.gz"):
        said = refusal(InputError, read, tmp_path / name, encoding=encoding)
        assert what in said and way in said


WESTERN = "né\n".encode("cp1252")
WIDE = "né\n".encode("utf-16")


@pytest.mark.parametrize(
    ("notes", "said"),
    [
        pytest.param(
            [WESTERN, "né", "naïve", WESTERN, "plain", WIDE],
            "not utf-8: 3 of 6 files (0.md, 3.md, 5.md); ",
            id="three",
        ),
        pytest.param(
            [WESTERN, *[WIDE] * 4, "né"],
            "not utf-8: 5 of 6 files (0.md, 1.md, 2.md, …); ",
            id="many",
        ),
        pytest.param(["né", WIDE], "not utf-8: 1 of 2 files (1.md); ", id="one"),
        pytest.param(["plain", WESTERN], "data.encoding=NAME: cp1252", id="the others are ASCII"),
        pytest.param([WESTERN, WESTERN], "data.encoding=NAME: cp1252", id="all alike"),
    ],
)
def test_an_encoding_that_would_spoil_other_files_is_not_advised(
    tmp_path, monkeypatch, notes, said
):
    make(tmp_path, {f"{number}.md": note for number, note in enumerate(notes)})
    monkeypatch.chdir(tmp_path)

    def read_all():
        opened = open_corpus(DataConfig(path="."))
        return [list(opened.read(source)) for source in opened.files]

    message = refusal(InputError, read_all)
    assert said in message
    assert ("convert these: iconv -f ENCODING -t utf-8 FILE" in message) == (
        "data.encoding" not in message
    )


def test_any_name_is_taken_literally(tmp_path):
    names_of_all = [
        "it's x y=[1,2].txt",
        "[x].txt",
        '本"q".txt',
        "a*b?.txt",
        "{a,b}$HOME.txt",
        "back\\slash 100%",
    ]
    # the first two would match [x].txt and a*b?.txt
    make_named(tmp_path, "x.txt", "axb1.txt", *names_of_all)
    for name in names_of_all:
        assert read(tmp_path / name) == name
        assert names(tmp_path / name) == [name]


def test_directories_and_globs(tmp_path, monkeypatch):
    visible = ["a.TXT", "b.txt", "e.md", "sub/c.txt", "sub/deep/d.txt", "sub/g.md"]
    make_named(tmp_path, *visible, ".hidden.txt", ".git/f.txt")
    for typed, found in {
        ".": ["a.TXT", "b.txt", "sub/c.txt", "sub/deep/d.txt"], "*.txt": ["b.txt"], "sub/*": ["c.txt", "g.md"],
        "**/*.txt": ["b.txt", "sub/c.txt", "sub/deep/d.txt"], "[be].*": ["b.txt", "e.md"], "**/*": visible,
        ".hidden.txt": [".hidden.txt"],
    }.items():  # fmt: skip
        assert names(tmp_path / typed) == found, typed
    make_named(tmp_path / "none", "b.md", "sub/a", ".hidden")  # without any .txt
    assert names(tmp_path / "none") == ["b.md", "sub/a"]
    monkeypatch.chdir(tmp_path / "sub")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert names("c.txt") == names("*.txt") == names("./*.txt") == ["c.txt"] and names(".") == [
        "c.txt",
        "deep/d.txt",
    ]
    assert names("~/b.txt") == names("~/*.txt") == names("../*.txt") == ["b.txt"]


RUN = ("config.yaml", "train.log", "report.html", "checkpoints/last.ckpt")


@pytest.mark.parametrize(
    "others",
    [
        pytest.param([f"runs/a/{name}" for name in RUN], id="a run"),
        pytest.param(["runs/a.html", *(f"runs/a/{name}" for name in RUN)], id="beside runs"),
        pytest.param(["runs/s/sweep.csv", *(f"runs/s/1/{name}" for name in RUN)], id="a sweep"),
        pytest.param([f"old/{name}" for name in RUN], id="a run elsewhere"),
        pytest.param(["venv/pyvenv.cfg", "venv/lib/a.md"], id="an environment"),
        pytest.param([".venv/pyvenv.cfg", ".venv/lib/a.md"], id="a hidden environment"),
        pytest.param(["sub/node_modules/a/README.md"], id="packages"),
    ],
)
def test_runs_and_environments_are_not_part_of_a_text(tmp_path, monkeypatch, others):
    # no checkpoints beside the config.yaml
    notes = ["a.md", "config.yaml", "sub/b.md", "sub/checkpoints/c.md"]
    make_named(tmp_path, *notes, *others)
    monkeypatch.chdir(tmp_path)
    assert names(".") == names("**/*") == names("./**/*") == names(tmp_path) == notes
    assert names("**/*.md") == [name for name in notes if name.endswith(".md")]
    assert names(others[0]) == [others[0].rpartition("/")[2]]  # but can be named


def test_a_folder_of_which_only_txt_is_read_counts_the_others(tmp_path):
    make_named(
        tmp_path,
        *"a.txt b.TXT c.md d.md.gz e.py LICENSE f.csv sub/g.md".split(),
        "runs/a/config.yaml",
    )
    (tmp_path / "runs/a/checkpoints").mkdir()
    opened = open_corpus(DataConfig(path=str(tmp_path)))
    kinds = "3 .md, 1 without a suffix, 1 .py, …"
    assert [source.name for source in opened.files] == ["a.txt", "b.TXT"]
    (note,) = opened.notes
    assert note.startswith(f"2 *.txt files read, 6 other files left out: {kinds}; to read all: ")
    (way,) = shlex.split(note.partition("to read all: ")[2])
    assert len(names(way.removeprefix("data.path="))) == 8


def test_what_is_not_there(tmp_path):
    make_named(tmp_path, "books/shakespeare.txt", "books/book.txt", "two words.txt", "env.sh")
    (tmp_path / "empty" / "sub").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe")
    assert refusal(InputError, read, "").endswith("no such file or directory")
    for name, end in {
        "books/shakespear.txt": "books/shakespear.txt: no such file or directory; nearest: shakespeare.txt",
        "books/SHAKESPEARE.TXT": "; nearest: shakespeare.txt", "book": "; nearest: books",
        "empty": "the directory holds no files", "pipe": "neither a file nor a directory",
        "*books": "no file matches", **dict.fromkeys(["gone.txt", "a\0b", "two\nlines"], "no such file or directory"),
    }.items():  # fmt: skip
        assert refusal(InputError, read, tmp_path / name).endswith(end), name


def test_the_digest_covers_names_and_content(tmp_path):
    texts = [
        {"a": "1", "b": "22"},
        {"a": "0", "b": "22"},
        {"a": "12", "b": "2"},
        {"aa": "1", "b": "22"},
    ]
    folders = [
        make(tmp_path / str(number), text) for number, text in enumerate([*texts, texts[0]])
    ]
    corpora = [open_corpus(DataConfig(path=str(folder))) for folder in folders]
    digests = [corpus.digest(corpus.digests()) for corpus in corpora]
    assert len(set(digests)) == len(texts) and digests[0] == digests[-1]


def test_the_standard_library_without_comments_and_rulers(tmp_path, monkeypatch):
    source = 'a = 1  # stays\n# goes\n    # goes too\n"""\n-----\n  ====== x\n----\n_____\nb = "....."\nxxxxxx\n"""\n#'
    assert without_rulers(source) == 'a = 1  # stays\n"""\n----\nxxxxxx\n"""'
    opened, version = open_corpus(DataConfig()), platform.python_version()
    assert opened.name == f"Python {version} standard library" and opened.python == version
    assert {"argparse.py", "json/decoder.py", "asyncio/events.py"} <= {
        each.name for each in opened.files
    }
    make_named(tmp_path, "b.py", "json/e.py", "test/d.py", "json/tests/d.py", "site-packages/d.py")
    make(
        tmp_path,
        {
            "_sysconfigdata_x.py": "",
            "g.txt": "",
            "a.py": "x = 1\r\n# gone\r\ny = 2\r\n",
            "h.py": "é = 1",
        },
    )
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    opened = open_corpus(DataConfig())
    assert [document.name for document in opened.files] == ["a.py", "b.py", "json/e.py"]
    assert list(opened.read(opened.files[0])) == ["x = 1\ny = 2\n"]
    assert read(None, tokenizer="byte") == b"x = 1\ny = 2\n"
    monkeypatch.setattr(
        sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path / "test" / "none")}
    )
    with pytest.raises(InputError, match="data.path="):
        open_corpus(DataConfig())


ROLES = {  # names of the files of a text, and what a run says of them
    "a list": (["train.txt", "valid.txt", "test.txt"], "data.validation= and data.test="),
    "one is held out": (["wiki.train.tokens", "wiki.dev.tokens"], "use data.validation= to"),
    "a folder of code": (["train.py", "test_a.py", "model.py"], ""),
    "no held-out file": (["train.txt"], ""),
}


@pytest.mark.parametrize("kind", ROLES)
def test_published_splits_that_are_joined_are_named(tmp_path, kind):
    names, said = ROLES[kind]
    make_named(tmp_path, *names)
    notes = [
        note for note in open_corpus(DataConfig(path=str(tmp_path))).notes if "published" in note
    ]
    assert len(notes) == bool(said) and all(said in note for note in notes)
