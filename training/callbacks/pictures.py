"""Show in TensorBoard, at each validation, what the model has learned: pictures and histograms."""

import queue
import time
from collections.abc import Callable, Iterator
from typing import Any

import lightning as L
import torch
from torch import Tensor

from base.errors import one_line
from base.log import log
from conf.schema import WatchConfig
from gpt.analysis import BINS, calibration_totals
from reports.picture_data import Shown, histograms, plots
from reports.picture_process import Renderer
from reports.tensorboard import Summary
from training.callbacks.samples import boards, to_boards
from training.module import LitGPT
from training.strategy import whole_model

MAX_WAITING = 100  # pictures; where validations come faster than pictures are drawn, some have none
END_SECONDS = 30.0  # to wait, at the end, for the pictures that are not drawn yet


class Pictures(L.Callback):
    """Shows in TensorBoard, at each validation, what the model has learned: pictures, and histograms on request.

    The numbers are computed here; they are drawn in a process of their own and written when that is done. Training does
    not wait for them, a run only at its very end, and not for long. Pictures that are not drawn when the run is stopped
    are lost. Where validations come faster than pictures can be drawn, some have none, which is said once.
    """

    def __init__(self, config: WatchConfig, shown: Shown) -> None:
        self.config, self.shown = config, shown
        self.drawer: Renderer | None = None
        self.waiting = 0  # pictures that are sent and not written yet
        self.given_up = False
        self.behind = False  # and some were left out

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the sums."""
        self.totals = torch.zeros(3, BINS, dtype=torch.float64)

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, *_: Any
    ) -> None:
        """See how sure the model is of what it predicts; the first process' share of the windows will do."""
        if self.config.pictures and trainer.is_global_zero and boards(trainer):
            _, targets, counted = batch
            self.totals += calibration_totals(outputs[counted], targets[counted])

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Compute what is to be drawn."""
        assert isinstance(pl_module, LitGPT)
        if not boards(trainer) or not (self.config.pictures or self.config.histograms):
            return
        model = whole_model(trainer, pl_module)
        if model is None:
            return
        step = trainer.global_step
        if self.config.histograms:
            for tag, values in histograms(model, self.shown.passage):
                for board in boards(trainer):
                    board.experiment.add_histogram(tag, values, step)
        last = step >= trainer.max_steps or trainer.should_stop
        if self.config.pictures and not self.given_up:
            if self.waiting >= MAX_WAITING and not last:
                if not self.behind:
                    log.info("pictures   are drawn more slowly than validations come: some are left out")
                self.behind = True
                return
            self._send(plots(model, self.totals, self.shown, self.config.heads(), step))

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Tensor, batch_idx: int
    ) -> None:
        """Write what has been drawn meanwhile."""
        while self._write(to_boards(trainer)):
            pass

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Leave at once."""
        self.end()

    def finish(self, write: Callable[[int, Summary], None]) -> None:
        """Wait a while for what is left, and end the process.

        Args:
            write: takes a step and what to write for it.
        """
        until = time.monotonic() + END_SECONDS
        while self.waiting and self._write(write, until - time.monotonic()):
            pass
        if self.waiting:
            log.info(f"pictures   {self.waiting} were not drawn within {END_SECONDS:g} seconds")
        self.end()

    def __enter__(self) -> "Pictures":
        """Draw until the context ends."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process that draws."""
        self.end()

    def end(self) -> None:
        """End the process, drawn or not."""
        if self.drawer:
            self.drawer.end()
            self.drawer = None

    def _send(self, pictures: Iterator[dict[str, Any]]) -> None:
        if self.drawer is None:
            try:
                self.drawer = Renderer()
            except OSError as error:
                self._give_up(one_line(error))
                return
        for picture in pictures:
            self.waiting += 1
            self.drawer.wanted.put(picture)

    def _write(self, write: Callable[[int, Summary], None], wait: float = 0.0) -> bool:
        """Write the next picture if it has been drawn, or is within so many seconds, and say whether it was."""
        if self.drawer is None:
            return False
        try:
            picture, answer = self.drawer.drawn.get(wait > 0, wait if wait > 0 else None)
        except queue.Empty:
            return False
        if isinstance(answer, str):
            self._give_up(answer)
            return False
        self.waiting -= 1
        width, height = (int.from_bytes(answer[at : at + 4], "big") for at in (16, 20))  # as PNG has them
        image = Summary.Image(encoded_image_string=answer, width=width, height=height, colorspace=4)
        try:
            write(picture["step"], Summary(value=[Summary.Value(tag=picture["tag"], image=image)]))
        except OSError as error:  # such as a full disk, which is to cost no more than pictures
            self._give_up(one_line(error))
        return not self.given_up

    def _give_up(self, reason: str) -> None:
        """Say why there are no more pictures; training goes on."""
        log.info(f"pictures   are not drawn any more: {reason}")
        self.waiting, self.given_up = 0, True
        self.end()
