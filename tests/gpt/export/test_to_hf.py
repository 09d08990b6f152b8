import itertools
import json
import os
import random
import subprocess
import sys

import pytest
import torch

from gpt.config import ModelConfig
from gpt.export.to_hf import write
from gpt.inference.generate import generate
from gpt.model import GPT
from gpt.tokenizer import ByteTokenizer, CharTokenizer, tokenizer_from
from tests.conftest import needs
from tests.model_files import about, write_model_file
from tests.reference.models import MIXED, PLACES, fill, name, tiny

LETTERS = "".join(sorted("\t\n\r !#'.<>ABadeknu|~\x00\x85\xa0é\u0301\u200b中\ufeff😀"))
CHARACTERS = {"kind": "char", "characters": LETTERS}
CONFIGS = [
    ModelConfig(layers=2, dim=32, context=16),
    MIXED[0],
    MIXED[-1],
    *PLACES[2::7],  # one for each way for places to enter
    *(tiny(positions="learned", context=context) for context in (1, 2)),
]


def written(path, config, vocabulary, **changes):
    path.mkdir()
    model = fill(GPT(config, tokenizer_from(vocabulary).size)).eval()
    write(model, about(config, vocabulary, **changes), path)
    return model


def test_each_module_names_its_licence(tmp_path):
    folder = tmp_path / "out"
    written(folder, tiny(), CHARACTERS)
    for file in folder.glob("*.py"):
        assert "SPDX-License-Identifier: MIT" in file.read_text("utf-8")


# Answers [program, what it is asked] line by line, as where chargpt is not installed.
ELSEWHERE = """
import importlib.util, json, sys
sys.meta_path = [each for each in sys.meta_path if "chargpt" not in getattr(each, "__module__", "")]
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline
assert importlib.util.find_spec("gpt") is None and importlib.util.find_spec("base") is None, sys.path

def load(folder):
    kinds = AutoModelForCausalLM, AutoTokenizer
    return [kind.from_pretrained(folder, trust_remote_code=True) for kind in kinds]

for line in sys.stdin:
    program, asked = json.loads(line)
    exec(program)
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """Runs programs in an empty folder, without this project and without a network."""
    needs("transformers", "tokenizers")
    place = tmp_path_factory.mktemp("elsewhere")
    empty = tmp_path_factory.mktemp("empty")
    environment = os.environ | {
        "HF_HOME": str(place), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "warning", "TQDM_DISABLE": "1",
    }  # fmt: skip
    environment.pop("PYTHONPATH", None)
    options = {"cwd": empty, "env": environment, "text": True}
    options |= {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    complaints = place / "stderr"
    with (
        open(complaints, "w") as file,
        subprocess.Popen([sys.executable, "-c", ELSEWHERE], stderr=file, **options) as process,
    ):

        def ask(program, asked):
            print(json.dumps([program, asked]), file=process.stdin, flush=True)
            answer = process.stdout.readline()
            assert answer, complaints.read_text()
            return json.loads(answer)

        yield ask
    assert (process.returncode, complaints.read_text(), os.listdir(empty)) == (0, "", [])


READS = """
folder, count, tokens, prompts, texts, encoded = asked
model, tokenizer = load(folder)
with torch.no_grad():
    logits = model(torch.tensor(tokens)).logits.tolist()
written = [
    model.generate(torch.tensor(each), max_new_tokens=count, do_sample=False).tolist()
    for each in prompts
]
read = [tokenizer(text)["input_ids"] for text in texts]
decoded = [tokenizer.decode(each) for each in encoded]
answer = [logits, written, read, decoded]
"""


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS, ids=name)
@torch.no_grad()
def test_transformers_reads_and_writes_as_we_do(config, tmp_path, elsewhere):
    rng = random.Random(0)
    vocabulary = {"kind": "byte"} if config in MIXED else CHARACTERS
    tokenizer = tokenizer_from(vocabulary)
    model = written(tmp_path / "model", config, vocabulary)
    V, T = tokenizer.size, config.context
    tokens = [[rng.randrange(V) for _ in range(T)] for _ in range(3)]
    prompts = [[tokens[0][:1]], [[*line, *line[:2], *line][: 2 * T + 1] for line in tokens]]
    letters = "".join(rng.choices(LETTERS, k=1000))
    texts = [letters, *LETTERS, "A B\n\n  \t a .", " ", ""]
    encoded = [tokenizer.encode(letters).tolist(), tokens[1]]
    count = 3 * T + 2
    asked = [str(tmp_path / "model"), count, tokens, prompts, texts, encoded]
    logits, *answers = elsewhere(READS, asked)
    expected = model(torch.tensor(tokens))
    torch.testing.assert_close(torch.tensor(logits), expected, rtol=0, atol=1e-5)
    greedy = [generate(model, each, count, temperature=0).tolist() for each in prompts]
    read = [tokenizer.encode(text).tolist() for text in texts]
    decoded = [tokenizer.decode(each) for each in encoded]
    assert answers == [greedy, read, decoded]


TRAINS = """
folder = asked
first, tokenizer = load(f"{folder}/a")
second, _ = load(f"{folder}/b")
tokens = torch.arange(6)[None] % 5
losses = [model.train()(tokens, labels=tokens).loss.item() for model in (first, second)]
first(tokens, labels=tokens).loss.backward()
grown = all(weight.grad is not None for weight in first.parameters())
first.save_pretrained(f"{folder}/saved")
tokenizer.save_pretrained(f"{folder}/saved")
again, _ = load(f"{folder}/saved")
same = again(tokens).logits.equal(first.eval()(tokens).logits)
padded = None
try:
    second(tokens, attention_mask=torch.tensor([[0, 1, 1, 1, 1, 1]]))
