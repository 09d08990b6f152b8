"""What a run starts from: the newest checkpoint of a run to resume, or a trained model (`init_from=`)."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from base.errors import InputError, printable
from base.jobs.run_directory import Run, find
from base.log import log
from base.options import spell
from conf.compose import read_config, trained_groups
from conf.keys import KEYS, train_command
from conf.schema import Config, by_key
from reports.history import History

if TYPE_CHECKING:
    from gpt.model import GPT
    from gpt.model_file import Model
    from gpt.tokenizer import Tokenizer


class ResumePoint:
    """A valid checkpoint from which a run resumes."""

    def __init__(self, path: Path, contents: dict[str, Any]) -> None:
        self.path = path
        self.step: int = contents["global_step"]
        self.history = History.of(contents["history"])
        self.conditions: dict[str, Any] = contents["conditions"]
        self.extra_chars: str = contents["data"]["extra_chars"]
        self.texts: list[Any] = contents["data"]["texts"]
        self._contents: Any = contents

    def change_callbacks(
        self, plugins: Mapping[str, Mapping[str, Any]], callbacks: Sequence[Any]
    ) -> None:
        """Store the arguments that a resumed run has changed, because Lightning would restore the earlier ones.

        `plugins` has the arguments of each callback, in the order of `callbacks`. What is no
        changed argument, such as the count of EarlyStopping beside its patience, continues. Without
        a callback that averages the weights, the run continues from the weights in training.
        """
        from lightning.pytorch.callbacks import WeightAveraging

        for (name, arguments), callback in zip(plugins.items(), callbacks, strict=True):
            before = self.conditions["callbacks"].get(name, {})
            stored = self._contents["callbacks"].get(callback.state_key, {})
            for key, value in callback.state_dict().items():
                if key in stored and key in before and arguments.get(key) != before[key]:
                    stored[key] = value
        averages = any(isinstance(callback, WeightAveraging) for callback in callbacks)
        if "current_model_state" in self._contents and not averages:
            self._contents["state_dict"] = self._contents.pop("current_model_state")

    def is_over(self, config: Config, conditions: Mapping[str, Any]) -> bool:
        """Whether the run has reached max_steps, or was stopped early by a callback that `config` still has."""
        same_callbacks = self.conditions["callbacks"] == conditions["callbacks"]
        steps = config.trainer.max_steps
        # auto: `Deadline` had not chosen the number
        reached_steps = steps != "auto" and self.step >= steps
        return reached_steps or (self.history.stopped_early and same_callbacks)

    def take(self) -> dict[str, Any]:
        """Return the contents of the checkpoint, once: they must not stay in memory."""
        contents: dict[str, Any] = self._contents
        self._contents = None
        return contents


def newest_checkpoint(run: Run, resume: str | None) -> ResumePoint | None:
    """Return the newest valid checkpoint of a run that `resume=` continues, or None if it has no checkpoint yet."""
    from gpt.checkpoint import read_training_checkpoint  # loading torch takes a second
    from gpt.model_file import CheckpointError

    point: ResumePoint | None = None
    damaged = list[str]()  # the errors of damaged checkpoints
    for file in (run.checkpoints / "last.ckpt", run.checkpoints / "previous.ckpt"):
        try:
            if file.exists() and point is None:
                point = ResumePoint(file, read_training_checkpoint(file))
        except CheckpointError as error:
            damaged.append(str(error))
    if point is None:
        if damaged:
            raise CheckpointError(f"{run}: has no usable checkpoint ({'; '.join(damaged)})")
        log.info(f"resume: {printable(run)} has no checkpoint yet, starting at step 0")
        return None
    name = Path(str(resume)).name
    # resume= names another checkpoint (the name of a run may end in .ckpt, too)
    if name.endswith(".ckpt") and name not in (point.path.name, run.directory.name):
        reason = "; ".join(damaged) or f"resume={resume}: is not the newest checkpoint"
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


def is_fixed(name: str) -> bool:
    """Return whether the weights depend on a setting or on the vocabulary, so that it cannot change."""
    return name == "vocabulary" or (name in KEYS and KEYS[name].on_resume == "fixed")


def check_unchanged(
    run: Run, now: dict[str, Any], point: ResumePoint | None, allow: list[str]
) -> None:
    """Check that a resumed run will match an uninterrupted one, or log how it differs as `allow` permits.

    Conditions are everything that the results depend on: the settings, the text, the device,
    torch's version, … Those of `now` are compared with those under which the run was trained.
    """
    # a checkpoint may be older than a setting
    before = {key: option.default for key, option in KEYS.items()}
    if point:
        before |= point.conditions
    else:  # only the settings are known, so the rest counts as equal
        before |= now | conditions_of(read_config(run.directory))
    differing = [name for name in now if before.get(name) != now[name]]
    listed = ", ".join(difference(name, now[name], before.get(name)) for name in differing)
    fixed = [name for name in differing if is_fixed(name)]
    if fixed:
        advice = f"allow= cannot permit {', '.join(fixed)}"
        if fixed == ["vocabulary"]:
            start = train_command(f"init_from={run}", "data.path=FILE")
            advice = f"the vocabulary of a run cannot change; to start a new run from this model: {start}"
        raise InputError(f"resume: cannot change {listed}; {advice}")
    refused = set(differing) - set(allow)
    # Another GPU needs no allow= unless the run promises the same bits.
    are_gpus = all(str(each["device"]).startswith("cuda ") for each in (before, now))
    if are_gpus and spell(now["trainer.deterministic"]) != "true":
        refused.discard("device")
    if refused:
        way = shlex.quote(f"allow=[{','.join(differing)}]")
        raise InputError(f"resume: cannot change {listed}; {way} continues anyway")
    if differing:
        log.info(
            f"resume: continues with {listed}, so it will not match the original run bit for bit"
        )


@dataclass(frozen=True)
class InitModel:
    """A trained model from which a new run starts (`init_from=`)."""

    path: Path  # the model file
    contents: "Model"
    # all characters of the model, which the run's vocabulary must have; none if its tokens are bytes
    extra_chars: str
    texts: list[Any]  # those that it was trained on

    def copy_into(self, model: "GPT", tokenizer: "Tokenizer") -> str:
        """Copy the weights of this trained model into the model of a run, and return a line for the log.

        The line names the file and the step of this model, and characters that are new to it.
        """
        import torch

        from gpt.checkpoint import build, copy_weights

        # (V,), the token in the run of each token of this model; all byte models have equal tokens
        token_map = torch.arange(tokenizer.size)
        if self.extra_chars:
            token_map = torch.as_tensor(tokenizer.encode(self.extra_chars))
        config, weights, meta = self.contents
        copy_weights(model, build(config, weights), token_map)
        characters = tokenizer.vocabulary.get("characters", "")
        new = "".join(sorted(set(characters) - set(self.extra_chars)))
        added = ", the same vocabulary"
        if new:
            more = "…" if len(new) > 20 else ""
            added = f", {len(new)} new characters {new[:20]!r}{more}"
        return f"from       {printable(self.path)}, step {meta['step']}{added}"


def load_init_model(config: Config) -> InitModel:
    """Load the trained model that `init_from=` names, a run or a model file, and check that `config` fits it."""
    from gpt.model_file import read

    try:
        path = find(config.init_from, "model")
        model = read(path)
    except InputError as error:
        raise InputError(f"init_from: {error}") from None
    trained = by_key(trained_groups(model.config, model.meta))
    ours = by_key(config)
    # No weight depends on the window, and none on the context unless the positions are learned:
    # then it must not be longer.
    free = ["model.window"]
    if model.config.positions != "learned" or config.model.context <= model.config.context:
        free.append("model.context")
    listed = [
        difference(key, ours[key], value, "model")
        for key, value in trained.items()
        if is_fixed(key) and key not in free and ours[key] != value
    ]
    if listed:
        raise InputError(f"init_from={config.init_from}: cannot change {', '.join(listed)}")
    extra_chars = model.meta["vocabulary"].get("characters", "")
    return InitModel(path, model, extra_chars, model.meta["texts"])
