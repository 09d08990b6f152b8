"""sample.py in this process and as a command, on a model of a few steps."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from data.tokenizer import tokenizer_from
from gpt.checkpoint import load_checkpoint
from tests.conftest import ROOT, Ended

Call = Callable[..., Ended]


@pytest.fixture
def trained(train: Call) -> Path:
    assert train("name=first").status == 0
    return Path("runs/first/checkpoints/best.ckpt")


def test_text_is_that_of_a_naive_loop(trained: Path, sample: Call) -> None:
    """Greedy and drawn text against one forward per character, written out here."""
    model, meta = load_checkpoint(trained)
    tokenizer = tokenizer_from(meta["vocabulary"])
    for temperature in (0.0, 0.7):
        generator = torch.Generator().manual_seed(5)
        tokens = tokenizer.encode("Abc de").tolist()
        for _ in range(60):
            with torch.no_grad():
                logits = model(torch.tensor([tokens[-32:]]))[0, -1].double()
            if temperature == 0:
                tokens.append(int(logits.argmax()))
            else:
                weights = np.exp((logits / temperature - (logits / temperature).max()).numpy())
                drawn = torch.multinomial(torch.from_numpy(weights / weights.sum())[None], 1, generator=generator)
                tokens.append(int(drawn))
        ended = sample("--prompt", "Abc de", "--num-chars", "60", "--temperature", str(temperature), "--seed", "5")
        assert ended.status == 0
        assert ended.out == tokenizer.decode(np.array(tokens)) + "\n"


def test_the_same_seed_gives_the_same_text_and_says_which(trained: Path, sample: Call) -> None:
    first = sample("--num-chars", "50")
    seed = re.search(r"--seed (\d+)", first.err)
    assert seed
    assert sample("--num-chars", "50", "--seed", seed[1]).out == first.out
    assert sample("--num-chars", "50", "--seed", str(int(seed[1]) + 1)).out != first.out


def test_a_checkpoint_is_enough(trained: Path, sample: Call) -> None:
    """With the run, its config and the text gone."""
    expected = sample(str(trained), "--num-chars", "40", "--seed", "1").out
    shutil.copy(trained, "mine.ckpt")
    shutil.rmtree("runs")
    Path("book.txt").unlink()
    shutil.rmtree("cache")
    assert sample("mine.ckpt", "--num-chars", "40", "--seed", "1").out == expected


def test_what_may_stand_for_a_checkpoint(trained: Path, sample: Call, train: Call) -> None:
    texts = {
        sample(*given, "--num-chars", "40", "--seed", "1").out
        for given in ([], ["first"], ["runs/first"], [str(trained)])
    }
    assert len(texts) == 1
    train("name=second", "seed=9")
    assert "runs/second/checkpoints/best.ckpt" in sample("--num-chars", "1").err


def test_several_samples_differ_and_are_numbered(trained: Path, sample: Call) -> None:
    ended = sample("--num-samples", "3", "--num-chars", "40", "--seed", "1", "--prompt", "The ")
    parts = re.split(r"^--- \d\n", ended.out, flags=re.MULTILINE)[1:]
    assert len(parts) == 3 == len(set(parts))
    assert all(part.startswith("The ") and len(part) == 45 for part in parts)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--prompt", "né"], "'é' (U+00E9) at position 1"),
        (["nothing"], "nothing: no such checkpoint or run; the newest are runs/first"),
        (["--temperatur", "1"], "nearest: --temperature"),
        (["--temperature", "-1"], "at least 0"),
        (["--temperature", "nan"], "at least 0"),
        (["--top-k", "0"], "at least 1"),
        (["--num-chars", "1.5"], "a whole number"),
        (["--num-samples", "0"], "at least 1"),
        (["--device", "cuda:99"], "--device cuda:99"),
        (["--device", "toaster"], "argument --device: toaster: must be cpu"),
        (["book.txt"], "is damaged or no checkpoint"),
    ],
)
def test_wrong_words_get_one_line(trained: Path, sample: Call, arguments: list[str], said: str) -> None:
    ended = sample(*arguments)
    assert ended.status == 2 and ended.out == ""
    assert ended.err.startswith("sample.py: ") and ended.err.count("\n") == 1 and said in ended.err


def test_before_the_first_run(workplace: Path, sample: Call) -> None:
    ended = sample()
    assert ended.status == 2 and "python train.py" in ended.err


def test_top_k_is_clamped_and_one_is_greedy(trained: Path, sample: Call) -> None:
    assert sample("--top-k", "100000", "--num-chars", "20", "--seed", "1").status == 0
    greedy = sample("--temperature", "0", "--num-chars", "20").out
    assert sample("--top-k", "1", "--num-chars", "20").out == greedy


def test_bytes_become_whole_characters(train: Call, sample: Call) -> None:
    Path("greek.txt").write_text("μῆνιν ἄειδε θεὰ Πηληϊάδεω Ἀχιλῆος\n" * 200, encoding="utf-8")
    assert train("data.path=greek.txt", "data.tokenizer=byte", "trainer.max_steps=300", "name=g").status == 0
    ended = sample("g", "--prompt", "μῆ", "--temperature", "0", "--num-chars", "20")
    assert ended.status == 0 and ended.out.startswith("μῆνιν")


def test_as_a_command_it_starts_without_what_only_training_needs(trained: Path) -> None:
    code = (
        "import sys, sample; status = sample.cli(['--num-chars', '3']); "
        "print(status, sorted({'lightning', 'hydra', 'omegaconf', 'tensorboard', 'pooch'} & set(sys.modules)))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert ended.stdout.endswith("0 []\n"), ended.stdout + ended.stderr


def test_a_reader_that_leaves_early_is_no_error(trained: Path) -> None:
    command = f"'{sys.executable}' '{ROOT / 'sample.py'}' --num-chars 3000 | head -c 10"
    begun = time.perf_counter()
    ended = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert ended.returncode == 0 and len(ended.stdout) == 10
    assert "Traceback" not in ended.stderr and "BrokenPipe" not in ended.stderr
    assert time.perf_counter() - begun < 60
