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


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def said(cell):
    texts = []
    for output in cell.outputs:
        if output.output_type == "stream":
            assert output.name == "stdout", f"a lesson warns: {output.text}"
            texts.append(output.text)
        elif "image/png" not in output.data:
            texts.append(output.data["text/plain"])
    return re.sub("0x[0-9a-f]+", "0x", "".join(texts))


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", ["0", pytest.param("1", marks=pytest.mark.promise), "2", "3", "4"]
)
def test_a_lesson_shows_what_is_stored(number, tmp_path):
    """Cells tagged `measured` show times, or what a number of steps that depends on them gave."""
    needs("nbclient", "ipykernel", "einops", extra="lessons")
    import nbformat

    execute = runpy.run_path(str(HERE / "execute.py"))["execute"]
    (path,) = HERE.glob(f"{number}*.ipynb")
    stored = nbformat.read(path, as_version=4)
    nbformat.validate(stored)
    text = path.read_text("utf-8")
    for whole, part in SHORTER.get(number, {}).items():
        assert text.count(whole) == 1
        text = text.replace(whole, part)
    notebook = nbformat.reads(text, as_version=4)
    nbformat.write(notebook, tmp_path / path.name)
    for before, now in zip(code(stored), code(execute(tmp_path / path.name)), strict=True):
        assert before.execution_count == now.execution_count, (
            f"{path.name} was changed: run docs/lessons/execute.py"
        )
        shown = [output.output_type for output in before.outputs]
        assert shown == [output.output_type for output in now.outputs], before.source
        if "measured" not in before.metadata.get("tags", []):
            assert said(before) == said(now), before.source
