"""Encode text as tokens and decode them: a token is a character, or a byte of the text's UTF-8.

Row i of `token_sizes`, (V, 2) int64, is the number of characters and of UTF-8 bytes of token i.
`vocabulary` describes a tokenizer completely, as plain data.
"""

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from base.errors import InputError

MAX_CHARACTERS = 65_536  # tokens are uint16
ALIKE = ("'’‘", '"“”', "-–—")  # straight and typographic forms, which replace each other


class UnknownCharacter(InputError):
    """Raised for a character that the tokenizer cannot encode; `nearest` is a replacement that it can, or ""."""

    def __init__(self, character: str, position: int, nearest: str = "") -> None:
        self.character = character
        self.position = position
        self.nearest = nearest
        name = f"U+{ord(character):04X}"
        if character.isprintable():
            name = f"{character!r} ({name})"
        message = f"character {name} at position {position} is not in the vocabulary of this model"
        if nearest:
            message += f"; nearest: {nearest!r}"
        super().__init__(message)


class CharTokenizer:
    """A tokenizer whose tokens are the distinct `characters`, numbered in the order of their code points.

    Raises:
        ValueError: `characters` is empty, has half of a surrogate pair or more than
            `MAX_CHARACTERS` characters.
    """

    unit = "character"  # what a token is, for messages

    def __init__(self, characters: str) -> None:
        self.characters = "".join(sorted(set(characters)))
        if not self.characters:
            raise ValueError("a vocabulary needs at least one character")
        if len(self.characters) > MAX_CHARACTERS:
            raise ValueError(
                f"{len(self.characters):,} distinct characters are more than the {MAX_CHARACTERS:,} "
                "a vocabulary can contain: set data.tokenizer=byte"
            )
        self._points = np.frombuffer(
            self.characters.encode("utf-32-le", "surrogatepass"), np.uint32
        )  # (V,), code points
        if np.any((self._points >= 0xD800) & (self._points <= 0xDFFF)):
            raise ValueError(
                "a vocabulary cannot contain half of a surrogate pair, which is not a character"
            )
        self.size = len(self.characters)  # number of tokens, V
        self.dtype: type[np.unsignedinteger] = np.uint8 if self.size <= 256 else np.uint16
        self.names = list(self.characters)  # each token as text
        # a prompt for none: a model needs at least one token
        self.default_prompt = "\n" if "\n" in self.characters else self.characters[0]
        self.vocabulary: dict[str, Any] = {"kind": "char", "characters": self.characters}
        utf8_bytes = 1 + np.searchsorted([0x80, 0x800, 0x10000], self._points, side="right")
        self.token_sizes = np.stack((np.ones(self.size, np.int64), utf8_bytes), axis=1)  # (V, 2)
        # `take` clips code points above the largest one of the vocabulary to the last entry, which
        # is -1.
        self._lookup = np.full(int(self._points[-1]) + 2, -1, np.int32)
        self._lookup[self._points] = np.arange(self.size)
        # ASCII characters have the smallest tokens, which therefore fit into a byte even if the
        # vocabulary is large.
        self._ascii = self.characters.encode("ascii", "ignore")
        self._ascii_tokens = bytes.maketrans(self._ascii, bytes(range(len(self._ascii))))

    def nearest(self, character: str) -> str:
        """Return a replacement of one or more characters that the vocabulary can spell, or "" if there is none.

        Candidates: the character, its normal forms NFC and NFKC, without accents, these four with
        swapped case, and the other quotes or dashes if it is one.
        """
        composed = unicodedata.normalize("NFC", character)
        compatible = unicodedata.normalize("NFKC", character)
        decomposed = unicodedata.normalize("NFKD", character)
        plain = "".join(c for c in decomposed if not unicodedata.combining(c))
        forms = [character, composed, compatible, plain]
        forms += [form.swapcase() for form in forms]
        for group in ALIKE:
            if character in group:
                forms += group
        for form in forms:
            if form and set(form) <= set(self.characters):
                return form
        return ""

    def canonical(self, text: str) -> str:
        """Replace unknown characters by canonically equivalent ones of the vocabulary: é may become e and an accent.

        A word of known characters does not change; other unknown characters stay.
        """
        known = set(self.characters)
        if known.issuperset(text):
            return text

        forms: list[str] = []
        for word in re.split(r"(\s+)", text):  # words, and the spaces between them
            if word.isspace() or known.issuperset(word):
                forms.append(word)
                continue
            # composed where the vocabulary can, decomposed where it must be
            for character in unicodedata.normalize("NFC", word):
                decomposed = unicodedata.normalize("NFD", character)
                if character not in known and known.issuperset(decomposed):
                    character = decomposed
                forms.append(character)
        return "".join(forms)

    def adapt(self, text: str, *, replace: bool) -> str:
        """Return the `canonical` text with unknown characters left out or, if `replace`, replaced by `nearest`."""
        text = self.canonical(text)
        unknown = set(text).difference(self.characters)
        replacements = {
            ord(character): self.nearest(character) if replace else "" for character in unknown
        }
        return text.translate(replacements)

    def pack(self, text: str) -> np.ndarray:
        """Return one token per character, (N,) of `dtype`, or raise `UnknownCharacter`."""
        if text.isascii():  # faster than the lookup below
            raw = text.encode("ascii")
            if not raw.translate(None, self._ascii):  # deleting the vocabulary leaves nothing
                return np.frombuffer(raw.translate(self._ascii_tokens), np.uint8).astype(
                    self.dtype, copy=False
                )
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        tokens = self._lookup.take(points, mode="clip")  # (N,), -1 for an unknown character
        if tokens.size and tokens.min() < 0:
            position = int(np.argmax(tokens < 0))
            raise UnknownCharacter(text[position], position, self.nearest(text[position]))
        return tokens.astype(self.dtype)

    def encode(self, text: str) -> np.ndarray:
        """Return the tokens of the `canonical` text, (N,) int64, or raise `UnknownCharacter`."""
        return self.pack(self.canonical(text)).astype(np.int64)

    def decode(self, tokens: ArrayLike) -> str:
        """Return the text that `tokens` represent."""
        return (
            self._points[np.asarray(tokens, np.int64)].astype("<u4").tobytes().decode("utf-32-le")
        )

    def utf8(self, tokens: ArrayLike) -> bytes:
        """Return the text that `tokens` represent as UTF-8 bytes."""
        return self.decode(tokens).encode()


