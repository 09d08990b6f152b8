"""Measure training, log the values and show progress."""

import math
import sys
import time
from typing import Any

import lightning as L
import psutil
import torch
from tqdm import tqdm

from base.log import log
from base.progress import LINE_SECONDS, clock
from gpt.optim import lr_at
from reports.tensorboard import layout
from reports.terminal import in_nats
from training.callbacks.samples import boards
from training.callbacks.weight_updates import relative_updates
from training.captured_step import WARMUP_STEPS, CapturedLitGPT
from training.history import History
from training.module import LitGPT
from training.peak_flops import peak_flops

MAX_UNREAD = 100  # max steps queued on the GPU before their losses are read back


class Metrics(L.Callback):
    """Log training every `log_every_n_steps` and show a bar in a terminal, lines elsewhere.

    Must come before the callbacks that save, so that its state in a checkpoint includes the step.
    """

    def __init__(self, tokens_per_step: int, tokens_per_character: float, unit: str) -> None:
        self.tokens_per_step = tokens_per_step  # over all devices
        self.tokens_per_character = tokens_per_character  # of the training text; 1 unless tokens are bytes
        self.unit = unit  # what a token is
        self.loss_sum, self.loss_count, self.clipped = 0.0, 0, 0  # since the last log
        self.losses = History(1000)  # [step, training loss]
        self.validations = History(1000)  # [step, loss, bits per character]
        self.seconds = 0.0  # of fitting, including validations and checkpoints
        self.started: float | None = None  # when fitting began; None before and after it
        self.stepping, self.stepped = 0.0, 0  # seconds and number of steps, without the first `num_slow`
        self.peak: float | None = None  # peak FLOP/s of all devices together; None if unknown

    @property
    def state_key(self) -> str:
        """Return the name of this state in checkpoints: the class was once called `Watch`."""
        return "Watch"

    def state_dict(self) -> dict[str, Any]:
        if self.started:
            self._read_losses()
        return {
            "loss_sum": self.loss_sum,
            "loss_count": self.loss_count,
            "clipped": self.clipped,
            "history": {"losses": self.losses.state_dict(), "validations": self.validations.state_dict()},
            "seconds": self.seconds + (time.perf_counter() - self.started if self.started else 0.0),
            "stepping": self.stepping,
            "stepped": self.stepped,
            "peak": self.peak,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for key in ("loss_sum", "loss_count", "clipped", "seconds", "stepping", "stepped"):
            setattr(self, key, state_dict[key])
        self.losses.load_state_dict(state_dict["history"]["losses"])
        self.validations.load_state_dict(state_dict["history"]["validations"])

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, LitGPT)
        self.start_step, self.module = trainer.global_step, pl_module
        captured = isinstance(pl_module, CapturedLitGPT)
        self.num_slow = WARMUP_STEPS + 1 if captured else 1  # steps that compile, warm up or capture
        peak = peak_flops(pl_module.device, str(trainer.precision))
        self.peak = peak and peak * trainer.world_size
        self.flops_per_token = pl_module.net.flops_per_token()
        self.started = self.last_line = self.marked = time.perf_counter()
        self.unassigned = 0.0  # seconds of the present step up to `marked`, without pauses
        pl_module.end_pause = self._end_pause
        if self.start_step == 0 and trainer.is_global_zero:  # a resumed run has the layout already
            for board in boards(trainer):
                board.experiment.add_custom_scalars(layout([] if self.peak else ["perf/mfu"]))
        self.logged = self.stepping, self.stepped  # at the last log
        self.bar = None
        if trainer.is_global_zero and sys.stdout.isatty():
            self.bar = tqdm(
                total=trainer.max_steps,
                initial=self.start_step,
                file=sys.stdout,
                dynamic_ncols=True,
                bar_format="step {n_fmt}/{total_fmt} {bar} {desc}{remaining} left",
            )

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        assert isinstance(pl_module, LitGPT)
        if trainer.loggers and self._is_logged(trainer, trainer.global_step + 1):
            self.before = {name: weight.detach().clone() for name, weight in pl_module.net.named_parameters()}

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        assert isinstance(pl_module, LitGPT)
        step = trainer.global_step
        count = step - self.start_step  # steps of this process
        read = count == self.num_slow or self._is_logged(trainer, step)
        if read or not pl_module.asynchronous or len(pl_module.unread) >= MAX_UNREAD:
            self._read_losses()
        self._end_step_time()
        if count > self.num_slow:
            self.stepping += self.unassigned
            self.stepped += 1
        self.unassigned = 0.0
        if self._is_logged(trainer, step):
            self._log(trainer, pl_module, step)
        if self.bar is not None:
            self.bar.update(step - self.bar.n)
        if step == trainer.max_steps:
            trainer.should_stop = True  # makes Lightning validate after the last step, whatever the interval

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, LitGPT)
        if self.started:
            if pl_module.asynchronous:
                self._read_losses()  # wait for the queued steps, which would else count as validation
            self._end_step_time()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, LitGPT) and pl_module.score is not None
        score = pl_module.score
        self.validations.add([trainer.global_step, score.loss, score.bpc])
        if trainer.is_global_zero:
            log.info(f"step {trainer.global_step}/{trainer.max_steps}  validation loss {in_nats(score.loss)}")
        self.last_line = time.perf_counter()

    def on_train_end(self, *_: Any) -> None:
        self._read_losses()
        self._stop()

    def on_exception(self, *_: Any) -> None:
        self._stop()

    def _stop(self) -> None:
        if self.started:
            self.seconds += time.perf_counter() - self.started
            self.started = None
            if self.bar is not None:
                self.bar.close()

    def _end_step_time(self) -> None:
        now = time.perf_counter()
        self.unassigned, self.marked = self.unassigned + now - self.marked, now

    def _end_pause(self) -> None:
        self.marked = time.perf_counter()

    def _read_losses(self) -> None:
        for _, loss, grad_norm in self.module.read():
            self.loss_sum += loss
            self.loss_count += 1
            self.clipped += 0 < self.module.optim_config.clip < grad_norm
            self.grad_norm = grad_norm

    def _is_logged(self, trainer: L.Trainer, step: int) -> bool:
        return step % trainer.log_every_n_steps == 0 or step == trainer.max_steps  # type: ignore[attr-defined]

    def _log(self, trainer: L.Trainer, module: LitGPT, step: int) -> None:
        loss, count = self.loss_sum / self.loss_count, self.loss_count
        bits = loss / math.log(2) * self.tokens_per_character
        self.losses.add([step, loss])
        values = {
            "train/loss": loss,
            "train/bpc": bits,
            "optim/lr": lr_at(step - 1, module.optim_config, module.max_steps),
            "optim/grad_norm": self.grad_norm,
        }
        if module.optim_config.clip:
            values["optim/clip_share"] = self.clipped / count
        self.loss_sum, self.loss_count, self.clipped = 0.0, 0, 0
        if trainer.loggers:
            updates = relative_updates(self.before, module.net)
            values |= {f"update/{group}": update for group, update in updates.items()}
            on_gpu = module.device.type == "cuda"
            memory = torch.cuda.max_memory_allocated(module.device) if on_gpu else psutil.Process().memory_info().rss
            values["perf/memory_gib"] = memory / 2**30  # maximum so far on a GPU, current elsewhere
            del self.before
        seconds, steps = self.stepping - self.logged[0], self.stepped - self.logged[1]
        self.logged = self.stepping, self.stepped
        speed = steps * self.tokens_per_step / seconds if steps else None
        shown = f"loss {in_nats(loss)}"
        if speed:
            values["perf/chars_per_s"] = speed
            if self.peak:
                values["perf/mfu"] = speed * self.flops_per_token / self.peak
            shown += f"  {speed:,.0f} {self.unit}s/s"
        for logger in trainer.loggers:
            logger.log_metrics(values, step=step)
        if self.bar is not None:
            self.bar.set_description_str(shown + "  ", refresh=False)
        elif trainer.is_global_zero and time.perf_counter() - self.last_line >= LINE_SECONDS:
            left = f"  {clock((trainer.max_steps - step) * self.tokens_per_step / speed)} left" if speed else ""
            log.info(f"step {step}/{trainer.max_steps}  {shown}{left}")
            self.last_line = time.perf_counter()
