"""Compare runs in tables: `sweep.csv`, the leaderboard, means over seeds, the page report.html, the list of runs."""

import csv
import io
import itertools
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from base.errors import InputError, printable
from base.files import write_text
from base.jobs import run_lock
from base.jobs.run_directory import RUNS, Run, newest_first
from base.options import spell
from base.progress import clock
from conf import resume_rules
from conf.compose import read_config
from conf.schema import PLUGINS, Config, by_key
from reports.page import render_page

RESULTS = ("status", "val_loss", "val_bpc", "test_loss", "mode", "steps", "seconds", "parameters", "directory")
MEANS = ("val_loss", "val_bpc", "test_loss", "seconds")  # columns that are averaged over seeds
SEEDS = ("runs", "val_loss_spread", "test_loss_spread")  # more columns if `seed` varies; spread: standard deviation
APART = ("run", "seed")  # columns in which runs with the same settings may differ
Varied = Mapping[Run, Mapping[str, str]]  # the settings that differ between runs
# The settings that differ between runs as on the command line, then RESULTS: a number that is not known is None, and
# `directory` is a `Run`.
Row = dict[str, Any]


def write_table(directory: Path, trials: Varied, outcomes: Mapping[Run, str]) -> list[Row]:
    """Write `sweep.csv` for all trials of a sweep, of earlier commands, too, and return their rows, the best first.

    `trials` has the settings of the present command's trials, and `outcomes` how those that have ended did.
    """
    varied = dict[Run, Mapping[str, str]]()
    with suppress(OSError), open(directory / "sweep.csv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["directory"] and Path(row["directory"]).is_dir():
                own = {key: value for key, value in row.items() if key not in (*RESULTS, *SEEDS)}
                varied[Run(Path(row["directory"]))] = own
    varied |= trials
    keys = list(dict.fromkeys(itertools.chain(*varied.values())))
    complete = all(settings.get(key) for settings in varied.values() for key in keys)
    for run, settings in varied.items():
        if not complete:  # another command varied other keys
            with suppress(InputError):  # the run has not begun
                values = spelled(read_config(run.directory))
                varied[run] = {key: values.get(key, settings.get(key, "")) for key in keys}
    table = rows_of(varied, outcomes)
    names, averages = means(table)
    text = io.StringIO()
    columns = [*names, *(SEEDS if averages else ()), *RESULTS]
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows([*averages, *table])
    write_text(directory / "sweep.csv", text.getvalue())
    return table


def table_of_runs(runs: Collection[Run]) -> str:
    """Return the leaderboard of runs, which need not belong to the same sweep, as text.

    Its columns are the settings that differ and on which a result depends: not the steps that `minutes=` has chosen,
    and not what was chosen for the machine.
    """
    configs = [read_config(run.directory) for run in runs]
    values = [spelled(config) | ({"trainer.max_steps": ""} if config.minutes else {}) for config in configs]
    depends = {*resume_rules.settings(configs[0]), *resume_rules.PATHS, "trainer.max_steps"} - {"threads", "compile"}
    keys = [key for key in dict.fromkeys(itertools.chain(*values)) if {key, key.partition(".")[0]} & depends]
    varied = [key for key in keys if len({own[key] for own in values if key in own}) > 1]
    rows = [{key: own[key] for key in varied if own.get(key, "null") != "null"} for own in values]
    named = {run: {"run": printable(run.name)} | row for run, row in zip(runs, rows, strict=True)}
    return "\n\n".join(filter(None, [leaderboard(rows_of(named, {})), caution(dict(zip(runs, configs, strict=True)))]))


def rows_of(varied: Varied, outcomes: Mapping[Run, str]) -> list[Row]:
    """Return a row for each run, the best first, with those of the settings `varied` that differ between the runs."""
    keys = list(dict.fromkeys(itertools.chain(*varied.values())))
    differing = [key for key in keys if len({own.get(key, "") for own in varied.values()}) > 1]
    table = list[Row]()
    for run, settings in varied.items():
        summary = run.summary
        row: Row = {key: settings.get(key, "") for key in differing or keys}
        row |= {key: getattr(summary, key) for key in RESULTS if key != "directory"}
        status = outcomes.get(run) or summary.status or "waiting"
        table.append(row | {"status": status, "directory": run})
    return best_first(table)


def best_first(table: list[Row]) -> list[Row]:
    # Losses that were measured in different modes are not compared.
    return sorted(table, key=lambda row: (row["val_bpc"] is None, row.get("mode") or "", row["val_bpc"] or 0.0))


def spelled(config: Config) -> dict[str, str]:
    """Return all settings by key, with printable values as on the command line, without passwords in URLs."""
    found = by_key(config)
    for group in PLUGINS:
        names = list(plugins := found[group])
        found |= {f"{group}.{name}.{key}": value for name in names for key, value in plugins[name].items()}
        found[group] = names[0] if len(names) == 1 else names
    return {key: printable(spell(value)) for key, value in found.items()}


def means(table: list[Row]) -> tuple[list[str], list[Row]]:
    """Return the settings that are columns of a table, and a row of means over the runs that differ only in their seed.

    The rows begin with the lowest loss. There are none if `seed` is not a column.
    """
    settings = [key for key in table[0] if key not in RESULTS] if table else []
    groups = dict[tuple[str, ...], list[Row]]()
    for row in table if "seed" in settings else ():
        groups.setdefault(without_seed(row), []).append(row)
    averages = []
    for rows in groups.values():
        mean: Row = {key: "" if key in APART else rows[0][key] for key in settings} | {"status": "mean"}
        for key in MEANS:
            values = [each[key] for each in rows if each[key] is not None]
            mean[key] = statistics.fmean(values) if values else None
            if f"{key}_spread" in SEEDS:
                mean[f"{key}_spread"] = statistics.stdev(values) if len(values) > 1 else None
        mean["runs"] = sum(each["val_loss"] is not None for each in rows)
        averages.append(mean)
    return settings, best_first(averages)


def without_seed(row: Row) -> tuple[str, ...]:
    return tuple(value for key, value in row.items() if key not in (*RESULTS, *SEEDS, *APART))


def leaderboard(table: list[Row]) -> str:
    return "\n\n".join(map(aligned, cells(table)))


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as lines of text in which the cells of a column are aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def cells(table: list[Row]) -> list[list[list[str]]]:
    """Return the tables for display, headings first: means if `seed` varies, then a table with a row for each run."""
    settings, averages = means(table)
    tested = ["test_loss"] if any(row["test_loss"] is not None for row in table) else []
    modes = ["mode"] if len({row["mode"] for row in table} - {None}) > 1 else []
    lines = [[*settings, "loss", "bpc", *(["test"] if tested else []), *modes, "parameters", "time"]]
    for row in table:
        loss, bpc, *tests = (figure(row[key]) for key in ("val_loss", "val_bpc", *tested))
        weights = "" if row["parameters"] is None else f"{row['parameters']:,}"
        seconds = "" if row["seconds"] is None else clock(row["seconds"])
        mode = [row[key] or "" for key in modes]
        lines.append([*(row[key] for key in settings), loss or row["status"], bpc, *tests, *mode, weights, seconds])
    if not averages:
        return [lines]
    others, losses = [key for key in settings if key not in APART], ["val_loss", *tested]
    rows = [[*others, "runs", "mean loss", "spread", *(["mean test", "spread"] if tested else [])]]
    for row in averages:
        numbers = [figure(row[f"{key}{end}"]) for key in losses for end in ("", "_spread")]
        rows.append([*(row[key] for key in others), str(row["runs"]), *numbers])
    return [rows, lines]


def figure(number: float | None) -> str:
    return "" if number is None else f"{number:.4f}"


def write_page(directory: Path, table: list[Row]) -> str:
    """Write report.html, which compares the runs in `table`, and return the `caution` that it contains, if any."""
    configs = dict[Run, Config]()
    for row in table:
        with suppress(InputError):  # the run has not begun, or has lost its config.yaml
            configs[row["directory"]] = read_config(row["directory"].directory)
    settings, averages = means(table)
    # Runs that differ only in their seed have one colour, which is a number; a page of no runs has one table.
    numbers = dict[tuple[str, ...], int]()
    groups = [rows for rows in (averages, table) if rows] or [[]]
    colours = [[numbers.setdefault(without_seed(row), len(numbers)) for row in rows] for rows in groups]
    names = [", ".join(f"{key}={row[key]}" for key in settings) for row in table]
    lines = zip(names, [curve(row["directory"]) for row in table], colours[-1], strict=True)
    units = {"byte" if config.data.tokenizer == "byte" else "character" for config in configs.values()}
    data = {"unit": " or ".join(sorted(units)) or "character", "colours": len(numbers), "runs": list(lines)}
    different, tables = caution(configs), list(zip(cells(table), colours, strict=True))
    page = render_page("sweep_page", printable(directory.name), data, caution=different, tables=tables)
    write_text(directory / "report.html", page)
    return different


def curve(run: Run) -> list[tuple[int, float]]:
    """Return pairs (step, validation loss in nats), one for each validation whose loss is finite."""
    validations = run.summary.validations or {}
    return [(int(step), loss) for step, loss in validations.items() if math.isfinite(loss)]


def caution(configs: Mapping[Run, Config]) -> str:
    """Return a warning if runs were evaluated on different texts or in different modes, otherwise ""."""
    texts, modes = set(), {run.summary.mode for run in configs} - {None}
    if len(modes) > 1:
        return f"losses measured in different modes cannot be compared: {', '.join(sorted(map(str, modes)))}"
    for run, config in configs.items():
        data = config.data
        held_out = [data.validation] if data.validation else [run.summary.text_sha256 or data.path, data.split]
        texts.add(repr([*held_out, data.documents, data.field]))
    return "the validation texts differ, so a lower loss does not mean a better model" if len(texts) > 1 else ""


def run_list() -> str:
    """Return a table of all runs as text, the newest last."""
    rows = [["name", "status", "steps", "loss", "mode", "text"]]
    for run in reversed(newest_first("summary.json")):
        summary = run.summary
        status = summary.status or "unreadable"
        with suppress(OSError):  # in a read-only directory, the lock cannot be tested
            if status == "running" and not run_lock.in_use(run.directory):
                status = "killed"
        cells = [run.name, status, str(summary.steps or ""), figure(summary.val_loss)]
        cells += [summary.mode or "", summary.text or ""]
        rows.append([printable(cell) for cell in cells])
    return aligned(rows) if len(rows) > 1 else f"no run in {RUNS}/ yet"
