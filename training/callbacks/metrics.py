"""What watches training: the progress display and the logged values."""

import math
import statistics
import sys
import time
from typing import Any

import lightning as L
import psutil
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor
from tqdm import tqdm

from base.log import log
from base.progress import clock
from gpt.cuda_graph import WARMUP_STEPS
from gpt.optim import lr_at
from reports.tensorboard import layout
from training.callbacks.loss_spikes import SPIKES_SAID, Spikes
from training.callbacks.phase_timer import PhaseTimer
from training.callbacks.weight_updates import relative_updates
from training.history import History
from training.module import LitGPT
from training.peak_flops import peak_flops

LINE_SECONDS = 10.0  # seconds between progress lines where there is no bar
LONG_RUN_SECONDS = 180.0  # seconds from which a run is called long
FIRST_STEPS = 20  # of a process, each of which is looked at
MAX_UNREAD = 100  # steps that a GPU may be ahead of what is known of them


def used_memory(device: torch.device) -> int:
    """Bytes of memory: the most that was in use so far on a CUDA GPU, what this process holds now elsewhere."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else psutil.Process().memory_info().rss


class Metrics(L.Callback):
    """Measures training, logs it every `log_every_n_steps` and shows it: a bar in a terminal, lines elsewhere.

    It must come before the callbacks that save, so that nothing is missing from what they save.

    Args:
        tokens_per_step: tokens trained on in one step, over all devices.
        tokens_per_character: of the training text; 1 unless tokens are bytes.
        warn: whether to say what takes long and how to shorten it; not where its time was asked for.
    """

    def __init__(self, tokens_per_step: int, tokens_per_character: float, warn: bool) -> None:
        self.warn = warn
        self.tokens_per_step, self.tokens_per_character = tokens_per_step, tokens_per_character
        self.loss_sum, self.loss_count, self.clipped = 0.0, 0, 0  # since the last entry that was logged
        self.spikes = Spikes()
        self.losses = History(1000)  # [step, training loss] of each interval that was logged
        self.validations = History(1000)  # [step, loss, bits per character]
        self.seconds = 0.0  # of fitting, validations and checkpoints included
        self.started: float | None = None  # when fitting began; None outside of it
        self.module: LitGPT | None = None  # that is fitted
        self.first: int | None = None  # the step that fitting began at
        # Of steps alone, and how many they were; not the first of a process, which are slower: see `unusual`.
        self.stepping, self.stepped = 0.0, 0
        self.peak: float | None = None  # FLOP/s that all devices together could reach; None where it is not known

    @property
    def state_key(self) -> str:
        """Its name in checkpoints, which older ones have, too."""
        return "Watch"

    def state_dict(self) -> dict[str, Any]:
        """What has been counted, with the steps so far."""
        if self.started:
            self._count()
        return {
            "loss_sum": self.loss_sum,
            "loss_count": self.loss_count,
            "clipped": self.clipped,
            "spikes": vars(self.spikes),
            "history": {"losses": self.losses.state_dict(), "validations": self.validations.state_dict()},
            "seconds": self.seconds + (time.perf_counter() - self.started if self.started else 0.0),
            "stepping": self.stepping,
            "stepped": self.stepped,
            "peak": self.peak,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue counting."""
        for key in ("loss_sum", "loss_count", "clipped", "seconds", "stepping", "stepped"):
            setattr(self, key, state_dict[key])
        self.spikes = Spikes(**state_dict["spikes"])
        self.losses.load_state_dict(state_dict["history"]["losses"])
        self.validations.load_state_dict(state_dict["history"]["validations"])

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clocks and the display."""
        assert isinstance(pl_module, LitGPT)
        self.first, self.module = trainer.global_step, pl_module
        # The first may compile; steps to be captured are warmed up first.
        self.unusual = WARMUP_STEPS + 1 if pl_module.capture else 1
        peak = peak_flops(pl_module.device, str(trainer.precision))
        self.peak = peak and peak * trainer.world_size
        self.flops_per_token = pl_module.net.flops_per_token()
        self.started = self.last_line = time.perf_counter()
        pl_module.lap = self.laps = PhaseTimer(pl_module.device, replayed=pl_module.capture is not None)
        unknown = ["perf/mfu"] * (not self.peak) + ["time/.*"] * (not self.laps.known)
        if self.first == 0 and trainer.is_global_zero:  # what a run logged before it was resumed is still there
            for logger in trainer.loggers:
                if isinstance(logger, TensorBoardLogger):
                    logger.experiment.add_custom_scalars(layout(unknown))
        self.logged = self.stepping, self.stepped
        self.first_steps: list[float] = []
        self.bar = None
        if trainer.is_global_zero and sys.stdout.isatty():
            self.bar = tqdm(
                total=trainer.max_steps,
                initial=self.first,
                file=sys.stdout,
                dynamic_ncols=True,
                bar_format="step {n_fmt}/{total_fmt} {bar} {desc}{remaining} left",
            )
        if trainer.is_global_zero and pl_module.compile_step and self.warn:
            log.info("compiling  about 20 seconds the first time, a few after that")

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        """Copy the weights before a step that is logged."""
        assert isinstance(pl_module, LitGPT)
        if trainer.loggers and self._is_logged(trainer, trainer.global_step + 1):
            self.before = {name: weight.detach().clone() for name, weight in pl_module.net.named_parameters()}

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Tensor, batch_idx: int
    ) -> None:
        """Count the step; at the end of an interval, log it."""
        assert self.first is not None and isinstance(pl_module, LitGPT)
        step = trainer.global_step
        wanted = step - self.first <= FIRST_STEPS or self._is_logged(trainer, step)
        if wanted or not pl_module.behind or len(pl_module.unread) >= MAX_UNREAD:
            self._count()
        self.laps("other")
        seconds = self.laps.take()
        if step - self.first > self.unusual:
            self.stepping += seconds
            self.stepped += 1
        else:
            self.laps.clear()
        if step - self.first <= FIRST_STEPS:
            self.first_steps.append(seconds)
        if step - self.first == FIRST_STEPS and self.warn:
            self._warn_if_long(trainer, step)
        if self._is_logged(trainer, step):
            self._log(trainer, pl_module, step)
        if self.bar is not None:
            self.bar.update(step - self.bar.n)
        self.laps.recording = self._is_logged(trainer, step + 1)
        if step == trainer.max_steps:
            trainer.should_stop = True  # Lightning then validates once more, whatever the interval

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """See that there is something to validate."""
        assert isinstance(pl_module, LitGPT)
        if self.started and pl_module.behind:
            self._count()
            self.laps("other")  # what was waited for are steps

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Say what the validation gave."""
        assert isinstance(pl_module, LitGPT) and pl_module.score is not None
        score = pl_module.score
        self.validations.add([trainer.global_step, score.loss, score.bpc])
        if trainer.is_global_zero:
            log.info(
                f"step {trainer.global_step}/{trainer.max_steps}  validation loss {score.loss:.4f}  bpc {score.bpc:.4f}"
            )
        self.last_line = time.perf_counter()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Count what is left and stop the clocks and the display."""
        self._count()
        self._stop()

    def _stop(self) -> None:
        assert self.started is not None
        self.seconds += time.perf_counter() - self.started
        self.started = None
        if self.bar is not None:
            self.bar.close()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Leave the terminal as it was."""
        if self.started:
            self._stop()

    def _count(self) -> None:
        """Count the steps that have not been counted yet.

        Raises:
            Diverged: see `LitGPT.read`.
        """
        assert self.module is not None
        for step, loss, grad_norm in self.module.read():
            self.loss_sum += loss
            self.loss_count += 1
            self.clipped += 0 < self.module.optim_config.clip < grad_norm
            self.grad_norm, usual = grad_norm, self.spikes.usual
            if self.spikes.see(loss) and self.module.global_rank == 0 and self.spikes.count <= SPIKES_SAID:
                log.info(f"step {step + 1}: the loss jumped to {loss:.4f} from about {usual:.4f}")

    def _is_logged(self, trainer: L.Trainer, step: int) -> bool:
        return step % trainer.log_every_n_steps == 0 or step == trainer.max_steps  # type: ignore[attr-defined]

    def _log(self, trainer: L.Trainer, module: LitGPT, step: int) -> None:
        loss, count = self.loss_sum / self.loss_count, self.loss_count
        bits = loss / math.log(2) * self.tokens_per_character
        self.losses.add([step, loss])
        values = {
            "train/loss": loss,
            "train/bpc": bits,
            "train/loss_spikes": self.spikes.count,
            "optim/lr": lr_at(step - 1, module.optim_config, module.max_steps),
            "optim/grad_norm": self.grad_norm,
        }
        if module.optim_config.clip:
            values["optim/clip_share"] = self.clipped / count
        self.loss_sum, self.loss_count, self.clipped = 0.0, 0, 0
        if trainer.loggers:
            updates = relative_updates(self.before, module.net)
            values |= {f"update/{group}": update for group, update in updates.items()}
            values["perf/memory_gib"] = used_memory(module.device) / 2**30
            values |= {f"time/{part}": share for part, share in self.laps.shares().items()}
            del self.before
        self.laps.clear()
        seconds, steps = self.stepping - self.logged[0], self.stepped - self.logged[1]
        self.logged = self.stepping, self.stepped
        speed = steps * self.tokens_per_step / seconds if steps else None
        shown = f"loss {loss:.4f}  bpc {bits:.4f}"
        if speed:
            values["perf/chars_per_s"] = speed
            if self.peak:
                values["perf/mfu"] = speed * self.flops_per_token / self.peak
            shown += f"  {speed:,.0f} characters/s"
        for logger in trainer.loggers:
            logger.log_metrics(values, step=step)
        if self.bar is not None:
            self.bar.set_description_str(shown + "  ", refresh=False)
        elif trainer.is_global_zero and time.perf_counter() - self.last_line >= LINE_SECONDS:
            left = f"  {clock((trainer.max_steps - step) * self.tokens_per_step / speed)} left" if speed else ""
            log.info(f"step {step}/{trainer.max_steps}  {shown}{left}")
            self.last_line = time.perf_counter()

    def _warn_if_long(self, trainer: L.Trainer, step: int) -> None:
        per_step = statistics.median(self.first_steps)
        left = (trainer.max_steps - step) * per_step
        if left > LONG_RUN_SECONDS and trainer.is_global_zero:
            fits = max(50, int((120 / per_step) // 50 * 50))
            log.info(
                f"at the speed of this machine {trainer.max_steps} steps take about {clock(left)}; "
                f"trainer.max_steps={fits} takes about {clock(fits * per_step)}"
            )
