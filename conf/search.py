"""A search for settings: a sweep whose trials Optuna proposes, each from what came of those before it.

`runs/<search>/` is the directory of a sweep, with `study.db` beside `sweep.csv`. A trial is under way in the study
until it has finished, was pruned or could not be run as it was proposed; whatever else ends it, it is gone on with the
next time. What is here loads neither torch nor, before a search begins or goes on, optuna.
"""

import hashlib
import importlib.util
import json
import math
import shlex
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep

from conf.fields import InputError, allowed, check_value, one_line, shown
from conf.overrides import CONF, HOW, PLUGINS, check_overrides, fields
from conf.progress import Progress
from conf.schema import SearchConfig
from conf.sweep import Outcome, Trial, check_sweep, conclude, describe, rows, run_trials, say, write_table
from gpt import runs

if TYPE_CHECKING:
    import optuna

GROUP = "hparams_search"
FILE, STUDY = "study.db", "search"  # the file in a search's directory, and the name of the study in it
ENDED = ("finished", "pruned")


def take_search(arguments: list[str]) -> tuple[SearchConfig | None, list[str]]:
    """Take what concerns the search itself out of what was typed.

    Returns:
        The search, None where none was asked for, and the other arguments.

    Raises:
        ValueError: what is wrong, in one line.
    """
    own = [argument for argument in arguments if argument.lstrip("+").partition("=")[0].partition(".")[0] == GROUP]
    check_overrides(own, {})
    typed = {each.key_or_group: each.value() for each in OverridesParser.create().parse_overrides(own)}
    choice = typed.pop(GROUP, None)
    if choice is None:
        if typed:
            raise ValueError(f"{next(iter(typed))}: goes with {GROUP}=default")
        return None, [argument for argument in arguments if argument not in own]
    file = CONF / GROUP / f"{choice}.yaml"
    values = yaml.safe_load(file.read_text("utf-8")) | {key.partition(".")[2]: value for key, value in typed.items()}
    try:
        return SearchConfig(**values), [argument for argument in arguments if argument not in own]
    except TypeError as error:
        raise ValueError(f"{GROUP}={choice}: {error}") from None


@dataclass(frozen=True)
class Range:
    """The values of one key that a search may take.

    Attributes:
        text: it, as in `choice(2,4)`.
        low: the first value, as it is typed.
        high: the last value.
        kind: name of one of Optuna's distributions.
        arguments: of that.
    """

    text: str
    low: str
    high: str
    kind: str
    arguments: Mapping[str, Any]


def make_range(override: Override) -> Range:
    """Read a range, and check both of its ends.

    Raises:
        ValueError: it is no range that can be searched, in one line.
    """
    key, text, value = override.get_key_element(), str(override.input_line), override.value()
    hint, field = (fields() | PLUGINS).get(override.key_or_group, (Any, None))
    metadata = field.metadata if field else {}
    log = "log" in getattr(value, "tags", ())
    if getattr(value, "shuffle", False):
        raise ValueError(f"{text}: a search takes interval(a,b), range(a,b,step), choice(x,y) or tag(log,…) around one")
    if isinstance(value, IntervalSweep):
        numbers = [each for each in (typing.get_args(hint) or (hint,)) if each in (int, float)]
        if not numbers:
            raise ValueError(f"{text}: {key} takes {allowed(hint, metadata)}; list the values: {key}=choice(x,y)")
        low, high = typing.cast(float, value.start), typing.cast(float, value.end)
        if numbers == [int]:
            low, high = math.ceil(low), math.floor(high)
        for end in (low, high):
            check_value(key, end, hint, metadata)
        if not low < high:
            raise ValueError(f"{text}: holds no values: its first end must be below its second")
        kind = "IntDistribution" if numbers == [int] else "FloatDistribution"
        arguments: dict[str, Any] = {"log": log}
    else:
        values: list[Any] = list(override.sweep_iterator())
        if not values:
            raise ValueError(f"{text}: holds no values")
        texts = list(override.sweep_string_iterator())
        if not isinstance(value, RangeSweep):
            if log:
                raise ValueError(f"{text}: tag(log,…) goes around interval(a,b)")
            return Range(text, texts[0], texts[-1], "CategoricalDistribution", {"choices": texts})
        low, high = values[0], values[-1]
        kind = "IntDistribution" if isinstance(low, int) and isinstance(value.step, int) else "FloatDistribution"
        arguments = {"step": value.step}
    if log and low <= 0:
        raise ValueError(f"{text}: tag(log,…) needs a first end above 0")
    return Range(text, as_typed(low), as_typed(high), kind, {"low": low, "high": high, **arguments})


