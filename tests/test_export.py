import importlib.util
import io
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from gpt.checkpoint import load_checkpoint
from gpt.config import ModelConfig
from gpt.inference.generate import generate
from gpt.model import GPT
from gpt.tokenizer import CharTokenizer, tokenizer_from
from reports.guessing_game import game_passages
from tests.conftest import ROOT, Call, needs, one_line, summary
from tests.model_files import write_model_file
from tests.reference.models import fill
from tests.stores import make as make_files

PAGE = (ROOT / "docs/export.md").read_text("utf-8")
LETTERS = "\n\tThe quickbrownfox ,.é中😀"


def make(path: str, **changes) -> Path:
    config = ModelConfig(layers=2, heads=2, dim=16, context=12, **changes)
    vocabulary = {"kind": "char", "characters": "".join(sorted(set(LETTERS)))}
    return write_model_file(path, fill(GPT(config, len(vocabulary["characters"]))), vocabulary)


@pytest.fixture
def checkpoint(workplace: Path) -> Path:
    return make("runs/first/checkpoints/best.safetensors")


def test_a_page_with_passages_to_guess(trained: Path, export: Call) -> None:
    text, characters = (
        Path("book.txt").read_text(),
        load_checkpoint(trained)[1]["vocabulary"]["characters"],
    )
    train, validation = (
        text[: int(0.9 * len(text))],
        text[int(0.9 * len(text)) : int(0.95 * len(text))],
    )

    def game(guess: str) -> tuple[list[str], str]:
        """The passages in the page, and what is printed."""
        ended = export(
            "first",
            "--to",
            "web",
            "page.html",
            "--guess",
            guess,
            "--overwrite",
            "--title",
            "My <words>",
        )
        assert ended.status == 0, ended
        found = re.search(r'id="model">(.*)</script>', Path("page.html").read_text("utf-8"))
        return json.loads(found[1])["passages"], ended.out

    shown, said = game("validation")
    assert (
        f"{len(shown)} passages of validation to guess, which anyone with the page can read\n"
        in said
    )
    assert len(shown) > 1 and all(
        len(passage) == 200 and "\n" + passage in validation for passage in shown
    )
    # Of a file: what occurs in the training text, even in part, and what has other characters is
    # left out.
    fresh = [
        "".join(random.Random(i).choices(sorted(set(characters) - {"\n", " "}), k=200))
        for i in range(8)
    ]
    copied = max(train.split("\n"), key=len)[:200]
    Path("new.txt").write_text(
        "\n".join(["", copied, *fresh[:7], fresh[7][:100] + copied[:100], "é" * 200])
    )
    shown, _ = game("new.txt")
    assert len(shown) >= 4 and set(shown) <= set(fresh[:7])
    Path("one.txt").write_text(fresh[0])  # the first line begins a line, too
    assert game("one.txt")[0] == [fresh[0]]
    assert "<title>My &lt;words&gt; · chargpt</title>" in Path("page.html").read_text("utf-8")
    # A text without a passage costs the game, not the page.
    shown, said = game("runs/first/config.yaml")
    assert (
        shown == []
        and "\nno game: runs/first/config.yaml has no passage of 200 characters that starts a"
        in said
    )
    Path("book.txt").write_text(text + "more")
    assert "not compared with the training text" in game("new.txt")[1]
    Path("binary.txt").write_bytes(bytes(range(256)))
    for guess, words in {
        "validation": "has changed since",
        "binary.txt": "byte 128 (line 2) is not utf-8",
    }.items():
        one_line(
            export("first", "--to", "web", "no.html", "--guess", guess),
            2,
            guess,
            words,
            program="export.py",
        )
    assert not Path("no.html").exists()


def test_passages_to_guess_begin_with_documents(workplace: Path) -> None:
    tokenizer, sizes = CharTokenizer("abcd\n\x03"), (150, 320, 250, 60, 400)
    documents = ["".join(random.Random(i).choices("abcd", k=size)) for i, size in enumerate(sizes)]
    lines = [document[:100] + "\n" + document[100:] for document in documents]
    long = [lines[i][:200] for i in (1, 2, 4)]
    for kind, end, files, expected in (
        ("line", "\n", ["\n".join(documents)], [("\n".join(documents[i:]))[:200] for i in range(5)]),
        ("paragraph", "\n\n", ["\n\n\n".join(lines)], [("\n\n\n".join(lines[i:]))[:200] for i in range(5)]),
        ("file", "\x03", lines, long), ("part", "\x03", ["%%\n".join(lines)], long), ("file", "\x03", lines[:1], []),
    ):  # fmt: skip
        shutil.rmtree("texts", ignore_errors=True)
        make_files(Path("texts"), {f"{i}.txt": text for i, text in enumerate(files)})
        rule = {"kind": kind, "end": end, "name": "%%" * (kind == "part")}
        found, said = game_passages("texts", Path("none/best.safetensors"), tokenizer, rule)
        assert set(found) <= set(expected) and bool(found) == bool(expected), kind
        assert end != "\x03" or found == expected
        assert (
            "passages of texts to guess" if expected else "characters that starts a document, uses"
        ) in said


