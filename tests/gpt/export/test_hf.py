"""A folder for transformers: the same logits and the same greedy text, and a tokenizer that loses nothing."""

import dataclasses
import itertools
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.fields import InputError
from data.tokenizer import CharTokenizer, tokenizer_from
from gpt.config import ModelConfig
from gpt.export.hf import check, nearest, starcoder2, write_hf, write_tokenizer
from gpt.generate import generate
from gpt.model import GPT
from tests.conftest import needs
from tests.reference.models import ALL, fill, name, tiny

# What those who write tokenizers like to change, and what serves them as a mark: blanks, line ends, accents apart from
# their letters, ligatures and full-width forms, joined emoji, invisible marks, the letters of byte-level and sentence
# tokenizers, brackets of special tokens.
NASTY = (
    "\x00\t\n\r \x7f\x85\xa0éE\u0301\u0345İıßﬁＡ①\u200b\u200d\u2028\ufeff\ufffd▁Ġċ中한\uac00ा"
    "\U0001f469\U0001f3fd\U0001f52c𝒜\U0010ffff#<>/s|[]UNKabc.,'"
)


def fitting(**changes) -> ModelConfig:
    return tiny(**{"heads": 3, "attention": "explicit", **changes})


# Each of the two architectures with all options it has.
FIT = (
    [
        fitting(positions=positions, qk_norm=False, activation=activation, tied=tied, bias=bias)
        for positions, activation, tied, bias in itertools.product(
            ("learned", "sinusoidal", "rotary", "none"), ("gelu", "relu2"), (False, True), (False, True)
        )
    ]
    + [fitting(positions="rotary", qk_norm=False, window=window, bias=window == 3) for window in (1, 3, 7, 20)]
    + [fitting(positions="learned", qk_norm=False, activation="gelu", window=7)]
    + [fitting(positions="learned", qk_norm=False, dropout=0.1)]
)


@pytest.fixture
def loaded(tmp_path: Path, request: pytest.FixtureRequest):
    """A model, and the model and the tokenizer that transformers makes of it."""
    needs("transformers")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = fill(GPT(request.param, 11)).eval()
    vocabulary = {"kind": "char", "characters": "\n abcdefghi"}
    folder = tmp_path / "folder"
    assert write_hf(model, {"vocabulary": vocabulary}, folder) < 1e-5
    return model, AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


@torch.no_grad()
@pytest.mark.parametrize("loaded", FIT, ids=name, indirect=True)
def test_logits_and_greedy_text_are_those_of_the_model(loaded) -> None:
    model, theirs, tokenizer = loaded
    for batch, length in itertools.product((1, 3), (1, 2, 7)):
        tokens = torch.randint(11, (batch, length))
        assert torch.allclose(theirs(tokens).logits, model(tokens), rtol=0, atol=1e-5)
    assert theirs.num_parameters() >= model.num_parameters()

    prompt = tokenizer(["b a", "\n i"], return_tensors="pt")
    expected = generate(model, prompt["input_ids"], 4, temperature=0)
    found = theirs.generate(**prompt, do_sample=False, max_new_tokens=4)
    assert torch.equal(found, expected)
    characters = tokenizer_from({"kind": "char", "characters": "\n abcdefghi"})
    assert tokenizer.batch_decode(found) == [characters.decode(row.numpy()) for row in expected]


@torch.no_grad()
@pytest.mark.parametrize(
    "loaded",
    [fitting(positions="rotary", qk_norm=False, window=window, bias=True) for window in (None, 1, 2, 3, 7)],
    ids=name,
    indirect=True,
)
@pytest.mark.parametrize("length", [2, 7, 12])
def test_with_a_window_greedy_text_goes_on_beyond_the_context(loaded, length: int) -> None:
    model, theirs, _ = loaded
    prompt = torch.randint(11, (2, length))
    found = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=30)
    assert torch.equal(found, generate(model, prompt, 30, temperature=0))


@pytest.mark.parametrize("loaded", FIT[:1], indirect=True)
def test_generate_needs_no_settings(loaded) -> None:
    """It draws from the whole distribution, ends nowhere early and stays in the context after a short prompt."""
    _, theirs, tokenizer = loaded
    settings = theirs.generation_config
    assert (settings.do_sample, settings.temperature, settings.top_k, settings.max_new_tokens) == (True, 0.8, 0, 4)
    assert settings.eos_token_id is None and settings.pad_token_id is None and settings.bos_token_id is None
    torch.manual_seed(0)
    texts = {tokenizer.decode(theirs.generate(**tokenizer("a", return_tensors="pt"))[0]) for _ in range(20)}
    assert len(texts) > 10 and {len(text) for text in texts} == {5}


