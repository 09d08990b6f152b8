"""Describe characters for plots and tables: a visible symbol, and a kind such as vowel. Imports nothing heavy."""

import unicodedata

VOWELS = set("aeiouαεηιουωаеёиоуыэюяіїє")
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


def kind(character: str) -> str:
    """Return the kind: vowel, consonant, capital, letter, digit, mark, space, or other, also for longer strings."""
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
