"""Run a search (`hparams_search=`): a sweep whose trials Optuna proposes from the results so far.

A stopped trial stays in the state RUNNING in the journal of Optuna's study, so that the next
command resumes it.
"""

import math
import os
import random
import shlex
import typing
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import IntervalSweep, RangeSweep

from base.errors import InputError, one_line
from base.jobs import run_lock
from base.jobs.run_directory import Run
from base.log import log
from conf.compose import compose
from conf.keys import KEYS, LAUNCH, VERBATIM, with_folders
from conf.overrides import Command, checked, key_of, parse
from conf.schema import Config, SearchConfig
from sweeps.sweep import Trial, check_inputs, check_sweep, make_trial, run_sweep, sweep_name

try:
    import optuna
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.samplers import TPESampler
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import TrialState
except ModuleNotFoundError:
    raise InputError(
        "hparams_search: needs optuna: pip install -c constraints.txt -e '.[search]'"
    ) from None

FILE = "study.journal"


def distribution(text: str) -> Any:
    """Return the Optuna distribution for a key and its range, such as `optim.lr=interval(1e-3,1e-2)`."""
    override = parse(text)
    value = typing.cast(Any, override.value())
    key = KEYS.get(key_of(text))
    # a key of type int, or int | None, or one of `option(..., auto=int)`
    is_whole = key is not None and int in (
        key.kind,
        key.metadata.get("auto"),
        *typing.get_args(key.kind),
    )
    log_scale = "log" in getattr(value, "tags", ())
    interval = isinstance(value, IntervalSweep)
    shuffled = getattr(value, "shuffle", False)
    if not override.is_sweep_override() or shuffled or (log_scale and not interval):
        kinds = "interval(a,b), tag(log,interval(a,b)), range(a,b,step) or choice(x,y)"
        raise InputError(f"{text}: a search accepts {kinds}")
    try:
        if interval and is_whole:
            return IntDistribution(math.ceil(value.start), math.floor(value.end), log=log_scale)
        if interval:
            return FloatDistribution(value.start, value.end, log=log_scale)
        if isinstance(value, RangeSweep):
            # because Optuna's range contains its end, and that of Hydra does not
            values = typing.cast(list[Any], list(override.sweep_iterator()))
            if not values:
                raise ValueError("has no values")
            all_whole = all(isinstance(number, int) for number in values)
            kind: Any = IntDistribution if all_whole else FloatDistribution
            return kind(values[0], values[-1], step=value.step)
        return CategoricalDistribution(list(override.sweep_string_iterator()))
    except ValueError as error:
        raise InputError(f"{text}: {one_line(error)}") from None


def setting_of(key: str, value: Any) -> str:
    if isinstance(value, float):
        return f"{key}={value:.6g}"
    return f"{key}={value}"


