"""Work that a GPU does again and again without Python: CUDA graphs.

A small model's step is hundreds of kernels of a few microseconds each, and asking for them takes longer than doing
them. What a piece of work asks for is recorded once; asking for all of it is then a single call.
"""

from collections.abc import Callable
from functools import cache

import torch

Recorder = Callable[[Callable[[], None]], Callable[[], None]]  # as `record` is one
REHEARSALS = 3  # times that work is done as it is, in which kernels are compiled and libraries take their memory


def record(work: Callable[[], None]) -> Callable[[], None]:
    """Record what `work` asks of the GPU, without its being done; the result has all of it done, each time.

    Recorded are kernels, addresses and the numbers that Python hands over. So `work` must take what changes from
    tensors that stay, leave what comes of it in tensors that stay, and look at nothing on the GPU. Random numbers are
    new each time: they begin where the global generator then stands.
    """
    graph = torch.cuda.CUDAGraph()
    torch.clear_autocast_cache()  # weights that were narrowed before would stay what they were
    with torch.cuda.graph(graph, stream=beside(torch.cuda.current_device())):
        work()
    torch.clear_autocast_cache()  # and those of the graph belong to it
    return graph.replay


@cache
def beside(device: int) -> torch.cuda.Stream:
    """The stream that work is rehearsed and recorded on: cuBLAS keeps memory for each one that it has seen."""
    return torch.cuda.Stream(device)


def rehearse(work: Callable[[], None]) -> None:
    """Do `work` as it is, on a stream of its own, as it will be recorded."""
    if not torch.cuda.is_available():
        return work()
    stream = beside(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)


class Repeated:
    """Work that is rehearsed, then recorded, then repeated; each call does it once."""

    def __init__(self, work: Callable[[], None], record: Recorder) -> None:
        self.work, self.record = work, record
        self.rehearsed = 0
        self.again: Callable[[], None] | None = None

    def __call__(self) -> None:
        """Do the work once."""
        if self.rehearsed < REHEARSALS:
            rehearse(self.work)
            self.rehearsed += 1
            return
        if self.again is None:
            self.again = self.record(self.work)
        self.again()