def as_typed(value: Any) -> str:
    """A proposed value as one would type it; six digits are what a person reads."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Search:
    """A search that has been checked.

    Attributes:
        name: of its directory.
        config: how it goes about.
        space: the ranges, by key.
        fixed: overrides that are the same for all trials.
        literal: those whose values are taken as they are.
        workers: how many trials run at a time.
    """

    name: str
    config: SearchConfig
    space: Mapping[str, Range]
    fixed: tuple[str, ...]
    literal: tuple[str, ...]
    workers: int

    @property
    def directory(self) -> Path:
        """Its directory."""
        return runs.RUNS / self.name

    def corners(self) -> list[list[str]]:
        """The overrides, without literals, of a trial with all first values, and of one with all last ones."""
        ends = [[f"{key}={getattr(each, end)}" for key, each in self.space.items()] for end in ("low", "high")]
        return [[*self.fixed, *end] for end in ends]

    def trial(self, number: int, proposed: Mapping[str, Any]) -> Trial:
        """The trial with a number and the values proposed for it."""
        values = {key: as_typed(value) for key, value in proposed.items()}
        overrides = (*self.fixed, *(f"{key}={value}" for key, value in values.items()), *self.literal)
        return Trial(self.name, f"trial-{number:03}", overrides, values, number)


def plan_search(config: SearchConfig, arguments: list[str], literals: Mapping[str, str | None]) -> Search:
    """Put together what a search may try.

    Raises:
        ValueError: what is wrong, in one line.
    """
    parser = OverridesParser.create()
    given = {override.key_or_group: override for override in parser.parse_overrides(arguments)}
    if "launcher" in given:  # whose jobs may run where the study's file cannot be locked
        raise InputError(
            "launcher: goes with -m; the trials of a search are processes of this machine, workers=N at a time"
        )
    for key in set(given) & HOW:
        if given[key].is_sweep_override():
            raise InputError(f"{key}: is the same for all trials of a search")
    workers = typing.cast(int, given.pop("workers").value()) if "workers" in given else 1
    ranges = [f"{key}={value}" for key, value in config.space.items() if key not in given and key not in literals]
    check_overrides(ranges, {}, search=True)
    swept = [*parser.parse_overrides(ranges), *(each for each in given.values() if each.is_sweep_override())]
    for override in swept:
        if not override.is_sweep_override():
            raise InputError(f"{GROUP}: {override.input_line} is no range such as interval(a,b) or choice(x,y)")
    space = {each.get_key_element(): make_range(each) for each in swept}
    if not space:
        raise InputError(f"{GROUP}: nothing is left to search: every key of the space is fixed")
    fixed = tuple(str(each.input_line) for each in given.values() if not each.is_sweep_override())
    literal = tuple(f"{key}={shown(value)}" for key, value in literals.items() if key not in HOW)
    if importlib.util.find_spec("optuna") is None:
        raise InputError(f"{GROUP}: needs optuna: pip install -c constraints.txt -e '.[search]'")
    search = Search(literals.get("name") or "", config, space, fixed, literal, workers)
    if not search.name:
        digest = hashlib.sha256(json.dumps(kept(search, None)).encode("utf-8", "surrogateescape")).hexdigest()
        search = replace(search, name=f"search-{digest[:6]}")
    check_sweep([each.text for each in space.values()], {**literals, "name": search.name})
    return search


def kept(search: Search, text: str | None) -> dict[str, Any]:
    """What must be as it was for a search to go on, as the study keeps it, with the fingerprint of the text."""
    how = {key: value for key, value in asdict(search.config).items() if key not in ("trials", "space")}
    fixed = sorted(each for each in (*search.fixed, *search.literal) if each.partition("=")[0] not in HOW)
    return how | {"space": sorted(each.text for each in search.space.values()), "fixed": fixed, "text": text}


def described(trial: Trial) -> str:
    """What was proposed for a trial, as it is typed."""
    return " ".join(f"{key}={value}" for key, value in trial.varied.items())


def check_study(search: Search, text: str | None) -> None:
    """Refuse to go on with a search that was another one.

    Raises:
        InputError: the difference, in one line.
    """
    if not (search.directory / FILE).exists():
        if runs.is_sweep(search.directory):
            raise InputError(f"name={search.name}: {search.directory} is no search; another name begins one")
        return
    now = kept(search, text)
    before = open_study(search.directory).user_attrs.get("search", now)
    for key in now:
        if now[key] != before[key]:
            raise InputError(
                f"name={search.name}: {search.directory} was begun with {key}={shown(before[key])}, "
                f"not {shown(now[key])}; another name begins another search"
            )


def open_storage(directory: Path) -> "optuna.storages.RDBStorage":
    """Open the file that keeps the study of a search."""
    import optuna
    from sqlalchemy.engine import URL

    optuna.logging.set_verbosity(optuna.logging.CRITICAL)  # what goes wrong is raised as well
    file = URL.create("sqlite", database=str(directory / FILE)).render_as_string()  # also of a name with ? or %
    # Several trials write to it; each waits for the other so many seconds.
    return optuna.storages.RDBStorage(file, engine_kwargs={"connect_args": {"timeout": 60}})


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


def make_sampler(config: SearchConfig, count: int) -> Any:
    """What proposes a trial: a function of the seed and of the trials so far, wherever a search was interrupted."""
    import optuna

    seed = int.from_bytes(hashlib.blake2b(f"{config.seed} {count}".encode(), digest_size=4).digest())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=config.startup, constant_liar=True)


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


def run_search(search: Search, text: str | None) -> int:
    """Run the trials of a search to their number, and show what came of them.

    Returns:
        The exit status: 0, 1 where a trial has failed for another reason than its settings or none has finished, 128
        and its number for a signal.

    Raises:
        RunError: another process is at work in it.
    """
    import optuna
    from optuna.trial import TrialState

    search.directory.mkdir(parents=True, exist_ok=True)
    lock = runs.claim(search.directory)
    if lock is None:
        raise runs.RunError(f"{search.directory}: another process is searching there; wait for it or stop it first")
    study = open_study(search.directory)
    study.set_user_attr("search", kept(search, text))
    for left in study.get_trials(states=[TrialState.RUNNING]):
        if left.params.keys() != search.space.keys():  # killed while it was proposed
            study.tell(left.number, state=TrialState.FAIL)
    distributions = {
        key: getattr(optuna.distributions, each.kind)(**each.arguments) for key, each in search.space.items()
    }
    trials: dict[str, Trial] = {}
    outcomes: dict[str, Outcome] = {}
    count = search.config.trials

    def known(frozen: "optuna.trial.BaseTrial") -> Trial:
        trial = search.trial(frozen.number, {key: frozen.params[key] for key in search.space})
        trials[trial.name] = trial
        if reason := study.user_attrs.get(f"{trial.name} failed"):
            outcomes[trial.name] = Outcome("failed", reason, by_settings=True)
        return trial

    def proposals() -> Iterator[Trial]:
        for frozen in study.get_trials(states=[TrialState.RUNNING]):
            trial = known(frozen)
            if runs.summary_of(trial.directory).get("status") in ENDED:  # and this search before it was told
                ended(trial, Outcome(str(runs.summary_of(trial.directory)["status"])))
            else:
                say(f"{trial.name} of {count}  {described(trial)}: goes on")
                yield trial
        while len(begun := [each for each in study.trials if each.state != TrialState.FAIL]) < count:
            study.sampler = make_sampler(search.config, len(begun))
            trial = known(study.ask(distributions))
            say(f"{trial.name} of {count}  {described(trial)}")
            yield trial

    def ended(trial: Trial, result: Outcome) -> None:
        assert trial.number is not None
        outcomes[trial.name] = result
        if result.status == "finished":
            study.tell(trial.number, runs.rank_of(trial.directory))
        elif result.status == "pruned":
            study.tell(trial.number, state=TrialState.PRUNED)
        elif result.by_settings:
            study.set_user_attr(f"{trial.name} failed", result.reason)
            # The sampler then takes it for one of the worst, and looks elsewhere.
            study.tell(trial.number, state=TrialState.PRUNED)
        table()
        progress.update(1)
        say(f"{trial.name} of {count}  {describe(trial, result)}")

    def table() -> list[dict[str, str]]:
        results = rows(search.name, trials.values(), outcomes)
        write_table(search.name, results)
        return results

    try:
        for frozen in study.trials:
            if frozen.state.is_finished() and frozen.state != TrialState.FAIL:
                known(frozen)
        table()
        say(
            f"search     {search.directory}: {count} trials of {', '.join(each.text for each in search.space.values())}"
        )
        with Progress("trials", count, lines=False) as progress:
            progress.update(len(trials))
            received = run_trials(proposals(), search.workers, ended)
        results = table()
    except optuna.exceptions.StorageInternalError as error:  # such as a full disk
        raise OSError(f"{search.directory / FILE}: {one_line(error.__cause__ or error)}") from error
    finally:
        lock.release()
    failed = [name for name, each in outcomes.items() if each.status == "failed" and not each.by_settings]
    status = conclude(results, failed, len(trials), search.directory / "sweep.csv", received)
    if not results or not results[0]["val_loss"]:
        return status or 1  # none has finished
    best = trials[Path(results[0]["directory"]).name]
    say(f"best again {shlex.join(['python', 'train.py', *best.overrides])}")
    return status
