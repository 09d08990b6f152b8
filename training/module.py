"""The model with its training step and validation, as a LightningModule."""

import hashlib
import json
import math
from contextlib import nullcontext
from functools import partial
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from conf.schema import Config
from data.text import Text
from gpt.checkpoint import checkpoint_format, is_finite
from gpt.evaluation import Score, first_totals, make_score, measured, surprisals, totals
from gpt.model import GPT
from gpt.optim import make_optimizer, set_rates
from gpt.positions import position_tables
from reports.history import History
from training.errors import Diverged
from training.launch import check_same_start
from training.machine import Machine
from training.resume import ResumePoint, conditions_of
from training.step_graph import StepGraph


def conditions(config: Config, text: Text, machine: Machine) -> dict[str, Any]:
    """Return everything that the results of a run depend on, bit for bit, as name -> plain data.

    The names are the keys of the settings and, for example, `text`, `torch` and `device`.
    Checkpoints contain this dict, and a run resumes only if the dict is the same, unless the key
    `allow` lists the names that differ.
    """
    vocabulary = hashlib.sha256(json.dumps(text.tokenizer.vocabulary).encode()).hexdigest()
    device = machine.device
    if device == "cpu":
        amx = torch.cpu.get_capabilities().get("amx_bf16")
        device += f" with {torch.backends.cpu.get_cpu_capability()}{' and AMX' if amx else ''}"
    elif machine.gpu:
        device += f" {machine.gpu.name}"
    return conditions_of(config) | {
        "text": f"{sum(text.characters.values())} characters {text.fingerprint[:12]}",
        "vocabulary": f"{text.tokenizer.size} tokens {vocabulary[:12]}",
        "world_size": machine.devices,
        "torch": str(torch.__version__),
        "device": device,
        "threads": torch.get_num_threads(),
    }


