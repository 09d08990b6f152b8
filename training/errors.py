"""How a run can end early. Imports nothing heavy."""

import signal


class RunFailed(Exception):
    """A run that could not go on, in one line."""


class Diverged(Exception):
    """The loss is no longer a number, in one line."""


class Stopped(Exception):
    """The program was asked to stop by a signal; what there was to save is saved."""

    def __init__(self, number: int, step: int | None = None) -> None:
        when = "" if step is None else f" after step {step}"
        super().__init__(f"stopped by {signal.Signals(number).name}{when}")
        self.number, self.step = number, step


def is_lost_process(error: BaseException) -> bool:
    """Whether an error says that another process of this run has died or is silent."""
    gloo = ("Connection closed by peer", "Connection reset by peer", "Timed out", "timed out")
    nccl = ("ncclRemoteError", "NCCL communicator was aborted", "collective operation timeout")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in (*gloo, *nccl))
