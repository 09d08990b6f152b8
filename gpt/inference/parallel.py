"""Generate many texts at once: over threads on a CPU, in batches on a GPU."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from base.processes import cores
from gpt.inference.weights import Weights

MIN_ROWS = 8  # texts that are worth a thread of their own
MAX_ROWS = 64  # texts read side by side in a thread
MAX_ROWS_GPU = 1024  # texts read side by side on a GPU
MAX_CACHE = 2**29  # bytes of keys and values in a thread
Result = TypeVar("Result")


def generate_many(
    work: Callable[[slice], Iterator[Result]],
    rows: int,
    weights: Weights,
    progress: Callable[[int], Any] = lambda tokens: None,
) -> Iterator[Result]:
    """Do the rows of a large batch in parts, as many at once as fit into memory.

    On a CPU the parts go to all cores: what NumPy computes in two threads runs at the same time. On a GPU of NVIDIA's
    they come one after the other, for each keeps all of it busy.

    Args:
        work: goes on with a part of the rows, yielding what there is after each token.
        rows: how many there are.
        weights: of the model, which say how many texts fit into memory at once.
        progress: told how many tokens have been added; called in any thread.

    Yields:
        The last that `work` yielded for each part, in order.
    """
    config = weights.config
    cache = 2 * config.layers * config.attention_window * config.dim * weights.dtype.itemsize  # bytes, of one text
    threads, memory, most = cores(), MAX_CACHE, MAX_ROWS
    if weights.cuda:
        import torch

        # Of what is free a quarter: a cache is there twice while a prompt is read, and logits of many steps beside it.
        threads, memory, most = 1, torch.cuda.mem_get_info(weights.device)[0] // 4, MAX_ROWS_GPU
    most = max(1, min(most, memory // cache))  # rows of a part
    parts = max(1, min(threads, rows // MIN_ROWS), -(-rows // most))
    borders = np.linspace(0, rows, parts + 1).round().astype(int)
    slices = [slice(int(start), int(stop)) for start, stop in zip(borders[:-1], borders[1:], strict=True)]
    given_up = Event()

    def last(part: slice) -> Any:
        result = None
        for result in work(part):  # noqa: B007
            if given_up.is_set():
                break
            progress(part.stop - part.start)
        return result

    # The threads are those of the parts: BLAS' own would only wait for each other in products this small.
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(min(parts, threads)) as pool:
        try:
            yield from pool.map(last, slices)
        finally:  # Ctrl-C, or a reader that has seen enough
            given_up.set()
            pool.shutdown(cancel_futures=True)
