"""Add plots of the model to TensorBoard at each validation."""

import queue
import time
from collections.abc import Callable, Iterator
from typing import Any

import lightning as L

from base.errors import one_line
from base.log import log
from conf.schema import WatchConfig
from reports.picture_data import PicturedText, plots
from reports.picture_process import Renderer
from reports.tensorboard_private import Summary
from training.callbacks.samples import boards
from training.module import LitGPT
from training.sharding import whole_model

MAX_QUEUED = 100  # with as many pictures waiting to be rendered, a validation adds none
END_SECONDS = 30.0  # seconds to wait for the renderer at the end of a run


class Pictures(L.Callback):
    """Add pictures to TensorBoard at each validation.

    This process computes the data and a second process renders them. Training does not wait for the renderer; `finish`
    does, for up to `END_SECONDS`. A run that is stopped loses the pictures that are not rendered yet.
    """

    def __init__(self, config: WatchConfig, shown: PicturedText) -> None:
        self.config, self.shown = config, shown
        self.renderer: Renderer | None = None
        self.queued = 0  # pictures sent to the renderer and not yet written to TensorBoard
        self.failed = False
        self.warned = False  # whether the log says that the renderer is too slow

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, LitGPT)
        if not boards(trainer) or not self.config.pictures:
            return
        model = whole_model(trainer, pl_module.net)
        if model is None or self.failed:
            return
        last = trainer.global_step >= trainer.max_steps or trainer.should_stop
        if self.queued >= MAX_QUEUED and not last:
            if not self.warned:
                log.info("pictures   are drawn more slowly than validations come: some are left out")
            self.warned = True
            return
        self._send(plots(model, self.shown, self.config.heads(), trainer.global_step))

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        def write(step: int, summary: Summary) -> None:
            for board in boards(trainer):
                board.experiment.file_writer.add_summary(summary, step)

        while self._write(write):
            pass

    def finish(self, write: Callable[[int, Summary], None]) -> None:
        """Give the remaining pictures to `write` (step, summary) for up to `END_SECONDS`; end the renderer."""
        until = time.monotonic() + END_SECONDS
        while self.queued and self._write(write, until - time.monotonic()):
            pass
        if self.queued:
            log.info(f"pictures   {self.queued} were not drawn within {END_SECONDS:g} seconds")
        self.close()

    def close(self) -> None:
        """End the renderer, without its remaining pictures."""
        if self.renderer:
            self.renderer.end()
            self.renderer = None

    def _send(self, pictures: Iterator[dict[str, Any]]) -> None:
        if self.renderer is None:
            try:
                self.renderer = Renderer()
            except OSError as error:
                self._fail(one_line(error))
                return
        for picture in pictures:
            self.queued += 1
            self.renderer.wanted.put(picture)

    def _write(self, write: Callable[[int, Summary], None], wait: float = 0.0) -> bool:
        """Write the next picture; return whether there was one within `wait` seconds."""
        if self.renderer is None:
            return False
        try:
            picture, answer = self.renderer.drawn.get(wait > 0, wait if wait > 0 else None)
        except queue.Empty:
            return False
        if isinstance(answer, str):
            self._fail(answer)
            return False
        self.queued -= 1
        width, height = (int.from_bytes(answer[at : at + 4], "big") for at in (16, 20))  # PNG header
        image = Summary.Image(encoded_image_string=answer, width=width, height=height, colorspace=4)
        try:
            write(picture["step"], Summary(value=[Summary.Value(tag=picture["tag"], image=image)]))
        except OSError as error:  # such as a full disk: training continues without pictures
            self._fail(one_line(error))
        return not self.failed

    def _fail(self, reason: str) -> None:
        log.info(f"pictures   are not drawn any more: {reason}")
        self.queued, self.failed = 0, True
        self.close()