def test_wrong_words_leave_nothing(
    checkpoint: Path, export: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("old.onnx").write_text("mine")
    Path("full").mkdir()
    Path("full/mine").touch()
    before = {path: path.is_file() and path.read_bytes() for path in Path().rglob("*")}
    monkeypatch.setitem(sys.modules, "onnx", None)  # importing None fails
    for arguments, said in {
        "nothing --to onnx model.onnx": "nothing: no such model, nor a run in runs/",
        "first --to onnx model.bin": "model.bin: must end in .onnx",
        "first --to onnx none/model.onnx": "OUT none/model.onnx: No such file or directory",
        "first --to onnx old.onnx": "OUT old.onnx: already exists; give another name, or --overwrite to replace it",
        "first --to onnx model.onnx": "onnx is not installed: pip install -c constraints.txt -e '.[export]'",
        "first --to onnx model.onnx --guess new.txt": "--guess new.txt: only works with --to web, not onnx",
        "first --to gguf new": "argument --to: invalid choice: 'gguf'",
        "first --to hf old.onnx": "OUT old.onnx: must be the name of a folder",
        "first --to hf full --overwrite": "OUT full: is not empty; give another name",
        "first --to web page.html --guess none.txt": "--guess none.txt: no such file",
    }.items():
        ended = export(*arguments.split())
        one_line(ended, 2, said, program="export.py")
        assert ended.out == ""
        assert {path: path.is_file() and path.read_bytes() for path in Path().rglob("*")} == before


def test_a_folder_is_whole_or_not_there(
    checkpoint: Path, export: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("out").mkdir()
    for folder in ("out", "new"):
        ended = export("first", "--to", "hf", folder)
        assert (ended.status, ended.err) == (0, "") and "kB, step 17 of runs/first" in ended.out
    assert sorted(os.listdir("out")) == sorted(os.listdir("new"))
    assert Path("out/README.md").read_text("utf-8").startswith("---\nlibrary_name: transformers\n")
    monkeypatch.setattr(
        "base.files.os.replace", Mock(side_effect=OSError(28, "No space left on device"))
    )
    one_line(
        export("first", "--to", "hf", "other"), 1, "No space left on device", program="export.py"
    )
    assert sorted(os.listdir()) == ["book.txt", "new", "out", "runs"]


def test_the_card_of_a_run(trained: Path, export: Call) -> None:
    said = summary("first")
    assert export("first", "--to", "card", "first.md").status == 0
    card = Path("first.md").read_text("utf-8")
    train = round(said["characters"] / said["epochs"])
    assert card.startswith("# first\n") and f", {train:,} characters for training, " in card
    for part in (
        f"| validation loss | {said['val_loss']:.4f} nats (", f"uniform {said['uniform_loss']:.2f}, ",
        "| 2 layers, 2 heads, 32 wide, context 32 characters, rotary positions |", f" {said['device']}, ",
        f"| {said['parameters']:,}, of step {said['best_step']} |", f"| 30 steps, {said['characters']:,} characters (",
        "```text\npython train.py ", " data.path=book.txt",
    ):  # fmt: skip
        assert part in card, part
    # Without its run, the file says less.
    shutil.copy(trained, "alone.safetensors")
    assert export("alone.safetensors", "--to", "card", "alone.md").status == 0
    alone = Path("alone.md").read_text("utf-8")
    assert alone.startswith("# alone\n") and f"{said['val_loss']:.4f} nats" in alone
    assert "uniform" not in alone and "train.py" not in alone and "machine" not in alone
    assert card.partition("## A sample")[2] == alone.partition("## A sample")[2] != ""


def test_a_card_keeps_paths_and_markup_to_itself(
    workplace: Path, train: Call, export: Call
) -> None:
    Path("a_b|c.txt").write_text(Path("book.txt").read_text() + "\n````\n<b>")
    path = f"data.path={Path('a_b|c.txt').resolve()}"
    assert train("name=own", path, "trainer.max_steps=2", "data.tokenizer=byte").status == 0
    assert export("own", "--to", "card", "own.md").status == 0
    card = Path("own.md").read_text("utf-8")
    assert (
        "| text | a\\_b\\|c.txt; 256 distinct bytes, " in card and "'data.path=a_b|c.txt'" in card
    )
    assert str(Path.cwd()) not in card


@pytest.mark.promise
@pytest.mark.slow
def test_the_page_is_right(workplace: Path, checkpoint: Path, export: Call) -> None:
    needs("onnx", "onnxruntime", "onnxscript")
    said = []
    blocks = re.findall(r"^```(python)?\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    for language, text in blocks:
        text = text.replace("range(20)", "range(8)").replace(
            "max_new_tokens=20", "max_new_tokens=8"
        )
        if "transformers" in text:
            if importlib.util.find_spec("transformers"):
                own = {"HF_HOME": str(workplace / "home"), "HF_HUB_OFFLINE": "1"}
                said.append(
                    subprocess.check_output(
                        [sys.executable, "-c", text], env=os.environ | own, text=True
                    )
                )
        elif language:
            with redirect_stdout(io.StringIO()) as out:
                exec(text, {})
            said.append(out.getvalue())
        for line in [] if language else text.splitlines():
            if "--guess" in line:  # needs the text of the run
                continue
            python, script, *arguments = shlex.split(line)
            ended = export(*arguments)
            assert (python, script, ended.status) == ("python", "export.py", 0), ended
            assert ("logits differ by at most" in ended.out) == (arguments[2] == "onnx"), ended
    model, meta = load_checkpoint(checkpoint)
    tokenizer = tokenizer_from(meta["vocabulary"])
    tokens = generate(model, torch.from_numpy(tokenizer.encode("The ")), 8, temperature=0)
    written = tokenizer.decode(tokens.numpy()) + "\n"
    assert said and set(said) == {written}
