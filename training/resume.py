"""Find the run and the checkpoint to resume from."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from base import processes, run_directory, run_lock
from base.errors import InputError, one_line, printable
from base.log import log
from base.options import shown
from conf.resume import merge_resumed, read_config, untrusted
from conf.schema import Config, to_yaml


def resolve(typed: Config, keys: list[str]) -> tuple[Config, Path | None]:
    """Settle the configuration before anything heavy is loaded, and keep others out of a run that is resumed.

    Returns:
        The configuration to run and the run directory to go on in, None for a fresh run.
    """
    if typed.resume is None and processes.restarted():  # SLURM types what was typed the first time
        typed.resume, typed.name = "auto", typed.name or run_directory.new_name(to_yaml(typed))
    if typed.resume is None:
        if typed.allow:
            raise InputError(f"allow={shown(typed.allow)}: goes with resume=, has no meaning without")
        if typed.name is not None and processes.rank() == 0:
            run_directory.check_free(typed.name)
        return typed, None
    newest = typed.resume == "auto" and typed.name is None
    run = newest_to_go_on() if newest else run_directory.to_resume(typed.resume, typed.name)
    directory = run or run_directory.RUNS / str(typed.name)
    if directory.is_dir() and processes.rank() == 0:
        run_lock.lock(directory)
    if run is None:
        return typed, None
    old = read_config(run)
    for key in untrusted(old):
        if key not in keys:
            raise InputError(
                f"{run / 'config.yaml'}: its {key} is not taken; if you trust it, add "
                f"{one_line(f'data.path={old.data.path}') if key == 'data.path' else f'{key}=…'} to the command"
            )
    return merge_resumed(old, typed, keys), run


def newest_to_go_on() -> Path:
    """Find the newest unfinished run that can go on, and say which newer ones cannot.

    Raises:
        InputError: there is none.
    """
    if processes.started_by_another_rank():  # which has found it, and holds it
        return Path(os.environ["CHARGPT_RESUMED"])
    passed = []
    for run in run_directory.unfinished():
        from training.checkpoint_files import find_newest  # loads torch, which takes a second

        path, _, skipped = find_newest(run / "checkpoints")
        if processes.rank() == 0 and run_lock.in_use(run):
            passed.append(f"{run}: another process is training there")
        elif not (run / "config.yaml").is_file():
            passed.append(f"{run}: has no config.yaml")
        elif path is None:
            passed.append(f"{run}: no checkpoint can be gone on from: {'; '.join(skipped)}")
        else:
            if processes.rank() == 0:
                for line in passed:
                    log.info(f"resume: passes over {line}")
            os.environ["CHARGPT_RESUMED"] = str(run)  # inherited by the processes that Lightning starts
            return run
    raise InputError(f"resume=auto: no unfinished run in {run_directory.RUNS}/{'; '.join(['', *passed])}")


@dataclass(frozen=True)
class ResumePoint:
    """Where a run goes on: a checkpoint that has been verified."""

    path: Path
    contents: dict[str, Any]

    @property
    def step(self) -> int:
        """Steps taken."""
        return self.contents["global_step"]

    @property
    def pruned(self) -> bool:
        """Whether the run was given up there, as a trial of a search."""
        return self.contents["callbacks"].get("Prune", {}).get("pruned") is True

    def is_end(self, config: Config) -> bool:
        """Whether the run that continues here has nothing left to do."""
        return self.step >= config.trainer.max_steps or self.ended_by(config.callbacks)

    def ended_by(self, callbacks: dict[str, Any]) -> bool:
        """Whether one of these, such as early stopping, had ended the run there; by hand, a pruned one goes on."""
        over = self.contents["callbacks"]["Checkpoints"].get("over") is True
        by_hand = self.pruned and "CHARGPT_TRIAL" not in os.environ
        return over and not by_hand and self.contents["conditions"]["callbacks"] == callbacks


def find_point(run: Path, resume: str) -> ResumePoint:
    """Find the newest valid checkpoint of a run and say which newer ones are not.

    Raises:
        CheckpointError: there is none, or the one that was typed is damaged or not the newest.
    """
    from gpt.checkpoint import CheckpointError, read
    from training.checkpoint_files import find_newest

    for file in run.rglob("*"):  # files are written, cut off and removed there
        if file.is_symlink():
            raise CheckpointError(f"{file}: is a link to somewhere else")
    typed = read(resume) if resume.endswith(".ckpt") and not Path(resume).is_dir() else None
    path, contents, skipped = find_newest(run / "checkpoints")
    if path is None:
        raise CheckpointError(f"{run}: no checkpoint can be gone on from: {'; '.join(skipped)}")
    if typed and typed["global_step"] != contents["global_step"]:
        raise CheckpointError(f"resume={resume}: a run goes on from its newest checkpoint, resume={path}")
    for line in skipped:
        log.info(f"resume: passes over {line}")
    log.info(f"resume: from {printable(path)}, step {contents['global_step']}")
    return ResumePoint(path, contents)
