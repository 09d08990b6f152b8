"""Errors that end a run early. Imports nothing heavy."""

import signal


class RunFailed(Exception):
    """A run that cannot continue."""


class Diverged(Exception):
    """The loss, a gradient or a weight is NaN or infinite."""


class Stopped(Exception):
    """A signal has stopped the run."""

    def __init__(self, number: int, step: int | None = None) -> None:
        when = "" if step is None else f" after step {step}"
        super().__init__(f"stopped by {signal.Signals(number).name}{when}")
        self.number, self.step = number, step


def is_lost_process(error: BaseException) -> bool:
    """Whether an error means that another rank has died or does not answer."""
    gloo = ("Connection closed by peer", "Connection reset by peer", "Timed out", "timed out")
    nccl = ("ncclRemoteError", "NCCL communicator was aborted", "collective operation timeout")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in (*gloo, *nccl))
