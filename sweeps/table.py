"""The table of runs, which `--runs`, a sweep and `score.py --split` print, and the list of all runs."""

import csv
import functools
import io
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from base.errors import InputError, one_line, printable
from base.files import write_text
from base.jobs import run_lock
from base.jobs.run_directory import RUNS, Run, newest_first
from base.options import spell
from base.progress import clock
from conf.compose import read_config
from conf.keys import KEYS, PATHS
from conf.schema import PLUGINS, Config, by_key
from gpt.facts import figure

RESULTS = ["status", "val_loss", "val_bpc", "test_loss", "mode", "steps", "seconds", "parameters"]
MEANS = ("val_loss", "val_bpc", "test_loss", "seconds")  # columns that are averaged over seeds
# more columns if `seed` varies; spread: standard deviation
SEEDS = ["runs", "val_loss_spread", "test_loss_spread"]
ABOUT_MEANS = "each setting: the mean over its seeds, and the standard deviation as spread"
FORMATS: dict[str, Callable[[Any], str]] = {
    **dict.fromkeys(("val_loss", "val_bpc", "test_loss", *SEEDS[1:]), figure),
    "parameters": "{:,}".format,
    "seconds": clock,
}
# A run and its settings as on the command line, then RESULTS, in which what is not known is None.
Row = dict[str, Any]


class Table(NamedTuple):
    """What is compared of some runs."""

    settings: list[str]  # the keys that differ
    rows: list[Row]  # of the runs, the best first
    means: list[Row]  # over runs that differ only in their seed; none if `seed` does not differ
    warning: str  # why the losses cannot be compared, or ""


def compare_runs(
    runs: Iterable[Run], proposed: Mapping[Run, dict[str, str]] | None = None
) -> Table:
    """Compare runs, which need not belong to the same sweep.

    The columns are the settings that differ and on which a result depends: not the steps that
    `minutes=` has chosen, and not what was chosen for the machine. `proposed` are the varied
    settings of a sweep's trials, for those that have not begun. A run whose settings cannot be
    read has the reason in its row.
    """
    proposed = proposed or {}
    configs = dict[Run, Config]()
    settings = dict[Run, dict[str, str]]()
    problems = dict[Run, str]()
    for run in dict.fromkeys([*proposed, *runs]):
        if run in proposed and not run.config.exists():
            settings[run] = proposed[run]
            continue
        try:
            configs[run] = stored_config(run.directory, run.config.stat().st_mtime_ns)
        except (InputError, OSError) as error:
            problems[run] = one_line(error)
            settings[run] = {}
            continue
        settings[run] = spelled(configs[run])
        if configs[run].minutes:
            settings[run]["trainer.max_steps"] = ""
    keys = differing_conditions(settings.values())
    rows = list[Row]()
    for run, values in settings.items():
        row: Row = {"run": printable(run.name)}
        for key in keys:
            value = values.get(key, "null")
            row[key] = "" if value == "null" else value
        summary = run.summary
        row |= {key: getattr(summary, key) for key in RESULTS}
        row |= {"status": status_of(run), "directory": run, "problem": problems.get(run)}
        rows.append(row)
    averages = means(rows, keys) if "seed" in keys else []
    return Table(keys, best_first(rows), best_first(averages), caution(configs))


@functools.cache
def stored_config(directory: Path, modified: int) -> Config:
    """Read the config.yaml of a run: once for each time at which it was `modified`, because it takes some 50 ms."""
    return read_config(directory, classes=False)


def spelled(config: Config) -> dict[str, str]:
    """Return all settings by key, with printable values as on the command line, without passwords in URLs."""
    values = by_key(config)
    for group in PLUGINS:
        plugins = values[group]
        for name, arguments in plugins.items():
            values |= {f"{group}.{name}.{key}": value for key, value in arguments.items()}
        names = list(plugins)
        values[group] = names[0] if len(names) == 1 else names
    texts = dict[str, str]()
    for key, value in values.items():
        # 1 and 1.0 are the same setting, and a config.yaml may have either
        number = isinstance(value, float)
        texts[key] = f"{value:.15g}" if number else printable(spell(value))
    return texts


def differing_conditions(settings: Collection[Mapping[str, str]]) -> list[str]:
    """Return the keys that differ in `settings` and on which a result depends."""
    relevant = {key for key, option in KEYS.items() if option.on_resume != "free"}
    relevant |= {*PATHS, "trainer.max_steps"}
    relevant -= {"threads", "compile"}  # chosen for the machine
    differing = []
    for key in dict.fromkeys(key for of_run in settings for key in of_run):
        group = key.partition(".")[0]  # a plug-in's key counts as its group
        if key in relevant or group in relevant:
            values = {of_run[key] for of_run in settings if key in of_run}
            if len(values) > 1:
                differing.append(key)
    return differing


