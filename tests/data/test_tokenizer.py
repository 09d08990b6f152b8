import random

import numpy as np
import pytest

from data.tokenizer import ByteTokenizer, CharTokenizer, UnknownCharacter, tokenizer_from

ALPHABETS = {
    "ascii": "\n abcdefghijklmnopqrstuvwxyz",
    "one": "x",
    "latin": "aéÿ\x00\x7f\x80",
    "wide": "a€\uffff\U0001f600\U0010ffff\ufeff",
    "large": "".join(map(chr, range(32, 1000))),
}


@pytest.mark.parametrize("alphabet", ALPHABETS.values(), ids=ALPHABETS)
def test_characters_are_numbered_as_a_dictionary_would(alphabet):
    rng = random.Random(1)
    shuffled = "".join(rng.sample(alphabet, len(alphabet)))
    tokenizer = CharTokenizer(shuffled + shuffled)
    number = {character: place for place, character in enumerate(sorted(set(alphabet)))}
    for length in (0, 1, 2, 300):
        text = "".join(rng.choices(alphabet, k=length))
        tokens = tokenizer.encode(text)
        assert tokens.dtype == np.int64
        assert tokens.tolist() == [number[character] for character in text]
        assert tokenizer.decode(tokens) == text == tokenizer.decode(tokens.tolist())
        packed = tokenizer.pack(text)
        assert packed.dtype == tokenizer.dtype == (np.uint8 if len(alphabet) <= 256 else np.uint16)
        assert packed.tolist() == tokens.tolist()
    assert tokenizer.size == len(alphabet)
    assert tokenizer.bytes_per_token.tolist() == [len(character.encode()) for character in sorted(alphabet)]
    assert tokenizer.characters_per_token.tolist() == [1] * len(alphabet)


@pytest.mark.parametrize("size", [256, 257, 65_536])
def test_vocabularies_at_the_borders_of_the_types(size):
    characters = "".join(chr(point) for point in range(0x110000) if not 0xD800 <= point <= 0xDFFF)[-size:]
    tokenizer = CharTokenizer(characters)
    assert tokenizer.pack(characters).tolist() == list(range(size))
    assert tokenizer.pack(characters).dtype == (np.uint8 if size == 256 else np.uint16)


def test_ascii_with_all_256_of_latin():
    tokenizer = CharTokenizer("".join(map(chr, range(256))))
    assert tokenizer.pack("az\x00\x7f").tolist() == [97, 122, 0, 127]
    assert tokenizer.pack("azé\xff").tolist() == [97, 122, 233, 255]


def test_too_many_characters_name_the_way_out():
    points = [point for point in range(70_000) if not 0xD800 <= point <= 0xDFFF][:65_537]
    with pytest.raises(ValueError, match=r"65,537 .*data\.tokenizer=byte"):
        CharTokenizer("".join(map(chr, points)))


@pytest.mark.parametrize("characters", ["", "a\ud800"])
def test_no_vocabulary_of_nothing_or_of_halves(characters):
    with pytest.raises(ValueError):
        CharTokenizer(characters)


@pytest.mark.parametrize(
    ("text", "code", "position"),
    [
        ("abc!a?", "U+0021", 3),
        ("aaé", "U+00E9", 2),
        ("\U0001f600", "U+1F600", 0),
        ("ab\n", "U+000A", 2),
        ("a\ud83d", "U+D83D", 1),
        ("a" * 100_000 + "z", "U+007A", 100_000),
        ("aé\x00", "U+00E9", 1),
    ],
)
def test_an_unknown_character_is_named(text, code, position):
    with pytest.raises(UnknownCharacter) as caught:
        CharTokenizer("abcd").encode(text)
    message = str(caught.value)
    assert code in message and f"position {position} " in message
    assert len(message.splitlines()) == 1
    message.encode()  # can be printed


def test_no_unknown_character_passes_for_another():
    tokenizer = CharTokenizer("abcdé")
    for point in random.Random(0).sample(range(300, 0x110000), 500):
        with pytest.raises(UnknownCharacter, match=rf"U\+{point:04X}\b.*position 1 "):
            tokenizer.encode("a" + chr(point))


def test_bytes():
    tokenizer = ByteTokenizer()
    text = "naïve 語 \U0001f600\r\n"
    tokens = tokenizer.encode(text)
    assert tokens.dtype == np.int64 and tokens.tolist() == list(text.encode())
    assert tokenizer.decode(tokens) == text
    assert tokenizer.decode([0xE8, 0xAA]) == "\N{REPLACEMENT CHARACTER}"
    assert tokenizer.size == 256 and tokenizer.dtype == np.uint8
    assert tokenizer.characters_per_token[tokens].sum() == len(text)
    assert tokenizer.bytes_per_token[tokens].sum() == len(text.encode())
    with pytest.raises(UnknownCharacter, match=r"U\+DC00.*position 1 "):
        tokenizer.encode("a\udc00")


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), CharTokenizer("aé\n語"), CharTokenizer("x")])
def test_a_vocabulary_makes_the_same_tokenizer(tokenizer):
    again = tokenizer_from(tokenizer.vocabulary)
    assert type(again) is type(tokenizer) and again.vocabulary == tokenizer.vocabulary


@pytest.mark.parametrize(
    "vocabulary",
    [
        {},
        {"kind": "word"},
        {"kind": "char"},
        {"kind": "char", "characters": ""},
        {"kind": "char", "characters": ["a", "b"]},
        {"kind": "char", "characters": "ba"},
        {"kind": "char", "characters": "aab"},
        "abc",
        None,
    ],
)
def test_nonsense_is_no_vocabulary(vocabulary):
    with pytest.raises(ValueError):
        tokenizer_from(vocabulary)
