"""The callback that measures the training steps and logs the metrics."""

import math
from collections import defaultdict
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from base import processes
from conf.schema import Config
from data.text import Text
from gpt.model import GPT
from gpt.optim import lr_at
from reports.tensorboard import layout
from training.callbacks.display import Display
from training.choosing.hardware import peak_flops
from training.loggers import boards

MAX_PENDING = 20  # max steps queued on the GPU before their losses are fetched


class Metrics(L.Callback):
    """Times the steps, and logs metrics every `log_every_n_steps` steps: to the loggers, and to `display`."""

    def __init__(self, config: Config, text: Text, display: Display) -> None:
        self.tokens_per_step = config.data.batch * config.model.context  # over all devices
        self.text = text
        self.display = display
        # With Muon, each block is updated once in so many steps.
        self.muon_every = config.optim.muon_every if config.optim.name == "muon" else 1
        # weights before a step whose updates are logged, by name
        self.before: dict[str, Tensor] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        history = pl_module.history
        gpu = pl_module.machine.gpu
        peak = peak_flops(gpu.name if gpu else "", str(trainer.precision))
        history.peak_flops = peak and peak * trainer.world_size
        self.flops_per_token = pl_module.net.flops_per_token()
        self.start_step = trainer.global_step
        if self.start_step == 0 and trainer.is_global_zero:  # a resumed run has the layout already
            for board in boards(trainer):
                board.experiment.add_custom_scalars(layout(peak_is_known=peak is not None))
        # seconds and number of the steps timed before the last log
        self.timed_at_log = history.step_seconds, history.timed_steps
        history.start_clock()

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        step = trainer.global_step  # from 0
        # A round of steps that ends with a logged one, so that each block is updated in one of them
        ends = range(step + 1, step + 1 + self.muon_every)
        if trainer.loggers and any(self._is_logged(trainer, end) for end in ends):
            self.before = {
                name: weight.detach().clone()
                for name, weight in pl_module.net.named_parameters()
                if is_due(name, step, self.muon_every)
            }

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        step = trainer.global_step
        is_first = step == self.start_step + 1
        is_logged = self._is_logged(trainer, step)
        # On a GPU, fetching waits for all steps so far, so most steps leave it to a later one.
        if (
            is_first
            or is_logged
            or not pl_module.asynchronous
            or len(pl_module.pending_losses) >= MAX_PENDING
        ):
            pl_module.fetch_losses()
        if is_first:  # it is slow, so it is not timed
            pl_module.history.begin_step()
        else:
            pl_module.history.end_step()
        updates = relative_updates(self.before, pl_module.net)
        self.before = {}
        if is_logged:
            self._log(trainer, pl_module, step, updates)
        elif updates:
            for logger in trainer.loggers:
                logger.log_metrics(updates, step=step)
        if step == trainer.max_steps:
            # makes Lightning validate after the last step, whatever the interval
            trainer.should_stop = True

    def on_validation_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        if not trainer.sanity_checking:  # before the first step
            pl_module.fetch_losses()  # a GPU may still compute the steps before the validation
            pl_module.history.end_step(steps=0)  # adds this time to the steps already counted

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        pl_module.fetch_losses()
        pl_module.history.stop_clock()

    def on_exception(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        pl_module.history.stop_clock()

    def _is_logged(self, trainer: L.Trainer, step: int) -> bool:
        return step % trainer.log_every_n_steps == 0 or step == trainer.max_steps  # type: ignore[attr-defined]

    def _log(self, trainer: L.Trainer, module: Any, step: int, updates: dict[str, float]) -> None:
        loss = module.history.end_interval(step)
        tokens_per_character = len(self.text.train) / self.text.characters["train"]
        values = {
            "train/loss": loss,
            # nats per token -> bits per character
            "train/bpc": loss / math.log(2) * tokens_per_character,
            "optim/lr": lr_at(step - 1, module.config.optim, module.max_steps),  # from step 0 on
            "optim/grad_norm": module.grad_norm,
        }
        if trainer.loggers:
            values |= updates
            memory = processes.max_memory()
            if module.asynchronous:
                memory = torch.cuda.max_memory_allocated(module.device)
            values["perf/memory_gib"] = memory / 2**30
        speed = None
        history = module.history
        seconds_before, steps_before = self.timed_at_log
        self.timed_at_log = history.step_seconds, history.timed_steps
        if history.timed_steps > steps_before:
            tokens = (history.timed_steps - steps_before) * self.tokens_per_step
            speed = tokens / (history.step_seconds - seconds_before)
            values["perf/chars_per_s"] = speed / tokens_per_character
            if history.peak_flops:
                values["perf/mfu"] = speed * self.flops_per_token / history.peak_flops
        for logger in trainer.loggers:
            logger.log_metrics(values, step=step)
        self.display.show_step(trainer, loss, speed)


def group_of(name: str) -> str:
    """Return the kind of layer to which the parameter `name` belongs: embedding, attention, mlp, norm or head."""
    layers = name.split(".")
    # blocks.0.norm1.weight -> norm1
    layer = layers[2] if layers[0] == "blocks" else layers[0]
    return {
        "shift": "embedding",
        "position_embedding": "embedding",
        "norm1": "norm",
        "norm2": "norm",
    }.get(layer, layer)


def is_due(name: str, step: int, muon_every: int) -> bool:
    """Return whether step `step`, from 0, updates the layer of the parameter `name`: Muon leaves out some blocks."""
    if group_of(name) not in ("attention", "mlp"):
        return True
    block = int(name.split(".")[1])  # blocks.0.mlp.up.weight -> 0
    return block % muon_every == step % muon_every


def relative_updates(before: dict[str, Tensor], model: GPT) -> dict[str, float]:
    """Return how far a step has moved the weights `before` of each kind of layer, as metrics.

    update/<kind> -> ||after - before|| / ||before||
    """
    if not before:
        return {}
    parameters = dict(model.named_parameters())
    weights = defaultdict[str, list[Tensor]](list)  # by metric
    moves = defaultdict[str, list[Tensor]](list)
    for name, old in before.items():
        metric = f"update/{group_of(name)}"
        weights[metric].append(old.float())
        moves[metric].append(parameters[name].detach() - old.float())
    ratios = {key: get_total_norm(moves[key]) / get_total_norm(weights[key]) for key in moves}
    # a single GPU synchronization
    return dict(zip(ratios, torch.stack([*ratios.values()]).tolist(), strict=True))
