"""Train a character-level GPT, one run or many; `python train.py --help` lists the options."""

import gc
import io
import os
import sys
import time

from base import processes, slurm
from base.command_line import answer
from base.errors import InputError
from base.log import log, to_console
from conf.compose import combinations, compose, show
from conf.help import usage
from conf.overrides import read_command
from reports.run_list import run_list
from sweeps.grid import begin_sweep
from sweeps.search import begin_search
from sweeps.search_space import take_search
from training.exit_status import fail, refuse, run_one

# The imports above count towards the time budget `minutes`: they took about as long as the CPU time used so far.
STARTED = time.perf_counter() - time.process_time()


def cli() -> int:
    """Run the command line; return the exit status."""
    if parent := os.environ.pop("CHARGPT_SWEEP", None):  # this is a trial: the process id of its sweep
        processes.end_with(int(parent))
    processes.limit_spinning()
    to_console()
    slurm.requeue_before_start()
    try:
        return dispatch(sys.argv[1:])
    except KeyboardInterrupt:
        log.error("\ninterrupted")
    return 130


def dispatch(arguments: list[str]) -> int:
    """Print the help or the runs, or start one run, a sweep (`-m`) or a search (`hparams_search=`)."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # print ? for a character that the terminal's encoding lacks
    if wanted := {"-h", "--help", "--help=all"} & set(arguments):
        return answer("train.py", lambda: print(usage("--help=all" in wanted)), out_of_memory="")
    if "--runs" in arguments:
        if len(arguments) > 1:
            return refuse(InputError(f"--runs: goes alone, not with {' '.join(set(arguments) - {'--runs'})}"))
        return answer("train.py", lambda: print(run_list()), out_of_memory="")
    try:
        processes.adopt_srun()
        search, others = take_search(arguments)
        command = read_command(others, search=search is not None)
        overrides, literals = command.overrides, command.literals
        if search:
            return begin_search(search, overrides, literals)
        if command.part:
            print(show(overrides, literals, command.part, command.resolve), end="")
            return 0
        runs = compose(combinations(overrides), literals)
        if command.sweep:
            return begin_sweep(overrides, literals, runs)
    except InputError as error:
        return refuse(error)
    except OSError as error:
        return fail(error)
    return run_one(runs[0].config, runs[0].keys, STARTED)


if __name__ == "__main__":
    status = cli()
    gc.freeze()  # skip Python's search for reference cycles at exit, which takes over a second
    sys.exit(status)
