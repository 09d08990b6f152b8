import pytest

from gpt.facts import rounded


@pytest.mark.parametrize(
    ("number", "digits", "shown"),
    [
        (0.25, 2, "0.25"),
        (1.23, 2, "1.2"),
        (9.99, 2, "10"),
        (123.4, 2, "123"),
        (1511.0, 3, "1,511"),
    ],
)
def test_large_numbers_are_written_in_full(number: float, digits: int, shown: str) -> None:
    assert rounded(number, digits) == shown
