"""Check that all ranks start from the same settings, text and step."""

import platform
from datetime import timedelta
from typing import Any

import lightning as L
import torch

from base.errors import InputError
from base.options import spell
from base.run_directory import RUNS
from training.torch_private import set_pg_timeout

PER_MACHINE = ("device", "threads")  # the entries of a fingerprint that may differ between machines


class SameStart(L.Callback):
    """Raise an `InputError` on every rank if their `fingerprint` differs: settings, text and step, as plain data.

    Until here a slow machine may come late. From here on, a collective operation fails after `timeout` seconds.
    """

    def __init__(self, fingerprint: dict[str, Any], timeout: float) -> None:
        self.timeout = timeout
        self.fingerprint = {name: value for name, value in fingerprint.items() if name not in PER_MACHINE}

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if trainer.world_size == 1:
            return
        mesh = getattr(trainer.strategy, "device_mesh", None)  # FSDP has its own process groups
        for group in (None, *(mesh.get_all_groups() if mesh else ())):
            set_pg_timeout(timedelta(seconds=self.timeout), group)
        everyone: list[Any] = [None] * trainer.world_size  # (machine, fingerprint) by rank
        torch.distributed.all_gather_object(everyone, (platform.node(), self.fingerprint))
        (first, wanted), *others = everyone
        for rank, (machine, found) in enumerate(others, start=1):
            for name in wanted:
                if found.get(name) != wanted[name]:
                    raise InputError(
                        f"{name}: rank {rank} on {machine} has {spell(found.get(name))}, rank 0 on {first} has "
                        f"{spell(wanted[name])}: all machines must see the same text and the same {RUNS}/"
                    )
