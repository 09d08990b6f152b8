"""Compare several runs in tables: `sweep.csv`, the leaderboard, the means over seeds, and the page report.html."""

import csv
import io
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from base.errors import InputError, printable
from base.files import write_text
from base.jobs import run_directory
from base.options import spell
from base.progress import clock
from conf import resume_rules
from conf.compose import PLUGINS, read_config
from conf.keys import leaves
from conf.schema import Config, to_dict
from reports.run_list import aligned
from reports.sweep_page import page
from sweeps.trial import Trial

RESULTS = ("status", "val_loss", "val_bpc", "test_loss", "steps", "seconds", "parameters", "directory")  # in sweep.csv
MEANS = ("val_loss", "val_bpc", "test_loss", "seconds")  # columns that are averaged over seeds
SEEDS = ("runs", "val_loss_spread", "test_loss_spread")  # more columns if `seed` varies; spread: standard deviation
MAX_ROWS = 20  # maximum number of runs on the leaderboard
Row = dict[str, str]


def write_table(directory: Path, trials: Iterable[Trial] = (), outcomes: Mapping[str, str] | None = None) -> list[Row]:
    """Write `sweep.csv`, with a row for each trial of a sweep, and return the rows of the trials, the best first.

    Trials of earlier commands have rows, too. If the earlier commands varied other keys, missing values are read from
    the config.yaml of each run.
    """
    varied = dict[str, Row]()
    with suppress(OSError), open(directory / "sweep.csv", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["directory"]]
        varied = {row["directory"]: row for row in rows if Path(row["directory"]).is_dir()}
    varied |= {str(trial.directory): dict(trial.varied) for trial in trials}
    keys = dict.fromkeys(key for row in varied.values() for key in row if key not in (*RESULTS, *SEEDS))
    varied = {run: {key: row.get(key, "") for key in keys} for run, row in varied.items()}
    if not all(all(row.values()) for row in varied.values()):
        for run, row in varied.items():
            with suppress(InputError):  # the run has not begun
                row |= {key: value for key, value in spelled(read_config(Path(run))).items() if key in keys}
    table = rows_of(varied, outcomes or {})
    settings, averages = means(table)
    text = io.StringIO()
    columns = [*settings, *(SEEDS if averages else ()), *RESULTS]
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows([*averages, *table])
    write_text(directory / "sweep.csv", text.getvalue())
    return table


def rows_of(varied: Mapping[str, Row], outcomes: Mapping[str, str]) -> list[Row]:
    """Return a row for each run directory, with its varied settings and its results, the best run first."""
    table, keys = [], list(next(iter(varied.values()), ()))
    differing = [key for key in keys if len({row[key] for row in varied.values()}) > 1]
    for directory, whole in varied.items():
        own = {key: whole[key] for key in differing or keys}
        summary = run_directory.summary_of(Path(directory))
        status = outcomes.get(Path(directory).name) or summary.get("status", "waiting")
        results = {key: "" if summary.get(key) is None else str(summary[key]) for key in RESULTS}
        table.append(own | results | {"status": str(status), "directory": directory})
    return sorted(table, key=lambda row: run_directory.val_bpc_of(Path(row["directory"])))


def spelled(config: Config) -> Row:
    """Return all settings by key, with values as on the command line."""
    found = dict(leaves(to_dict(config)))
    for group in PLUGINS:
        names = list(plugins := found[group])
        found |= {f"{group}.{name}.{key}": value for name in names for key, value in plugins[name].items()}
        found[group] = names[0] if len(names) == 1 else names
    return {key: printable(spell(value)) for key, value in found.items()}


def means(table: list[Row]) -> tuple[list[str], list[Row]]:
    """Average the columns `MEANS` of a table over the runs that differ only in their seed."""
    settings = [key for key in table[0] if key not in RESULTS] if table else []
    groups = dict[tuple[str, ...], list[Row]]()
    for row in table if "seed" in settings else ():
        groups.setdefault(tuple(row[key] for key in settings if key != "seed"), []).append(row)
    averages = []
    for rows in groups.values():
        row = {key: value for key, value in rows[0].items() if key in settings} | {"seed": "", "directory": ""}
        for key in MEANS:
            values = [float(each[key]) for each in rows if each[key]]
            row[key] = str(statistics.fmean(values)) if values else ""
            row[f"{key}_spread"] = str(statistics.stdev(values)) if len(values) > 1 else ""
            row["runs"] = str(len(values)) if key == "val_loss" else row["runs"]
        kept = {*settings, *RESULTS, *SEEDS}
        averages.append({key: value for key, value in row.items() if key in kept} | {"status": "mean"})
    return settings, sorted(averages, key=lambda row: float(row["val_bpc"] or "inf"))


