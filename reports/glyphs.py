"""Visible symbols for invisible characters in plots and tables, and the font of plots."""

import unicodedata
from contextlib import suppress
from functools import cache

from PIL import ImageFont

FONTS = ["DejaVuSansMono.ttf", "LiberationMono-Regular.ttf", "Menlo.ttc", "consola.ttf"]  # the first installed one
SHOWN = {"\n": "↵", "\t": "⇥", " ": "␣", "\x7f": "␡"}


def visible(character: str) -> str:
    """Return a visible symbol for an invisible character, such as ↵ for a line break."""
    if len(character) != 1:
        return character
    if character in SHOWN:
        return SHOWN[character]
    if character < " ":
        return chr(0x2400 + ord(character))  # Unicode's pictures of control characters
    if unicodedata.combining(character) or unicodedata.category(character) == "Mn":
        return f"◌{character}"
    return character if character.isprintable() else f"U+{ord(character):04X}"


@cache
def font(size: float) -> "ImageFont.FreeTypeFont | ImageFont.ImageFont":
    """Return an installed monospace font, or else Pillow's own, which has few characters beyond ASCII."""
    for name in FONTS:
        with suppress(OSError):
            return ImageFont.truetype(name, size)
    return ImageFont.load_default(size)


@cache
def label(character: str) -> str:
    """Return a visible form of a character, or its code point, such as 4E2D, if the font lacks the character."""
    shown, lacking = visible(character), bytes(font(24).getmask("\U0010ffff"))
    if all(bytes(font(24).getmask(each)) != lacking for each in shown):
        return shown
    return {"\n": "\\n", "\t": "\\t", " ": "·"}.get(character, f"{ord(character):04X}")
