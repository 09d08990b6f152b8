"""List all runs, for `python train.py --runs`."""

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from base.errors import printable
from base.jobs import run_directory, run_lock


def run_list() -> str:
    """Return a table of all runs as text, the newest last."""
    runs = run_directory.newest_first("summary.json")[::-1]
    rows = [("name", "status", "steps", "loss", "text"), *map(_row, runs)]
    return aligned(rows) if runs else f"no run in {run_directory.RUNS}/ yet"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as lines of text in which the cells of a column are aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _row(run: Path) -> tuple[str, ...]:
    summary = run_directory.summary_of(run)
    status, loss = str(summary.get("status", "unreadable")), summary.get("val_loss")
    with suppress(OSError):  # in a read-only directory, the lock cannot be tested
        if status == "running" and not run_lock.in_use(run):
            status = "killed"
    steps = summary.get("steps")
    with suppress(OSError):
        log = run / "train.log"
        if steps is None and log.is_file():  # the run has not ended: read the last logged step
            steps = ["", *re.findall(r"^step (\d+)/", log.read_text("utf-8"), re.MULTILINE)][-1]
    return (
        printable(run_directory.name_of(run)),
        status,
        str(steps or ""),
        f"{loss:.4f}" if isinstance(loss, float) else "",
        printable(summary.get("text") or ""),
    )
