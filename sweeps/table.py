"""Compare runs in tables: `sweep.csv`, the leaderboard, means over seeds, the page report.html, the list of runs."""

import csv
import io
import itertools
import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from base.errors import InputError, printable
from base.files import write_text
from base.jobs import run_lock
from base.jobs.run_directory import RUNS, Run, newest_first
from base.options import spell
from base.progress import clock
from conf.compose import read_config
from conf.keys import PATHS
from conf.schema import PLUGINS, Config, by_key
from gpt.facts import figure
from reports.page import render_page
from training.resume import conditions_of

RESULTS = (
    "status",
    "val_loss",
    "val_bpc",
    "test_loss",
    "mode",
    "steps",
    "seconds",
    "parameters",
    "directory",
)
MEANS = ("val_loss", "val_bpc", "test_loss", "seconds")  # columns that are averaged over seeds
# more columns if `seed` varies; spread: standard deviation
SEEDS = ("runs", "val_loss_spread", "test_loss_spread")
APART = ("run", "seed")  # columns in which runs with the same settings may differ
Varied = Mapping[Run, Mapping[str, str]]  # the settings that differ between runs
# The settings that differ between runs as on the command line, then RESULTS: a number that is not
# known is None, and `directory` is a `Run`.
Row = dict[str, Any]


def write_table(directory: Path, trials: Varied, outcomes: Mapping[Run, str]) -> list[Row]:
    """Write `sweep.csv` for all trials of a sweep, of earlier commands, too, and return their rows, the best first.

    `trials` has the settings of the present command's trials, and `outcomes` how those that have
    ended did.
    """
    varied = {**stored_trials(directory), **trials}
    keys = all_keys(varied.values())
    complete = all(settings.get(key) for settings in varied.values() for key in keys)
    if not complete:  # another command varied other keys
        for run, settings in varied.items():
            with suppress(InputError):  # the run has not begun
                values = spelled(read_config(run.directory))
                varied[run] = {key: values.get(key, settings.get(key, "")) for key in keys}
    table = rows_of(varied, outcomes)
    columns, averages = means(table)
    if averages:
        columns += SEEDS
    columns += RESULTS
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows([*averages, *table])
    write_text(directory / "sweep.csv", text.getvalue())
    return table


