"""Open the Optuna study of a search and decide whether to prune a trial."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from base.errors import InputError, one_line

if TYPE_CHECKING:
    import optuna

FILE, STUDY = "study.db", "search"  # the file in a search's directory, and the study's name in this file


def open_storage(directory: Path) -> "optuna.storages.RDBStorage":
    """Open the SQLite file of a search's study."""
    import optuna
    from sqlalchemy.engine import URL
    from sqlalchemy.pool import NullPool

    optuna.logging.set_verbosity(optuna.logging.CRITICAL)  # it logs errors that it also raises
    file = URL.create("sqlite", database=str(directory / FILE)).render_as_string()  # escapes ? and %
    # Several trials write to this file, so each waits up to 60 s for the others and leaves no connection open.
    return optuna.storages.RDBStorage(file, engine_kwargs={"poolclass": NullPool, "connect_args": {"timeout": 60}})


def open_study(directory: Path) -> "optuna.Study":
    """Open the study of a search, or create it."""
    import optuna
    import sqlalchemy

    try:
        return optuna.create_study(study_name=STUDY, storage=open_storage(directory), load_if_exists=True)
    except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError, RuntimeError) as error:
        raise InputError(f"{directory / FILE}: cannot be read: {one_line(str(error).splitlines()[0])}") from None


def make_pruner(directory: Path, number: int, shortest: int, longest: int) -> Callable[[int, float], bool]:
    """Return a function that decides whether to prune trial `number` of the search in `directory`.

    The function takes the step and the validation bits per character. The first validation comes after `shortest`
    steps, the last after `longest`.
    """
    import optuna

    study = open_study(directory)
    config = study.user_attrs["search"]
    pruner = {
        "median": lambda: optuna.pruners.MedianPruner(n_startup_trials=config["startup"]),
        "hyperband": lambda: optuna.pruners.HyperbandPruner(min_resource=min(shortest, longest), max_resource=longest),
        "none": optuna.pruners.NopPruner,
    }[config["pruner"]]()
    storage = open_storage(directory)
    trial = storage.get_trial_id_from_study_id_trial_number(storage.get_study_id_from_name(STUDY), number)

    def should_prune(step: int, bpc: float) -> bool:
        storage.set_trial_intermediate_value(trial, step, bpc)  # replaces the value if a resumed trial repeats a step
        return bool(pruner.prune(study, storage.get_trial(trial)))  # a NumPy bool could not be loaded from a checkpoint

    return should_prune
