"""Generate many texts at once: over threads on a CPU, in batches on a GPU."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from base.processes import cores
from gpt.inference.weights import Weights

MIN_ROWS = 8  # fewer texts are not worth another thread
MAX_ROWS = 64  # largest batch of texts in a thread
MAX_ROWS_GPU = 1024  # largest batch of texts on a GPU
MAX_CACHE = 2**29  # bytes of keys and values in a thread
Result = TypeVar("Result")


def generate_many(
    work: Callable[[slice], Iterator[Result]],
    rows: int,
    weights: Weights,
    progress: Callable[[int], Any] = lambda tokens: None,
) -> Iterator[Result]:
    """Generate many texts in parts that fit into memory: in parallel threads on a CPU, one after the other on CUDA.

    Args:
        work: generates the texts of a slice of the rows; yields its result so far after each token.
        rows: number of texts.
        weights: the model's weights, for the size of the KV cache and the device.
        progress: called with the number of tokens just added, in any thread.

    Yields:
        The last result of `work` for each part, in order.
    """
    config = weights.config
    cache = 2 * config.layers * config.attention_window * config.dim * weights.dtype.itemsize  # bytes, of one text
    threads, memory, most = cores(), MAX_CACHE, MAX_ROWS
    if weights.cuda:
        import torch

        # A quarter of what is free: reading a prompt copies the cache, and logits of many steps take memory, too.
        threads, memory, most = 1, torch.cuda.mem_get_info(weights.device)[0] // 4, MAX_ROWS_GPU
    most = max(1, min(most, memory // cache))  # rows of a part
    parts = max(1, min(threads, rows // MIN_ROWS), -(-rows // most))
    borders = np.linspace(0, rows, parts + 1).round().astype(int)
    slices = [slice(int(start), int(stop)) for start, stop in zip(borders[:-1], borders[1:], strict=True)]
    stopped = Event()

    def last(part: slice) -> Any:
        result = None
        for result in work(part):  # noqa: B007
            if stopped.is_set():
                break
            progress(part.stop - part.start)
        return result

    # One thread for each part: BLAS' own threads would only wait for each other in products this small.
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(min(parts, threads)) as pool:
        try:
            yield from pool.map(last, slices)
        finally:  # after Ctrl-C, or when no more results are read
            stopped.set()
            pool.shutdown(cancel_futures=True)
