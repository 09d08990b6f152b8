"""CUDA graphs: a GPU repeats work without Python.

A step of a small model launches hundreds of kernels of a few microseconds each, and launching takes longer than
computing. Captured once, all of them are launched by a single call.
"""

from collections.abc import Callable
from functools import cache

import torch

Capture = Callable[[Callable[[], None]], Callable[[], None]]  # such as `capture`
WARMUP_STEPS = 3  # eager iterations before capture: kernels compile, cuBLAS allocates its workspaces


def capture(work: Callable[[], None]) -> Callable[[], None]:
    """Capture `work` in a CUDA graph without executing it; return the graph's replay function.

    The graph stores kernels, addresses and the numbers that Python passes. So `work` must read from and write to
    tensors that stay, and never wait for the GPU. Random numbers are new at each replay: the global generator advances.
    """
    graph = torch.cuda.CUDAGraph()
    torch.clear_autocast_cache()  # the graph would reuse weights that were cast before
    with torch.cuda.graph(graph, stream=capture_stream(torch.cuda.current_device())):
        work()
    torch.clear_autocast_cache()  # weights cast in the graph belong to it
    return graph.replay


@cache
def capture_stream(device: int) -> torch.cuda.Stream:
    """Return one stream for warm-up and capture: cuBLAS allocates memory for each stream."""
    return torch.cuda.Stream(device)


def warm_up(work: Callable[[], None]) -> None:
    """Do `work` eagerly on the capture stream."""
    if not torch.cuda.is_available():
        return work()
    stream = capture_stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)


class CapturedWork:
    """Work that is warmed up, then captured, then replayed; each call does it once."""

    def __init__(self, work: Callable[[], None], capture: Capture) -> None:
        self.work, self.capture = work, capture
        self.warmed_up = 0  # calls
        self.replay: Callable[[], None] | None = None

    def __call__(self) -> None:
        """Do the work once."""
        if self.warmed_up < WARMUP_STEPS:
            warm_up(self.work)
            self.warmed_up += 1
            return
        if self.replay is None:
            self.replay = self.capture(self.work)
        self.replay()
