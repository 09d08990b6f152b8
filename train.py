"""Train a character-level GPT, in one run or many. `python train.py --help` lists the options."""

import gc
import os
import signal
import sys

if sys.flags.safe_path:  # PYTHONSAFEPATH leaves out the folder of this file
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from base import ranks
from base.command_line import main
from base.errors import InputError
from base.jobs import run_directory, run_lock
from base.log import log
from conf.compose import compose_object
from conf.help import usage
from conf.overrides import read_command
from sweeps.sweep import begin_sweep, combinations
from sweeps.table import as_text, compare_runs, run_list
from training import run
from training.begin import compose_command
from training.errors import Stopped


def cli() -> int:
    """Run train.py and return its exit status."""
    ranks.end_with_parent()  # for trials of a sweep, and ranks that a run started
    return main("train.py", interruptible)


def interruptible() -> int | None:
    """Do what the command line says, unlock the directory of the run, and return the exit status."""
    try:
        return dispatch(sys.argv[1:])
    except Stopped as stopped:
        return int(stopped.status)
    except KeyboardInterrupt:
        log.error("\ninterrupted")
        return 130
    finally:
        run_lock.release()


def dispatch(arguments: list[str]) -> int | None:
    """Print what an option such as `--runs` asks for, or start one run, a sweep or a search."""
    if not {"-h", "--help", "--help=all"}.isdisjoint(arguments):
        print(usage("--help=all" in arguments))
        return 0
    if "--runs" in arguments:
        others = [argument for argument in arguments if argument != "--runs"]
        print(compare(others))
        return 0
    ranks.adopt_srun()  # first, because what follows asks for the rank
    command = read_command(arguments)
    if command.search:
        search = compose_object("search", command.search)["hparams_search"]
        from sweeps.search import begin_search  # loads Optuna, which need not be installed

        return begin_search(search, command)
    if command.sweep:
        if command.show:
            print(combinations(command))
            return 0
        return begin_sweep(command)
    (settings,) = command.runs()
    config = compose_command(settings)
    if command.show:
        print(run.show(settings, config), end="")
        return 0
    return run.main(settings, config)


def compare(patterns: list[str]) -> str:
    """Return the list of all runs or, if there is a pattern such as `abl-*`, the table of the runs that match it."""
    if not patterns:
        return run_list()
    pattern = " ".join(patterns)
    runs = run_directory.matching(pattern)
    if not runs:
        raise InputError(
            f"--runs {pattern}: no run in {run_directory.RUNS}/ matches this name; give one name, such as 'abl-*'"
        )
    return as_text(compare_runs(runs))


if __name__ == "__main__":
    status = cli()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C has nothing left to stop
    if run.is_importing():  # such as after Ctrl-C
        os._exit(status)
    # Skip Python's search for reference cycles at exit, which takes over a second. But a rank that
    # fails leaves threads, which the search ends.
    if status == 0 or not ranks.launched():
        gc.freeze()
    sys.exit(status)
