import dataclasses
import itertools
import re
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from base.errors import InputError
from base.options import spell
from data.tokenizer import CharTokenizer, tokenizer_from
from gpt.config import ModelConfig
from gpt.export.to_huggingface import check, nearest, starcoder2, write_hf, write_tokenizer
from gpt.inference.generate import generate
from tests.conftest import needs
from tests.model_files import filled
from tests.reference.models import ALL, name, tiny

# What tokenizers like to change, and what serves them as a mark.
NASTY = (
    "\x00\t\n\r \x7f\x85\xa0éE\u0301\u0345İıßﬁＡ①\u200b\u200d\u2028\ufeff\ufffd▁Ġċ中한\uac00ा"
    "\U0001f469\U0001f3fd\U0001f52c𝒜\U0010ffff#<>/s|[]UNKabc.,'"
)
VOCABULARY = {"kind": "char", "characters": "\n abcdefghi"}
# Each of the two architectures with all options it has.
FIT = [
    tiny(heads=3, attention="explicit", qk_norm=False, **options)
    for options in (
        {"positions": "learned", "activation": "gelu", "tied": True, "window": 7},
        {"positions": "sinusoidal", "activation": "gelu", "bias": True, "tied": True},
        {"positions": "none", "activation": "relu2"}, {"positions": "rotary", "activation": "gelu", "tied": True},
        *({"positions": each, "activation": "relu2", "bias": True, "dropout": 0.1} for each in ("learned", "rotary")),
        *({"positions": "rotary", "window": window, "bias": window == 3} for window in (1, 2, 3, 7, 20)),
    )
]  # fmt: skip


def load(config: ModelConfig, folder: Path) -> tuple:
    needs("transformers")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = filled(config)
    assert write_hf(model, {"vocabulary": VOCABULARY}, folder) < 1e-5
    return model, AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("config", FIT, ids=name)
def test_logits_and_greedy_text_are_those_of_the_model(config: ModelConfig, tmp_path: Path) -> None:
    model, theirs, tokenizer = load(config, tmp_path / "folder")
    for batch, length in itertools.product((1, 3), (1, 2, 7)):
        tokens = torch.randint(11, (batch, length))
        assert torch.allclose(theirs(tokens).logits, model(tokens), rtol=0, atol=1e-5)
    prompt = tokenizer(["b a", "\n i"], return_tensors="pt")
    expected = generate(model, prompt["input_ids"], 4, temperature=0)
    found = theirs.generate(**prompt, do_sample=False, max_new_tokens=4)
    assert torch.equal(found, expected)
    characters = tokenizer_from(VOCABULARY)
    assert tokenizer.batch_decode(found) == [characters.decode(row.numpy()) for row in expected]
    for length in (2, 7, 12) if config.positions == "rotary" else ():
        tokens = torch.randint(11, (2, length))
        found = theirs.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=30)
        assert torch.equal(found, generate(model, tokens, 30, temperature=0)), length


def test_what_is_refused_would_be_taken_with_the_values_it_names() -> None:
    """All options that stand in the way are named; Starcoder2 alone has windows, and none of them ALiBi."""
    for config in [*ALL, *FIT]:
        wanted = {"norm": "layernorm", "qk_norm": False, "key_offset": False, "token_shift": False, "conv_taps": 1}
        if config.positions == "alibi":
            wanted["positions"] = "learned"
        if config.positions != "rotary" and config.attention_window < config.context:
            wanted["window"] = None
        wrong = {key: value for key, value in wanted.items() if getattr(config, key) != value}
        named = [f"model.{key}={spell(getattr(config, key))} (must be {spell(value)})" for key, value in wrong.items()]
        with pytest.raises(InputError) if wrong else nullcontext() as caught:
            check(config, nearest(config)[0])
        if wrong:
            said = "--to hf: no equivalent architecture in transformers: "
            assert str(caught.value) == said + ", ".join(named)
        changed = dataclasses.replace(config, **wrong)
        needed, convert = nearest(changed)
        check(changed, needed)
        assert (convert is starcoder2) == (config.positions == "rotary")


def tokenizer_for(vocabulary: dict, folder: Path):
    needs("transformers")
    from transformers import AutoTokenizer, GPT2Config

    folder.mkdir(exist_ok=True)
    GPT2Config().save_pretrained(folder)
    write_tokenizer(vocabulary, 10**6, folder)
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def nasty(tmp_path_factory: pytest.TempPathFactory):
    vocabularies = {"nasty": CharTokenizer(NASTY).vocabulary, "bytes": {"kind": "byte"}}
    made = (tokenizer_for(each, tmp_path_factory.mktemp(name)) for name, each in vocabularies.items())
    return CharTokenizer(NASTY), *made


@settings(max_examples=100, deadline=None)
@given(text=st.text(alphabet=NASTY))
def test_any_text_of_the_vocabulary_comes_back(nasty, text: str) -> None:
    ours, theirs, _ = nasty
    tokens = theirs(text)["input_ids"]
    assert tokens == ours.encode(text).tolist()
    assert theirs.decode(tokens) == text == theirs.decode(tokens, skip_special_tokens=True)


def test_nothing_is_added_and_numbers_are_ours(nasty) -> None:
    ours, theirs, _ = nasty
    assert len(theirs) == ours.size and theirs.all_special_tokens == []
    assert theirs.get_vocab() == {letter: token for token, letter in enumerate(ours.characters)}
    assert [theirs.decode([token]) for token in range(ours.size)] == list(ours.characters)
    assert theirs("<s>[UNK]</s>")["input_ids"] == ours.encode("<s>[UNK]</s>").tolist()
    with pytest.raises(Exception, match=re.escape("Missing [UNK] token from the vocabulary")):
        theirs("abcz")


@settings(max_examples=100, deadline=None)
@given(text=st.text(alphabet=st.characters(codec="utf-8")) | st.text(alphabet=NASTY), raw=st.binary(max_size=20))
def test_bytes_are_their_own_numbers(nasty, text: str, raw: bytes) -> None:
    byte_level = nasty[2]
    tokens = byte_level(text)["input_ids"]
    assert bytes(tokens) == text.encode("utf-8")
    assert byte_level.decode(tokens) == text
    assert byte_level.decode(list(raw)) == raw.decode("utf-8", errors="replace")
    assert sorted(byte_level.get_vocab().values()) == list(range(256)) and byte_level.all_special_tokens == []
