"""Visible stand-ins and kinds of characters, for plots and tables. Imports nothing heavy."""

import unicodedata

VOWELS = set("aeiouαεηιουωаеёиоуыэюяіїє")
SHOWN = {"\n": "↵", "\t": "⇥", " ": "␣", "\x7f": "␡"}


def visible(character: str) -> str:
    """Replace a character that cannot be seen, such as ↵ for a new line; return names of several letters as is."""
    if len(character) != 1:
        return character
    if character in SHOWN:
        return SHOWN[character]
    if character < " ":
        return chr(0x2400 + ord(character))  # Unicode's pictures of control characters
    if unicodedata.combining(character) or unicodedata.category(character) == "Mn":
        return f"◌{character}"
    return character if character.isprintable() else f"U+{ord(character):04X}"


def kind(character: str) -> str:
    """Return vowel, consonant, capital, letter, digit, mark, space or other; longer names are other."""
    if len(character) != 1:
        return "other"
    if character.isspace():
        return "space"
    category = unicodedata.category(character)
    if category in ("Lu", "Lt"):
        return "capital"
    if category == "Ll":
        base = unicodedata.normalize("NFKD", character)[0]
        return "vowel" if base in VOWELS else "consonant"
    groups = {"L": "letter", "N": "digit", "P": "mark", "S": "mark", "M": "mark"}
    return groups.get(category[0], "other")
