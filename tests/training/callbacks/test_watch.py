import html
import re
import signal
import warnings
from pathlib import Path

import pytest
import torch

from gpt.checkpoint import load_checkpoint
from gpt.inference.generate import generate
from reports.tensorboard import as_markdown
from tests.conftest import assert_same_weights, board, last
from tests.faults import faults
from tests.faults.processes import run
from tests.faults.test_resume import assert_same

WATCHED = ["watch.pictures=true", "trainer.max_steps=20"]
TAGS = [f"view_attention/L{layer}H{head}" for layer in range(2) for head in range(2)]


def images(name):
    """The pictures that TensorBoard shows, by tag and step."""
    shown = board(name)
    found = [
        ((tag, one.step), one.encoded_image_string)
        for tag in shown.Tags()["images"]
        for one in shown.Images(tag)
    ]
    assert len(found) == len(dict(found)), "twice"
    return dict(found)


@pytest.mark.slow
def test_pictures_come_once_a_validation_and_change_nothing(workplace):
    assert run("name=whole", *WATCHED).status == 0
    assert run("name=unwatched", "trainer.max_steps=20").status == 0
    whole = images("whole")
    assert sorted(whole) == sorted((tag, step) for tag in TAGS for step in (10, 20))
    assert images("unwatched") == {}
    assert len(set(whole.values())) == len(whole), "each is another"
    # Killed when the pictures of step 20 are written, but not the checkpoint.
    assert run("name=cut", *WATCHED, fault=(faults.in_write, 2, 50_000)).status == -signal.SIGKILL
    assert images("cut") == whole, "without the resumed run"
    assert run("resume=runs/cut", defaults=False).status == 0
    assert images("cut") == whole
    ours, theirs = (last(name)["history"]["samples"] for name in ("whole", "cut"))
    assert_same(ours, theirs, "samples")
    assert_same_weights("unwatched", "whole")


@pytest.mark.parametrize("callbacks", ["[]", "ema", "[ema,snapshots]"])
def test_texts_are_what_the_model_writes(train, callbacks):
    assert train("name=a", "trainer.max_steps=10", f"callbacks={callbacks}").status == 0
    model, meta = load_checkpoint("runs/a")
    ((step, texts),) = last("a")["history"]["samples"]["entries"]
    assert step == 10 and [temperature for temperature, _, _ in texts] == [0.9, 0.9]
    assert texts[0][1] != texts[1][1], "the prompts"
    letters = meta["vocabulary"]["characters"]
    for number, (temperature, prompt, text) in enumerate(texts):
        assert prompt in Path("book.txt").read_text()
        tokens = torch.tensor([[letters.index(letter) for letter in prompt]])
        written = generate(model, tokens, len(text), temperature=temperature, seed=number % 2)
        assert "".join(letters[token] for token in written[0, len(prompt) :]) == text
    assert [text.step for text in board("a").Tensors("samples/text_summary")] == [10]


@pytest.mark.parametrize("text", [
    "  two\n\n\n   lines  \n", "\x02\x1b", "<b>&amp;</b> `a` ```\n* x\n# y\n[l](javascript:x)</code></pre>",
])  # fmt: skip
def test_text_comes_through_markdown(text):
    """TensorBoard's own way from Markdown to HTML leaves nothing but what was written."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of what TensorBoard uses
        from tensorboard.plugin_util import markdown_to_safe_html
    made = markdown_to_safe_html(as_markdown([("a prompt", text), (text, text)]))
    codes = [html.unescape(code) for code in re.findall("<code>([^<]*)</code>", made)]
    assert codes == ["a prompt", *3 * [text.replace("\x02\x1b", "␂␛")]]
    assert made.count("<code") == 4, made
