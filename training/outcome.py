"""Tell how a run ended: the command that continues it, the key to lower when memory runs out."""

import shlex
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from base.errors import InputError
from conf.defaults import typed_again
from conf.schema import Config
from training.devices import rows_per_device

if TYPE_CHECKING:
    from collections.abc import Iterator


def way_on(run: Path, config: Config) -> str:
    """What is left of a run that has ended early, and the command that goes on with it."""
    from reports.terminal import python

    steps = sorted((run / "checkpoints").glob("step-*.ckpt"))
    if not steps:
        return "there is no checkpoint yet"
    command = shlex.join(["train.py", f"resume={run}", *typed_again(config)])
    return f"the newest checkpoint is {steps[-1]}: {python()} {command}"


@contextmanager
def naming_what_takes_memory(config: Config, vocabulary: int, devices: int) -> "Iterator[None]":
    """Answer memory that runs out with the key to lower, as a `InputError`."""
    from base.errors import is_out_of_memory
    from reports.terminal import out_of_memory

    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(out_of_memory(config.model, vocabulary, rows_per_device(config, devices))) from error