except ValueError as error:
    padded = str(error)
unknown = tokenizer("AxB^é]\\\\C🙂")["input_ids"]
writer = pipeline("text-generation", model=f"{folder}/a", trust_remote_code=True)
text = writer("dad ", max_new_tokens=9, do_sample=False)[0]["generated_text"]
answer = [losses, grown, same, padded, unknown, text]
"""


@pytest.mark.slow
def test_transformers_trains_saves_and_refuses(tmp_path, elsewhere):
    ours = written(tmp_path / "a", tiny(tied=True, context=40, dropout=0.0), CHARACTERS)
    written(tmp_path / "b", tiny(dropout=0.5, positions="learned"), CHARACTERS)
    losses, grown, same, padded, unknown, text = elsewhere(TRAINS, str(tmp_path))
    tokens = torch.arange(6)[None] % 5
    expected = torch.nn.functional.cross_entropy(ours(tokens)[0, :-1], tokens[0, 1:])
    assert losses[0] == pytest.approx(expected.item(), abs=1e-5) and losses[1] > 0
    assert grown and same and padded.startswith("attention_mask: has zeros")
    tokenizer = tokenizer_from(CHARACTERS)
    assert unknown == tokenizer.encode("ABé").tolist(), "unknown characters are left out"
    assert text == tokenizer.decode(
        generate(ours, tokenizer.encode("dad "), 9, temperature=0).numpy()
    )


GREEDY = """
folder, prompts, batch = asked
model, tokenizer = load(folder)
options = {"max_new_tokens": 40, "do_sample": False}
texts = [
    model.generate(**tokenizer(text, return_tensors="pt"), **options)[0].tolist()
    for text in prompts
]
torch.manual_seed(0)
batch = model.generate(torch.tensor(batch), max_new_tokens=300, do_sample=True).tolist()
special = [tokenizer.eos_token, tokenizer.bos_token]
tokenizer.save_pretrained(folder)
again = load(folder)[1]
spelled = again("a\\n\\n\\x03b")["input_ids"]
writer = pipeline("text-generation", model=folder, trust_remote_code=True)
piped = writer("ab", return_tensors=True, **options)[0]["generated_token_ids"]
unprompted = model.generate(**options)[0].tolist()
answer = [texts, batch, special, spelled, piped, unprompted]
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("characters", "kind", "end"),
    [("\x03\nab", "paragraph", "\n\n"), ("\x03\nab", "file", "\x03"), (None, "line", "\n")],
    ids=["paragraphs", "files", "lines of bytes"],
)
def test_greedy_documents_are_those_of_sample(characters, kind, end, workplace, sample, elsewhere):
    tokenizer = CharTokenizer(characters) if characters else ByteTokenizer()
    vocabulary = tokenizer.vocabulary
    folder = workplace / "model"
    documents = {"kind": kind, "end": end, "name": ""}
    model = written(folder, tiny(token_shift=True), vocabulary, documents=documents)
    write_model_file("m.st", model, vocabulary, documents=documents)
    # prompts of all lengths up to 4, of which some end with a whole mark or its beginning
    prompts = ["".join(p) for length in range(5) for p in itertools.product("\nab", repeat=length)]
    arguments = [f"--prompt={prompt}" for prompt in prompts[1:]]
    settings = ["--json", "--num-chars", "40", "--temperature", "0"]
    lines = sample("m.st", *settings).out + sample("m.st", *settings, *arguments).out
    batch = [tokenizer.encode(text).tolist() for text in ("ab", "a\n", "ba")]
    asked = [str(folder), prompts, batch]
    texts, batch, special, spelled, piped, unprompted = elsewhere(GREEDY, asked)
    assert special == ([end, end] if characters and len(end) == 1 else [None, None])
    assert spelled == tokenizer.encode(f"{end}a\n\n\x03b").tolist()
    for text in map(tokenizer.decode, batch if characters else ()):  # few end in bytes
        padding = text[text.index(end, 3 - len(end)) + len(end) :]
        assert set(padding) <= {end[-1]}, "ended texts are padded"
    begun_in_prompt = 0
    for prompt, tokens, line in zip(prompts, texts, lines.splitlines(), strict=True):
        ours = json.loads(line)
        whole = tokenizer.decode(tokens)
        assert ours["prompt"] == prompt
        whole = whole.removeprefix(end)
        position = whole.find(end, max(0, len(prompt) - len(end) + 1))
        assert ours["ended"] == (position >= 0)
        if ours["ended"]:
            assert position + len(end) == len(whole), "nothing follows the end mark"
            begun_in_prompt += position < len(prompt)
            whole = whole[: max(position, len(prompt))]
        assert prompt + ours["text"] == whole
    assert (begun_in_prompt > 0) == (len(end) > 1)
    assert piped == texts[prompts.index("ab")] and unprompted == texts[0]