@pytest.mark.parametrize("config", ALL, ids=name)
def test_what_is_refused_would_be_taken_with_the_values_it_names(config: ModelConfig) -> None:
    try:
        check(config, nearest(config)[0])
    except InputError as error:
        message = str(error)
        wrong = re.findall(r"model\.(\w+)=(\w+) \(must be (\w+)\)", message)
        assert message == "--to hf: no architecture of transformers is the same maths: " + ", ".join(
            f"model.{key}={value} (must be {needed})" for key, value, needed in wrong
        )
        words = {"true": True, "false": False, "null": None, str(config.window): config.window}
        assert all(getattr(config, key) == words.get(value, value) for key, value, _ in wrong)
        changed = dataclasses.replace(config, **{key: words.get(needed, needed) for key, _, needed in wrong})
        # Each of them stands in the way, and nothing else does.
        check(changed, nearest(changed)[0])
        for key, value, _ in wrong:
            back = dataclasses.replace(changed, **{key: words.get(value, value)})
            if nearest(back)[1] is nearest(config)[1]:
                with pytest.raises(InputError):
                    check(back, nearest(back)[0])
    else:
        changed = dataclasses.replace(config, attention="explicit", heads=3, context=7, window=None)
        assert changed in FIT, "taken, and not tried above"
        assert config.span == config.context or nearest(config)[1] is starcoder2


def test_the_default_model_is_refused_for_three_options() -> None:
    with pytest.raises(InputError) as caught:
        check(ModelConfig(), nearest(ModelConfig())[0])
    assert str(caught.value).endswith(
        "maths: model.qk_norm=true (must be false), model.key_offset=true (must be false), "
        "model.token_shift=true (must be false)"
    )


def tokenizer_for(vocabulary: dict, folder: Path):
    needs("transformers")
    from transformers import AutoTokenizer, GPT2Config

    folder.mkdir(exist_ok=True)
    GPT2Config().save_pretrained(folder)
    write_tokenizer(vocabulary, 10**6, folder)
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def nasty(tmp_path_factory: pytest.TempPathFactory):
    ours = CharTokenizer(NASTY)
    return ours, tokenizer_for(ours.vocabulary, tmp_path_factory.mktemp("nasty"))


@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet=NASTY))
def test_any_text_of_the_vocabulary_comes_back(nasty, text: str) -> None:
    ours, theirs = nasty
    tokens = theirs(text)["input_ids"]
    assert tokens == ours.encode(text).tolist()
    assert theirs.decode(tokens) == text
    assert theirs.decode(tokens, skip_special_tokens=True) == text


def test_nothing_is_added_and_numbers_are_ours(nasty) -> None:
    ours, theirs = nasty
    assert len(theirs) == ours.size and theirs.all_special_tokens == []
    assert theirs.get_vocab() == {letter: token for token, letter in enumerate(ours.characters)}
    assert [theirs.decode([token]) for token in range(ours.size)] == list(ours.characters)
    assert theirs("<s>[UNK]</s>")["input_ids"] == ours.encode("<s>[UNK]</s>").tolist()


def test_a_character_outside_the_vocabulary_is_an_error(nasty) -> None:
    _, theirs = nasty
    with pytest.raises(Exception, match=re.escape("Missing [UNK] token from the vocabulary")):
        theirs("abcz")


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory):
    return tokenizer_for({"kind": "byte"}, tmp_path_factory.mktemp("bytes"))


@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet=st.characters(codec="utf-8")) | st.text(alphabet=NASTY), raw=st.binary(max_size=20))
def test_bytes_are_their_own_numbers(byte_level, text: str, raw: bytes) -> None:
    tokens = byte_level(text)["input_ids"]
    assert bytes(tokens) == text.encode("utf-8")
    assert byte_level.decode(tokens) == text
    assert byte_level.decode(list(raw)) == raw.decode("utf-8", errors="replace")


def test_there_are_256_bytes(byte_level) -> None:
    assert sorted(byte_level.get_vocab().values()) == list(range(256)) and byte_level.all_special_tokens == []
