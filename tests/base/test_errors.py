"""What messages, cells and names show of a text."""

import pytest

from base.errors import printable


@pytest.mark.parametrize(
    "text",
    ["«\u00a0Quoi\u202f?\u00a0»", "10\u202f%", "全角\u3000空白", "می\u200cخواهم", "👩\u200d💻"],
)
def test_what_people_write_is_printed(text):
    assert printable(text) == text


@pytest.mark.parametrize(
    "hidden", "\n\r\t\0\x1b\x7f\x9b\u2028\u2029\u202e\u2066\ufeff\ud800\ue000"
)
def test_what_could_move_the_cursor_or_turn_the_text_is_not(hidden):
    assert printable(f"a{hidden}b") == "a\ufffdb"
