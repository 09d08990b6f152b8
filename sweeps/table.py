"""Compare several runs in tables: `sweep.csv`, the leaderboard, the means over seeds, and the page report.html."""

import csv
import io
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from base.errors import InputError, printable
from base.files import write_text
from base.jobs.run_directory import Run
from base.options import spell
from base.progress import clock
from conf import resume_rules
from conf.compose import PLUGINS, read_config
from conf.keys import leaves
from conf.schema import Config, to_dict
from reports.page import render_page
from reports.run_list import aligned
from sweeps.trial import Trial

RESULTS = ("status", "val_loss", "val_bpc", "test_loss", "steps", "seconds", "parameters", "directory")  # in sweep.csv
MEANS = ("val_loss", "val_bpc", "test_loss", "seconds")  # columns that are averaged over seeds
SEEDS = ("runs", "val_loss_spread", "test_loss_spread")  # more columns if `seed` varies; spread: standard deviation
MAX_ROWS = 20  # maximum number of runs on the leaderboard
Settings = dict[str, str]  # by key, the value as on the command line
Row = dict[str, Any]  # the settings that differ between runs, then RESULTS; a number that is not known is None


def write_table(directory: Path, trials: Iterable[Trial] = (), outcomes: Mapping[str, str] | None = None) -> list[Row]:
    """Write `sweep.csv` for all trials of a sweep, of earlier commands, too, and return their rows, the best first.

    `outcomes` says, by the name of a trial, how the trial has ended.
    """
    varied = dict[Path, Settings]()
    with suppress(OSError), open(directory / "sweep.csv", encoding="utf-8", newline="") as file:
        rows = {Path(row["directory"]): row for row in csv.DictReader(file) if row["directory"]}
        varied = {run: row for run, row in rows.items() if run.is_dir()}
    varied |= {trial.directory: dict(trial.varied) for trial in trials}
    keys = dict.fromkeys(key for row in varied.values() for key in row if key not in (*RESULTS, *SEEDS))
    varied = {run: {key: row.get(key, "") for key in keys} for run, row in varied.items()}
    if not all(all(row.values()) for row in varied.values()):  # the earlier commands varied other keys
        for run, row in varied.items():
            with suppress(InputError):  # the run has not begun
                row |= {key: value for key, value in spelled(read_config(run)).items() if key in keys}
    table = rows_of(varied, outcomes or {})
    settings, averages = means(table)
    text = io.StringIO()
    columns = [*settings, *(SEEDS if averages else ()), *RESULTS]
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows([*averages, *table])
    write_text(directory / "sweep.csv", text.getvalue())
    return table


def rows_of(varied: Mapping[Path, Settings], outcomes: Mapping[str, str]) -> list[Row]:
    """Return a row for each run directory, the best first; `varied` has the same keys for all runs."""
    table, keys = list[Row](), list(next(iter(varied.values()), ()))
    differing = [key for key in keys if len({row[key] for row in varied.values()}) > 1]
    for directory, settings in varied.items():
        summary = Run(directory).summary
        status = outcomes.get(directory.name) or summary.status or "waiting"
        row = {key: settings[key] for key in differing or keys} | {key: getattr(summary, key, None) for key in RESULTS}
        table.append(row | {"status": status, "directory": directory})
    return sorted(table, key=lambda row: Run(row["directory"]).bpc)


def spelled(config: Config) -> Settings:
    """Return all settings by key, with printable values as on the command line, without passwords in URLs."""
    found = dict(leaves(to_dict(config)))
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
        groups.setdefault(without_seed(row, settings), []).append(row)
    averages = []
    for rows in groups.values():
        row = {key: rows[0][key] for key in settings} | {"seed": "", "status": "mean"}
        for key in MEANS:
            values = [each[key] for each in rows if each[key] is not None]
            row[key] = statistics.fmean(values) if values else None
            if f"{key}_spread" in SEEDS:
                row[f"{key}_spread"] = statistics.stdev(values) if len(values) > 1 else None
        row["runs"] = sum(each["val_loss"] is not None for each in rows)
        averages.append(row)
    return settings, sorted(averages, key=lambda row: math.inf if row["val_bpc"] is None else row["val_bpc"])


def without_seed(row: Row, settings: list[str]) -> tuple[str, ...]:
    return tuple(row[key] for key in settings if key != "seed")


def leaderboard(table: list[Row], *, named: bool = False) -> str:
    """Return the best runs, at most `MAX_ROWS`, as text with aligned columns; means over seeds come first.

    If `named` is true, the first column is the name of the run.
    """
    *averages, runs = cells(table)
    if named:
        names = ["run", *(Run(row["directory"]).name for row in table)]
        runs = [[printable(name), *row] for name, row in zip(names, runs, strict=True)]
    said = aligned(runs[: MAX_ROWS + 1]) + (f"\nand {len(table) - MAX_ROWS} more" if len(table) > MAX_ROWS else "")
    return "\n\n".join([*map(aligned, averages), said])


