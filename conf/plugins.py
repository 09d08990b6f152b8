"""Make Lightning's callbacks and loggers from the configuration."""

from typing import Any

from base.errors import InputError


def make(entries: dict[str, Any], **arguments: Any) -> list[Any]:
    """Make Lightning's own callbacks or loggers from their `_target_` and arguments.

    Raises:
        InputError: the class or a package it needs is missing, or an argument is wrong.
    """
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate

    try:
        return [instantiate(entry, **arguments) for entry in entries.values()]
    except (InstantiationException, ModuleNotFoundError, TypeError) as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        extra = "; pip install -c constraints.txt -e '.[wandb]'" if "wandb" in reason else ""
        raise InputError(f"{', '.join(entries)}: cannot be made: {reason}{extra}") from None
