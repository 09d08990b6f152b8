"""Count the ranks, and the rows of the batch on each."""

from dataclasses import replace

from base import processes
from base.errors import InputError
from base.options import spell
from conf.schema import Config


def share_out(config: Config, keys: list[str]) -> Config:
    """Return the configuration with the numbers of ranks and machines that torchrun or srun has started.

    Raises:
        InputError: other numbers were typed, only this machine was started, or the batch does not divide evenly.
    """
    trainer, launched = config.trainer, processes.launched()
    if launched:
        for key, found, what in zip(("devices", "num_nodes"), launched, ("ranks per machine", "machines"), strict=True):
            given = getattr(trainer, key)
            if f"trainer.{key}" in keys and given not in ("auto", found):
                raise InputError(f"trainer.{key}={spell(given)}: was started with {found} {what}; leave it out")
        trainer = replace(trainer, devices=launched[0], num_nodes=launched[1])
    elif trainer.num_nodes > 1:
        hint = "start the program on every machine, with torchrun or srun (docs/cluster.md)"
        raise InputError(f"trainer.num_nodes={trainer.num_nodes}: {hint}")
    if isinstance(trainer.devices, int):  # otherwise `machine.choose` checks this, when torch is loaded
        rows_per_device(config, trainer.devices * trainer.num_nodes)
    return replace(config, trainer=trainer)


def rows_per_device(config: Config, devices: int) -> int:
    """Return the windows per forward and backward pass on one device; raise an `InputError` if there is a remainder."""
    batch, micro_batch = config.data.batch, config.data.micro_batch
    if batch % devices or batch // devices % (micro_batch or 1):
        parts = f"{devices} devices" + (f" x data.micro_batch={micro_batch}" if micro_batch else "")
        raise InputError(f"data.batch={batch}: must be a multiple of {parts}")
    return micro_batch or batch // devices