def cells(table: list[Row]) -> list[list[list[str]]]:
    """Return the tables for display, headings first: means if `seed` varies, then a table with a row for each run."""
    settings, averages = means(table)
    tested = ["test_loss"] if any(row["test_loss"] is not None for row in table) else []
    lines = [[*settings, "loss", "bpc", *(["test"] if tested else []), "parameters", "time"]]
    for row in table:
        loss, bpc, *tests = (figure(row[key]) for key in ("val_loss", "val_bpc", *tested))
        weights = "" if row["parameters"] is None else f"{row['parameters']:,}"
        seconds = "" if row["seconds"] is None else clock(row["seconds"])
        lines.append([*(row[key] for key in settings), loss or row["status"], bpc, *tests, weights, seconds])
    if not averages:
        return [lines]
    others, losses = [key for key in settings if key != "seed"], ["val_loss", *tested]
    rows = [[*others, "runs", "mean loss", "spread", *(["mean test", "spread"] if tested else [])]]
    for row in averages:
        numbers = [figure(row[f"{key}{end}"]) for key in losses for end in ("", "_spread")]
        rows.append([*(row[key] for key in others), str(row["runs"]), *numbers])
    return [rows, lines]


def figure(number: float | None) -> str:
    return "" if number is None else f"{number:.4f}"


def write_page(directory: Path, table: list[Row]) -> str:
    """Write report.html, which compares the runs in `table`, into `directory`.

    Return a warning if the runs were evaluated on different texts, otherwise "".
    """
    runs = []
    for row in table:
        with suppress(InputError):  # the run has not begun, or has lost its config.yaml
            runs.append((row["directory"], read_config(row["directory"])))
    settings, averages = means(table)
    # Runs that differ only in their seed have one colour, which is a number; a page of no runs has one table.
    kinds = [[without_seed(row, settings) for row in rows] for rows in (averages, table) if rows]
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(itertools.chain(*kinds)))}
    colours = [[numbers[kind] for kind in own] for own in kinds] or [[]]
    names = [", ".join(f"{key}={row[key]}" for key in settings) for row in table]
    lines = zip(names, [curve(row["directory"]) for row in table], colours[-1], strict=True)
    units = {"byte" if config.data.tokenizer == "byte" else "character" for _, config in runs}
    data = {"unit": " or ".join(sorted(units)) or "character", "colours": len(numbers), "runs": list(lines)}
    different, tables = caution(runs), list(zip(cells(table), colours, strict=True))
    page = render_page("sweep_page", printable(directory.name), data, caution=different, tables=tables)
    write_text(directory / "report.html", page)
    return different


def curve(run: Path) -> list[tuple[int, float]]:
    """Return pairs (step, validation loss in nats), one for each validation whose loss is finite."""
    validations = Run(run).summary.validations or {}
    return [(int(step), loss) for step, loss in validations.items() if math.isfinite(loss)]


def caution(runs: Iterable[tuple[Path, Config]]) -> str:
    """Return a warning if runs, as (directory, configuration), were evaluated on different texts, otherwise ""."""
    texts = set()
    for directory, config in runs:
        data, sha256 = config.data, Run(directory).summary.text_sha256
        held_out = [data.validation] if data.validation else [sha256 or data.path, data.split]
        texts.add(repr([*held_out, data.documents, data.field]))
    different = "the validation texts differ, so a lower loss does not mean a better model"
    return different if len(texts) > 1 else ""


def table_of_runs(runs: Iterable[Run]) -> str:
    """Return the leaderboard of runs, which need not belong to the same sweep, as text.

    Its columns are the settings that differ and on which a result depends: not the steps that `minutes=` has chosen,
    and not what was chosen for the machine.
    """
    directories = [run.directory for run in runs]
    configs = [read_config(directory) for directory in directories]
    values = [spelled(config) | ({"trainer.max_steps": ""} if config.minutes else {}) for config in configs]
    depends = {*resume_rules.settings(configs[0]), *resume_rules.PATHS, "trainer.max_steps"} - {"threads", "compile"}
    keys = [key for key in dict.fromkeys(itertools.chain(*values)) if {key, key.partition(".")[0]} & depends]
    varied = [key for key in keys if len({own[key] for own in values if key in own}) > 1]
    rows = [{key: "" if own.get(key) in (None, "null") else own[key] for key in varied} for own in values]
    different = caution(zip(directories, configs, strict=True))
    table = rows_of(dict(zip(directories, rows, strict=True)), {})
    return leaderboard(table, named=True) + (f"\n\n{different}" if different else "")