class ByteTokenizer:
    """A tokenizer with one token per byte of UTF-8, so that 256 tokens suffice to encode every text."""

    unit = "byte"
    size = 256
    dtype: type[np.unsignedinteger] = np.uint8
    # such as a and \xff
    names = [chr(value) if value < 128 else f"\\x{value:02x}" for value in range(256)]
    default_prompt = "\n"
    vocabulary: dict[str, Any] = {"kind": "byte"}
    # Bytes 10xxxxxx continue a character, so they count as 0 characters.
    # (256, 2)
    token_sizes = np.stack(((np.arange(256) & 0xC0) != 0x80, np.ones(256)), axis=1).astype(
        np.int64
    )

    def pack(self, text: str) -> np.ndarray:
        """Return the UTF-8 bytes of the text, (N,) uint8, or raise `UnknownCharacter` for a lone surrogate.

        A surrogate with which Python replaces a byte that is not UTF-8 (`surrogateescape`) is that byte.
        """
        try:
            return np.frombuffer(text.encode("utf-8", "surrogateescape"), np.uint8)
        except UnicodeEncodeError as error:
            raise UnknownCharacter(text[error.start], error.start) from None

    def encode(self, text: str) -> np.ndarray:
        """Return the UTF-8 bytes of the text, (N,) int64, as `pack` does."""
        return self.pack(text).astype(np.int64)

    def canonical(self, text: str) -> str:
        """Return the text unchanged."""
        return text

    def adapt(self, text: str, *, replace: bool) -> str:
        """Return the text with lone surrogates left out or, if `replace`, replaced by U+FFFD."""
        # Only a decoder replaces by U+FFFD; UTF-16 also joins the two halves of a pair.
        errors = "replace" if replace else "ignore"
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", errors)

    def decode(self, tokens: ArrayLike) -> str:
        """Return the text that `tokens` represent, with U+FFFD for invalid UTF-8."""
        return self.utf8(tokens).decode("utf-8", errors="replace")

    def utf8(self, tokens: ArrayLike) -> bytes:
        """Return `tokens` as bytes, which need not be valid UTF-8."""
        return np.asarray(tokens, np.int64).astype(np.uint8).tobytes()


Tokenizer = CharTokenizer | ByteTokenizer


def tokenizer_from(vocabulary: Mapping[str, Any]) -> Tokenizer:
    """Return the tokenizer of a `vocabulary`, or raise `ValueError` if it is invalid, as a stranger's may be."""
    match vocabulary:
        case {"kind": "byte", **more} if not more:
            return ByteTokenizer()
        case {"kind": "char", "characters": str(characters), **more} if not more:
            tokenizer = CharTokenizer(characters)
            if tokenizer.characters != characters:
                raise ValueError("the characters of a vocabulary must be sorted and distinct")
            return tokenizer
    raise ValueError("not a vocabulary")
