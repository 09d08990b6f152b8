"""Find the run and the checkpoint to resume from, check that the run may continue, and repair its directory."""

import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from base import processes, run_directory, run_lock
from base.errors import InputError, one_line, printable
from base.files import remove_unfinished
from base.log import log
from base.options import spell
from conf.merge import check_unchanged, merge_resumed, read_config, settings, typed_again
from conf.plugins import checked
from conf.schema import Config, to_yaml


def resolve(typed: Config, keys: list[str]) -> tuple[Config, Path | None]:
    """Find and lock the run to resume; return the merged configuration and the run's directory, None if fresh."""
    if typed.resume is None and processes.restarted():  # the command line is that of the first start
        typed = replace(typed, resume="auto", name=typed.name or run_directory.new_name(to_yaml(typed)))
    if typed.resume is None:
        if typed.allow:
            raise InputError(f"allow={spell(typed.allow)}: goes with resume=, has no meaning without")
        run_directory.check_writable()
        if typed.name is not None and processes.rank() == 0:
            run_directory.check_free(typed.name)
        return typed, None
    if processes.started_by_another_rank():  # rank 0 has found and locked it
        run = Path(os.environ["CHARGPT_RESUMED"]) if os.environ["CHARGPT_RESUMED"] else None
    else:
        newest = typed.resume == "auto" and typed.name is None
        run = newest_unfinished() if newest else run_directory.to_resume(typed.resume, typed.name)
        os.environ["CHARGPT_RESUMED"] = str(run or "")  # inherited by the processes that Lightning starts
    directory = run or run_directory.RUNS / str(typed.name)
    if directory.is_dir() and processes.rank() == 0:
        run_lock.lock(directory)
    if run is None:
        return typed, None
    old = read_config(run)
    for override in typed_again(old):
        if "data.path" not in keys:
            hint = f"if you trust it, add {one_line(override)} to the command"
            raise InputError(f"{run / 'config.yaml'}: its data.path is not trusted; {hint}")
    return merge_resumed(old, typed, keys), run


def newest_unfinished() -> Path:
    """Find the newest unfinished run that can be resumed; log why newer ones cannot."""
    skipped = []
    for run in run_directory.unfinished():
        from training.checkpoint_files import find_newest  # loading torch takes a second

        path, _, damaged = find_newest(run / "checkpoints")
        if processes.rank() == 0 and run_lock.in_use(run):
            skipped.append(f"{run}: another process is training there")
        elif not (run / "config.yaml").is_file():
            skipped.append(f"{run}: has no config.yaml")
        elif damaged and path is None:
            skipped.append(f"{run}: no checkpoint can be resumed: {'; '.join(damaged)}")
        elif run_directory.lacks_checkpoints(run):
            skipped.append(f"{run}: has a model but no checkpoint")
        else:
            if processes.rank() == 0:
                for line in skipped:
                    log.info(f"resume: skips {line}")
            return run
    raise InputError(f"resume=auto: no unfinished run in {run_directory.RUNS}/{'; '.join(['', *skipped])}")


@dataclass(frozen=True)
class ResumePoint:
    """A verified checkpoint to resume from."""

    path: Path
    contents: dict[str, Any]

    @property
    def step(self) -> int:
        """Return the number of optimizer steps taken."""
        return self.contents["global_step"]

    @property
    def conditions(self) -> dict[str, Any]:
        """Return the run fingerprint."""
        return self.contents["conditions"]

    @property
    def extra_chars(self) -> str:
        """Return the characters that the run added to the vocabulary of its text."""
        return str(self.contents["data"].get("known", ""))

    @property
    def metrics(self) -> dict[str, Any]:
        """Return the state of the callback `Metrics`."""
        return self.contents["callbacks"]["Watch"]

    @property
    def pruned(self) -> bool:
        """Whether a search pruned the run at this step."""
        return self.contents["callbacks"].get("Prune", {}).get("pruned") is True

    def is_end(self, config: Config) -> bool:
        """Whether no steps are left: at max_steps, stopped early or pruned. By hand, a pruned run can continue."""
        over = self.contents["callbacks"]["Checkpoints"].get("over") is True
        by_hand = self.pruned and "CHARGPT_TRIAL" not in os.environ
        stopped = over and not by_hand and self.conditions["callbacks"] == config.callbacks
        return self.step >= config.trainer.max_steps or stopped


def find_point(run: Path, resume: str) -> ResumePoint | None:
    """Find the newest valid checkpoint of a run, None if the run has none yet; log the newer ones that are damaged.

    Raises:
        CheckpointError: none is valid, or the checkpoint that `resume` names is damaged or not the newest.
    """
    from gpt.checkpoint import CheckpointError, read
    from training.checkpoint_files import find_newest

    for file in run.rglob("*"):  # this run will write, truncate and remove files here
        if file.is_symlink():
            raise CheckpointError(f"{file}: is a link to somewhere else")
    typed = read(resume) if resume.endswith(".ckpt") and not Path(resume).is_dir() else None
    path, contents, skipped = find_newest(run / "checkpoints")
    if path is None and skipped:
        raise CheckpointError(f"{run}: no checkpoint can be resumed: {'; '.join(skipped)}")
    if path is None:
        log.info(f"resume: {printable(run)} has no checkpoint yet, starting at step 0")
        return None
    if typed and typed["global_step"] != contents["global_step"]:
        newest = shlex.quote(f"resume={path}")
        raise CheckpointError(f"resume={resume}: a run continues from its newest checkpoint, {newest}")
    for line in skipped:
        log.info(f"resume: skips {line}")
    before = contents["conditions"]  # earlier versions saved the callbacks' classes, too
    before["callbacks"] = checked("callbacks", before.get("callbacks", {}))
    log.info(f"resume: from {printable(path)}, step {contents['global_step']}")
    return ResumePoint(path, contents)


def check_resumed(run: Path, now: dict[str, Any], point: ResumePoint | None, allow: list[str]) -> None:
    """Compare the fingerprint `now` with the checkpoint's, or else config.yaml; refuse differences not in `allow`.

    Then repair the directory: a killed process may have left unfinished files, or models of another step.
    """
    from training.checkpoint_files import restore_names

    before = point.conditions if point else now | settings(read_config(run))
    if differing := check_unchanged(before, now, allow):
        log.info(f"resume: continues with {differing}: no longer bit for bit the original run")
    remove_leftovers(run)
    if point:
        restore_names(point.path, point.contents)


def remove_leftovers(run: Path) -> None:
    """Remove the unfinished files of killed processes from a run directory."""
    for folder in (run, run / "checkpoints", run / "projector"):
        remove_unfinished(folder)
