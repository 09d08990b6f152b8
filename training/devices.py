"""How many processes train, and how the batch is divided among them."""

from base import processes
from base.errors import InputError
from base.options import shown
from conf.schema import Config


def share_out(config: Config, keys: list[str]) -> None:
    """Put what torchrun or srun have started into the configuration, and see that the batch can be shared out.

    Raises:
        InputError: something else was typed, or nobody has started the processes of other machines.
    """
    trainer, launched = config.trainer, processes.launched()
    if launched:
        for key, given, found in zip(
            ("devices", "num_nodes"), (trainer.devices, trainer.num_nodes), launched, strict=True
        ):
            if f"trainer.{key}" in keys and given not in ("auto", found):
                what = "processes on each machine" if key == "devices" else "machines"
                raise InputError(f"trainer.{key}={shown(given)}: was started with {found} {what}; leave it out")
        trainer.devices, trainer.num_nodes = launched
    elif trainer.num_nodes > 1:
        raise InputError(
            f"trainer.num_nodes={trainer.num_nodes}: start the program on every machine, with torchrun or srun "
            "(docs/cluster.md)"
        )
    if isinstance(trainer.devices, int):  # the rest is known once torch is asked
        rows_per_device(config, trainer.devices * trainer.num_nodes)


def rows_per_device(config: Config, devices: int) -> int:
    """Windows per forward and backward on one device.

    Raises:
        InputError: the batch cannot be shared out evenly.
    """
    batch, micro_batch = config.data.batch, config.data.micro_batch
    if batch % devices or batch // devices % (micro_batch or 1):
        parts = f"{devices} devices" + (f" x data.micro_batch={micro_batch}" if micro_batch else "")
        raise InputError(f"data.batch={batch}: must be a multiple of {parts}")
    return micro_batch or batch // devices
