"""Run lessons and store their outputs: `python docs/lessons/execute.py [3 4]`; all if no number is given."""

import sys
import time
from pathlib import Path

try:
    import nbformat
    from nbclient import NotebookClient
except ModuleNotFoundError as error:
    raise SystemExit(
        f"{error.name} is not installed: pip install -c constraints.txt -e '.[lessons]'"
    ) from None

HERE = Path(__file__).parent
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def lessons() -> list[Path]:
    """Return the paths of the notebooks, in the order of the lessons."""
    return sorted(HERE.glob("[0-9]*.ipynb"))


def execute(path: Path) -> nbformat.NotebookNode:
    """Run a notebook in a new process, in its folder, and return it with its outputs.

    Raises:
        CellExecutionError: a cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=150,  # seconds per cell
        record_timing=False,
        # otherwise timing decides into how many outputs the text of a cell is divided
        coalesce_streams=True,
        resources={"metadata": {"path": str(HERE)}},
    )
    client.execute()
    return notebook


if __name__ == "__main__":
    for path in lessons():
        if len(sys.argv) == 1 or path.name[0] in sys.argv[1:]:
            begun = time.perf_counter()
            notebook = execute(path)
            notebook.metadata = nbformat.from_dict(
                {"kernelspec": KERNEL, "language_info": {"name": "python"}}
            )
            nbformat.write(notebook, path)
            print(
                f"{path.name}: {time.perf_counter() - begun:.0f} s, {path.stat().st_size / 1e3:,.0f} kB"
            )
