"""The Optuna study of a search: open it, and ask whether to prune a trial."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from base.errors import InputError, one_line

if TYPE_CHECKING:
    import optuna

FILE, STUDY = "study.db", "search"  # the file in a search's directory, and the name of the study in it


def open_storage(directory: Path) -> "optuna.storages.RDBStorage":
    """Open the file that keeps the study of a search."""
    import optuna
    from sqlalchemy.engine import URL
    from sqlalchemy.pool import NullPool

    optuna.logging.set_verbosity(optuna.logging.CRITICAL)  # what goes wrong is raised as well
    file = URL.create("sqlite", database=str(directory / FILE)).render_as_string()  # also of a name with ? or %
    # Several trials write to it: each waits up to 60 s for the others, and none keeps a connection open.
    return optuna.storages.RDBStorage(file, engine_kwargs={"poolclass": NullPool, "connect_args": {"timeout": 60}})


def open_study(directory: Path) -> "optuna.Study":
    """Open the study of a search, or make it.

    Raises:
        InputError: the file is none of Optuna's.
    """
    import optuna
    import sqlalchemy

    try:
        return optuna.create_study(study_name=STUDY, storage=open_storage(directory), load_if_exists=True)
    except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError, RuntimeError) as error:
        raise InputError(f"{directory / FILE}: cannot be read: {one_line(str(error).splitlines()[0])}") from None


def judge(directory: Path, number: int, shortest: int, longest: int) -> Callable[[int, float], bool]:
    """What a trial asks after each validation.

    Args:
        directory: of the search.
        number: of the trial.
        shortest: steps before the first validation.
        longest: steps of the whole run.

    Returns:
        A function of the step and the validation bits per character that says whether to give the trial up.
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

    def hopeless(step: int, bpc: float) -> bool:
        storage.set_trial_intermediate_value(trial, step, bpc)  # once more where a trial goes on from before
        return bool(pruner.prune(study, storage.get_trial(trial)))  # NumPy's is none that a checkpoint may keep

    return hopeless
