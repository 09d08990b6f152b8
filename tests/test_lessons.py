"""The lessons run, show what they showed, and their exercises can be failed."""

import importlib.util
import re
from pathlib import Path

import pytest

from tests.conftest import ROOT, needs

HERE = ROOT / "docs" / "lessons"
LESSONS = sorted(HERE.glob("[0-9]*.ipynb"))

# Wrong answers, made of the right ones: each check must refuse each.
WRONG = '''
import numpy, torch

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
    if isinstance(value, torch.Tensor | numpy.ndarray) and "bool" in str(value.dtype):
        return ~value
    if isinstance(value, torch.Tensor | numpy.ndarray | numpy.number | int | float):
        return value + 1 if "int" in str(getattr(value, "dtype", type(value))) else value * 1.01 + 0.01
    raise TypeError(type(value))

def accepted(check, solution):
    try:
        check(solution)
    except AssertionError:
        return False
    return True

checks = {name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")}
for name, check in checks.items():
    right = getattr(answers, name)
    assert accepted(check, right), name
    assert not accepted(check, lambda *given, right=right, **named: altered(right(*given, **named))), name
print(len(checks))
'''


@pytest.fixture(scope="module")
def execute():
    needs("nbclient", "ipykernel", "einops", extra="lessons")
    spec = importlib.util.spec_from_file_location("execute", HERE / "execute.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_four() -> None:
    assert [path.name[0] for path in LESSONS] == ["1", "2", "3", "4"]


def said(cell) -> str:
    """What a cell printed or returned as text, without the addresses of objects."""
    texts = []
    for output in cell.outputs:
        if output.output_type == "stream":
            assert output.name == "stdout", f"a lesson warns: {output.text}"
            texts.append(output.text)
        elif "image/png" not in output.data:
            texts.append(output.data["text/plain"])
    return re.sub("0x[0-9a-f]+", "0x", "".join(texts))


def code(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.slow
@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_runs_and_shows_what_is_stored(path: Path, execute) -> None:
    """Cells tagged `measured` show times, or what a number of steps that depends on them gave."""
    import nbformat

    stored = nbformat.read(path, as_version=4)
    nbformat.validate(stored)
    fresh = execute.execute(path)
    pictures = 0
    for before, now in zip(code(stored), code(fresh), strict=True):
        assert before.execution_count == now.execution_count, f"{path.name} was changed: run docs/lessons/execute.py"
        pictures += sum("image/png" in output.get("data", {}) for output in before.outputs)
        shown = [output.output_type for output in before.outputs]
        assert shown == [output.output_type for output in now.outputs], before.source
        if "measured" not in before.metadata.get("tags", []):
            assert said(before) == said(now), before.source
    assert pictures >= 3


@pytest.mark.slow
@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_wrong_answers_to_the_exercises_are_refused(path: Path, execute, tmp_path: Path) -> None:
    """The cells that a reader needs for the exercises, tagged `exercises`, are enough for them."""
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    kept = [cell for cell in notebook.cells if "exercises" in cell.metadata.get("tags", [])]
    notebook.cells = [*kept, nbformat.v4.new_code_cell(WRONG)]
    copy = tmp_path / path.name
    nbformat.write(notebook, copy)
    last = execute.execute(copy).cells[-1]
    assert int(said(last)) >= 3
    answers = (HERE / "answers" / f"lesson{path.name[0]}.py").read_text("utf-8")
    assert len(re.findall(r"^def [a-z]", answers, re.MULTILINE)) >= int(said(last))
