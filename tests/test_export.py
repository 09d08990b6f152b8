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
from types import ModuleType
from unittest.mock import Mock

import pytest
import torch

import export as export_script
from data.tokenizer import tokenizer_from
from gpt.checkpoint import load_checkpoint
from gpt.config import ModelConfig
from gpt.inference.generate import generate
from gpt.model import GPT
from tests.conftest import ROOT, Call, less_progress, needs, one_line
from tests.model_files import write_model_file
from tests.reference.models import fill

PAGE = (ROOT / "docs/export.md").read_text("utf-8")
LETTERS = "\n\tThe quickbrownfox ,.é中😀"


def make(path: str, **changes) -> Path:
    config = ModelConfig(layers=2, heads=2, dim=16, context=12, **changes)
    vocabulary = {"kind": "char", "characters": "".join(sorted(set(LETTERS)))}
    return write_model_file(path, fill(GPT(config, len(vocabulary["characters"]))), vocabulary)


@pytest.fixture
def checkpoint(workplace: Path) -> Path:
    return make("runs/first/checkpoints/best.safetensors")


def test_a_page_is_written(checkpoint: Path, export: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpt.export import to_web_page

    ended = export("first", "--to", "web", "page.html")
    assert ended.status == 0 and ended.err == "" and "open 'page.html' in a browser" in ended.out
    assert Path("page.html").read_text("utf-8") == to_web_page.page(*load_checkpoint(checkpoint))
    assert sorted(os.listdir()) == ["book.txt", "page.html", "runs"]

    monkeypatch.setattr(to_web_page, "write_web", Mock(side_effect=KeyboardInterrupt))
    ended = export("first", "--to", "web", "slow.html")
    assert ended.status == 130 and sorted(os.listdir()) == ["book.txt", "page.html", "runs"]


def test_a_page_with_passages_to_guess(trained: Path, export: Call) -> None:
    text, characters = Path("book.txt").read_text(), load_checkpoint(trained)[1]["vocabulary"]["characters"]
    train, validation = text[: int(0.9 * len(text))], text[int(0.9 * len(text)) : int(0.95 * len(text))]

    def passages(file: str) -> list[str]:
        return json.loads(re.search(r'id="model">(.*)</script>', Path(file).read_text("utf-8"))[1])["passages"]

    ended = export("first", "--to", "web", "page.html", "--guess", "validation")
    assert (
        ended.status == 0
        and f"{len(passages('page.html'))} passages of validation to guess, which whoever has the page can read; "
        in ended.out
    )
    assert len(passages("page.html")) > 1
    for passage in passages("page.html"):
        assert len(passage) == 200 and "\n" + passage in validation
    # Of a file: what occurs in the training text, even in part, and what has other characters is left out.
    fresh = ["".join(random.Random(i).choices(sorted(set(characters) - {"\n", " "}), k=200)) for i in range(8)]
    copied = max(train.split("\n"), key=len)[:200]
    Path("new.txt").write_text("\n".join(["", copied, *fresh[:7], fresh[7][:100] + copied[:100], "é" * 200]))
    assert export("first", "--to", "web", "new.html", "--guess", "new.txt").status == 0
    assert len(passages("new.html")) >= 4 and set(passages("new.html")) <= set(fresh[:7])
    Path("one.txt").write_text(fresh[0])  # the first line begins a line, too
    assert export("first", "--to", "web", "one.html", "--guess", "one.txt").status == 0
    assert passages("one.html") == [fresh[0]]
    Path("book.txt").write_text(text + "more")
    ended = export("first", "--to", "web", "changed.html", "--guess", "validation")
    one_line(ended, 2, "--guess validation: ", "is not on this machine; name a text file instead", program="export.py")
    ended = export("first", "--to", "web", "changed.html", "--guess", "new.txt")
    assert ended.status == 0 and "not compared with the training text" in ended.out
    Path("binary.txt").write_bytes(bytes(range(256)))
    Path("latin.txt").write_bytes(b"caf\xe9 " * 50)
    Path("empty.txt").touch()
    for arguments, said in {
        "web none.html --guess binary.txt": "byte 128 is not utf-8 (invalid start byte)\n",
        "web none.html --guess latin.txt": "latin.txt: latin.txt: byte 3 is not utf-8 (invalid continuation byte)\n",
        "web none.html --guess empty.txt": "--guess empty.txt: has no 200 characters",
        "onnx model.onnx --guess new.txt": "--guess new.txt: is for --to web, not onnx",
        "web none.html --guess none.txt": "--guess none.txt: no such file",
        "web none.html --guess runs/first/config.yaml": "has no 200 characters from the beginning of a line",
    }.items():
        one_line(export("first", "--to", *arguments.split()), 2, said, program="export.py")
        assert not Path("none.html").exists()


PLAIN = {"qk_norm": False, "key_offset": False, "token_shift": False, "conv_taps": 1}  # what transformers has, too


@pytest.mark.slow
def test_a_model_that_says_something_else_is_not_kept(export: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("transformers")
    make("runs/first/checkpoints/best.safetensors", **PLAIN)
    monkeypatch.setattr("gpt.export.parity.TOLERANCE", -1.0)
    for format, out in (("torch", "out.pt2"), ("hf", "out")):
        ended = export("first", "--to", format, out)
        assert ended.status == 2 and ended.out == ""
        said = ended.err.split("it\n")[-1]
        assert re.fullmatch(r"export.py: logits differ by .* must be at most -1; nothing was written\n", said)
        assert sorted(os.listdir()) == ["book.txt", "runs"]


def test_wrong_words_get_one_line_and_leave_nothing(checkpoint: Path, export: Call) -> None:
    Path("old.onnx").write_text("mine")
    Path("folder").mkdir()
    before, long = sorted(Path().rglob("*")), "n" * 300
    for arguments, said in {
        "nothing --to onnx model.onnx": "nothing: no such model or run; the newest are runs/first",
        "book.txt --to onnx model.onnx": "book.txt: is damaged or no model file",
        "first --to onnx model.bin": "model.bin: must end in .onnx", "first --to web page": "page: must end in .html",
        "first --to torch model.pt": "OUT model.pt: must end in .pt2", "first --to hf folder": "OUT folder: exists",
        "first --to onnx none/model.onnx": "OUT none/model.onnx: no such folder: none",
        "first --to onnx book.txt/model.onnx": "no such folder: book.txt",
        "first --to onnx old.onnx": "OUT old.onnx: exists; give another name, or --overwrite to replace it",
        "first --to hf new": "transformers: model.qk_norm=true (must be false), model.key_offset=true (must be false), "
        "model.token_shift=true (must be false), model.conv_taps=4 (must be 1)",
        "first --to gguf model.gguf": "argument --to: invalid choice: 'gguf' (choose from",
        "first --to onnx": "arguments are required: OUT", "first model.onnx": "arguments are required: --to",
        "first --to onnx model.onnx --tow": "nearest: --to", f"first --to onnx {long}.onnx": "File name too long",
    }.items():  # fmt: skip
        ended = export(*arguments.split())
        assert (ended.status, ended.out) == (1 if long in arguments else 2, ""), arguments
        one_line(ended, ended.status, said, program="export.py")
        assert sorted(Path().rglob("*")) == before and Path("old.onnx").read_text() == "mine"
    shutil.copy(checkpoint, "model.html")
    one_line(export("model.html", "--to", "web", "model.html", "--overwrite"), 2, "is being read", program="export.py")
    assert Path("model.html").read_bytes() == checkpoint.read_bytes()


def test_a_missing_package_is_named_with_the_command_that_adds_it(export: Call) -> None:
    make("runs/first/checkpoints/best.safetensors", **PLAIN)
    for format, package in (("onnx", "onnx"), ("onnx", "onnxscript"), ("onnx", "onnxruntime"), ("hf", "transformers")):
        with pytest.MonkeyPatch.context() as patch:
            for other in {"onnx", "onnxruntime", "onnxscript"} - {package}:  # of which some machines have none
                patch.setitem(sys.modules, other, ModuleType(other))
            patch.setitem(sys.modules, package, None)  # importing it fails
            ended = export("first", "--to", format, "out" + export_script.FORMATS[format][0])
        assert ended.status == 2 and ended.out == ""
        assert ended.err == f"export.py: {package} is not installed: pip install -c constraints.txt -e '.[export]'\n"
        assert sorted(os.listdir()) == ["book.txt", "runs"]


@pytest.mark.slow
def test_as_a_command_it_says_one_line_and_needs_no_training_packages(workplace: Path) -> None:
    needs("onnx", "onnxruntime", "onnxscript", "transformers")
    make("model.safetensors", **PLAIN)
    code = "import sys, export; formats = {'onnx': 'out.onnx', 'torch': 'out.pt2', 'hf': 'out'}; "
    code += "print([export.cli(['model.safetensors', '--to', *each]) for each in formats.items()], "
    code += "sorted({'lightning', 'hydra', 'omegaconf', 'tensorboard', 'pooch'} & set(sys.modules)))"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, env=environment)
    assert ended.returncode == 0 and less_progress(ended.stderr) == "", ended.stderr
    *lines, last = ended.stdout.splitlines()
    for line, out in zip(lines, ("out.onnx", "out.pt2", "out"), strict=True):
        assert line.startswith(f"{out}: ") and "logits differ by at most" in line
    assert last == "[0, 0, 0] []"


@pytest.mark.slow
def test_the_page_is_right(export: Call) -> None:
    needs("onnx", "onnxruntime", "onnxscript", "transformers")
    make("runs/first/checkpoints/best.safetensors")
    make("runs/plain/checkpoints/best.safetensors", **PLAIN)
    said = []
    blocks = re.findall(r"^```(python)?\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 7
    for language, text in blocks:
        if language:
            text = text.replace("max_new_tokens=20", "max_new_tokens=8").replace("range(20)", "range(8)")
            with redirect_stdout(io.StringIO()) as out:
                exec(text, {})
            said.append(out.getvalue())
        for line in [] if language else text.splitlines():
            python, script, *arguments = shlex.split(line)
            assert python == "python" and script in ("train.py", "export.py")
            assert script == "train.py" or export(*arguments).status == 0, line
    written = []
    for run in ("first", "plain"):
        model, meta = load_checkpoint(f"runs/{run}/checkpoints/best.safetensors")
        tokenizer = tokenizer_from(meta["vocabulary"])
        tokens = generate(model, torch.from_numpy(tokenizer.encode("The ")), 8, temperature=0)[0]
        written.append(tokenizer.decode(tokens.numpy()) + "\n")
    count = len(load_checkpoint("runs/first/checkpoints/best.safetensors")[0].state_dict())
    assert said == [f"{count} tensors, step 17\n", written[0], written[0], written[1]]
