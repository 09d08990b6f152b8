"""List all runs, for `python train.py --runs`."""

from contextlib import suppress
from pathlib import Path

from base import run_directory, run_lock
from base.errors import printable

COLUMNS = ("name", "status", "steps", "loss", "text")


def run_list() -> str:
    """Return a table of all runs in the order in which their summary.json was written, the newest last."""
    files = [file for depth in ("*", "*/*") for file in run_directory.RUNS.glob(f"{depth}/summary.json")]
    runs = [file.parent for file in sorted(files, key=lambda file: file.stat().st_mtime_ns)]
    rows = [COLUMNS, *map(_row, runs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines) if runs else f"no run in {run_directory.RUNS}/ yet"


def _row(run: Path) -> tuple[str, ...]:
    summary = run_directory.summary_of(run)
    status, loss = str(summary.get("status", "unreadable")), summary.get("val_loss")
    saved = [int(path.stem[5:]) for path in run.glob("checkpoints/step-[0-9]*.ckpt")]
    with suppress(OSError):  # the lock cannot be tried in a read-only directory
        if status == "running" and not run_lock.in_use(run):
            status = "killed"
    return (
        printable(run_directory.name_of(run)),
        status,
        str(summary.get("steps") or max(saved, default="")),
        f"{loss:.4f}" if isinstance(loss, float) else "",
        printable(summary.get("text") or ""),
    )
