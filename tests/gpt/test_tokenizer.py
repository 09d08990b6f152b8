import random

import numpy as np
import pytest

from gpt.tokenizer import ByteTokenizer, CharTokenizer, UnknownCharacter, tokenizer_from
from tests.conftest import refusal

POINTS = [point for point in range(0x110000) if not 0xD800 <= point <= 0xDFFF]
ALPHABETS = [
    "\n abcdefghijklmnopqrstuvwxyz", "x", "aéÿ\x00\x7f\x80", "a€\uffff\U0001f600\U0010ffff\ufeff",
    "".join(map(chr, range(256))), "".join(map(chr, range(32, 1000))),
    *("".join(map(chr, POINTS[-size:])) for size in (256, 257, 65_536)),
]  # fmt: skip


def test_characters_are_numbered_as_a_dictionary_would():
    rng = random.Random(1)
    for alphabet in ALPHABETS:
        tokenizer = CharTokenizer("".join(rng.sample(alphabet, len(alphabet))) + alphabet)
        number = {character: place for place, character in enumerate(sorted(alphabet))}
        for text in [
            "",
            "x",
            "azé",
            alphabet,
            *("".join(rng.choices(alphabet, k=length)) for length in (1, 2, 300)),
        ]:
            if set(text) <= set(alphabet):
                tokens, packed = tokenizer.encode(text), tokenizer.pack(text)
                assert tokens.dtype == np.int64
                assert (
                    tokens.tolist() == packed.tolist() == [number[character] for character in text]
                )
                assert (
                    packed.dtype
                    == tokenizer.dtype
                    == (np.uint8 if len(alphabet) <= 256 else np.uint16)
                )
                assert tokenizer.decode(tokens) == text == tokenizer.decode(tokens.tolist())
                assert tokenizer.utf8(tokens) == text.encode()
        assert tokenizer.size == len(alphabet)
        assert tokenizer_from(tokenizer.vocabulary).characters == tokenizer.characters
        assert tokenizer.token_sizes[:, 1].tolist() == [
            len(character.encode()) for character in sorted(alphabet)
        ]
        assert tokenizer.token_sizes[:, 0].tolist() == [1] * len(alphabet)


def test_what_is_no_vocabulary():
    with pytest.raises(ValueError, match=r"65,537 .*data\.tokenizer=byte"):
        CharTokenizer("".join(map(chr, POINTS[:65_537])))
    for vocabulary in [
        {}, {"kind": "word"}, {"kind": "char"}, None, {"kind": "char", "characters": ["a", "b"]},
        *({"kind": "char", "characters": wrong} for wrong in ("", "a\ud800", "ba")),
        {"kind": "char", "characters": "a", "more": 1},
    ]:  # fmt: skip
        with pytest.raises(ValueError):
            tokenizer_from(vocabulary)


def test_an_unknown_character_is_named():
    for text, code, position in [
        ("abc!a?", "U+0021", 3), ("\U0001f600", "U+1F600", 0), ("a\ud83d", "U+D83D", 1),
        ("a" * 100_000 + "z", "U+007A", 100_000),
    ]:  # fmt: skip
        message = refusal(UnknownCharacter, CharTokenizer("abcd").encode, text)
        assert code in message and f"position {position} " in message
        message.encode()  # can be printed
    assert [CharTokenizer("aE").nearest(each) for each in "Aéeß"] == ["a", "E", "E", ""]


@pytest.mark.parametrize(
    ("known", "text", "form"),
    [
        pytest.param("l’ami", "l'ami", "l’ami", id="a straight apostrophe"),
        pytest.param("l'ami", "l’ami‘", "l'ami'", id="typographic apostrophes"),
        pytest.param("“ami”", '"ami', "“ami", id="a straight quote"),
        pytest.param('"ami', "“ami”", '"ami"', id="typographic quotes"),
        pytest.param("a-b", "a—b–a", "a-b-a", id="dashes"),
        pytest.param("a—b", "a-b", "a—b", id="a hyphen"),
        pytest.param("'\"ab", "a'b\"", "a'b\"", id="known ones stay"),
        pytest.param("ab", "a'b", "ab", id="none is known"),
    ],
)
def test_straight_and_typographic_forms_replace_each_other(known, text, form):
    tokenizer = CharTokenizer(known)
    assert tokenizer.adapt(text, replace=True) == form
    assert tokenizer.adapt(text, replace=False) == "".join(
        letter for letter in text if letter in known
    )


def test_canonically_equal_characters_are_the_same():
    for characters, text, form in [
        ("nabé e", "né bé", "né bé"), ("nabé e", "ne\u0301 a", "né a"), ("nae\u0301 ", "né a", "ne\u0301 a"),
        ("éóe\u0301 ", "e\u0301 é", "e\u0301 é"),  # a known word stays as it is
        ("éóe\u0301 ", "o\u0301 e\u0301", "ó e\u0301"),  # and here only the other one changes
        ("\u1112\u1161\u11ab국", "한국", "\u1112\u1161\u11ab국"), ("e\u0323\u0302", "ệ", "e\u0323\u0302"),
    ]:  # fmt: skip
        tokenizer = CharTokenizer(characters)
        assert tokenizer.decode(tokenizer.encode(text)) == form, (characters, text)
        for replace in (True, False):
            assert tokenizer.adapt(text, replace=replace) == form
        with pytest.raises(UnknownCharacter, match="U\\+005A"):
            tokenizer.encode(f"{text}Z")
    # has neither form, so that the accent is lost or refused as ever
    tokenizer = CharTokenizer("ne")
    assert (
        tokenizer.adapt("né", replace=True) == "ne" and tokenizer.adapt("né", replace=False) == "n"
    )
    assert refusal(UnknownCharacter, tokenizer.encode, "né").endswith("nearest: 'e'")
    assert ByteTokenizer().canonical("e\u0301") == "e\u0301"


def test_bytes():
    tokenizer = tokenizer_from(ByteTokenizer().vocabulary)
    assert isinstance(tokenizer, ByteTokenizer)
    text = "naïve 語 \U0001f600\r\n"
    tokens = tokenizer.encode(text)
    assert tokens.dtype == np.int64 and tokens.tolist() == list(text.encode())
    assert tokenizer.decode(tokens) == text
    assert (
        tokenizer.decode([0xE8, 0xAA]) == "\N{REPLACEMENT CHARACTER}"
        and tokenizer.utf8([0xE8, 0xAA]) == b"\xe8\xaa"
    )
    assert tokenizer.size == 256 and tokenizer.dtype == np.uint8
    assert tokenizer.token_sizes[:, 0][tokens].sum() == len(text)
    assert tokenizer.token_sizes[:, 1][tokens].sum() == len(text.encode())
    with pytest.raises(UnknownCharacter, match=r"U\+DC00.*position 1 "):
        tokenizer.encode("a\udc00")