def open_study(directory: Path, same: list[str]) -> optuna.Study:
    """Open the journal of a search and return its study, whose name is the settings that a command must repeat."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # of `constant_liar`
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    path = directory / FILE
    if path.exists():
        journal = path.read_bytes()
        if not journal.endswith(b"\n"):  # a full disk cut the last line short
            os.truncate(path, journal.rfind(b"\n") + 1)
    try:  # the journal's lock is a symbolic link, whose target must be absolute
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(path.absolute())))
        studies = optuna.get_all_study_names(storage)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {one_line(error)}") from None
    identity = "\n".join(sorted(same))
    if studies not in ([], [identity]):
        differing = ", ".join(sorted(set(same) ^ set(studies[0].split("\n"))))
        raise InputError(
            f"name={directory.name}: is a search with other settings ({differing} differ); use another name"
        )
    return optuna.create_study(study_name=identity, storage=storage, load_if_exists=True)


def run_search(
    directory: Path,
    config: SearchConfig,
    study: optuna.Study,
    space: Mapping[str, Any],
    fixed: list[str],
    workers: int,
) -> int:
    """Run the trials that Optuna proposes from `space`, a distribution by key, and return the exit status.

    `fixed` are the settings of every trial. The trials that an earlier command did not finish come
    first.
    """
    numbers = dict[Run, int]()  # of the trials in the study
    trials = list[Trial]()

    def add(proposed: Any) -> Trial:
        settings = [*fixed, *(setting_of(key, proposed.params[key]) for key in space)]
        number = proposed.number
        trial = make_trial(directory.name, space, settings, name=f"trial-{number + 1:03}")
        numbers[trial.run] = number
        trials.append(trial)
        return trial

    def ask() -> Iterator[Trial]:
        yield from [trial for trial in trials if trial.outcome is None]
        while len(trials) < config.trials:
            # A seed for each trial, so that a continued search gets the same proposals.
            # `constant_liar` assumes a bad loss of running trials: simultaneous ones differ.
            seed = random.Random(f"{config.seed} {len(trials)}").getrandbits(32)
            study.sampler = TPESampler(
                n_startup_trials=config.startup, seed=seed, constant_liar=True
            )
            yield add(study.ask(dict(space)))

    def tell(trial: Trial) -> None:
        if trial.outcome == "finished":
            study.tell(numbers[trial.run], trial.run.bpc)
        elif trial.outcome == "failed":
            # Not FAIL, which Optuna ignores: the sampler ranks PRUNED trials among the worst and
            # avoids their settings.
            study.tell(numbers[trial.run], state=TrialState.PRUNED)

    for proposed in study.trials:
        # killed before Optuna had chosen all values
        if proposed.params.keys() != space.keys():
            study.tell(proposed.number, state=TrialState.FAIL, skip_if_finished=True)
            continue
        trial = add(proposed)
        if proposed.state.is_finished():
            trial.outcome = "finished" if proposed.state == TrialState.COMPLETE else "failed"
    status = run_sweep(directory, trials, ask(), config.trials, workers, tell)
    if status:
        return status
    best = min(trials, key=lambda trial: trial.run.bpc)
    if best.run.bpc == math.inf:
        return 1
    repeats = ["python", "train.py", *with_folders(best.overrides)]
    log.info(f"best trial {shlex.join(repeats)}")
    return 0


def begin_search(config: SearchConfig, command: Command) -> int:
    """Check all values of a search, then run it and return its exit status.

    A value of a key on the command line fixes the key, and a range replaces the range in the
    preset.
    """
    arguments = command.arguments
    ranges = [f"{key}={values}" for key, values in config.space.items() if key not in arguments]
    fixed = []
    for key, argument in arguments.items():
        if key not in VERBATIM and parse(argument).is_sweep_override():
            ranges.append(argument)
        else:
            fixed.append(argument)
    space = {key_of(checked(values)): distribution(values) for values in ranges}
    if not space:
        every = "the command fixes every key that has a range"
        raise InputError(f"hparams_search: nothing is left to search: {every}")
    # What a continuing command must repeat; a hash of it names the directory.
    same = [f"hparams_search.{key}={getattr(config, key)}" for key in ("seed", "startup")]
    same += [*ranges, *(argument for argument in fixed if key_of(argument) not in LAUNCH)]
    configs = corners(fixed, space)
    name = configs[0].name or sweep_name(same, "search")
    directory = check_sweep(name, list(space), configs[0].resume)
    if Run(directory).is_sweep and not (directory / FILE).exists():
        raise InputError(f"name={name}: {directory} is a sweep, not a search; use another name")
    same += [f"text={sha256}" for sha256 in sorted(set(check_inputs(configs)))]
    directory.mkdir(parents=True, exist_ok=True)
    run_lock.lock(directory)
    study = open_study(directory, same)
    return run_search(directory, config, study, space, fixed, configs[0].workers)


def corners(fixed: list[str], space: Mapping[str, Any]) -> list[Config]:
    """Return a few trials that have every choice and both ends of every range in `space`.

    Raises an `InputError` if a value is wrong, so that no trial fails because of it later.
    """
    settings = []  # of each key
    for key, values in space.items():
        if isinstance(values, CategoricalDistribution):
            ends: Sequence[Any] = values.choices
        else:
            ends = (values.low, values.high)
        settings.append([setting_of(key, value) for value in ends])
    configs = []
    for index in range(max(map(len, settings))):
        # A key with fewer values repeats its last.
        corner = [of_key[min(index, len(of_key) - 1)] for of_key in settings]
        configs.append(compose([*fixed, *corner]))
    return configs
