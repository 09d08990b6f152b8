"""Where the time of a training step goes: a few steps of a run, recorded operator by operator and shown as a page."""

import html
import json
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.profilers import AdvancedProfiler, Profiler, SimpleProfiler
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from base.files import write_text
from gpt.fit.trace import digest
from gpt.inline import embedded, fill

SKIPPED = 10  # steps before those that are recorded: the first are slower, and may compile
RECORDED = 3
MODULE = "[LightningModule]LitGPT"  # in front of its hooks' names


def make_profiler(kind: str, run: Path, max_steps: int) -> tuple[Profiler, Path]:
    """What times a run by hook (`simple`), function (`advanced`) or operator (`pytorch`), and where it reports."""
    if kind == "pytorch":
        return StepProfiler(run, max_steps), run / "profile.html"
    kinds = {"simple": SimpleProfiler, "advanced": AdvancedProfiler}
    return kinds[kind](dirpath=run, filename="profile"), run / "fit-profile.txt"


class StepProfiler(Profiler):
    """Records a few steps of training and writes `profile.html`, and `trace.json` for other viewers.

    A step reaches from where its batch is fetched to where the next one is, or to a validation.

    Args:
        run: directory of the run, where both go.
        max_steps: of the run; of a short one the last are recorded.
    """

    def __init__(self, run: Path, max_steps: int) -> None:
        """Nothing is recorded yet."""
        super().__init__()
        self.run = run
        self.first = min(SKIPPED, max(0, max_steps - RECORDED))
        self.last = min(self.first + RECORDED, max_steps) - 1
        self.step = -1  # that goes on or has ended, counted from the first of this process
        self.began: float | None = None  # when it did; None between two
        self.seconds: list[float] = []  # of steps before those that are recorded
        self.recorder: profile | None = None
        self.marks: dict[str, record_function] = {}  # that are open
        self.part: str | None = None

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        """Have the model say when it begins, and its blocks when they begin and end, unless they are compiled."""
        super().setup(stage, local_rank, log_dir)
        module: Any = self._lightning_module  # type: ignore[attr-defined]
        module.net.register_forward_pre_hook(lambda *_: self._turn_to("forward"))
        for number, block in enumerate([] if module.compile_step else module.net.blocks):
            for name, part in (("", block), (" attention", block.attention), (" MLP", block.mlp)):
                self._mark_forward(f"block {number}{name}", part)

    def start(self, action_name: str) -> None:
        """Mark that Lightning begins with something."""
        if action_name.endswith("train_dataloader_next"):
            self._end_step()
            self._begin_step()
            self._turn_to("data")
        elif "on_validation" in action_name:
            self._end_step()
        elif action_name == f"{MODULE}.on_before_backward":
            self._turn_to("backward")
        self._open(action_name)

    def stop(self, action_name: str) -> None:
        """Mark that it has ended."""
        self._close(action_name)
        if action_name == f"{MODULE}.on_after_backward":
            self._turn_to("optimizer")  # before its step, gradients are clipped
        elif action_name == "optimizer_step" or action_name.endswith(".batch_to_device"):
            self._turn_to(None)

    def describe(self) -> None:
        """Write what was recorded, when all is over."""
        if self.recorder is None:
            return
        if self.step < self.last:  # the run was over before
            self._stop()
        path = self.run / "trace.json"
        self.recorder.export_chrome_trace(str(path))
        self.recorder = None
        trace = json.loads(path.read_text("utf-8"))
        about = digest(trace, statistics.median(self.seconds) if self.seconds else None)
        about |= {"title": f"Where a step's time goes: {self.run.name}", "what": self._what()}
        template = Path(__file__).with_name("profile.html")
        data = f'<script type="application/json" id="about">{embedded(about)}</script>'
        write_text(self.run / "profile.html", fill(template, title=html.escape(about["title"]), data=data))

    def _begin_step(self) -> None:
        self.step += 1
        if self.step == self.first:
            activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
            with _quiet():
                self.recorder = profile(activities=activities, record_shapes=True, profile_memory=True)
                self.recorder.prepare_trace()
                self.recorder.start_trace()
        self.began = time.perf_counter()
        self._open("step")

    def _end_step(self) -> None:
        if self.began is None:
            return
        self._turn_to(None)
        self._close("step")
        if 0 < self.step < self.first:
            self.seconds.append(time.perf_counter() - self.began)
        self.began = None
        if self.step == self.last:
            self._stop()

    def _stop(self) -> None:
        """Record no more."""
        assert self.recorder is not None
        with _quiet():
            self.recorder.stop_trace()

    @property
    def _recording(self) -> bool:
        return self.began is not None and self.first <= self.step <= self.last

    def _turn_to(self, part: str | None) -> None:
        """End the part of the step that goes on, and begin another."""
        if self.part is not None:
            self._close(self.part)
        self.part = part if self._recording else None
        if self.part is not None:
            self._open(self.part)

    def _open(self, name: str) -> None:
        if self._recording:
            self.marks[name] = record_function(name)
            self.marks[name].__enter__()

    def _close(self, name: str) -> None:
        mark = self.marks.pop(name, None)
        if mark is not None:
            mark.__exit__(None, None, None)

    def _mark_forward(self, name: str, module: nn.Module) -> None:
        module.register_forward_pre_hook(lambda *_: self._open(name))
        module.register_forward_hook(lambda *_: self._close(name))

    def _what(self) -> str:
        """What was trained, and where, in one line."""
        module: Any = self._lightning_module  # type: ignore[attr-defined]
        config, trainer = module.model_config, module.trainer
        return (
            f"{config.layers} layers, {config.heads} heads, {config.dim} wide, context {config.context}: "
            f"{module.net.num_parameters():,} parameters; {trainer.datamodule.config.batch} windows a step, "
            f"{trainer.precision}, {'compiled' if module.compile_step else 'not compiled'}; {module.device}, "
            f"torch {torch.__version__} with {torch.get_num_threads()} threads"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep off the terminal what torch's profiler writes there by itself, in C++."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