def leaderboard(table: list[Row], *, named: bool = False) -> str:
    """Return the best runs, at most `MAX_ROWS`, with their settings and results, as text with aligned columns."""
    *averages, runs = columns(table)
    if named:
        names = ["run", *(run_directory.name_of(Path(row["directory"])) for row in table)]
        runs = [[printable(name), *row] for name, row in zip(names, runs, strict=True)]
    said = aligned(runs[: MAX_ROWS + 1]) + (f"\nand {len(table) - MAX_ROWS} more" if len(table) > MAX_ROWS else "")
    return "\n\n".join([*map(aligned, averages), said])


def columns(table: list[Row]) -> list[list[list[str]]]:
    """Return the tables for display, each a list of rows, where a row is a list of cells."""
    settings, averages = means(table)
    tested = ["test_loss"] if any(row["test_loss"] for row in table) else []
    lines = [[*settings, "loss", "bpc", *(["test"] if tested else []), "parameters", "time"]]
    for row in table:
        loss = figure(row["val_loss"]) or row["status"]
        weights = f"{int(row['parameters']):,}" if row["parameters"] else ""
        seconds = clock(float(row["seconds"])) if row["seconds"] else ""
        tests = [figure(row[key]) for key in tested]
        lines.append([*(row[key] for key in settings), loss, figure(row["val_bpc"]), *tests, weights, seconds])
    if not averages:
        return [lines]
    others, losses = [key for key in settings if key != "seed"], ["val_loss", *tested]
    head = [*others, "runs", "mean loss", "spread", *(["mean test", "spread"] if tested else [])]
    cells = [[figure(row[f"{key}{end}"]) for key in losses for end in ("", "_spread")] for row in averages]
    rows = [[*(row[key] for key in [*others, "runs"]), *own] for row, own in zip(averages, cells, strict=True)]
    return [[head, *rows], lines]


def write_page(directory: Path, table: list[Row]) -> str:
    """Write the page report.html, which compares the runs in `table`, into `directory`."""
    runs = []
    for row in table:
        with suppress(InputError):  # the run has not begun, or has lost its config.yaml
            runs.append((Path(row["directory"]), read_config(Path(row["directory"]))))
    settings, averages = means(table)
    kinds = [[tuple(row[key] for key in settings if key != "seed") for row in rows] for rows in (averages, table)]
    places = {kind: place for place, kind in enumerate(dict.fromkeys([*kinds[0], *kinds[1]]))}
    units = {"byte" if config.data.tokenizer == "byte" else "character" for _, config in runs}
    different = caution(runs)
    about = {
        "name": printable(directory.name),
        "caution": different,
        "unit": " or ".join(sorted(units)) or "character",
        "tables": columns(table),
        "colours": [[places[kind] for kind in own] for own in kinds if own],  # number of the colour, by table and row
        "runs": [[", ".join(f"{key}={row[key]}" for key in settings), curve(Path(row["directory"]))] for row in table],
    }
    write_text(directory / "report.html", page(about))
    return different


def curve(run: Path) -> list[tuple[int, float]]:
    """Return a list of pairs (step, validation loss in nats), one for each validation whose loss is finite."""
    validations = run_directory.summary_of(run).get("validations") or {}
    return [(int(step), loss) for step, loss in validations.items() if math.isfinite(loss)]


def caution(runs: Iterable[tuple[Path, Config]]) -> str:
    """Return a warning if runs were evaluated on different texts, otherwise ""."""
    texts = set()
    for directory, config in runs:
        data, sha256 = config.data, run_directory.summary_of(directory).get("text_sha256")
        held_out = [data.validation] if data.validation else [sha256 or data.path, data.split]
        texts.add(repr([*held_out, data.documents, data.field]))
    different = "the validation texts differ, so a lower loss does not mean a better model"
    return different if len(texts) > 1 else ""


def figure(number: str) -> str:
    """Return `number`, the text in a cell of `sweep.csv`, with four decimals, or "" if the cell is empty."""
    return f"{float(number):.4f}" if number else ""


def table_of_runs(runs: list[Path]) -> str:
    """Return the leaderboard of runs, which need not belong to the same sweep, as text."""
    configs = [read_config(run) for run in runs]
    values = [spelled(config) | ({"trainer.max_steps": ""} if config.minutes else {}) for config in configs]
    depends = {*resume_rules.settings(configs[0]), *resume_rules.PATHS, "trainer.max_steps"} - {"threads", "compile"}
    keys = [key for key in dict.fromkeys(itertools.chain(*values)) if {key, key.partition(".")[0]} & depends]
    varied = [key for key in keys if len({own[key] for own in values if key in own}) > 1]
    rows = [{key: "" if own.get(key) in (None, "null") else own[key] for key in varied} for own in values]
    different = caution(zip(runs, configs, strict=True))
    table = rows_of(dict(zip(map(str, runs), rows, strict=True)), {})
    return leaderboard(table, named=True) + (f"\n\n{different}" if different else "")