def mean_loss(net: GPT, rows: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
    """Return the mean loss of token sequences in nats per token: (rows, context + 1) int64 -> ()."""
    logits = net.logits(rows[:, :-1], tables).float()  # (rows, context, V)
    return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


class LitGPT(L.LightningModule):
    """A `GPT` with its loss, optimizer and validation, as a LightningModule.

    One Lightning batch is one optimizer step. This class, not Lightning, splits the batch into
    micro-batches, so that a run stops only between two optimizer steps. `text`, `machine` and the
    `point` from which a run resumes must be the same in all processes (ranks).
    """

    def __init__(
        self, config: Config, text: Text, machine: Machine, point: ResumePoint | None = None
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        torch.manual_seed(config.seed)
        self.net = GPT(config.model, text.tokenizer.size)
        self.config = config
        self.text = text
        self.machine = machine
        self.conditions = conditions(config, text, machine)
        self.start_step = point.step if point else 0
        self.history = point.history if point else History()
        # (V, 2): characters and UTF-8 bytes of each token
        self.token_sizes = text.tokenizer.token_sizes
        self.mean_loss = mean_loss  # on a GPU, `compile_training_step` replaces it
        self.graph: StepGraph | None = None  # on a single GPU
        # step from 0; loss and gradient norm, (2,), on the device
        self.pending_losses: list[tuple[int, Tensor]] = []
        self.grad_norm = 0.0  # of the last step whose loss was fetched, before clipping
        self.score: Score | None = None  # of the last validation in this process

    def setup(self, stage: str) -> None:
        if self.trainer.world_size > 1:
            start = f"{self.config.name}, step {self.start_step}"
            check_same_start(self.conditions | {"start": start})

    def configure_optimizers(self) -> Optimizer:
        optimizer = make_optimizer(
            self.net, self.config.optim, bf16=self.trainer.precision == "bf16-mixed"
        )
        # Keep the present settings, which a resumed run may have changed.
        settings = {"param_groups": optimizer.state_dict()["param_groups"]}
        optimizer.register_load_state_dict_pre_hook(lambda _, stored: stored | settings)
        return optimizer

    def on_train_start(self) -> None:
        (optimizer,) = self.trainer.optimizers
        # Lightning leaves the step counts of a resumed run on the CPU.
        for state in optimizer.state.values():
            if "step" in state:
                state["step"] = state["step"].to(self.device)
        # A graph cannot be recorded while anomaly detection reads each gradient back.
        if self.asynchronous and self.trainer.world_size == 1 and not torch.is_anomaly_enabled():
            self.graph = StepGraph(partial(self._update, optimizer=optimizer), optimizer)

    def compile_training_step(self, rows: int) -> None:
        """Compile the forward and backward pass of a micro-batch, by running both passes once on zeros.

        On a GPU the whole model is compiled with its loss; on a CPU each block separately, so that
        equal blocks share the code. Parameter names in checkpoints do not change.
        """
        # With this option, Inductor selects kernels by a fixed rule rather than by timing them.
        options: dict[str, Any] = {"deterministic": torch.are_deterministic_algorithms_enabled()}
        if self.asynchronous:
            self.mean_loss = torch.compile(mean_loss, dynamic=False, options=options)
        else:
            for block in self.net.blocks:
                block.compile(dynamic=False, options=options)
        # Compile only training steps: each new shape in evaluation and sampling would cost a
        # recompilation.
        torch.compiler.set_stance("force_eager")
        windows = torch.zeros(
            rows, self.config.model.context + 1, dtype=torch.int64, device=self.device
        )
        self._loss(windows).backward()
        self.zero_grad()

    @property
    def max_steps(self) -> int | None:
        # None: `Deadline` has not chosen yet
        return self.trainer.max_steps if self.trainer.max_steps > 0 else None

    @property
    def asynchronous(self) -> bool:
        return self.device.type == "cuda"

    def training_step(self, batch: Tensor, _: int) -> dict[str, Tensor]:
        """Take one optimizer step and return {"loss": mean loss over the batches of all devices, in nats per token}.

        Args:
            batch: the tokens of this device's sequences, (rows, context + 1) int64.
            _: Lightning's index of the batch, which is not used.

        Raises:
            Diverged: the loss or the gradient norm is NaN or infinite. The weights are then
                unchanged. On an asynchronous device, this error is raised later, by
                `fetch_losses`.
        """
        step = self.global_step
        optimizer: Any = self.optimizers()
        set_rates(optimizer.param_groups, step, self.config.optim, self.max_steps)
        if self.config.model.dropout > 0:
            masks = f"{self.config.seed} {step} {self.global_rank}"
            digest = hashlib.blake2b(masks.encode(), digest_size=8).digest()
            # 63 bits, which fit into an int64
            torch.manual_seed(int.from_bytes(digest, "little") >> 1)
        # outcome: loss and gradient norm, (2,), on the device
        if self.graph:
            outcome = self.graph(batch)
            progress = self.trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
            progress.increment_ready()  # Lightning takes `global_step` from it
            progress.increment_completed()
        else:
            outcome = self._update(batch, optimizer)
        self.pending_losses.append((step, outcome))
        return {"loss": outcome[0]}

    def _update(self, batch: Tensor, optimizer: Optimizer | LightningOptimizer) -> Tensor:
        """Take an optimizer step and return what `gradients` returns: the part that `StepGraph` repeats on a GPU.

        `training_step` sets the rates before it, and counts the step for Lightning after it.
        """
        outcome = self.gradients(batch)
        if not self.asynchronous:
            self._check(self.global_step, *outcome.tolist())
        optimizer.step()
        optimizer.zero_grad()
        return outcome

    def gradients(self, batch: Tensor) -> Tensor:
        """Compute the gradients of a batch, one micro-batch after the other, and clip them.

        Return the mean loss of the batch in nats per token and the gradient norm before clipping,
        (2,). `batch` contains the tokens of this device's sequences, (rows, context + 1) int64.
        """
        micro_batches = batch.split(self.config.data.micro_batch or len(batch))
        model = self.trainer.model
        loss = torch.zeros((), device=self.device)
        for index, rows in enumerate(micro_batches):
            # DDP averages the gradients over ranks, which is needed once per step
            is_last = index == len(micro_batches) - 1
            accumulates = isinstance(model, DistributedDataParallel) and not is_last
            with model.no_sync() if accumulates else nullcontext():  # type: ignore[union-attr, operator]
                part = self._loss(rows) / len(micro_batches)
                self.manual_backward(part)
            loss += part.detach()
        grad_norm = torch.nn.utils.clip_grad_norm_(
            self.net.parameters(),
            self.config.optim.clip or float("inf"),  # 0: do not clip
        )
        if self.trainer.world_size > 1:
            # grad_norm is already that of the averaged gradients
            loss = self.trainer.strategy.reduce(loss, reduce_op="mean")
        return torch.stack((loss, grad_norm))

    def _loss(self, rows: Tensor) -> Tensor:
        """Return `mean_loss` of token sequences: (rows, context + 1) int64 -> ()."""
        tables = position_tables(self.config.model, rows.shape[1] - 1, rows.device)
        # `compile_training_step` has set "force_eager" for everything else.
        with (
            torch.compiler.set_stance("default")
            if self.config.compile == "true"
            else nullcontext()
        ):
            return self.mean_loss(self.net, rows, tables)

    def fetch_losses(self) -> None:
        """Add the losses of the training steps since the last call to the history.

        If the device is asynchronous, the call waits until the device has computed the steps.

        Raises:
            Diverged: a loss or gradient norm is NaN or infinite. Later steps may already have
                changed the weights.
        """
        pending = self.pending_losses
        self.pending_losses = []
        if not pending:
            return
        outcomes = torch.stack([outcome for _, outcome in pending]).tolist()
        for (step, _), (loss, grad_norm) in zip(pending, outcomes, strict=True):
            self._check(step, loss, grad_norm)
            self.history.add_loss(loss)
            self.grad_norm = grad_norm

    def _check(self, step: int, loss: float, grad_norm: float) -> None:
        for name, value in (("the loss", loss), ("the gradient norm", grad_norm)):
            if not math.isfinite(value):
                seen = (
                    f"step {step + 1}: {name} is {value} (batch {step} of seed {self.config.seed})"
                )
                raise Diverged(seen, self.config.optim)

    def on_validation_epoch_start(self) -> None:
        self.totals = torch.zeros(4, dtype=torch.float64)  # as `gpt.evaluation.totals`

    def validation_step(self, batch: tuple[Tensor, Tensor, Tensor], _: int) -> None:
        """Add the losses of one batch, computed in fp32 as score.py does, to the totals of this validation."""
        inputs, targets, counted = batch
        with torch.autocast(self.device.type, enabled=False):
            logits = self.net(inputs)[counted]  # (N, V)
        targets = targets[counted]  # (N,)
        self.totals += totals(surprisals(logits, targets), targets, self.token_sizes)

    def on_validation_epoch_end(self) -> None:
        """Sum the losses over all devices, and log `val/loss` in nats per token, `val/bpc` and `val/bpb`."""
        # MPS has no float64.
        total = self.totals if self.device.type == "mps" else self.totals.to(self.device)
        total = self.trainer.strategy.reduce(total, reduce_op="sum").cpu()
        # `first_totals` is the loss of the first token, which no window predicts.
        self.score = make_score(total + first_totals(self.text.evaluated))
        if not math.isfinite(self.score.loss):
            seen = f"the validation loss is {self.score.loss} after step {self.global_step}"
            raise Diverged(seen, self.config.optim)
        self.history.add_validation(self.global_step, self.score.loss, self.score.bpc)
        values = {
            "val/loss": self.score.loss,
            "val/bpc": self.score.bpc,
            "val/bpb": self.score.bpb,
        }
        # `log_dict` is for callbacks such as early stopping; the loggers get the values with the
        # step `global_step`.
        self.log_dict(values, logger=False, sync_dist=self.trainer.world_size > 1)
        for logger in self.trainer.loggers:
            logger.log_metrics(values, step=self.global_step)

    def scores(self, score: Score | None) -> dict[str, Any]:
        """Return what checkpoints and model files contain of a score on the validation split."""
        if score is None:
            return {"val_loss": None, "evaluation": None}
        evaluation = measured(score, self.config.model.context, self.text.mode)
        return {"val_loss": score.loss, "evaluation": evaluation}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the history, and descriptions of the model, the text and the last validation, to `checkpoint`."""
        self.fetch_losses()  # so that the history includes the last step
        # What callbacks store may be infinite: the best score of EarlyStopping is, until the first
        # validation.
        if not is_finite({key: part for key, part in checkpoint.items() if key != "callbacks"}):
            seen = f"step {self.global_step} left weights that are NaN or infinite, so they were not saved"
            raise Diverged(seen, self.config.optim)
        # None: this step has not been validated
        score = self.score if self.history.validated_step == self.global_step else None
        text = self.text
        divided = vars(text.documents.rule) if text.documents else None
        data = {key: getattr(text, key) for key in ("name", "fingerprint", "extra_chars", "texts")}
        checkpoint |= {
            "format": checkpoint_format(divided),
            "model_config": vars(self.config.model).copy(),
            "vocabulary": text.tokenizer.vocabulary,
            "data": data | {"divided": divided},
            "conditions": self.conditions,
            "history": self.history.state(),
        } | self.scores(score)
