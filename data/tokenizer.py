"""Text to numbers and back: a token is a character, or a byte of the text's UTF-8.

A tokenizer is fully described by its `vocabulary`, plain data that a checkpoint can hold.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from base.errors import InputError

MAX_CHARACTERS = 65_536  # what uint16 can number


class UnknownCharacter(InputError):
    """A text holds a character that the vocabulary does not; the message is one line.

    Attributes:
        character: which one.
        position: where it stands in the text.
        nearest: one that the vocabulary has, or nothing.
    """

    def __init__(self, character: str, position: int, nearest: str = "") -> None:
        self.character, self.position, self.nearest = character, position, nearest
        code = ord(character)
        if 0xD800 <= code <= 0xDFFF:
            what = "is half of a surrogate pair and no character: the text was cut or decoded wrongly"
        else:
            what = "is not in the vocabulary of this model"
        name = f"{character!r} (U+{code:04X})" if character.isprintable() else f"U+{code:04X}"
        near = f"; nearest: {nearest!r}" if nearest else ""
        super().__init__(f"character {name} at position {position} {what}{near}")


class CharTokenizer:
    """One token per character; token i is the i-th smallest code point of the vocabulary."""

    def __init__(self, characters: str) -> None:
        """Make a vocabulary of the distinct characters of `characters`, sorted.

        Raises:
            ValueError: no character, a lone surrogate, or more distinct characters than uint16 can number.
        """
        self.characters = "".join(sorted(set(characters)))
        if not self.characters:
            raise ValueError("a vocabulary needs at least one character")
        if len(self.characters) > MAX_CHARACTERS:
            raise ValueError(
                f"{len(self.characters):,} distinct characters are more than the {MAX_CHARACTERS:,} "
                "a vocabulary can hold: set data.tokenizer=byte"
            )
        self._points = np.frombuffer(self.characters.encode("utf-32-le", "surrogatepass"), np.uint32)
        if np.any((self._points >= 0xD800) & (self._points <= 0xDFFF)):
            raise ValueError("a vocabulary cannot hold half of a surrogate pair, which is no character")
        # One entry more than the largest code point: clipping sends whatever lies beyond to it, the unknown.
        self._lookup = np.full(int(self._points[-1]) + 2, -1, np.int32)
        self._lookup[self._points] = np.arange(self.size)
        # ASCII sorts first, so its tokens fit a byte even in a large vocabulary.
        ascii_part = self.characters.encode("ascii", "ignore")
        self._ascii = ascii_part
        self._ascii_tokens = bytes.maketrans(ascii_part, bytes(range(len(ascii_part))))

    def nearest(self, character: str) -> str:
        """What stands nearest to a character in this vocabulary: itself, another form, case or accent, or nothing."""
        plain = "".join(c for c in unicodedata.normalize("NFKD", character) if not unicodedata.combining(c))
        forms = [character, *(unicodedata.normalize(form, character) for form in ("NFC", "NFKC")), plain]
        forms += [form.swapcase() for form in forms]
        return next((form for form in forms if form and set(form) <= set(self.characters)), "")

    def adapt(self, text: str, *, replace: bool) -> str:
        """Leave out the characters that the vocabulary does not have, or replace them by what is nearest."""
        known = set(self.characters)
        forms = {c: c if c in known else self.nearest(c) if replace else "" for c in set(text)}
        return "".join(forms[c] for c in text)

    @property
    def size(self) -> int:
        """Number of tokens, V."""
        return len(self.characters)

    @property
    def dtype(self) -> type[np.unsignedinteger]:
        """Smallest type that holds a token."""
        return np.uint8 if self.size <= 256 else np.uint16

    @property
    def names(self) -> list[str]:
        """Each token as text."""
        return list(self.characters)

    @property
    def vocabulary(self) -> dict[str, Any]:
        """All there is to know, as plain data; see `tokenizer_from`."""
        return {"kind": "char", "characters": self.characters}

    @property
    def characters_per_token(self) -> np.ndarray:
        """How many characters each token stands for: (V,) int64."""
        return np.ones(self.size, np.int64)

    @property
    def bytes_per_token(self) -> np.ndarray:
        """How many bytes of UTF-8 each token stands for: (V,) int64."""
        return 1 + np.searchsorted([0x80, 0x800, 0x10000], self._points, side="right")

    @property
    def token_sizes(self) -> np.ndarray:
        """How many characters and how many bytes of UTF-8 each token stands for: (V, 2) int64."""
        return np.stack((self.characters_per_token, self.bytes_per_token), axis=1)

    def pack(self, text: str) -> np.ndarray:
        """Encode into the smallest type: (characters,) of `dtype`.

        Raises:
            UnknownCharacter: names the first character that is not in the vocabulary.
        """
        if text.isascii():
            raw = text.encode("ascii")
            if not raw.translate(None, self._ascii):  # nothing is left without the known ones
                return np.frombuffer(raw.translate(self._ascii_tokens), np.uint8).astype(self.dtype, copy=False)
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        tokens = self._lookup.take(points, mode="clip")
        if tokens.size and tokens.min() < 0:
            position = int(np.argmax(tokens < 0))
            raise UnknownCharacter(text[position], position, self.nearest(text[position]))
        return tokens.astype(self.dtype)

    def encode(self, text: str) -> np.ndarray:
        """Encode: (characters,) int64.

        Raises:
            UnknownCharacter: names the first character that is not in the vocabulary.
        """
        return self.pack(text).astype(np.int64)

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """Decode tokens 0..V-1 in any one-dimensional sequence."""
        return self._points[np.asarray(tokens, np.int64)].astype("<u4").tobytes().decode("utf-32-le")


class ByteTokenizer:
    """One token per byte of UTF-8: every text can be encoded, and 256 tokens are all there are."""

    size = 256
    dtype: type[np.unsignedinteger] = np.uint8

    @property
    def names(self) -> list[str]:
        r"""Each token as text: the character, or its number, such as \xff, for a byte that is none."""
        return [chr(value) if value < 128 else f"\\x{value:02x}" for value in range(256)]

    @property
    def vocabulary(self) -> dict[str, Any]:
        """All there is to know, as plain data; see `tokenizer_from`."""
        return {"kind": "byte"}

    @property
    def characters_per_token(self) -> np.ndarray:
        """Characters each token begins, 0 for the bytes that continue one: (256,) int64."""
        return ((np.arange(256) & 0xC0) != 0x80).astype(np.int64)

    @property
    def bytes_per_token(self) -> np.ndarray:
        """Bytes each token stands for: (256,) int64, all 1."""
        return np.ones(256, np.int64)

    @property
    def token_sizes(self) -> np.ndarray:
        """How many characters and how many bytes of UTF-8 each token stands for: (V, 2) int64."""
        return np.stack((self.characters_per_token, self.bytes_per_token), axis=1)

    def pack(self, text: str) -> np.ndarray:
        """Encode into the smallest type: (bytes,) uint8.

        Raises:
            UnknownCharacter: half of a surrogate pair, which has no UTF-8.
        """
        try:
            return np.frombuffer(text.encode("utf-8"), np.uint8)
        except UnicodeEncodeError as error:
            raise UnknownCharacter(text[error.start], error.start) from None

    def encode(self, text: str) -> np.ndarray:
        """Encode: (bytes,) int64.

        Raises:
            UnknownCharacter: half of a surrogate pair, which has no UTF-8.
        """
        return self.pack(text).astype(np.int64)

    def adapt(self, text: str, *, replace: bool) -> str:
        """Leave out, or replace by U+FFFD, halves of surrogate pairs, the one thing without UTF-8."""
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace" if replace else "ignore")

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """Decode tokens 0..255; bytes that are no UTF-8 become U+FFFD, the replacement character."""
        return np.asarray(tokens, np.int64).astype(np.uint8).tobytes().decode("utf-8", errors="replace")


Tokenizer = CharTokenizer | ByteTokenizer


def tokenizer_from(vocabulary: Mapping[str, Any]) -> Tokenizer:
    """Make the tokenizer whose `.vocabulary` this is.

    Raises:
        ValueError: not a vocabulary, or one whose characters are not sorted and distinct, so that
            its tokens would mean other characters.
    """
    match vocabulary:
        case {"kind": "byte"}:
            return ByteTokenizer()
        case {"kind": "char", "characters": str(characters)}:
            tokenizer = CharTokenizer(characters)
            if tokenizer.characters != characters:
                raise ValueError("the characters of a vocabulary must be sorted and distinct")
            return tokenizer
    raise ValueError(f"not a vocabulary: {str(vocabulary)[:80]!r}")