def means(rows: list[Row], settings: list[str]) -> list[Row]:
    """Return a row of means for the runs that differ only in their seed."""
    others = [key for key in settings if key != "seed"]
    groups = dict[tuple[str, ...], list[Row]]()
    for row in rows:
        if row["val_loss"] is not None and not row["problem"]:
            groups.setdefault(tuple(row[key] for key in others), []).append(row)
    averages = []
    for alike in groups.values():
        mean: Row = {key: alike[0][key] for key in others}
        mean |= {"status": "mean", "runs": len(alike)}
        for key in MEANS:
            values = [row[key] for row in alike if row[key] is not None]
            mean[key] = statistics.fmean(values) if values else None
            mean[f"{key}_spread"] = statistics.stdev(values) if len(values) > 1 else None
        averages.append(mean)
    return averages


def best_first(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["val_bpc"] is None, row["val_bpc"] or 0.0))


def caution(configs: Mapping[Run, Config]) -> str:
    """Return a warning if runs were evaluated on different texts, otherwise ""."""
    texts = set()
    for run, config in configs.items():
        data = config.data
        if data.validation:
            held_out: list[Any] = [data.validation]
        else:
            held_out = [run.summary.text_sha256 or data.path, data.split]
        texts.add(repr([*held_out, data.documents, data.field]))
    if len(texts) > 1:
        return "the validation texts differ, so a lower loss does not mean a better model"
    return ""


def write_csv(directory: Path, table: Table) -> None:
    """Write the table of a sweep as sweep.csv, which also marks the directory as that of a sweep."""
    spreads = SEEDS if table.means else []
    columns = ["run", *table.settings, *spreads, *RESULTS, "directory", "problem"]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows([*table.means, *table.rows])
    write_text(directory / "sweep.csv", text.getvalue())


def as_text(table: Table) -> str:
    """Return a table as text: the means, if `seed` differs, then the runs, then the warning."""
    losses = {"val_loss": "loss", "val_bpc": "bpc"}
    mean_losses = {"runs": "runs", "val_loss": "mean loss", "val_loss_spread": "spread"}
    if any(row["test_loss"] is not None for row in table.rows):
        losses["test_loss"] = "test"
        mean_losses |= {"test_loss": "mean test", "test_loss_spread": "spread"}
    headings = {key: key for key in ("run", *table.settings)}
    headings |= losses | {"parameters": "parameters", "seconds": "time"}
    if any(row["problem"] for row in table.rows):
        headings["problem"] = "problem"
    blocks = [aligned(cells(table.rows, headings))]
    if table.means:
        settings = {key: key for key in table.settings if key != "seed"}
        means = aligned(cells(table.means, settings | mean_losses))
        blocks = [f"{ABOUT_MEANS}\n{means}", f"each run, the best first\n{blocks[0]}"]
    if table.warning:
        blocks.append(table.warning)
    return "\n\n".join(blocks)


def cells(rows: list[Row], headings: Mapping[str, str]) -> list[list[str]]:
    """Return the cells of some rows as text, below the headings of their columns, which are by key."""
    lines = [list(headings.values())]
    for row in rows:
        line = []
        for key in headings:
            value = row[key]
            if value is not None:
                line.append(FORMATS.get(key, str)(value))
            else:
                line.append(row["status"] if key == "val_loss" else "")
        lines.append(line)
    return lines


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as lines of text in which the cells of a column are aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def status_of(run: Run) -> str:
    """Return the status of a run; it is `killed` if it says `running` but no process trains it."""
    status = run.summary.status
    if status is None:
        return "unreadable" if run.config.exists() else "waiting"
    with suppress(OSError):  # in a read-only directory, the lock cannot be tested
        if status == "running" and not run_lock.in_use(run.directory):
            return "killed"
    return status


def run_list() -> str:
    """Return a table of all runs as text, the newest last."""
    rows = [["name", "status", "steps", "loss", "mode", "text"]]
    for run in reversed(newest_first("summary.json")):
        summary = run.summary
        losses = [loss for loss in (summary.validations or {}).values() if isinstance(loss, float)]
        loss = summary.val_loss or min(losses, default=None)
        row = [run.name, status_of(run), str(summary.steps or ""), figure(loss)]
        row += [summary.mode or "", summary.text or ""]
        rows.append([printable(cell) for cell in row])
    if len(rows) == 1:
        return f"no run in {RUNS}/ yet"
    return aligned(rows)
