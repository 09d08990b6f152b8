"""The model as Lightning fits it."""

import hashlib
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from gpt.archive import FORMAT
from gpt.config import ModelConfig, OptimConfig
from gpt.evaluate import Score, first_totals, score, window_totals
from gpt.model import GPT
from gpt.optim import lr_at, make_optimizer
from gpt.shards import whole


def dropout_seed(seed: int, step: int, micro_batch: int, rank: int) -> int:
    """Seed of the dropout masks of one forward pass: where a run was interrupted does not show."""
    digest = hashlib.blake2b(f"{seed} {step} {micro_batch} {rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class Diverged(Exception):
    """The loss is no longer a number, in one line."""


class LitGPT(L.LightningModule):
    """A `GPT` with its loss, its optimizer and its validation.

    One batch of Lightning's is one optimizer step: it is cut into micro-batches here, so that a run
    only ever stops between two steps.

    Args:
        model: shape and parts of the model.
        optim: the optimizer.
        vocabulary: the tokenizer's vocabulary as plain data, kept in every checkpoint.
        characters: (V,) how many characters each token stands for.
        bytes: (V,) how many UTF-8 bytes each token stands for.
        data: what to remember of the text in every checkpoint, as plain data.
        conditions: what the bits of the run depend on, by name, as plain data; kept in every checkpoint.
        max_steps: optimizer steps of the whole run, which the learning rate follows.
        micro_batch: windows per forward and backward on this device; None is all at once.
        seed: seed of the weights and of dropout.
        compile: whether to `torch.compile` the blocks for the training step.
    """

    def __init__(
        self,
        model: ModelConfig,
        optim: OptimConfig,
        *,
        vocabulary: dict[str, Any],
        characters: Tensor,
        bytes: Tensor,
        data: dict[str, Any],
        conditions: dict[str, Any],
        max_steps: int,
        micro_batch: int | None = None,
        seed: int = 0,
        compile: bool = False,
    ) -> None:
        """Make the model with weights drawn from `seed`."""
        super().__init__()
        self.automatic_optimization = False
        torch.manual_seed(seed)
        self.net = GPT(model, len(characters))
        self.model_config, self.optim_config = model, optim
        self.vocabulary, self.characters, self.bytes = vocabulary, characters, bytes
        self.data, self.conditions = data, conditions
        self.max_steps, self.micro_batch, self.seed, self.compile_step = max_steps, micro_batch, seed, compile
        self.score: Score | None = None  # of the last validation
        self.lap: Callable[[str], None] = lambda part: None  # told of each part of a step when it is over

    def configure_model(self) -> None:
        """Shard the weights where the strategy shards: each block is gathered when it is its turn, the rest likewise.

        They are gathered as they are, in fp32, for autocast to narrow: validation needs them so.
        """
        if self.device_mesh is not None:
            for module in (*self.net.blocks, self.net):
                fully_shard(module, mesh=self.device_mesh["data_parallel"], reshard_after_forward=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer that the configuration names, over all weights."""
        return make_optimizer(self.net, self.optim_config)

    def on_train_start(self) -> None:
        """Compile one block, whose code serves them all; names in checkpoints stay as they are."""
        if self.compile_step:
            for block in self.net.blocks:
                block.compile(dynamic=False)
            # Only training asks for it: evaluation and samples have other shapes, each to be compiled anew.
            torch.compiler.set_stance("force_eager")

    def training_step(self, batch: Tensor, _: int) -> dict[str, Tensor]:
        """One optimizer step on this device's rows of the batch.

        Args:
            batch: (rows, context + 1) int64.

        Returns:
            `loss` (nats per token, over all devices' rows) and `grad_norm` (before clipping).

        Raises:
            Diverged: on any device, one of them is no number; the weights are as they were before the step.
        """
        self.lap("data")
        step = self.global_step
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        lr = lr_at(step, self.optim_config, self.max_steps)
        for group in optimizer.param_groups:
            muon = group.get("muon", False)
            group["lr"] = lr * self.optim_config.muon_lr / self.optim_config.lr if muon else lr
        micro_batches = batch.split(self.micro_batch or len(batch))
        loss = torch.zeros((), device=self.device)
        for index, rows in enumerate(micro_batches):
            if self.model_config.dropout > 0:
                torch.manual_seed(dropout_seed(self.seed, step, index, self.global_rank))
            with self._gradients_shared(index == len(micro_batches) - 1):
                with torch.compiler.set_stance("default") if self.compile_step else nullcontext():
                    logits = self.net(rows[:, :-1]).float()  # (rows, context, V)
                part = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()) / len(micro_batches)
                self.lap("forward")
                self.manual_backward(part)
                self.lap("backward")
            loss += part.detach()
        limit = self.optim_config.clip or float("inf")
        grad_norm = whole(torch.nn.utils.clip_grad_norm_(self.net.parameters(), limit))
        if self.trainer.world_size > 1:
            loss = self.trainer.strategy.reduce(loss, reduce_op="mean")  # the norm is everyone's already
        loss, grad_norm = loss.cpu(), grad_norm.cpu()  # waits for a GPU, once for all who read them
        for name, value in (("the loss", float(loss)), ("the norm of the gradient", float(grad_norm))):
            if not math.isfinite(value):
                raise self.diverged(f"step {step + 1}: {name} is {value} (batch {step} of seed {self.seed})")
        optimizer.step()
        optimizer.zero_grad()
        self.lap("optimizer")
        return {"loss": loss, "grad_norm": grad_norm}

    def on_train_batch_end(self, *_: Any) -> None:
        """What callbacks do after a step is over."""
        self.lap("other")

    def on_validation_end(self) -> None:
        """A validation, and what callbacks do after it, is over."""
        self.lap("validation")

    def _gradients_shared(self, now: bool) -> Any:
        """A context for one micro-batch: only after the last of a step are gradients averaged over devices."""
        model = self.trainer.model
        if isinstance(self.net, FSDPModule):
            self.net.set_requires_gradient_sync(now)
        return model.no_sync() if isinstance(model, DistributedDataParallel) and not now else nullcontext()

    def on_validation_epoch_start(self) -> None:
        """Start the sums."""
        self.totals = torch.zeros(4, dtype=torch.float64)

    def validation_step(self, batch: tuple[Tensor, Tensor, Tensor], _: int) -> Tensor:
        """Add one batch of windows: forward in fp32, whatever the precision of training.

        Returns:
            logits (B, T, V), for callbacks.
        """
        inputs, targets, counted = batch
        with torch.autocast(self.device.type, enabled=False):
            logits = self.net(inputs)
            self.totals += window_totals(logits, targets, counted, self.characters, self.bytes)
        return logits

    def on_validation_epoch_end(self) -> None:
        """Add up over devices and report `val/loss`, `val/bpc` and `val/bpb`."""
        totals = self.totals if self.device.type == "mps" else self.totals.to(self.device)
        totals = self.trainer.strategy.reduce(totals, reduce_op="sum").cpu()
        first = self.trainer.datamodule.first_validation_token  # type: ignore[attr-defined]
        self.score = score(totals + first_totals(first, self.net.vocabulary, self.characters, self.bytes))
        if not math.isfinite(self.score.loss):
            raise self.diverged(f"the validation loss is {self.score.loss} after step {self.global_step}")
        values = {"val/loss": self.score.loss, "val/bpc": self.score.bpc, "val/bpb": self.score.bpb}
        # For callbacks that watch a value, such as early stopping, and for the loggers at the right step.
        self.log_dict(values, logger=False, sync_dist=self.trainer.world_size > 1)
        for logger in self.trainer.loggers:
            logger.log_metrics(values, step=self.global_step)

    def diverged(self, seen: str) -> Diverged:
        """The error for training that has left the numbers: what was seen, and what to lower."""
        return Diverged(
            f"{seen}: training has diverged; "
            f"lower optim.lr={self.optim_config.lr:g} or optim.muon_lr={self.optim_config.muon_lr:g}"
        )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what makes the file enough on its own."""
        checkpoint |= {
            "format": FORMAT,
            "model_config": vars(self.model_config).copy(),
            "vocabulary": self.vocabulary,
            "data": self.data,
            "conditions": self.conditions,
        }
