"""List all runs, for `python train.py --runs`."""

import re
from collections.abc import Sequence
from contextlib import suppress

from base.errors import printable
from base.jobs import run_lock
from base.jobs.run_directory import RUNS, Run, newest_first


def run_list() -> str:
    """Return a table of all runs as text, the newest last."""
    runs = newest_first("summary.json")[::-1]
    rows = [("name", "status", "steps", "loss", "text"), *map(_row, runs)]
    return aligned(rows) if runs else f"no run in {RUNS}/ yet"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as lines of text in which the cells of a column are aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _row(run: Run) -> tuple[str, ...]:
    summary = run.summary
    status, steps = summary.status or "unreadable", str(summary.steps or "")
    with suppress(OSError):  # in a read-only directory, the lock cannot be tested
        if status == "running" and not run_lock.in_use(run.directory):
            status = "killed"
    with suppress(OSError):
        log = run.directory / "train.log"
        if summary.steps is None and log.is_file():  # the run has not ended: read the last logged step
            steps = ["", *re.findall(r"^step (\d+)/", log.read_text("utf-8"), re.MULTILINE)][-1]
    return (
        printable(run.name),
        status,
        steps,
        "" if summary.val_loss is None else f"{summary.val_loss:.4f}",
        printable(summary.text or ""),
    )
