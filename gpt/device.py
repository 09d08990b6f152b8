"""Move a loaded model to the device that the command line names."""

from typing import Any

from base.errors import InputError


def to_device(thing: Any, name: str) -> Any:
    """Move a model or a tensor to the device that `--device` names.

    Raises:
        InputError: this machine does not have the device.
    """
    try:
        return thing.to(name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"--device {name}: cannot be used here: {reason}") from None
