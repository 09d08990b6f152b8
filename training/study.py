"""The Optuna study of a search, and whether to prune one of its trials."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from base.errors import InputError, one_line

if TYPE_CHECKING:
    import optuna

FILE, STUDY = "study.db", "search"  # the file in a search's directory, and the name of the study in it


def open_storage(directory: Path) -> "optuna.storages.RDBStorage":
    """Open the file of a search's study."""
    import optuna
    from sqlalchemy.engine import URL
    from sqlalchemy.pool import NullPool

    optuna.logging.set_verbosity(optuna.logging.CRITICAL)  # errors are raised as well
    file = URL.create("sqlite", database=str(directory / FILE)).render_as_string()  # escapes ? and %
    # Several trials write to it: each waits up to 60 s for the others and keeps no connection open.
    return optuna.storages.RDBStorage(file, engine_kwargs={"poolclass": NullPool, "connect_args": {"timeout": 60}})


def open_study(directory: Path) -> "optuna.Study":
    """Open the study of a search, or create it.

    Raises:
        InputError: the file is not an Optuna study.
    """
    import optuna
    import sqlalchemy

    try:
        return optuna.create_study(study_name=STUDY, storage=open_storage(directory), load_if_exists=True)
    except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError, RuntimeError) as error:
        raise InputError(f"{directory / FILE}: cannot be read: {one_line(str(error).splitlines()[0])}") from None


def make_pruner(directory: Path, number: int, shortest: int, longest: int) -> Callable[[int, float], bool]:
    """Return a function of the step and the validation bits per character: whether to prune the trial.

    Args:
        directory: of the search.
        number: of the trial.
        shortest: steps before the first validation.
        longest: steps of the whole run.
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
        storage.set_trial_intermediate_value(trial, step, bpc)  # a resumed trial may repeat a step
        return bool(pruner.prune(study, storage.get_trial(trial)))  # checkpoints hold no NumPy bool

    return should_prune
