import errno
import importlib.util
import json
import os
import random
import re
import shlex
import shutil
import string
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from gpt.checkpoint import load_checkpoint
from gpt.inference.generate import generate
from gpt.tokenizer import CharTokenizer, tokenizer_from
from reports.card import public_setting
from reports.guessing_game import game_passages
from tests.conftest import ROOT, needs, one_line, summary
from tests.test_score import write

LETTERS = "\n\tThe quickbrownfox ,.é中😀"


@pytest.fixture
def checkpoint(workplace):
    return write("runs/first/checkpoints/best.safetensors", CharTokenizer(LETTERS), context=12)


def guessing(export, guess):
    """The passages in the page, and what is printed."""
    options = ["--guess", guess, "--overwrite", "--title", "My <words>"]
    ended = export("first", "--to", "web", "page.html", *options)
    assert ended.status == 0, ended
    found = re.search(r'id="model">(.*)</script>', Path("page.html").read_text("utf-8"))
    return json.loads(found[1])["passages"], ended.out


# Passages of the characters of prose, which it does not have.
FRESH = ["".join(random.Random(i).choices(string.ascii_lowercase, k=200)) for i in range(8)]


def test_passages_of_validation_to_guess(trained, export):
    text = Path("book.txt").read_text()
    validation = text[int(0.9 * len(text)) : int(0.95 * len(text))]
    shown, printed = guessing(export, "validation")
    notice = f"{len(shown)} passages of validation to guess, which anyone with the page can read\n"
    assert notice in printed
    assert len(shown) > 1
    assert all(len(passage) == 200 and "\n" + passage in validation for passage in shown)
    assert "<title>My &lt;words&gt; · chargpt</title>" in Path("page.html").read_text("utf-8")


def test_passages_of_a_file_are_new_to_the_model_and_of_its_characters(trained, export):
    text = Path("book.txt").read_text()
    copied = max(text[: int(0.9 * len(text))].split("\n"), key=len)[:200]
    in_part = FRESH[7][:100] + copied[:100]
    Path("new.txt").write_text("\n".join(["", copied, *FRESH[:7], in_part, "é" * 200]))
    shown, _ = guessing(export, "new.txt")
    assert len(shown) >= 4
    assert set(shown) <= set(FRESH[:7])


def test_a_text_of_which_little_can_be_played(trained, export):
    Path("one.txt").write_text(FRESH[0])
    assert guessing(export, "one.txt")[0] == FRESH[:1], "its first line begins a line"
    shown, printed = guessing(export, "runs/first/config.yaml")
    assert shown == []
    assert "\nno game: runs/first/config.yaml " in printed
    Path("book.txt").write_text("Another text.")
    assert "not compared with the training text" in guessing(export, "one.txt")[1]


DOCUMENTS = ["ab" * 75, "ab\nd" * 80, "cdb" * 100]
PASSAGES = {  # a kind of documents and its end mark: the text and its passages
    ("line", "\n"): ("a\n" + "b" * 300, ["a\n" + "b" * 198]),
    ("part", "\x03"): ("text\n".join(DOCUMENTS), [text[:200] for text in DOCUMENTS[1:]]),
    ("file", "\x03"): (DOCUMENTS[0], []),
}


@pytest.mark.parametrize(("kind", "end"), PASSAGES)
def test_passages_to_guess_begin_with_documents(workplace, kind, end):
    text, expected = PASSAGES[kind, end]
    Path("texts.txt").write_text(text)
    rule = {"kind": kind, "end": end, "name": "text"}
    model = Path("none/best.safetensors")
    passages, printed = game_passages("texts.txt", model, CharTokenizer("abcd\n\x03"), rule)
    assert passages == expected
    assert ("of texts.txt to guess" in printed) == bool(expected)


@pytest.mark.parametrize("folder", ["empty", "new"])
def test_a_folder_is_written(checkpoint, export, folder):
    Path("empty").mkdir()
    ended = export("first", "--to", "hf", folder)
    assert (ended.status, ended.err) == (0, "")
    assert "MB, step 7 of runs/first" in ended.out
    assert {"README.md", "model.safetensors"} < set(os.listdir(folder))
    card = Path(folder, "README.md").read_text("utf-8")
    assert card.startswith("---\nlibrary_name: transformers\n")


