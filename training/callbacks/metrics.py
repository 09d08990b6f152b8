"""The callback that measures training, logs the metrics and shows progress."""

import math
import sys
import time
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from base import processes
from base.log import log
from base.progress import LINE_SECONDS, Progress, clock, load_tqdm
from conf.schema import Config
from data.text import Text
from gpt.facts import in_nats
from gpt.model import GPT
from gpt.optim import lr_at
from reports.tensorboard import layout
from training.bounded_series import BoundedSeries
from training.callbacks.checkpoints import Checkpoints
from training.callbacks.deadline import Deadline
from training.choosing.hardware import peak_flops
from training.loggers import boards

MAX_UNREAD = 20  # max steps queued on the GPU before their losses are read back
SUMS = ("loss_sum", "loss_count", "stepping", "stepped")  # attributes that a checkpoint saves as they are


class Metrics(L.Callback):
    """Logs metrics every `log_every_n_steps` steps, and shows progress: as a bar in a terminal, otherwise as lines.

    This must be the first callback, so that its state in a checkpoint includes the last step, and so that it can show
    after a validation that the other callbacks are at work.
    """

    def __init__(self, config: Config, text: Text, checkpoints: Checkpoints, deadline: Deadline | None = None) -> None:
        self.tokens_per_step = config.data.batch * config.model.context  # over all devices
        self.text = text
        self.checkpoints = checkpoints  # each pause between two steps ends with a save
        self.deadline = deadline  # of a run with a time limit that has not chosen its steps
        self.loss_sum, self.loss_count = 0.0, 0  # since the last log
        self.losses = BoundedSeries(1000)  # [step, training loss]
        self.validations = BoundedSeries(1000)  # [step, loss, bits per character]
        self.seconds = 0.0  # of fitting, including validations and checkpoints
        self.started: float | None = None  # when fitting began; None before and after it
        self.stepping, self.stepped = 0.0, 0  # seconds and number of steps, without the first, which is slow
        self.peak: float | None = None  # peak FLOP/s of all devices together; None if unknown
        self.waiting: Progress | None = None

    def show(self, what: str, total: int = 0) -> None:
        """Show `what` the run is waiting for, such as "validating", in place of the text shown before."""
        self.hide()
        self.waiting = Progress(what, total).__enter__()

    def hide(self) -> None:
        """Remove the text that `show` has displayed, if there is one."""
        if self.waiting is not None:
            self.waiting.__exit__()
            self.waiting = None

    def state_dict(self) -> dict[str, Any]:
        if self.started:
            self._read_losses()
        return {key: getattr(self, key) for key in SUMS} | {
            "history": {"losses": vars(self.losses), "validations": vars(self.validations)},
            "seconds": self.seconds + (time.perf_counter() - self.started if self.started else 0.0),
            "peak": self.peak,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for key in (*SUMS, "seconds"):
            setattr(self, key, state_dict[key])
        self.losses = BoundedSeries(**state_dict["history"]["losses"])
        self.validations = BoundedSeries(**state_dict["history"]["validations"])

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.start_step, self.module = trainer.global_step, pl_module
        peak = peak_flops(pl_module.device, str(trainer.precision))
        self.peak = peak and peak * trainer.world_size
        self.flops_per_token = pl_module.net.flops_per_token()
        self.started = self.ended = self.last_line = time.perf_counter()  # `ended`: when the last step ended
        if self.start_step == 0 and trainer.is_global_zero:  # a resumed run has the layout already
            for board in boards(trainer):
                board.experiment.add_custom_scalars(layout(self.peak is not None))
        self.logged = self.stepping, self.stepped  # at the last log
        self.bar = None
        if trainer.is_global_zero and sys.stdout.isatty():
            form, total = "step {n_fmt}/{total_fmt} {bar} {desc}{remaining} left", self._expected(trainer)
            self.bar = load_tqdm()(
                total=total, initial=self.start_step, file=sys.stdout, dynamic_ncols=True, bar_format=form
            )
        self.show("compiling" if pl_module.compile_step else "the first step")

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        if trainer.loggers and self._is_logged(trainer, trainer.global_step + 1):
            self.before = {name: weight.detach().clone() for name, weight in pl_module.net.named_parameters()}

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        self.hide()
        step = trainer.global_step
        first, logged = step == self.start_step + 1, self._is_logged(trainer, step)
        if first or logged or not pl_module.asynchronous or len(pl_module.unread) >= MAX_UNREAD:
            self._read_losses()
        self._end_step_time(counts=not first)
        self.stepped += not first
        if logged:
            self._log(trainer, step)
        if self.bar is not None:
            self.bar.total = self._expected(trainer)
            self.bar.update(step - self.bar.n)
        if step == trainer.max_steps:
            trainer.should_stop = True  # makes Lightning validate after the last step, whatever the interval

    def on_validation_start(self, trainer: L.Trainer, *_: Any) -> None:
        if self.started:
            self._read_losses()  # a GPU may still compute the steps before the validation
            self._end_step_time()
        self.show("validating", trainer.datamodule.num_validated() // trainer.world_size)  # type: ignore[attr-defined]

    def on_validation_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, *_: Any) -> None:
        assert self.waiting is not None
        self.waiting.update(batch[0].numel())

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.show("saving and sampling")
        score = pl_module.score
        self.validations.add([trainer.global_step, score.loss, score.bpc])
        if trainer.is_global_zero:
            log.info(f"step {trainer.global_step}/{self._expected(trainer)}  validation loss {in_nats(score.loss)}")
        self.last_line = time.perf_counter()

    def on_train_end(self, *_: Any) -> None:
        self._read_losses()
        self._stop()

    def _stop(self, *_: Any, **__: Any) -> None:
        self.hide()
        if self.started:
            self.seconds += time.perf_counter() - self.started
            self.started = None
            if self.bar is not None:
                self.bar.close()

    on_exception = _stop

    def _end_step_time(self, counts: bool = True) -> None:
        """Add the seconds of the step that ends with this call to `self.stepping`."""
        now = time.perf_counter()
        if counts:
            self.stepping += now - max(self.ended, self.checkpoints.saved_at)
        self.ended = now

    def _read_losses(self) -> None:
        for _, loss, grad_norm in self.module.read():
            self.loss_sum += loss
            self.loss_count += 1
            self.grad_norm = grad_norm

    def _expected(self, trainer: L.Trainer) -> int:
        """Return the number of steps of the run, or the estimate of `Deadline` if it has not chosen the number yet."""
        if trainer.max_steps > 0 or self.deadline is None:
            return trainer.max_steps
        return self.deadline.fitting(trainer)

    def _is_logged(self, trainer: L.Trainer, step: int) -> bool:
        return step % trainer.log_every_n_steps == 0 or step == trainer.max_steps  # type: ignore[attr-defined]

    def _log(self, trainer: L.Trainer, step: int) -> None:
        module, loss = self.module, self.loss_sum / self.loss_count
        self.losses.add([step, loss])
        values = {
            "train/loss": loss,
            "train/bpc": loss / math.log(2) * len(self.text.train) / self.text.characters["train"],
            "optim/lr": lr_at(step - 1, module.optim_config, module.max_steps),
            "optim/grad_norm": self.grad_norm,
        }
        self.loss_sum, self.loss_count = 0.0, 0
        if trainer.loggers:
            updates = relative_updates(self.before, module.net)
            values |= {f"update/{group}": update for group, update in updates.items()}
            on_gpu = module.device.type == "cuda"
            memory = torch.cuda.max_memory_allocated(module.device) if on_gpu else processes.max_memory()
            values["perf/memory_gib"] = memory / 2**30  # maximum so far
            del self.before
        seconds, steps = self.stepping - self.logged[0], self.stepped - self.logged[1]
        self.logged = self.stepping, self.stepped
        speed = steps * self.tokens_per_step / seconds if steps else None
        shown = f"loss {in_nats(loss)}"
        if speed:
            values["perf/chars_per_s"] = speed
            if self.peak:
                values["perf/mfu"] = speed * self.flops_per_token / self.peak
            shown += f"  {speed:,.0f} {self.text.tokenizer.unit}s/s"
        for logger in trainer.loggers:
            logger.log_metrics(values, step=step)
        if self.bar is not None:
            self.bar.set_description_str(shown + "  ", refresh=False)
        elif trainer.is_global_zero and time.perf_counter() - self.last_line >= LINE_SECONDS:
            total = self._expected(trainer)
            left = f"  {clock((total - step) * self.tokens_per_step / speed)} left" if speed else ""
            log.info(f"step {step}/{total}  {shown}{left}")
            self.last_line = time.perf_counter()


def group_of(name: str) -> str:
    """Return the kind of layer to which the parameter `name` belongs: embedding, attention, mlp, norm or head."""
    layers = name.split(".")
    layer = layers[2] if layers[0] == "blocks" else layers[0]
    return {"shift": "embedding", "position_embedding": "embedding", "norm1": "norm", "norm2": "norm"}.get(layer, layer)


def relative_updates(before: dict[str, Tensor], model: GPT) -> dict[str, float]:
    """Return how far a step has moved the weights of each kind of layer: kind -> ||after - before|| / ||before||."""
    weights: dict[str, list[Tensor]] = {}
    moves: dict[str, list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        old = before[name]
        weights.setdefault(group_of(name), []).append(old.float())
        moves.setdefault(group_of(name), []).append((parameter.detach() - old).float())
    ratios = [get_total_norm(moves[group]) / get_total_norm(weights[group]) for group in weights]
    return dict(zip(weights, torch.stack(ratios).tolist(), strict=True))  # a single GPU synchronization
