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


@pytest.mark.parametrize("alphabet", ALPHABETS, ids=len)
def test_characters_are_numbered_as_a_dictionary_would(alphabet):
    rng = random.Random(1)
    # in any order, all of them twice
    tokenizer = CharTokenizer("".join(rng.sample(alphabet, len(alphabet))) + alphabet)
    number = {character: place for place, character in enumerate(sorted(alphabet))}
    for text in (
        "",
        *("".join(rng.choices(alphabet, k=length)) for length in (1, 2, 300)),
        alphabet,
    ):
        tokens = tokenizer.encode(text)
        packed = tokenizer.pack(text)
        assert tokens.dtype == np.int64 and packed.dtype == tokenizer.dtype
        assert tokens.tolist() == packed.tolist() == [number[character] for character in text]
        assert tokenizer.decode(tokens) == text == tokenizer.decode(tokens.tolist())
        assert tokenizer.utf8(tokens) == text.encode()
    assert tokenizer.size == len(alphabet)
    assert tokenizer.dtype == (np.uint8 if len(alphabet) <= 256 else np.uint16)
    assert tokenizer_from(tokenizer.vocabulary).characters == tokenizer.characters
    sizes = [[1, len(character.encode())] for character in sorted(alphabet)]
    assert tokenizer.token_sizes.tolist() == sizes


@pytest.mark.parametrize(
    ("text", "code", "position"),
    [("abc!a?", "U+0021", 3), ("\U0001f600", "U+1F600", 0), ("a\ud83d", "U+D83D", 1)],
    ids=ascii,
)
def test_an_unknown_character_is_named(text, code, position):
    message = refusal(UnknownCharacter, CharTokenizer("abcd").encode, text)
    assert code in message and f"position {position} " in message
    message.encode()  # can be printed


def test_the_nearest_character_differs_in_case_or_accent():
    assert refusal(UnknownCharacter, CharTokenizer("ne").encode, "né").endswith("nearest: 'e'")
    assert [CharTokenizer("aE").nearest(each) for each in "Aéeß"] == ["a", "E", "E", ""]


ADAPTED = {  # (known characters, a text): with forms in place of unknown characters, and without
    # typographic forms
    ("l’ami", "l'ami"): ("l’ami", "lami"), ("l'ami", "l’ami‘"): ("l'ami'", "lami"),
    ("“ami”", '"ami'): ("“ami", "ami"), ('"ami', "“ami”"): ('"ami"', "ami"), ("a-b", "a—b–a"): ("a-b-a", "aba"),
    ("a—b", "a-b"): ("a—b", "ab"), ("'\"ab", "a'b\""): ("a'b\"", "a'b\""), ("ab", "a'b"): ("ab", "ab"),
    # an accent that is not known
    ("ne", "né"): ("ne", "n"),
}  # fmt: skip
CANONICAL = {  # (known characters, a text): the same text in known characters
    ("nabé e", "né bé"): "né bé", ("nabé e", "ne\u0301 a"): "né a", ("nae\u0301 ", "né a"): "ne\u0301 a",
    ("éóe\u0301 ", "e\u0301 é"): "e\u0301 é", ("éóe\u0301 ", "o\u0301 e\u0301"): "ó e\u0301",
    ("\u1112\u1161\u11ab국", "한국"): "\u1112\u1161\u11ab국", ("e\u0323\u0302", "ệ"): "e\u0323\u0302",
}  # fmt: skip


@pytest.mark.parametrize(("known", "text"), ADAPTED | CANONICAL, ids=ascii)
def test_forms_that_are_known_replace_those_that_are_not(known, text):
    tokenizer = CharTokenizer(known)
    same = CANONICAL.get((known, text))
    replaced, left = ADAPTED.get((known, text), (same, same))
    assert tokenizer.adapt(text, replace=True) == replaced
    assert tokenizer.adapt(text, replace=False) == left
    if same:
        assert tokenizer.decode(tokenizer.encode(text)) == same
        with pytest.raises(UnknownCharacter, match="U\\+005A"):
            tokenizer.encode(f"{text}Z")


def test_bytes():
    tokenizer = tokenizer_from(ByteTokenizer().vocabulary)
    assert isinstance(tokenizer, ByteTokenizer)
    text = "naïve 語 \U0001f600\r\n"
    tokens = tokenizer.encode(text)
    assert tokens.dtype == np.int64 and tokens.tolist() == list(text.encode())
    assert tokenizer.decode(tokens) == text
    assert tokenizer.decode([0xE8, 0xAA]) == "\N{REPLACEMENT CHARACTER}"
    assert tokenizer.utf8([0xE8, 0xAA]) == b"\xe8\xaa"
    assert tokenizer.token_sizes[:, 0][tokens].sum() == len(text)
    assert tokenizer.token_sizes[:, 1][tokens].sum() == len(text.encode())
    with pytest.raises(UnknownCharacter, match=r"U\+DC00.*position 1 "):
        tokenizer.encode("a\udc00")
