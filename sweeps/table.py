"""Write sweep.csv, and log the leaderboard and the last lines of a sweep or search."""

import csv
import io
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from base import run_directory
from base.files import write_text
from base.log import log
from base.processes import command
from base.progress import clock
from sweeps.trial import Outcome, Trial

RESULTS = ("status", "val_loss", "val_bpc", "test_loss", "steps", "seconds", "parameters", "directory")
MAX_ROWS = 20  # max trials on the leaderboard


def write_table(sweep: str, trials: Iterable[Trial], outcomes: Mapping[str, Outcome]) -> list[dict[str, str]]:
    """Write `sweep.csv` with these trials and those of earlier commands; return its rows, the best trial first."""
    path = run_directory.RUNS / sweep / "sweep.csv"
    try:
        with open(path, encoding="utf-8", newline="") as file:
            before = [row for row in csv.DictReader(file) if Path(row.get("directory", "")).is_dir()]
    except OSError:
        before = []
    varied = {row["directory"]: {key: value for key, value in row.items() if key not in RESULTS} for row in before}
    varied |= {str(trial.directory): dict(trial.varied) for trial in trials}
    table = []
    for directory, settings in varied.items():
        summary = run_directory.summary_of(Path(directory))
        ended = outcomes.get(Path(directory).name)
        status = ended.status if ended else summary.get("status", "waiting")
        results = {key: "" if summary.get(key) is None else str(summary[key]) for key in RESULTS}
        table.append(settings | results | {"status": str(status), "directory": directory})
    table.sort(key=lambda row: run_directory.val_bpc_of(Path(row["directory"])))
    text = io.StringIO()
    writer = csv.DictWriter(text, [*_settings(table), *RESULTS], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    write_text(path, text.getvalue())
    return table


def _settings(table: list[dict[str, str]]) -> list[str]:
    """List the keys that vary between trials: the columns before the results."""
    return list(dict.fromkeys(key for row in table for key in row if key not in RESULTS))


def leaderboard(table: list[dict[str, str]]) -> str:
    """Format the best trials, with their settings and results, as aligned columns."""
    settings = _settings(table)
    lines = [[*settings, "loss", "bpc", "parameters", "time"]]
    for row in table[:MAX_ROWS]:
        losses = [f"{float(row[key]):.4f}" if row[key] else "" for key in ("val_loss", "val_bpc")]
        if not losses[0]:
            losses[0] = row["status"]
        weights = f"{int(row['parameters']):,}" if row["parameters"] else ""
        seconds = clock(float(row["seconds"])) if row["seconds"] else ""
        lines.append([*(row.get(key, "") for key in settings), *losses, weights, seconds])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    rows = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    more = [f"and {len(table) - MAX_ROWS} more"] if len(table) > MAX_ROWS else []
    return "\n".join([*rows, *more])


def show_results(results: list[dict[str, str]], table: Path) -> None:
    """Log the leaderboard, the path of `table` and commands to look at the results."""
    if results:
        log.info(f"\n{leaderboard(results)}\n")
        if results[0]["val_loss"]:
            log.info(f"more text  {command('python')} sample.py {shlex.quote(results[0]['directory'])}")
        log.info(f"watch      {command('tensorboard')} --logdir {shlex.quote(str(table.parent))}")
    log.info(f"table      {table}")


def describe(trial: Trial, outcomes: Mapping[str, Outcome]) -> str:
    """Describe in one line how a trial has ended; a full or read-only disk, which fails all trials, only once."""
    result = outcomes[trial.name]
    if result.status == "failed":
        others = [each.reason.replace(name, "") for name, each in outcomes.items() if name != trial.name]
        again = "could not be written" in result.reason and result.reason.replace(trial.name, "") in others
        return f"failed: {'as before' if again else result.reason} ({trial.directory / 'console.log'})"
    summary = run_directory.summary_of(trial.directory)
    if summary.get("val_loss") is None:
        return result.status
    loss, bits = summary["val_loss"], summary["val_bpc"]
    return f"{result.status} in {clock(summary['seconds'])}, validation loss {loss:.4f}, {bits:.4f} bits per character"
