"""Train a character-level GPT: config -> data -> model -> Trainer.

`python train.py` trains a small model on the source code of Python's standard library;
`python train.py --help` lists what can be changed.
"""

from base import processes
from base.errors import InputError
from base.errors import one_line
from conf.compose import ParsedRun
from conf.compose import apply_literals
from conf.compose import typed_keys
from conf.help import usage
from conf.overrides import check_flags
from conf.overrides import check_overrides
from conf.overrides import split_literals
from conf.schema import Config
from contextlib import nullcontext
from contextlib import redirect_stderr
from sweeps.grid import plan_sweep
from sweeps.grid import run_sweep
from sweeps.search import begin_search
from sweeps.search_space import take_search
from training.exit_status import refuse
from training.exit_status import run_one
from typing import Any
import io
import os
import signal
import sys
import tempfile
import time

STARTED = time.perf_counter() - time.process_time()  # of this process, which is where `minutes` counts from


def cli() -> int:
    """Run from the command line; what a person typed wrong is answered in one line with exit status 2."""
    if sweep := os.environ.pop("CHARGPT_SWEEP", None):  # whose trial this is
        processes.end_with(int(sweep))
    if "SLURM_JOB_ID" in os.environ and hasattr(signal, "SIGUSR1"):
        signal.signal(signal.SIGUSR1, start_again)
    try:
        return run_typed(sys.argv[1:])
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130


def start_again(number: int, _: Any) -> None:
    """SLURM's time is up before there is anything to save: have the job start again."""
    if processes.rank() == 0:
        processes.requeue()
    os._exit(128 + number)


def run_typed(arguments: list[str]) -> int:
    """Run what was typed: one configuration, or with `-m` several, each in a process of its own."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a character is no reason to stop
    if {"-h", "--help"} & set(arguments):
        print(usage())
        return 0
    # Hydra then raises what went wrong instead of printing it.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    flags = [argument for argument in arguments if argument.startswith("-")]
    sweep = bool({"-m", "--multirun"} & set(flags))
    rest, literals = split_literals([argument for argument in arguments if not argument.startswith("-")])
    try:
        processes.join()
        check_flags(flags)
        search, rest = take_search(rest)
        check_overrides(rest, literals, sweep, search=search is not None)
        if search:
            return begin_search(search, flags, rest, literals)
    except ValueError as error:
        return refuse(error)

    import hydra
    from hydra.core.config_store import ConfigStore
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    ConfigStore.instance().store("schema", node=Config)

    composed: list[tuple[DictConfig, list[str]]] = []

    @hydra.main(version_base="1.3", config_path="conf", config_name="train")
    def compose(config: DictConfig) -> None:
        composed.append((config, list(HydraConfig.get().overrides.task)))

    try:
        # Hydra leaves a file of its own for a sweep.
        with tempfile.TemporaryDirectory() if sweep else nullcontext() as folder:
            sys.argv[1:] = [*flags, *rest, *([f"hydra.sweep.dir='{folder}'"] if sweep else [])]
            with redirect_stderr(io.StringIO()):  # Hydra says what goes wrong in lines of its own, too
                compose()
        sys.argv[1:] = arguments  # Lightning starts its other processes with the command as it was typed
        typed = [
            ParsedRun(apply_literals(OmegaConf.to_object(config), literals), typed_keys(given, literals), given)  # type: ignore[arg-type]
            for config, given in composed
        ]
        for key in ("workers", "launcher"):
            if not sweep and any(key in each.keys for each in typed):
                raise InputError(f"{key}: goes with -m, which makes several runs")
        planned = plan_sweep(rest, literals, typed) if sweep and typed else None
    except (HydraException, OmegaConfBaseException, InputError, ValueError) as error:
        return refuse(error)
    if planned:
        try:
            return run_sweep(*planned)
        except InputError as error:
            return refuse(error)
        except OSError as error:
            print(f"train.py: {one_line(error)}", file=sys.stderr)
            return 1
    return run_one(typed[0].config, typed[0].keys, STARTED) if typed else 0  # none where Hydra was to show it


if __name__ == "__main__":
    sys.exit(cli())
