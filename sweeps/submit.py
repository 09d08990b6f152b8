"""Run the trials of a sweep as SLURM jobs, with the package submitit."""

import io
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from base.errors import InputError, one_line
from base.log import to_console
from sweeps.trial import Outcome, Trial
from sweeps.trial_processes import receiving, run_trials

SHARED = ("name", "timeout_min", "mem_gb", "cpus_per_task", "gpus_per_node")  # keys without submitit's prefix slurm_
MAX_REQUEUES = 10**6  # how often submitit may requeue a job at its time limit: no limit in practice


def make_executor(folder: Path, launcher: Mapping[str, Any]) -> Any:
    """Make the submitit executor, which submits jobs and keeps their files in `folder`."""
    try:
        import submitit
    except ModuleNotFoundError:
        raise InputError("launcher=slurm: needs submitit; pip install -c constraints.txt -e '.[launcher]'") from None
    for key in {"nodes", "tasks_per_node"} & set(launcher):
        raise InputError(f"launcher.{key}: a trial is one task, which starts a process for each of trainer.devices")
    try:
        executor = submitit.AutoExecutor(folder, "slurm", slurm_max_num_timeout=MAX_REQUEUES)
        executor.update_parameters(**{key if key in SHARED else f"slurm_{key}": launcher[key] for key in launcher})
    except (AssertionError, NameError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"launcher=slurm: {one_line(error)[:300]}") from None
    return executor


@dataclass(frozen=True)
class Job:
    """A SLURM job that runs one trial: submitit pickles this object and calls it in the job."""

    trial: Trial

    def __call__(self) -> Outcome:
        """Run the trial in a process; at the job's time limit stop it after a checkpoint and let submitit requeue."""
        to_console()
        outcomes: list[Outcome] = []
        received = run_trials(iter([self.trial]), 1, lambda _, result: outcomes.append(result))
        if received == signal.SIGUSR2:
            signal.raise_signal(received)  # submitit's own handler
        return outcomes[0] if outcomes else Outcome("interrupted")

    def checkpoint(self) -> Any:
        """Return the job for submitit to requeue: the same, because a trial resumes by itself."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def launch_trials(trials: Iterable[Trial], executor: Any, ended: Callable[[Trial, Outcome], None]) -> int | None:
    """Run trials as SLURM jobs and wait for them, like `run_trials` with processes. A signal cancels all jobs."""
    # A job starts in the current directory and must find this module to unpickle its `Job`.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    jobs: dict[Any, Trial] = {}
    cancelled = False
    with receiving() as received:
        if waiting := [] if received else list(trials):
            try:
                with redirect_stderr(io.StringIO()), executor.batch():
                    submitted = [executor.submit(Job(trial)) for trial in waiting]
            except RuntimeError as refusal:  # sbatch's message
                raise InputError(f"launcher: no job was taken: {one_line(refusal)[:300]}") from None
            jobs |= zip(submitted, waiting, strict=True)
        while jobs:
            if received and not cancelled:
                cancelled = True
                for job in jobs:
                    job.cancel()
            time.sleep(0.1)
            for job in [each for each in jobs if each.done()]:
                trial, error = jobs.pop(job), job.exception()
                failed = Outcome("interrupted") if cancelled else Outcome("failed", one_line(error)[:200])
                ended(trial, failed if error is not None else job.result())
    return received[0] if received else None
