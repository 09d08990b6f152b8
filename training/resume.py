"""What a run starts from: the newest checkpoint of a run to resume, unchanged, or a trained model (`init_from=`)."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from base import processes, ranks
from base.errors import InputError, nearest, printable
from base.files import remove_unfinished
from base.jobs import run_directory, run_lock
from base.jobs.run_directory import RUNS, Run
from base.log import log
from base.options import spell
from conf.compose import compose, compose_object, read_config, trained_groups
from conf.keys import KEYS, with_folders
from conf.overrides import key_of
from conf.schema import PLUGINS, Config, by_key
from reports.history import History

if TYPE_CHECKING:
    import numpy as np

    from gpt.config import ModelConfig
    from gpt.model import GPT
    from gpt.tokenizer import Tokenizer


def compose_command(arguments: Sequence[str]) -> Config:
    """Compose a command line, but of one that resumes a run only what names this run, because the rest changes it."""
    if "resume" in map(key_of, arguments):
        config: Config = compose_object(
            "train", [text for text in arguments if "." not in key_of(text)]
        )
        if config.resume is not None:
            return config
    return compose(arguments)


def find_run(arguments: Sequence[str], config: Config) -> tuple[Config, Run, bool]:
    """Return the configuration, the directory of the run, and whether this is an earlier run, which is then locked.

    The configuration of an earlier run is its config.yaml, changed by the arguments of
    the command line.
    """
    if config.resume is None:
        if not ranks.restarted():
            return config, new_run(config, is_debug(list(map(key_of, arguments)))), False
        # A restart repeats the command line of the first start, so it continues the run that this
        # created. `new_name` returns the same name again, because it depends on job and settings.
        config = replace(config, resume="auto", name=config.name or run_directory.new_name(config))
    assert config.resume is not None
    if config.resume == "auto" and config.name is None:
        run = newest_unfinished()
    else:
        run = run_directory.to_resume(config.resume, config.name)
    directory = run.directory if run else RUNS / str(config.name)
    if directory.is_dir() and ranks.rank() == 0:
        run_lock.lock(directory)
    if run is None:  # it has not begun
        config = replace(compose(arguments), resume=config.resume, name=config.name)
        return config, Run(directory), False
    try:
        stored = read_config(directory)
    except InputError as error:
        start = shlex.quote(f"init_from={run}")
        raise InputError(
            f"{error}; if another version made this run, {start} starts from its model"
        ) from None
    resumed = compose_resumed(arguments, stored)
    return replace(resumed, resume=config.resume), run, True


def compose_resumed(arguments: Sequence[str], stored: Config) -> Config:
    """Compose the configuration of a resumed run: the one in its config.yaml, `stored`, changed by the command line.

    A key that the command line, or a preset on it, sets to `auto` keeps the value that the run has
    chosen.
    """
    trainer = replace(stored.trainer, num_nodes="auto")
    if ranks.launched():
        # The present command decides the number of machines and, if it was started as several
        # processes, of devices.
        trainer = replace(trainer, devices="auto")
    base = replace(stored, resume=None, allow=[], trainer=trainer)
    # callbacks= and logger= replace the plug-ins of the run, rather than adding to them
    replaced: dict[str, Any] = {group: {} for group in PLUGINS if group in map(key_of, arguments)}
    return keep_choices(compose_object("resume", arguments, asdict(base) | replaced), base)


def keep_choices(config: Any, stored: Any) -> Any:
    """Return a configuration, or a group of it, with the stored value in place of each `auto`."""
    kept = dict[str, Any]()
    for field in fields(config):
        value = getattr(config, field.name)
        before = getattr(stored, field.name)
        if is_dataclass(value):
            kept[field.name] = keep_choices(value, before)
        elif field.name in PLUGINS:
            # without those that the run has left out
            open_names = [name for name, options in value.items() if "auto" in options.values()]
            chosen = {name: before[name] for name in open_names if name in before}
            others = {name: value[name] for name in value if name not in open_names}
            kept[field.name] = chosen | others
        elif value == "auto" and not field.metadata.get("verbatim"):  # a file may be called auto
            kept[field.name] = before
    return replace(config, **kept)


def is_debug(keys: Sequence[str]) -> bool:
    """Return whether a preset of conf/debug names the run, rather than the user."""
    return "debug" in keys and "name" not in keys


def new_run(config: Config, debug: bool) -> Run:
    """Return the directory of a new run after checking that it can be created."""
    name = config.name or run_directory.new_name(config)
    if config.allow:
        raise InputError(f"allow={spell(config.allow)}: only works with resume=")
    if ranks.rank() == 0:
        if config.name is not None:  # `open_directory` checks generated names, which are new
            run_directory.check_free(name, debug)
        run_directory.check_writable(name)
    return Run(RUNS / name)


def newest_unfinished() -> Run | None:
    """Return the newest unfinished run in whose directory no other process trains."""
    for run in run_directory.newest_first("config.yaml"):
        # With the same settings, a run that has diverged would diverge again.
        has_ended = run.summary.status in ("finished", "diverged")
        is_unfinished = not (run.is_debug or has_ended)
        # Rank 0 locks the directory for all ranks, so the others do not ask.
        if is_unfinished and (ranks.rank() > 0 or not run_lock.in_use(run.directory)):
            return run_directory.to_resume(str(run), None)  # checks its files, too
    raise InputError(
        f"resume=auto: no unfinished run in {RUNS}/ that is not in use; diverged runs are skipped"
    )


class ResumePoint:
    """A valid checkpoint from which a run resumes."""

    def __init__(self, path: Path, contents: dict[str, Any]) -> None:
        self.path = path
        self.step: int = contents["global_step"]
        self.history = History.of(contents["history"])
        self.conditions: dict[str, Any] = contents["conditions"]
        self.extra_chars: str = contents["data"]["extra_chars"]
        self.texts: list[Any] = contents["data"]["texts"]
        self._contents: dict[str, Any] | None = contents

    def change_arguments(
        self, plugins: Mapping[str, Mapping[str, Any]], callbacks: Sequence[Any]
    ) -> None:
        """Store the arguments that a resumed run has changed, because Lightning would restore the earlier ones.

        `plugins` has the arguments of each callback, in the order of `callbacks`. What is no
        changed argument, such as the count of EarlyStopping beside its patience, continues.
        """
        assert self._contents
        for (name, arguments), callback in zip(plugins.items(), callbacks, strict=True):
            before = self.conditions["callbacks"].get(name, {})
            stored = self._contents["callbacks"].get(callback.state_key, {})
            for key, value in callback.state_dict().items():
                if key in stored and key in before and arguments.get(key) != before[key]:
                    stored[key] = value

    def drop_average(self) -> None:
        """Continue from the weights in training, not from their average, which no callback computes any more."""
        assert self._contents
        if "current_model_state" in self._contents:
            self._contents["state_dict"] = self._contents.pop("current_model_state")

    def take(self) -> dict[str, Any]:
        """Return the contents of the checkpoint, once: they must not stay in memory."""
        contents, self._contents = self._contents, None
        assert contents
        return contents


def find_point(run: Run, config: Config) -> ResumePoint | None:
    """Return the newest valid checkpoint of a run, or None if the run has no checkpoint yet."""
    from gpt.checkpoint import read_training_checkpoint  # loading torch takes a second
    from gpt.model_file import CheckpointError

    point: ResumePoint | None = None
    damaged = list[str]()  # the errors of damaged checkpoints
    for file in (run.checkpoints / "last.ckpt", run.checkpoints / "previous.ckpt"):
        try:
            if file.exists() and point is None:
                contents = read_training_checkpoint(file)
                point = ResumePoint(file, contents)
        except CheckpointError as error:
            damaged.append(str(error))
    if point is None and damaged:
        raise CheckpointError(f"{run}: has no usable checkpoint ({'; '.join(damaged)})")
    if point is None:
        log.info(f"resume: {printable(run)} has no checkpoint yet, starting at step 0")
        return None
    name = Path(str(config.resume)).name
    # resume= names another checkpoint (the name of a run may end in .ckpt, too)
    if name.endswith(".ckpt") and name not in (point.path.name, run.directory.name):
        reason = "; ".join(damaged) or f"resume={config.resume}: is not the newest checkpoint"
        newest = shlex.quote(f"resume={point.path}")
        raise CheckpointError(f"{reason}; a run continues from its newest checkpoint, {newest}")
    for line in damaged:
        log.info(f"resume: skips {line}")
    log.info(f"resume: from {printable(point.path)}, step {point.step}")
    return point


def conditions_of(config: Config) -> dict[str, Any]:
    """Return the settings that the result of a run depends on, as key -> value."""
    return {key: value for key, value in by_key(config).items() if KEYS[key].on_resume != "free"}


def difference(key: str, ours: Any, theirs: Any, whose: str = "run") -> str:
    stored = "none" if theirs is None else spell(theirs)
    return f"{key}={spell(ours)} (the {whose} has {stored})"


def check_resumed(
    run: Run, now: Mapping[str, Any], point: ResumePoint | None, allow: list[str]
) -> None:
    """Check that a resumed run will match an uninterrupted one, then remove unfinished files."""
    # Without a checkpoint, only the settings are known, so the rest counts as equal.
    before = point.conditions if point else {**now, **conditions_of(read_config(run.directory))}
    # Another GPU needs no allow= unless the run promises the same bits.
    if is_other_gpu(before, now) and spell(now["trainer.deterministic"]) != "true":
        devices = f"device={now['device']} (the run has {before['device']})"
        log.info(
            f"resume: continues with {devices}, so it will not match the original run bit for bit"
        )
        before = {**before, "device": now["device"]}
    if differing := check_unchanged(before, now, allow, run.directory):
        log.info(
            f"resume: continues with {differing}, so it will not match the original run bit for bit"
        )
    remove_leftovers(run)


def check_unchanged(
    before: Mapping[str, Any], now: Mapping[str, Any], allow: list[str], run: Path
) -> str:
    """Return how the conditions of a resumed run differ from those under which it was trained, or "" if they are equal.

    Conditions are everything that the results depend on: the settings, the text, the device,
    torch's version, … One that differs must be in `allow`.
    """
    for name in allow:
        if name not in now:
            raise InputError(f"allow=[{name}]: no such field{nearest(name, now)}")
    defaults = {key: option.default for key, option in KEYS.items()}
    before = defaults | dict(before)  # a checkpoint may be older than a setting
    differing = [name for name in now if before.get(name) != now[name]]
    fixed = [
        name
        for name in differing
        if name == "vocabulary" or (name in KEYS and KEYS[name].on_resume == "fixed")
    ]
    listed = ", ".join(difference(name, now[name], before.get(name)) for name in differing)
    if fixed:
        advice = f"allow= cannot permit {', '.join(fixed)}"
        if fixed == ["vocabulary"]:
            start = processes.command(
                "python", "train.py", *with_folders([f"init_from={run}", "data.path=FILE"])
            )
            advice = f"the vocabulary of a run cannot change; to start a new run from this model: {start}"
        raise InputError(f"resume: cannot change {listed}; {advice}")
    if set(differing) - set(allow):
        way = shlex.quote(f"allow=[{','.join(differing)}]")
        raise InputError(f"resume: cannot change {listed}; {way} continues anyway")
    return listed


def is_other_gpu(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    devices = {str(before["device"]), str(now["device"])}
    return len(devices) == 2 and all(device.startswith("cuda ") for device in devices)


def remove_leftovers(run: Run) -> None:
    """Remove the unfinished files of killed processes from a run directory."""
    for folder in (run.directory, run.checkpoints):
        remove_unfinished(folder)


@dataclass(frozen=True)
class InitModel:
    """A trained model from which a new run starts (`init_from=`)."""

    path: Path  # the model file
    config: "ModelConfig"
    weights: "dict[str, np.ndarray]"
    meta: dict[str, Any]  # the metadata of the model file, such as the vocabulary and the step

    @property
    def extra_chars(self) -> str:
        """All characters of the model, which the run's vocabulary must have; none if its tokens are bytes."""
        return self.meta["vocabulary"].get("characters", "")

    @property
    def texts(self) -> list[Any]:
        return self.meta["texts"]

    def copy_into(self, model: "GPT", tokenizer: "Tokenizer") -> None:
        """Copy the weights of this trained model into the model of a run."""
        import torch

        from gpt.checkpoint import build, copy_weights

        # (V,), the token in the run of each token of this model; all byte models have equal tokens
        token_map = torch.arange(tokenizer.size)
        if self.extra_chars:
            token_map = torch.as_tensor(tokenizer.encode(self.extra_chars))
        copy_weights(model, build(self.config, self.weights), token_map)

    def describe(self, vocabulary: dict[str, Any]) -> str:
        """Return a line for the log: the file and the step of this trained model, and characters that are new to it."""
        new = "".join(sorted(set(vocabulary.get("characters", "")) - set(self.extra_chars)))
        added = ", the same vocabulary"
        if new:
            more = "…" if len(new) > 20 else ""
            added = f", {len(new)} new characters {new[:20]!r}{more}"
        return f"from       {printable(self.path)}, step {self.meta['step']}{added}"


def load_init_model(config: Config) -> InitModel:
    """Load the trained model that `init_from=` names, a run or a model file, and check that `config` fits it."""
    from gpt.model_file import read

    try:
        path = run_directory.find_model(config.init_from)
        model = read(path)
    except InputError as error:
        raise InputError(f"init_from: {error}") from None
    check_trained(config, trained_groups(model.config, model.meta))
    return InitModel(path, *model)


def check_trained(config: Config, groups: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise an `InputError` if a run that starts from a trained model changes a setting on which the weights depend.

    `groups` contains the settings of the trained model. No weight depends on the window, and none
    on the context unless the positions are learned: then it must not be longer.
    """
    trained = by_key(groups)
    ours = by_key(config)
    free = ["model.window", "model.context"]
    if (
        trained["model.positions"] == "learned"
        and ours["model.context"] > trained["model.context"]
    ):
        free.remove("model.context")
    fixed = [
        key
        for key in trained
        if KEYS[key].on_resume == "fixed" and key not in free and ours[key] != trained[key]
    ]
    if fixed:
        listed = [difference(key, ours[key], trained[key], "model") for key in fixed]
        raise InputError(f"init_from={config.init_from}: cannot change {', '.join(listed)}")
