"""What is typed wrong for each program, and the one line that it gets; train.py alone: tests/faults/test_input.py."""

import shlex
import shutil
import sys
from pathlib import Path

import pytest

from gpt.tokenizer import ByteTokenizer, CharTokenizer
from tests.conftest import one_line
from tests.folders import make
from tests.test_score import LINES, TEXT, write

WRONG = {  # what the line has in it, in parts where the words between them do not matter
    # Nine errors, word for word, which stand for the others.
    "train.py model.head=8": "model.head: no such key; nearest: model.heads",
    "train.py model.heads=3": (
        "model.heads=3: must divide model.dim=128; try 1, 2, 4, 8, 16, model.dim=132"
    ),
    "train.py model=bby": (
        "model=bby: must be one of auto, baby, base, mini, nanogpt, small, tiny; nearest: baby"
    ),
    "train.py data.path=boook.txt": (
        "data.path=boook.txt: no such file or directory; nearest: book.txt"
    ),
    "train.py data.split=[0.5,0.6,0.1]": (
        "data.split=[0.5, 0.6, 0.1]: must be three fractions [train,validation,test] that add up "
        "to 1, the first two above 0"
    ),
    "train.py optim.lr=fast": "optim.lr=fast: must be auto or a number, above 0",
    "train.py name=first": (
        "name=first: runs/first exists; name=first resume=auto continues it, another name starts "
        "afresh"
    ),
    "sample.py --temperature -1": (
        "argument --temperature: -1: must be a number, at least 0 and at most 1000"
    ),
    "sample.py first --prompt 日": (
        "character '日' (U+65E5) at position 0 is not in the vocabulary of this model; --unknown "
        "skip drops it, --unknown replace uses the nearest"
    ),
    "sample.py --prompt-file empty.txt": "--prompt-file empty.txt: |empty",
    "sample.py --prompt-file latin.txt": "--prompt-file latin.txt: |(line 1) is not utf-8",
    "sample.py --prompt-file none.txt": "--prompt-file none.txt: |No such file",
    "sample.py lines.st --prompt-file blank.txt": "--prompt-file blank.txt: ",
    "sample.py --prompt né": "'é' (U+00E9)|position 1|nearest: 'e'|--unknown skip",
    "sample.py --prompt The --prompt 'n\né'": "'é' (U+00E9)|position 2",
    "sample.py --prompt=": "--prompt: |empty",
    "sample.py --keep-stop": "--keep-stop: needs --stop",
    "sample.py alone.st --novelty": "--novelty: |alone.st is not in a run directory",
    "sample.py lines.st --new --no-stop": "--new: |--no-stop",
    "sample.py lines.st --new --interactive": "--interactive: |--new",
    "sample.py lines.st --new": "--new: |lines.st is not in a run directory",
    "sample.py model.st --new": "--new: model.st|data.documents|data.field",
    "sample.py --prompt é --output text.txt --overwrite": "'é'",
    "sample.py --output text.txt": "--output text.txt: already exists",
    "sample.py --output runs/first/checkpoints/best.safetensors": "best.safetensors: |input",
    "sample.py --prompt-file book.txt --output book.txt": "--output book.txt: |input",
    "sample.py book.txt": "is damaged or not a model file", "sample.py " + "x" * 300: "no such model",
    "sample.py 'runs/\nx'": "no such",
    "sample.py first --promt=x": "nearest: --prompt",
    "sample.py first --start=x": "nearest: --prompt",
    "sample.py first --max_new_tokens=1": "nearest: --num-chars",
    "sample.py first --num-chars": "expected one argument", "sample.py first --num-chars=0": "at least 1",
    "sample.py first --num-chars=1000000001": "at most 1000000000",
    "sample.py first --temperature=nan": "must be a number", "sample.py first --temperature=inf": "at most",
    "sample.py first --top-k=0": "at least 1", "sample.py first --top-k=1.5": "must be a whole number",
    "sample.py first --seed=99999999999999999999999": "at most",
    "sample.py first --device=cuda:99": "--device cuda:99", "sample.py first --device=meta": "must be cpu",
    "sample.py first --prompt=a\udcff": "U+DCFF at position 1",
    "sample.py first ROMEO:": "unrecognized|ROMEO:|; is --prompt missing?",
    "sample.py first --tokens 5": "nearest: --num-chars",
    "score.py first first text.txt": "text.txt; is --compare missing?",
    "train.py resume=frist": "resume=frist: no such checkpoint, nor a run in /|/runs/; nearest: first",
    "train.py --runs fir": "--runs fir: no run in runs/ matches this name",
    "train.py -m seed=1,2 workers=2 trainer.devices=2 data.batch=8 data.path=book.txt":
        "trainer.devices=2: needs workers=1, not 2",
    "score.py first": "--split",
    "score.py first* --split test --per-char": "first*: no such model",
    "score.py other* --split test": "other*: no such model",
    "score.py first book.txt --split test": "text file|--split",
    "score.py alone.st --split test": "run directory",
    "score.py first --split test --encoding latin-1": "--split: cannot be combined with --encoding",
    "score.py model.st latin.txt": "(line 1) is not utf-8",
    "score.py model.st text.txt --encoding utf-9": "--encoding utf-9: ",
    "score.py model.st empty.txt": "empty.txt: ",
    "score.py model.st .": ".: cannot be read",
    "score.py model.st txet.txt": "nearest: text.txt",
    "score.py model.st text.txt --window sample": "--window: invalid choice: 'sample'",
    "score.py model.st text.txt --compare nothing": "nothing: no such model",
    "score.py model.st text.txt --compare less.st": "line 1: character 'Ω' (U+03A9) at position 6",
    "score.py model.st text.txt --stride 2 --window disjoint": "--stride 2: only works with --window strided",
    "score.py model.st text.txt --context 5 --stride 6": "--stride 6: must be at most 5",
    "score.py learned.st text.txt --context 8": "--context 8: must be at most 7",
    "score.py model.st text.txt --html nowhere/a.html": "--html nowhere/a.html: ",
    "score.py model.st text.txt --html text.txt --overwrite": "--html text.txt: is also an input",
    "score.py model.st text.txt --device cuda:99": "--device cuda:99",
    "score.py model.st text.txt --html a.html more.txt": ": more.txt",
    "score.py model.st text.txt --per-document": "--per-document: |documents",
    "score.py lines.st text.txt --csv a.csv": "--csv: needs --per-document",
    "score.py lines.st text.txt --per-document --html a.html": "cannot be combined with --html",
    "score.py lines.st text.txt --per-document --window strided": "cannot be combined with --window",
    "score.py lines.st blank.txt --per-document --csv a.csv": "blank.txt: is empty",
    "export.py nothing --to onnx model.onnx": "nothing: no such model",
    "export.py first --to onnx model.bin": "model.bin: |.onnx",
    "export.py first --to onnx none/model.onnx": "OUT none/model.onnx: ",
    "export.py first --to onnx old.onnx": "OUT old.onnx: already exists|--overwrite",
    "export.py first --to onnx model.onnx": "pip install -c constraints.txt -e '.[export]'",
    "export.py first --to onnx model.onnx --guess new.txt": "--guess new.txt: |--to web",
    "export.py first --to gguf new": "--to: |'gguf'",
    "export.py first --to hf old.onnx": "OUT old.onnx: |folder",
    "export.py first --to hf full --overwrite": "OUT full: |empty folder",
    "export.py first --to web page.html --guess none.txt": "--guess none.txt: ",
    "export.py first --to web page.html --guess binary.txt": "binary.txt|is not plain text",
}  # fmt: skip


