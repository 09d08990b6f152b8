"""The model with its training step and validation, as a LightningModule."""

import hashlib
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from conf.schema import Config
from data.tokenizer import Tokenizer
from gpt.evaluation import Score, first_totals, make_score, measured, window_totals
from gpt.model import GPT
from gpt.model_file import FORMAT
from gpt.optim import lr_at, make_optimizer
from training.endings import Diverged
from training.sharding import ShardedMuon, shard, whole


def dropout_seed(seed: int, step: int, micro_batch: int, rank: int) -> int:
    """Return the seed of the dropout masks of one forward pass, so that a resumed run has the same masks."""
    digest = hashlib.blake2b(f"{seed} {step} {micro_batch} {rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class LitGPT(L.LightningModule):
    """A `GPT` with its loss, optimizer and validation.

    One Lightning batch is one optimizer step. This class splits it into micro-batches, not Lightning, so that a run
    only stops between two optimizer steps. Checkpoints save `data`, a description of the text, and `conditions`, the
    run fingerprint (`training.machine.conditions`); both are plain data.
    """

    def __init__(self, config: Config, tokenizer: Tokenizer, data: dict[str, Any], conditions: dict[str, Any]) -> None:
        super().__init__()
        self.automatic_optimization = False
        torch.manual_seed(config.seed)
        self.net = GPT(config.model, tokenizer.size)
        self.model_config, self.optim_config = config.model, config.optim
        self.vocabulary = tokenizer.vocabulary
        self.token_sizes = tokenizer.token_sizes  # (V, 2)
        self.data, self.conditions = data, conditions
        self.max_steps, self.micro_batch, self.seed = config.trainer.max_steps, config.data.micro_batch, config.seed
        self.compile_step = config.compile != "false"
        self.restoring = False  # a checkpoint is being loaded
        self.unread: list[tuple[int, Tensor]] = []  # step, and loss and gradient norm (2,) on the device
        self.score: Score | None = None  # of the last validation, after `scored_step` steps
        self.scored_step = -1
        self.end_pause: Callable[[], None] = lambda: None  # to be called after a validation or a checkpoint

    def configure_model(self) -> None:
        if self.device_mesh is not None:
            shard(self.net, self.device_mesh["data_parallel"])

    def configure_optimizers(self) -> Optimizer:
        return make_optimizer(self.net, self.optim_config, ShardedMuon, "bf16" in str(self.trainer.precision))

    def on_train_start(self) -> None:
        """Compile each block by itself: equal blocks share the code, and the names in checkpoints do not change."""
        if self.compile_step:
            # With this option inductor selects kernels by a rule and not by timing them.
            deterministic = torch.are_deterministic_algorithms_enabled()
            for block in self.net.blocks:
                block.compile(dynamic=False, options={"deterministic": deterministic})
            # Compile only training steps: each new shape in evaluation and sampling would cost a recompilation.
            torch.compiler.set_stance("force_eager")
        (optimizer,) = self.trainer.optimizers
        for state in optimizer.state.values():  # Lightning leaves the step counts on the CPU
            if "step" in state:
                state["step"] = state["step"].to(self.device)
        self.restoring = False

    @property
    def asynchronous(self) -> bool:
        """Whether the device is asynchronous, so that reading a result blocks."""
        return self.device.type == "cuda"

    def training_step(self, batch: Tensor, _: int) -> dict[str, Tensor]:
        """Take one optimizer step on this device's rows of the batch, (rows, context + 1) int64.

        Return the mean `loss` over all devices' rows in nats per token. A loss or gradient norm that is NaN or infinite
        raises `Diverged` before the weights change; on an asynchronous device, `read` raises it later.
        """
        step = self.global_step
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        lr = lr_at(step, self.optim_config, self.max_steps)
        for group in optimizer.param_groups:
            group["lr"] = lr * self.optim_config.muon_lr / self.optim_config.lr if group.get("muon", False) else lr
        if self.asynchronous:
            self._seed_dropout(step, 0)  # once, for all micro-batches
        outcome = self.take_step(optimizer, batch)
        self.unread.append((step, outcome))
        return {"loss": outcome[0]}

    def take_step(self, optimizer: LightningOptimizer, batch: Tensor) -> Tensor:
        """Update the weights; return the loss and the gradient norm before clipping, (2,)."""
        loss = self.gradients(batch)
        grad_norm = self.clip()
        if self.trainer.world_size > 1:
            loss = self.trainer.strategy.reduce(loss, reduce_op="mean")  # the norm is that of all ranks already
        outcome = torch.stack((loss, grad_norm))
        if not self.asynchronous:
            self._check(self.global_step, *outcome.tolist())
        optimizer.step()
        optimizer.zero_grad()
        return outcome

    def gradients(self, batch: Tensor) -> Tensor:
        """Accumulate the gradients of a batch's loss; return the loss, ()."""
        micro_batches = batch.split(self.micro_batch or len(batch))
        loss = torch.zeros((), device=self.device)
        for index, rows in enumerate(micro_batches):
            if not self.asynchronous:
                self._seed_dropout(self.global_step, index)
            with self._gradient_sync(index == len(micro_batches) - 1):
                with torch.compiler.set_stance("default") if self.compile_step else nullcontext():
                    logits = self.net(rows[:, :-1]).float()  # (rows, context, V)
                part = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()) / len(micro_batches)
                self.manual_backward(part)
            loss += part.detach()
        return loss

    def clip(self) -> Tensor:
        """Clip the gradient to the norm `optim.clip` and return its norm before that, ()."""
        limit = self.optim_config.clip or float("inf")
        return whole(torch.nn.utils.clip_grad_norm_(self.net.parameters(), limit))

    def _seed_dropout(self, step: int, micro_batch: int) -> None:
        if self.model_config.dropout > 0:
            torch.manual_seed(dropout_seed(self.seed, step, micro_batch, self.global_rank))

    def read(self) -> list[tuple[int, float, float]]:
        """Return (step from 0, loss, gradient norm before clipping) of each step since the last call.

        Wait for a GPU once. Raise `Diverged` if a value is NaN or infinite; later steps may have changed the weights.
        """
        unread, self.unread = self.unread, []
        if not unread:
            return []
        values = torch.stack([outcome for _, outcome in unread]).tolist()
        steps = [(step, loss, grad_norm) for (step, _), (loss, grad_norm) in zip(unread, values, strict=True)]
        for each in steps:
            self._check(*each)
        return steps

    def _check(self, step: int, loss: float, grad_norm: float) -> None:
        for name, value in (("the loss", loss), ("the norm of the gradient", grad_norm)):
            if not math.isfinite(value):
                raise self.diverged(f"step {step + 1}: {name} is {value} (batch {step} of seed {self.seed})")

    def on_validation_end(self) -> None:
        self.end_pause()

    def _gradient_sync(self, now: bool) -> Any:
        """Return a context for a backward pass that averages the gradients over ranks only if `now`."""
        model = self.trainer.model
        if isinstance(self.net, FSDPModule):
            self.net.set_requires_gradient_sync(now)
        return model.no_sync() if isinstance(model, DistributedDataParallel) and not now else nullcontext()

    def on_validation_epoch_start(self) -> None:
        self.totals = torch.zeros(4, dtype=torch.float64)

    def validation_step(self, batch: tuple[Tensor, Tensor, Tensor], _: int) -> None:
        """Add up the loss of one batch of windows, in fp32."""
        inputs, targets, counted = batch
        with torch.autocast(self.device.type, enabled=False):
            self.totals += window_totals(self.net(inputs), targets, counted, self.token_sizes)

    def on_validation_epoch_end(self) -> None:
        """Sum over devices and log `val/loss`, `val/bpc` and `val/bpb`."""
        totals = self.totals if self.device.type == "mps" else self.totals.to(self.device)
        totals = self.trainer.strategy.reduce(totals, reduce_op="sum").cpu()
        first = self.trainer.datamodule.first_validation_token  # type: ignore[attr-defined]
        self.score = make_score(totals + first_totals(first, self.net.vocabulary, self.token_sizes))
        self.scored_step = self.global_step
        if not math.isfinite(self.score.loss):
            raise self.diverged(f"the validation loss is {self.score.loss} after step {self.global_step}")
        values = {"val/loss": self.score.loss, "val/bpc": self.score.bpc, "val/bpb": self.score.bpb}
        # `log_dict` is for callbacks such as early stopping; the loggers get the values with the step `global_step`.
        self.log_dict(values, logger=False, sync_dist=self.trainer.world_size > 1)
        for logger in self.trainer.loggers:
            logger.log_metrics(values, step=self.global_step)

    def diverged(self, seen: str) -> Diverged:
        """Return the error for diverged training, with what was `seen` and the settings to lower."""
        return Diverged(
            f"{seen}: training has diverged; "
            f"lower optim.lr={self.optim_config.lr:g} or optim.muon_lr={self.optim_config.muon_lr:g}"
        )

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.restoring = True

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the description of the model and the run, see `gpt.checkpoint`."""
        score = self.score if self.scored_step == self.global_step else None
        checkpoint |= {
            "format": FORMAT,
            "model_config": vars(self.model_config).copy(),
            "vocabulary": self.vocabulary,
            "val_loss": score and score.loss,
            "evaluation": score and measured(score, self.model_config.context),
            "data": self.data,
            "conditions": self.conditions,
        }
