"""Visible symbols of invisible characters, for plots and tables. Imports nothing heavy."""

import unicodedata

SHOWN = {"\n": "↵", "\t": "⇥", " ": "␣", "\x7f": "␡"}


def visible(character: str) -> str:
    """Return a visible symbol for an invisible character, such as ↵ for a line break, else the string itself."""
    if len(character) != 1:
        return character
    if character in SHOWN:
        return SHOWN[character]
    if character < " ":
        return chr(0x2400 + ord(character))  # Unicode's pictures of control characters
    if unicodedata.combining(character) or unicodedata.category(character) == "Mn":
        return f"◌{character}"
    return character if character.isprintable() else f"U+{ord(character):04X}"
