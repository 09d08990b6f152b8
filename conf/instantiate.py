"""Instantiate the callbacks and loggers of a run from its configuration."""

from collections.abc import Mapping
from typing import Any

import hydra

from base.errors import InputError, one_line


def instantiate(group: str, plugins: Mapping[str, Mapping[str, Any]], **more: Any) -> list[Any]:
    """Create the plug-ins of `group`, `callbacks` or `logger`; each constructor also receives `more`.

    Unlike in Hydra's `instantiate`, `${…}` in an argument is text.
    """
    instances = []
    for name, arguments in plugins.items():
        try:
            create = hydra.utils.instantiate({"_target_": arguments["_target_"], "_partial_": True})
            instances.append(create(**{key: value for key, value in arguments.items() if key != "_target_"} | more))
        except Exception as error:
            cause = error.__cause__ or error
            reason = one_line(cause)[:300] or type(cause).__name__
            if isinstance(cause, ModuleNotFoundError) and "wandb" in reason:
                reason = "needs wandb: pip install -c constraints.txt -e '.[wandb]'"
            raise InputError(f"{group}={name}: cannot be created: {reason}") from None
    return instances
