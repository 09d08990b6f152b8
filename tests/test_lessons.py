import re
import runpy

import pytest

from tests.conftest import ROOT, needs

HERE = ROOT / "docs" / "lessons"
# What takes long, and whose results are only shown, is cut short: what stands in the lesson, and
# what runs here.
SHORTER = {
    "3": {"def race(kind, steps=200)": "def race(kind, steps=10)"},
    "4": {
        "ROWS, SECONDS = 1024, 2, 5": "ROWS, SECONDS = 1024, 2, 0.3",
        "times: int = 3)": "times: int = 1)",
    },
}


def outputs(cell, measured):
    """The kinds of a cell's outputs and, unless it is measured, their texts, in which addresses of objects differ."""
    found = cell.get("outputs", [])
    kinds = [(output.output_type, output.get("name")) for output in found]
    if measured:
        return kinds
    texts = [output.get("text") or output.data["text/plain"] for output in found]
    return kinds, [re.sub("0x[0-9a-f]+", "0x", text) for text in texts]


@pytest.mark.slow
@pytest.mark.parametrize("number", ["0", "1", "2", "3", "4"])
def test_a_lesson_shows_what_is_stored(number, tmp_path):
    """Cells tagged `measured` show times, or what a number of steps that depends on them gave."""
    needs("nbclient", "ipykernel", "einops", extra="lessons")
    import nbformat

    execute = runpy.run_path(str(HERE / "execute.py"))["execute"]
    (path,) = HERE.glob(f"{number}*.ipynb")
    stored = nbformat.read(path, as_version=4)
    nbformat.validate(stored)
    text = path.read_text("utf-8")
    assert '"stderr"' not in text, "a lesson warns"
    for whole, part in SHORTER.get(number, {}).items():
        assert text.count(whole) == 1
        text = text.replace(whole, part)
    (tmp_path / path.name).write_text(text, "utf-8")
    executed = execute(tmp_path / path.name)
    for before, now in zip(stored.cells, executed.cells, strict=True):
        assert before.get("execution_count") == now.get("execution_count"), (
            f"{path.name} was changed: run docs/lessons/execute.py"
        )
        measured = "measured" in before.metadata.get("tags", [])
        assert outputs(before, measured) == outputs(now, measured), before.source