@pytest.fixture
def odd_files(trained):
    """What the commands name."""
    contents = {
        "latin.txt": "aï".encode("latin-1"), "binary.txt": bytes(range(256)), "text.txt": TEXT, "empty.txt": "",
        "blank.txt": "  \n \n", "old.onnx": "mine", "full/mine": "",
    }  # fmt: skip
    make(Path(), contents)
    shutil.copy(trained, "alone.st")
    write("model.st")
    write("bytes.st", ByteTokenizer())
    write("learned.st", positions="learned")
    write("less.st", CharTokenizer(TEXT.replace("Ω", "")))
    write("lines.st", documents=LINES)


def contents():
    return {
        path: path.is_file() and path.read_bytes()
        for path in Path().rglob("*")
        if "cache" not in path.parts
    }


@pytest.mark.usefixtures("odd_files")
@pytest.mark.parametrize("command", WRONG)
def test_what_is_typed_wrong_gets_one_line_and_changes_nothing(command, request, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)  # importing None fails
    program, *arguments = shlex.split(command)
    options = {"defaults": False} if program == "train.py" else {}
    call = request.getfixturevalue(program.removesuffix(".py"))
    before = contents()
    ended = call(*arguments, **options)
    assert ended.out in ("", "lines.st, step 7\n")
    assert contents() == before
    one_line(ended, 2, *WRONG[command].split("|"), program=program)