def stored_trials(directory: Path) -> dict[Run, Mapping[str, str]]:
    """Return the varied settings of the trials in `sweep.csv` whose directories still exist."""
    trials = dict[Run, Mapping[str, str]]()
    with suppress(OSError), open(directory / "sweep.csv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            trial = row["directory"]
            if trial and Path(trial).is_dir():
                settings = {key: row[key] for key in row if key not in (*RESULTS, *SEEDS)}
                trials[Run(Path(trial))] = settings
    return trials


def all_keys(settings: Iterable[Mapping[str, str]]) -> list[str]:
    return list(dict.fromkeys(itertools.chain(*settings)))


def table_of_runs(runs: Collection[Run]) -> str:
    """Return the leaderboard of runs, which need not belong to the same sweep, as text.

    Its columns are the settings that differ and on which a result depends: not the steps that
    `minutes=` has chosen, and not what was chosen for the machine.
    """
    configs = {run: read_config(run.directory) for run in runs}
    settings = dict[Run, dict[str, str]]()
    for run, config in configs.items():
        settings[run] = spelled(config)
        if config.minutes:
            settings[run]["trainer.max_steps"] = ""
    columns = _differing_conditions(settings.values(), next(iter(configs.values())))
    varied = dict[Run, dict[str, str]]()
    for run, values in settings.items():
        varied[run] = {"run": printable(run.name)}
        for key in columns:
            if values.get(key, "null") != "null":  # otherwise its cell is empty
                varied[run][key] = values[key]
    table = leaderboard(rows_of(varied, {run: status_of(run) for run in varied}))
    warning = caution(configs)
    return f"{table}\n\n{warning}" if warning else table


def _differing_conditions(settings: Collection[Mapping[str, str]], config: Config) -> list[str]:
    """Return the keys that differ in `settings` and on which a result depends; `config` is that of any of the runs."""
    relevant = {*conditions_of(config), *PATHS, "trainer.max_steps"}
    relevant -= {"threads", "compile"}  # chosen for the machine
    differing = []
    for key in all_keys(settings):
        group = key.partition(".")[0]  # a plug-in's key counts as its group
        if key in relevant or group in relevant:
            values = {of_run[key] for of_run in settings if key in of_run}
            if len(values) > 1:
                differing.append(key)
    return differing


def rows_of(varied: Varied, outcomes: Mapping[Run, str]) -> list[Row]:
    """Return a row for each run, the best first, with those of the settings `varied` that differ between the runs."""
    keys = all_keys(varied.values())
    differing = []
    for key in keys:
        values = {settings.get(key, "") for settings in varied.values()}
        if len(values) > 1:
            differing.append(key)
    table = list[Row]()
    for run, settings in varied.items():
        summary = run.summary
        # If no setting differs, as with a single run, the row has all.
        row: Row = {key: settings.get(key, "") for key in differing or keys}
        row |= {key: getattr(summary, key) for key in RESULTS if key != "directory"}
        row["status"] = outcomes.get(run) or summary.status or "waiting"
        row["directory"] = run
        table.append(row)
    return best_first(table)


def best_first(table: list[Row]) -> list[Row]:
    # Losses that were measured in different modes are not compared. Means have no mode.
    return sorted(
        table,
        key=lambda row: (row["val_bpc"] is None, row.get("mode") or "", row["val_bpc"] or 0.0),
    )


def spelled(config: Config) -> dict[str, str]:
    """Return all settings by key, with printable values as on the command line, without passwords in URLs."""
    values = by_key(config)
    for group in PLUGINS:
        plugins = values[group]
        for name, arguments in plugins.items():
            values |= {f"{group}.{name}.{key}": value for key, value in arguments.items()}
        names = list(plugins)
        values[group] = names[0] if len(names) == 1 else names
    return {key: printable(spell(value)) for key, value in values.items()}


def means(table: list[Row]) -> tuple[list[str], list[Row]]:
    """Return the settings that are columns of a table, and a row of means over the runs that differ only in their seed.

    The rows begin with the lowest loss. There are none if `seed` is not a column.
    """
    if not table:
        return [], []
    settings = [key for key in table[0] if key not in RESULTS]
    if "seed" not in settings:
        return settings, []
    groups = dict[tuple[str, ...], list[Row]]()
    for row in table:
        groups.setdefault(without_seed(row), []).append(row)
    averages = []
    for rows in groups.values():
        mean: Row = {key: "" if key in APART else rows[0][key] for key in settings}
        mean["status"] = "mean"
        for key in MEANS:
            values = [row[key] for row in rows if row[key] is not None]
            mean[key] = statistics.fmean(values) if values else None
            if f"{key}_spread" in SEEDS:
                mean[f"{key}_spread"] = statistics.stdev(values) if len(values) > 1 else None
        mean["runs"] = sum(row["val_loss"] is not None for row in rows)
        averages.append(mean)
    return settings, best_first(averages)


def without_seed(row: Row) -> tuple[str, ...]:
    """Return the settings of a row; runs for which they are equal differ only in their seed."""
    return tuple(value for key, value in row.items() if key not in (*RESULTS, *SEEDS, *APART))


def leaderboard(table: list[Row]) -> str:
    return "\n\n".join(map(aligned, cells(table)))


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as lines of text in which the cells of a column are aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def cells(table: list[Row]) -> list[list[list[str]]]:
    """Return the cells of the tables to show, by row, headings first: the means if `seed` varies, then the runs."""
    settings, averages = means(table)
    tested = any(row["test_loss"] is not None for row in table)
    tables = [run_cells(table, settings, tested)]
    if averages:
        tables.insert(0, mean_cells(averages, settings, tested))
    return tables


def run_cells(table: list[Row], settings: list[str], tested: bool) -> list[list[str]]:
    modes = {row["mode"] for row in table} - {None}
    headings = {key: key for key in settings} | {"val_loss": "loss", "val_bpc": "bpc"}
    if tested:
        headings["test_loss"] = "test"
    if len(modes) > 1:
        headings["mode"] = "mode"
    headings |= {"parameters": "parameters", "seconds": "time"}
    lines = [list(headings.values())]
    for row in table:
        shown = row | {key: figure(row[key]) for key in ("val_bpc", "test_loss")}
        shown["val_loss"] = figure(row["val_loss"]) or row["status"]
        if row["parameters"] is not None:
            shown["parameters"] = f"{row['parameters']:,}"
        if row["seconds"] is not None:
            shown["seconds"] = clock(row["seconds"])
        lines.append([shown[key] or "" for key in headings])
    return lines


def mean_cells(averages: list[Row], settings: list[str], tested: bool) -> list[list[str]]:
    others = [key for key in settings if key not in APART]
    headings = [*others, "runs", "mean loss", "spread"]
    losses = ["val_loss", "val_loss_spread"]
    if tested:
        headings += ["mean test", "spread"]
        losses += ["test_loss", "test_loss_spread"]
    lines = [headings]
    for row in averages:
        figures = [figure(row[key]) for key in losses]
        lines.append([*(row[key] for key in others), str(row["runs"]), *figures])
    return lines


def write_page(directory: Path, table: list[Row]) -> str:
    """Write report.html, which compares the runs in `table`, and return the `caution` that it contains, if any."""
    configs = dict[Run, Config]()
    for row in table:
        with suppress(InputError):  # the run has not begun, or has lost its config.yaml
            configs[row["directory"]] = read_config(row["directory"].directory)
    settings, averages = means(table)
    # Runs that differ only in their seed have one colour, which is a number.
    numbers = dict[tuple[str, ...], int]()  # by the settings without the seed
    groups = [averages, table] if averages else [table]
    colours = []  # a list for each table of `cells`, with the colour of each row
    for rows in groups:
        colours.append([numbers.setdefault(without_seed(row), len(numbers)) for row in rows])
    runs = []
    run_colours = colours[-1]
    for row, colour in zip(table, run_colours, strict=True):
        name = ", ".join(f"{key}={row[key]}" for key in settings)
        runs.append((name, curve(row["directory"]), colour))
    units = {
        "byte" if config.data.tokenizer == "byte" else "character" for config in configs.values()
    }
    unit = " or ".join(sorted(units)) or "character"
    data = {"unit": unit, "colours": len(numbers), "runs": runs}
    tables = list(zip(cells(table), colours, strict=True))
    warning = caution(configs)
    title = printable(directory.name)
    page = render_page("sweep_page", title, data, caution=warning, tables=tables)
    write_text(directory / "report.html", page)
    return warning


def curve(run: Run) -> list[tuple[int, float]]:
    """Return pairs (step, validation loss in nats), one for each validation whose loss is finite."""
    validations = run.summary.validations or {}
    return [(int(step), loss) for step, loss in validations.items() if math.isfinite(loss)]


def caution(configs: Mapping[Run, Config]) -> str:
    """Return a warning if runs were evaluated on different texts or in different modes, otherwise ""."""
    modes = {run.summary.mode for run in configs} - {None}
    if len(modes) > 1:
        listed = ", ".join(sorted(map(str, modes)))
        return f"losses measured in different modes cannot be compared: {listed}"
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


def status_of(run: Run) -> str:
    """Return the status of a run; it is `killed` if it says `running` but no process trains it."""
    status = run.summary.status or "unreadable"
    with suppress(OSError):  # in a read-only directory, the lock cannot be tested
        if status == "running" and not run_lock.in_use(run.directory):
            return "killed"
    return status


def run_list() -> str:
    """Return a table of all runs as text, the newest last."""
    rows = [["name", "status", "steps", "loss", "mode", "text"]]
    for run in reversed(newest_first("summary.json")):
        summary = run.summary
        row = [run.name, status_of(run), str(summary.steps or ""), figure(summary.val_loss)]
        row += [summary.mode or "", summary.text or ""]
        rows.append([printable(cell) for cell in row])
    if len(rows) == 1:
        return f"no run in {RUNS}/ yet"
    return aligned(rows)
