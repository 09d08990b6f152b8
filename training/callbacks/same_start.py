"""Check that all processes start from the same code, text and step."""

import platform
from datetime import timedelta
from typing import Any

import lightning as L
import torch

from base.errors import InputError
from base.options import shown
from base.run_directory import RUNS
from training.torch_private import set_pg_timeout


class SameStart(L.Callback):
    """Ends a run at its start where its processes do not go on from the same: each must see the same files.

    Args:
        mine: what this process starts from, by name, as plain data.
        timeout: seconds after which, from here on, they give up one that is silent.
    """

    HERE = ("device", "threads")  # of a machine, and allowed to differ between machines

    def __init__(self, mine: dict[str, Any], timeout: float) -> None:
        self.timeout = timeout
        self.mine = {name: value for name, value in mine.items() if name not in self.HERE}

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Compare, as soon as the processes can talk to each other.

        Raises:
            InputError: on every process, with the first difference.
        """
        if trainer.world_size == 1:
            return
        mesh = getattr(trainer.strategy, "device_mesh", None)  # of fsdp, with groups of its own
        for group in (None, *(mesh.get_all_groups() if mesh else ())):
            set_pg_timeout(timedelta(seconds=self.timeout), group)
        everyone: list[Any] = [None] * trainer.world_size
        torch.distributed.all_gather_object(everyone, (platform.node(), self.mine))
        (first, wanted), *others = everyone
        for rank, (machine, found) in enumerate(others, start=1):
            for name in wanted:
                if found.get(name) != wanted[name]:
                    raise InputError(
                        f"{name}: rank {rank} on {machine} has {shown(found.get(name))}, rank 0 on {first} has "
                        f"{shown(wanted[name])}: all machines must see the same text and the same {RUNS}/"
                    )
