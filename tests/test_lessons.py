import re
import runpy
from pathlib import Path

import pytest

from tests.conftest import ROOT, needs

HERE = ROOT / "docs" / "lessons"
LESSONS = sorted(HERE.glob("[0-9]*.ipynb"))
# What takes long, and whose results are only shown, is cut short: what stands in the lesson, and what runs here.
SHORTER = {
    "3": {"def race(kind, steps=200)": "def race(kind, steps=10)"},
    "4": {"ROWS, SECONDS = 1024, 2, 5": "ROWS, SECONDS = 1024, 2, 0.3", "times: int = 3)": "times: int = 1)"},
}
# Runs the cells for the exercises by themselves, and then hands wrong answers, made of the right ones, to each check.
WRONG = '''
def altered(value):
    """The same, but for a hundredth, a letter or a sign."""
    if isinstance(value, tuple | list):
        return type(value)(altered(each) for each in value)
    if isinstance(value, dict):
        return {key: altered(each) for key, each in value.items()}
    if isinstance(value, str):
        return value + "?"
    if isinstance(value, bool):
        return not value
    if isinstance(value, torch.Tensor | np.ndarray) and "bool" in str(value.dtype):
        return ~value
    if isinstance(value, torch.Tensor | np.ndarray | np.number | int | float):
        return value + 1 if "int" in str(getattr(value, "dtype", type(value))) else value * 1.01 + 0.01
    raise TypeError(type(value))

alone = {"__name__": "alone"}
for cell in CELLS:
    exec(cell, alone)
checks = [name for name in alone if name.startswith("check_") and hasattr(alone["answers"], name[6:])]
for name in checks:
    right = getattr(alone["answers"], name[6:])
    alone[name](right)
    with pytest.raises(AssertionError):
        alone[name](lambda *given, **named: altered(right(*given, **named)))
print(*checks)
'''


def code(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def said(cell) -> str:
    texts = []
    for output in cell.outputs:
        if output.output_type == "stream":
            assert output.name == "stdout", f"a lesson warns: {output.text}"
            texts.append(output.text)
        elif "image/png" not in output.data:
            texts.append(output.data["text/plain"])
    return re.sub("0x[0-9a-f]+", "0x", "".join(texts))


@pytest.mark.slow
@pytest.mark.parametrize("number", ["0", pytest.param("1", marks=pytest.mark.promise), "2", "3", "4"])
def test_a_lesson_shows_what_is_stored_and_its_exercises_refuse_wrong_answers(number: str, tmp_path: Path) -> None:
    """Cells tagged `measured` show times, or what a number of steps that depends on them gave.

    Those tagged `exercises` are enough for the exercises.
    """
    needs("nbclient", "ipykernel", "einops", extra="lessons")
    import nbformat

    execute = runpy.run_path(str(HERE / "execute.py"))["execute"]
    (path,) = (path for path in LESSONS if path.name.startswith(number))
    stored = nbformat.read(path, as_version=4)
    nbformat.validate(stored)
    text = path.read_text("utf-8")
    for whole, part in SHORTER.get(number, {}).items():
        assert text.count(whole) == 1, whole
        text = text.replace(whole, part)
    notebook = nbformat.reads(text, as_version=4)
    exercises = [cell.source for cell in code(stored) if "exercises" in cell.metadata.get("tags", [])]
    notebook.cells.append(
        nbformat.v4.new_code_cell(f"import numpy as np, pytest, torch\nCELLS = {exercises!r}\n{WRONG}")
    )
    nbformat.write(notebook, tmp_path / path.name)
    *fresh, last = code(execute(tmp_path / path.name))
    pictures = 0
    for before, now in zip(code(stored), fresh, strict=True):
        assert before.execution_count == now.execution_count, f"{path.name} was changed: run docs/lessons/execute.py"
        pictures += sum("image/png" in output.get("data", {}) for output in before.outputs)
        shown = [output.output_type for output in before.outputs]
        assert shown == [output.output_type for output in now.outputs], before.source
        if "measured" not in before.metadata.get("tags", []):
            assert said(before) == said(now), before.source
    assert len(LESSONS) == 5
    if number == "0":  # has no exercises
        assert pictures == 1
        return
    assert pictures >= 3
    answers = (HERE / "answers" / f"lesson{number}.py").read_text("utf-8")
    checks = said(last).split()
    assert 3 <= len(checks) == text.count("def check_") - text.count("def check_equal(")
    assert all(f"def {check.removeprefix('check_')}(" in answers for check in checks)
