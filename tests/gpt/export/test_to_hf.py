import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt.config import ModelConfig
from gpt.export.to_hf import WRAPPER, code, write
from gpt.inference.generate import generate
from gpt.model import GPT
from gpt.tokenizer import tokenizer_from
from tests.conftest import needs
from tests.model_files import about
from tests.reference.models import MIXED, PLACES, fill, name, third, tiny

LETTERS = "".join(sorted("\t\n\r !#'.<>ABadeknu|~\x00\x85\xa0é\u0301\u200b中\ufeff😀"))
CHARACTERS, BYTES = {"kind": "char", "characters": LETTERS}, {"kind": "byte"}
CONFIGS = [*MIXED[:12], *third(PLACES), MIXED[-1], *(tiny(positions="learned", context=context) for context in (1, 2))]


def written(path: Path, config: ModelConfig, vocabulary: dict[str, Any], **changes: Any) -> GPT:
    path.mkdir()
    model = fill(GPT(config, tokenizer_from(vocabulary).size)).eval()
    write(model, about(config, vocabulary, **changes), path)
    return model


def test_the_folder_is_complete(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    written(folder, tiny(), CHARACTERS)
    modules = "attention config errors model modeling_chargpt options positions".split()
    data = "config.json generation_config.json model.safetensors tokenizer.json tokenizer_config.json".split()
    assert sorted(os.listdir(folder)) == sorted([*data, *(f"{each}.py" for each in modules)])
    for file in folder.glob("*.py"):
        source = file.read_text("utf-8")
        assert "SPDX-License-Identifier: MIT" in source
        assert not re.search(r"^ *(from|import) (gpt|base)\b", source, re.MULTILINE)
        compile(source, file.name, "exec")
    # Of a folder on this disk, transformers loads only what this file imports.
    imported = re.findall(r"^from \.(\w+) import", code()[WRAPPER.name], re.MULTILINE)
    assert {*imported, WRAPPER.stem} == set(modules)


BEGIN = """
import importlib.util, json, sys
# As where chargpt is not installed.
sys.meta_path = [each for each in sys.meta_path if "chargpt" not in getattr(each, "__module__", "")]
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline
assert importlib.util.find_spec("gpt") is None and importlib.util.find_spec("base") is None, sys.path

def load(folder):
    kinds = AutoModelForCausalLM, AutoTokenizer
    return [kind.from_pretrained(folder, trust_remote_code=True) for kind in kinds]

"""
LOAD = """
for line in sys.stdin:
    asked, answer = json.loads(line), {}
    model, tokenizer = load(asked["folder"])
    with torch.no_grad():
        answer["logits"] = model(torch.tensor(asked["tokens"])).logits.tolist()
    answer["written"] = [
        model.generate(torch.tensor(prompts), max_new_tokens=asked["count"], do_sample=False).tolist()
        for prompts in asked["prompts"]
    ]
    answer["encoded"] = [tokenizer(text)["input_ids"] for text in asked["texts"]]
    answer["decoded"] = [tokenizer.decode(tokens) for tokens in asked["decode"]]
    print(json.dumps(answer))
"""


def elsewhere(program: str, folder: Path, requests: list[Any]) -> list[Any]:
    """Run a program from an empty folder, without this project and without a network."""
    needs("transformers", "tokenizers")
    empty, home = folder / "empty", folder / "home"
    empty.mkdir()
    own = {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "warning", "TQDM_DISABLE": "1"}
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    asked = "".join(json.dumps(each) + "\n" for each in requests)
    ended = subprocess.run(
        [sys.executable, "-c", BEGIN + program], cwd=empty, env=kept | own, capture_output=True, text=True, input=asked
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == "" and os.listdir(empty) == []
    return [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.mark.slow
@torch.no_grad()
def test_transformers_reads_and_writes_as_we_do(tmp_path: Path) -> None:
    rng, requests, models = random.Random(0), [], []
    for i, config in enumerate([ModelConfig(layers=2, dim=32, context=16), *CONFIGS]):
        vocabulary = BYTES if i in (1, 2) else CHARACTERS
        tokenizer, folder = tokenizer_from(vocabulary), tmp_path / f"model.{i}"
        models.append((written(folder, config, vocabulary), tokenizer))
        V, T = tokenizer.size, config.context
        tokens = [[rng.randrange(V) for _ in range(T)] for _ in range(3)]
        prompts = [[tokens[0][:1]], [[*line, *line[:2], *line][: 2 * T + 1] for line in tokens]]
        letters = "".join(rng.choices(LETTERS, k=1000))
        requests.append({
            "folder": str(folder), "tokens": tokens, "prompts": prompts, "count": 3 * T + 2,
            "texts": [letters, *LETTERS, "A B\n\n  \t a .", " ", ""],
            "decode": [tokenizer.encode(letters).tolist(), tokens[1]],
        })  # fmt: skip
    answers = elsewhere(LOAD, tmp_path, requests)
    assert len(answers) == len(models)
    for (model, tokenizer), asked, answer in zip(models, requests, answers, strict=True):
        what = name(model.config)
        logits = model(torch.tensor(asked["tokens"]))
        torch.testing.assert_close(torch.tensor(answer["logits"]), logits, rtol=0, atol=1e-5, msg=what)
        for prompts, texts in zip(asked["prompts"], answer["written"], strict=True):
            assert generate(model, prompts, asked["count"], temperature=0).tolist() == texts, what
        assert answer["encoded"] == [tokenizer.encode(text).tolist() for text in asked["texts"]], what
        assert answer["decoded"] == [tokenizer.decode(tokens) for tokens in asked["decode"]], what


MORE = """
first, tokenizer = load("../a")
second, _ = load("../b")
tokens = torch.arange(6)[None] % 5
losses = [model.train()(tokens, labels=tokens).loss.item() for model in (first, second)]
first(tokens, labels=tokens).loss.backward()
grown = all(weight.grad is not None for weight in first.parameters())
first.save_pretrained("../saved")
tokenizer.save_pretrained("../saved")
again, _ = load("../saved")
same = again(tokens).logits.equal(first.eval()(tokens).logits)
padded = None
try:
    second(tokens, attention_mask=torch.tensor([[0, 1, 1, 1, 1, 1]]))
except ValueError as error:
    padded = str(error)
unknown = tokenizer("AxB^é]\\\\C🙂")["input_ids"]
written = pipeline("text-generation", model="../a", trust_remote_code=True)("dad ", max_new_tokens=9, do_sample=False)
print(json.dumps([losses, grown, same, padded, unknown, written[0]["generated_text"]]))
"""


@pytest.mark.slow
def test_transformers_trains_saves_and_refuses(tmp_path: Path) -> None:
    ours = written(tmp_path / "a", tiny(tied=True, context=40, dropout=0.0), CHARACTERS)
    written(tmp_path / "b", tiny(dropout=0.5, positions="learned"), CHARACTERS)
    ((losses, grown, same, padded, unknown, text),) = elsewhere(MORE, tmp_path, [])
    tokens = torch.arange(6)[None] % 5
    expected = torch.nn.functional.cross_entropy(ours(tokens)[0, :-1], tokens[0, 1:])
    assert losses[0] == pytest.approx(expected.item(), abs=1e-5) and losses[1] > 0
    assert grown and same and padded.startswith("attention_mask: has zeros")
    tokenizer = tokenizer_from(CHARACTERS)
    assert unknown == tokenizer.encode("ABé").tolist(), "unknown characters are left out"
    assert text == tokenizer.decode(generate(ours, tokenizer.encode("dad "), 9, temperature=0).numpy())


DOCUMENTS = """
for line in sys.stdin:
    folder, prompts = json.loads(line)
    model, tokenizer = load(folder)
    torch.manual_seed(0)
    texts = [model.generate(max_new_tokens=300, do_sample=True).tolist()[0] for _ in range(5)]
    tokens = torch.tensor(prompts)
    batch = model.generate(tokens, max_new_tokens=300, do_sample=True).tolist()
    spelled = tokenizer("a\\n\\n\\x03b")["input_ids"]
    print(json.dumps([texts, batch, spelled, tokenizer.decode(spelled), tokenizer.eos_token, tokenizer.bos_token]))
"""


@pytest.mark.slow
def test_transformers_begins_and_ends_a_document(tmp_path: Path) -> None:
    requests, marks = [], []
    letters = {"kind": "char", "characters": "\x03\nab"}
    for i, (vocabulary, kind, end) in enumerate(
        [(letters, "line", "\n"), (letters, "paragraph", "\n\n"), (letters, "file", "\x03"), (BYTES, "line", "\n")]
    ):
        folder, tokenizer = tmp_path / f"model.{i}", tokenizer_from(vocabulary)
        written(folder, tiny(positions="learned"), vocabulary, documents={"kind": kind, "end": end, "name": ""})
        marks.append((end, tokenizer))
        requests.append([str(folder), [tokenizer.encode(text).tolist() for text in ("ab", "a\n", "ba")]])
    answers = elsewhere(DOCUMENTS, tmp_path, requests)
    for (end, tokenizer), (texts, batch, spelled, decoded, *special) in zip(marks, answers, strict=True):
        one = tokenizer.unit == "character" and len(end) == 1
        assert special == ([end, end] if one else [None, None])
        assert spelled == tokenizer.encode(decoded).tolist() and decoded == "a\n\n\x03b"
        if tokenizer.unit == "byte":
            assert all(text[0] == 10 and text[1:].index(10) == len(text) - 2 for text in texts if text[-1] == 10)
            continue
        for text in map(tokenizer.decode, texts):
            assert text.startswith(end) and text.index(end, 1) == len(text) - len(end), (end, text)
        for text in map(tokenizer.decode, batch):
            assert set(text[text.index(end, 3 - len(end)) + len(end) :]) <= {end[-1]}, "ended texts are padded"