def test_a_folder_is_whole_or_not_there(checkpoint, export, monkeypatch):
    before = sorted(os.listdir())
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr("base.files.os.replace", Mock(side_effect=full))
    ended = export("first", "--to", "hf", "other")
    one_line(ended, 1, "No space left on device", program="export.py")
    assert sorted(os.listdir()) == before


def test_the_card_of_a_run_and_less_without_it(trained, export):
    said = summary("first")
    shutil.copy(trained, "alone.safetensors")
    for model in ("first", "alone.safetensors"):
        assert export(model, "--to", "card", f"{model}.md").status == 0
    card = Path("first.md").read_text("utf-8")
    loss = f"{said['val_loss']:.4f} nats"
    training = round(said["characters"] / said["epochs"])
    parts = (
        f", {training:,} characters for training, ",
        f"| validation loss | {loss} (",
        f"uniform {said['uniform_loss']:.2f}, ",
        "```text\npython train.py ",
    )
    assert card.startswith("# first\n")
    assert [part for part in parts if part not in card] == []
    alone = Path("alone.safetensors.md").read_text("utf-8")
    assert alone.startswith("# alone\n") and loss in alone
    assert not re.search(r"uniform|train\.py|machine", alone)
    assert card.partition("## A sample")[2] == alone.partition("## A sample")[2] != ""


def test_the_command_of_a_card_names_the_files_of_a_list():
    setting = "data.path=[ann/a.txt,/home/ann/prose.txt]"
    assert public_setting(setting) == "data.path=[a.txt,prose.txt]"


def test_a_card_says_what_was_left_out_and_keeps_paths_and_markup_to_itself(
    workplace, train, export
):
    """Nor does a folder whose name is not UTF-8 end the run."""
    folder = workplace / os.fsdecode(b"a_b|c\xe9")
    folder.mkdir()
    (folder / "a_b|c.txt").write_text(Path("book.txt").read_text() + "\n````\n<b>")
    (folder / "notes.md").write_text("left out")
    given = (f"data.path={folder}", "trainer.max_steps=2", "data.tokenizer=byte")
    ended = train("name=own", *given)
    assert (ended.status, ended.err) == (0, "")
    assert f"to read all: 'data.path={workplace}/a_b|c\ufffd/**/*'" in ended.out
    assert export("own", "--to", "card", "own.md").status == 0
    card = Path("own.md").read_text("utf-8")
    assert "| text | a\\_b\\|c\ufffd; 256 distinct bytes, " in card
    assert "1 \\*.txt file read, 1 other file left out: 1 .md |" in card
    assert "'data.path=a_b|c\ufffd'" in card
    assert str(workplace) not in card and "to read all" not in card


@pytest.mark.promise
@pytest.mark.slow
def test_the_page_is_right(workplace, checkpoint, export):
    needs("onnx", "onnxruntime", "onnxscript")
    page = (ROOT / "docs/export.md").read_text("utf-8")
    page = page.replace("range(20)", "range(8)").replace("max_new_tokens=20", "max_new_tokens=8")
    blocks = re.findall(r"^```(python)?\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    own = {"HF_HOME": str(workplace / "home"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    said = set()
    for language, text in blocks:
        if language:
            if "transformers" not in text or importlib.util.find_spec("transformers"):
                program = [sys.executable, "-c", text]
                said.add(subprocess.check_output(program, env=os.environ | own, text=True))
            continue
        for line in text.splitlines():
            if "--guess" in line:  # needs the text of the run
                continue
            python, script, *arguments = shlex.split(line)
            ended = export(*arguments)
            assert (python, script, ended.status) == ("python", "export.py", 0), ended
            assert ("logits differ by at most" in ended.out) == (arguments[2] == "onnx"), ended
    model, meta = load_checkpoint(checkpoint)
    tokenizer = tokenizer_from(meta["vocabulary"])
    tokens = generate(model, torch.from_numpy(tokenizer.encode("The ")), 8, temperature=0)
    assert said == {tokenizer.decode(tokens.numpy()) + "\n"}
