"""The device of a model that was loaded."""

from typing import Any

from base.errors import InputError


def to_device(thing: Any, name: str) -> Any:
    """Move a model or a tensor to the device that `--device` names.

    Raises:
        InputError: this machine does not have it.
    """
    try:
        return thing.to(name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"--device {name}: cannot be used here: {reason}") from None
