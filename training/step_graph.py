"""Runs the training step of one GPU as CUDA graphs, because a CPU is slower at launching its kernels one by one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim import Optimizer

# Source: PyTorch's notes on CUDA semantics, "Whole-network capture".
# first steps, in which the libraries of CUDA allocate memory and the optimizer creates its state
UNRECORDED = 3


class StepGraph:
    """Calls `update(batch)`, which computes gradients and takes a step of `optimizer`, and replays it later.

    A graph reads the batch and the learning rates from fixed addresses. There is one graph for
    each set of parameter groups that are `due`, and all graphs share their memory.
    """

    def __init__(self, update: Callable[[Tensor], Tensor], optimizer: Optimizer) -> None:
        self.update = update
        self.groups = optimizer.param_groups
        self.left = UNRECORDED  # steps before the first that is recorded
        # the learning rates, one per group, () each
        self.rates = torch.zeros(len(self.groups), device="cuda").unbind()
        self.stream = torch.cuda.Stream()  # of the steps before the first that is recorded
        self.pool = torch.cuda.graph_pool_handle()
        # by which groups are `due`: the graph and what `update` returned, which a replay overwrites
        self.graphs: dict[tuple[bool, ...], tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def __call__(self, batch: Tensor) -> Tensor:
        """Return what `update(batch)` returns."""
        for group, rate in zip(self.groups, self.rates, strict=True):
            rate.fill_(group["lr"])
        if self.left:
            self.left -= 1
            current = torch.cuda.current_stream()
            self.stream.wait_stream(current)
            # a graph cannot be recorded on `current`
            with self._rates_on_device(), torch.cuda.stream(self.stream):
                outcome = self.update(batch)
            current.wait_stream(self.stream)
            return outcome
        due = tuple(group.get("due", True) for group in self.groups)
        if not self.graphs:
            self.batch = batch.clone()
        if due not in self.graphs:
            graph = torch.cuda.CUDAGraph()
            with self._rates_on_device(capturable=True), torch.cuda.graph(graph, pool=self.pool):
                outcome = self.update(self.batch)
            self.graphs[due] = graph, outcome
        graph, outcome = self.graphs[due]
        self.batch.copy_(batch)
        graph.replay()
        return outcome.clone()

    @contextmanager
    def _rates_on_device(self, **settings: bool) -> Iterator[None]:
        """Let the optimizer read the learning rates from `rates`, as tensors."""
        before = [group.copy() for group in self.groups]
        for group, rate in zip(self.groups, self.rates, strict=True):
            group.update(settings, lr=rate)
        try:
            yield
        finally:
            for group, saved in zip(self.groups, before, strict=True):
                group.clear()
                group.update(saved)
