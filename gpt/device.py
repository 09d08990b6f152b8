"""Move a loaded model to the device that the command line names."""

from typing import Any

from base.errors import InputError


def to_device(thing: Any, name: str) -> Any:
    """Move a model or a tensor to the device `--device`; raise `InputError` if this machine does not have it."""
    try:
        return thing.to(name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"--device {name}: cannot be used here: {reason}") from None
