"""Capture the training step in a CUDA graph (`compile=graph`).

A step of a small model launches hundreds of kernels of a few microseconds each, and launching takes longer than
computing. Once they are captured, a single call launches them all.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor

from training.module import LitGPT

Capture = Callable[[Callable[[], None]], Callable[[], None]]  # such as `capture`
WARMUP_STEPS = 3  # eager iterations before capture: kernels compile, cuBLAS allocates its workspaces


def capture(work: Callable[[], None]) -> Callable[[], None]:
    """Capture `work` in a CUDA graph without executing it; return the graph's replay function.

    The graph stores kernels, addresses and the numbers that Python passes. So `work` must read and write tensors that
    stay allocated, and must never wait for the GPU. Each replay draws new random numbers from the global generator.
    """
    graph = torch.cuda.CUDAGraph()
    torch.clear_autocast_cache()  # the graph would reuse weights that were cast before
    with torch.cuda.graph(graph, stream=capture_stream(torch.cuda.current_device())):
        work()
    torch.clear_autocast_cache()  # weights cast in the graph belong to it
    return graph.replay


@cache
def capture_stream(device: int) -> torch.cuda.Stream:
    """Return the stream for warm-up and capture, always the same: cuBLAS allocates memory for each stream."""
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
    """Work that is warmed up, then captured, then replayed."""

    def __init__(self, work: Callable[[], None], capture: Capture) -> None:
        self.work, self.capture = work, capture
        self.warmed_up = 0  # eager calls so far
        self.replay: Callable[[], None] | None = None

    def __call__(self) -> None:
        """Do the work once: eagerly in the first `WARMUP_STEPS` calls, then by replaying a graph."""
        if self.warmed_up < WARMUP_STEPS:
            warm_up(self.work)
            self.warmed_up += 1
            return
        self.replay = self.replay or self.capture(self.work)
        self.replay()


def choose_capture(asked: str, devices: int, inspected: bool) -> Capture | None:
    """Return `capture` if `compile=graph` was chosen, on one GPU and without profiler or anomaly detection."""
    return capture if asked == "graph" and devices == 1 and not inspected else None


class CapturedLitGPT(LitGPT):
    """A `LitGPT` that captures its whole step: from the batch, `rows`, to loss and gradient norm, `outcome` (2,)."""

    def __init__(self, *args: Any, capture: Capture, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.capture = capture
        self.captured: CapturedWork | None = None
        self.rows = self.outcome = torch.empty(0)

    @property
    def asynchronous(self) -> bool:
        """Return true, even on a CPU: a captured step must not read results."""
        return True

    def on_train_start(self) -> None:
        """Define the step to capture, on tensors that stay allocated."""
        super().on_train_start()
        (optimizer,) = self.trainer.optimizers
        for group in optimizer.param_groups:
            if "capturable" in group:
                group["capturable"] = True
        # Learning rates as tensors: the graph would store numbers and replay the same rate forever.
        self.rates = [torch.zeros((), device=self.device) for _ in optimizer.param_groups]
        self.outcome = torch.zeros(2, device=self.device)

        def work() -> None:
            loss, grad_norm = self.gradients(self.rows), self.clip()
            optimizer.step()
            optimizer.zero_grad()
            self.outcome.copy_(torch.stack((loss, grad_norm)))

        self.captured = CapturedWork(work, self.capture)

    def on_train_end(self) -> None:
        """Free the graph's memory."""
        self.captured = None
        super().on_train_end()

    def take_step(self, optimizer: LightningOptimizer, batch: Tensor) -> Tensor:
        """Copy the batch and the learning rates to the tensors that the graph reads, and take the step."""
        for group, rate in zip(optimizer.param_groups, self.rates, strict=True):
            rate.fill_(group["lr"])
            group["lr"] = rate
        assert self.captured
        if self.rows.shape != batch.shape:
            self.rows = torch.empty_like(batch)
        self.rows.copy_(batch)
        # As a closure, so that Lightning counts the step. The optimizer then finds no gradients.
        optimizer.step(self.captured)
        return self.outcome.clone()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the same optimizer state as a run without capture: rates as numbers, `capturable` off."""
        super().on_save_checkpoint(checkpoint)
        for state in checkpoint.get("optimizer_states", []):
            for group in state["param_groups"]:
                group["lr"] = float(group["lr"])
                if "capturable" in group:
                    group["capturable"] = False
