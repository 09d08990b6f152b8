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

from base.errors import InputError, one_line
from base.log import log
from conf.schema import Config
from data.tokenizer import Tokenizer
from gpt.cuda_graph import WARMUP_STEPS, Capture, CapturedWork
from gpt.evaluation import Score, first_totals, measured, score, window_totals
from gpt.model import GPT
from gpt.model_file import FORMAT
from gpt.optim import lr_at, make_optimizer
from gpt.sharded_tensors import whole
from training.errors import Diverged


def dropout_seed(seed: int, step: int, micro_batch: int, rank: int) -> int:
    """Seed of the dropout masks of one forward pass: where a run was interrupted does not show."""
    digest = hashlib.blake2b(f"{seed} {step} {micro_batch} {rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class LitGPT(L.LightningModule):
    """A `GPT` with its loss, its optimizer and its validation.

    One batch of Lightning's is one optimizer step: it is cut into micro-batches here, so that a run
    only ever stops between two steps.

    Args:
        config: of the run; it is read here, and not again later.
        tokenizer: of the text.
        data: what to remember of the text in every checkpoint, as plain data.
        conditions: what the bits of the run depend on, by name, as plain data; kept in every checkpoint.
        capture: captures a whole step for a GPU to replay (see gpt/cuda_graph.py); None has Python take every step.
        fell_back: called with the new value of `compile` when compiling or capturing has failed, and again, with
            True, when the first checkpoint after that is saved.
    """

    def __init__(
        self,
        config: Config,
        tokenizer: Tokenizer,
        data: dict[str, Any],
        conditions: dict[str, Any],
        capture: Capture | None = None,
        fell_back: Callable[[str, bool], None] = lambda compiled, saved: None,
    ) -> None:
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
        self.capture, self.fell_back = capture, fell_back
        self.untried = self.compile_step  # no compiled step has run yet
        self.fallen = False  # compiling or capturing has failed since the last checkpoint
        self.captured: CapturedWork | None = None  # the whole step, where it is captured
        self.rows = self.outcome = torch.empty(0)  # of the captured step: its batch, its loss and gradient norm
        self.unread: list[tuple[int, Tensor]] = []  # steps and what came of them, still on the device
        self.score: Score | None = None  # of the last validation
        self.scored_step = -1  # when it was
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
            # Kernels of deterministic runs are chosen by a rule, not by how fast they are today.
            deterministic = torch.are_deterministic_algorithms_enabled()
            for block in self.net.blocks:
                block.compile(dynamic=False, options={"deterministic": deterministic})
            # Only training asks for it: evaluation and samples have other shapes, each to be compiled anew.
            torch.compiler.set_stance("force_eager")
        (optimizer,) = self.trainer.optimizers
        for state in optimizer.state.values():  # Lightning leaves the number of steps where it was read
            if "step" in state:
                state["step"] = state["step"].to(self.device)
        if self.behind:
            for group in optimizer.param_groups:
                group["lr"] = torch.zeros((), device=self.device)  # a number would stay what it was when captured
        if self.capture:
            self._capture_steps(optimizer, self.capture)

    def _capture_steps(self, optimizer: torch.optim.Optimizer, capture: Capture) -> None:
        """Prepare to replay whole captured steps, from the batch in `rows` to the loss in `outcome`."""
        for group in optimizer.param_groups:
            if "capturable" in group:
                group["capturable"] = True

        def work() -> None:
            loss, grad_norm = self._gradients(self.rows), self._clip()
            optimizer.step()
            optimizer.zero_grad()
            self.outcome.copy_(torch.stack((loss, grad_norm)))

        self.captured, self.outcome = CapturedWork(work, capture), torch.zeros(2, device=self.device)

    def _replay(self) -> None:
        """Take a captured step; fall back if capturing fails.

        It is the closure of the optimizer's step, which then finds no gradients and changes nothing.
        """
        assert self.captured
        try:
            self.captured()
        except RuntimeError as error:
            capturing = self.captured.warmed_up == WARMUP_STEPS and self.captured.replay is None
            if not (self.untried or capturing):
                raise
            work, self.captured = self.captured.work, None
            self._fall_back(error)
            work()
        self.untried = False

    def _fall_back(self, error: Exception) -> None:
        """Continue without compiling if the first compiled step failed, without capturing if capturing did.

        The step that failed has changed no weights, and is taken again.

        Raises:
            InputError: several processes take the step, and might not all fail.
        """
        failed = "graph" if self.capture else "true"
        compiled = "false" if self.untried or not self.compile_step else "true"
        what = one_line(next(iter(str(error).strip().splitlines()), ""))[:200]
        reason = f"compile={failed}: failed ({type(error).__name__}: {what})"
        if self.trainer.world_size > 1:
            raise InputError(f"{reason}; compile={compiled} goes without") from error
        if isinstance(error, torch.OutOfMemoryError):
            raise error
        self.compile_step, self.capture = compiled == "true", None
        self.untried, self.fallen = False, True
        self.net.zero_grad()
        self.conditions.setdefault("compile_asked", self.conditions["compile"])  # the same command may resume
        self.conditions["compile"] = compiled
        if self.behind:
            self._seed_dropout(self.global_step, 0)
        log.info(f"{reason}; the run continues with compile={compiled}")
        self.fell_back(compiled, False)

    def on_train_end(self) -> None:
        """Free the captured step and its memory."""
        self.captured = None

    @property
    def behind(self) -> bool:
        """Whether the device works behind the program, so that looking at what came of a step is waiting for it."""
        return self.device.type == "cuda" or self.capture is not None

    def training_step(self, batch: Tensor, _: int) -> dict[str, Tensor]:
        """One optimizer step on this device's rows of the batch.

        Args:
            batch: (rows, context + 1) int64.

        Returns:
            `loss` (nats per token, over all devices' rows).

        Raises:
            Diverged: on any device, the loss or the norm of the gradient is no number; the weights are as they were
                before the step. Of a device that works behind, `read` raises it later.
        """
        self.lap("data")
        step = self.global_step
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        lr = lr_at(step, self.optim_config, self.max_steps)
        for group in optimizer.param_groups:
            rate = lr * self.optim_config.muon_lr / self.optim_config.lr if group.get("muon", False) else lr
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        if self.behind:
            self._seed_dropout(step, 0)  # the masks of further micro-batches follow from it, too
        if self.captured:
            if self.rows.shape != batch.shape:
                self.rows = torch.empty_like(batch)
            self.rows.copy_(batch)
            optimizer.step(self._replay)
            outcome = self.outcome.clone()
        else:
            try:
                loss = self._gradients(batch)
            except (OSError, RuntimeError) as error:
                if not self.untried:
                    raise
                self._fall_back(error)
                loss = self._gradients(batch)
            self.untried = False
            grad_norm = self._clip()
            if self.trainer.world_size > 1:
                loss = self.trainer.strategy.reduce(loss, reduce_op="mean")  # the norm is everyone's already
            outcome = torch.stack((loss, grad_norm))
            if not self.behind:
                self._check(step, *outcome.tolist())
            optimizer.step()
            optimizer.zero_grad()
        self.unread.append((step, outcome))
        self.lap("optimizer")
        return {"loss": outcome[0]}

    def _gradients(self, batch: Tensor) -> Tensor:
        """Add the gradient of the loss of a batch to the weights' and return the loss, ()."""
        micro_batches = batch.split(self.micro_batch or len(batch))
        loss = torch.zeros((), device=self.device)
        for index, rows in enumerate(micro_batches):
            if not self.behind:
                self._seed_dropout(self.global_step, index)
            with self._gradients_shared(index == len(micro_batches) - 1):
                with torch.compiler.set_stance("default") if self.compile_step else nullcontext():
                    logits = self.net(rows[:, :-1]).float()  # (rows, context, V)
                part = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()) / len(micro_batches)
                self.lap("forward")
                self.manual_backward(part)
                self.lap("backward")
            loss += part.detach()
        return loss

    def _clip(self) -> Tensor:
        """Shorten the gradient to the longest that is allowed and return how long it was, ()."""
        limit = self.optim_config.clip or float("inf")
        return whole(torch.nn.utils.clip_grad_norm_(self.net.parameters(), limit))

    def _seed_dropout(self, step: int, micro_batch: int) -> None:
        if self.model_config.dropout > 0:
            torch.manual_seed(dropout_seed(self.seed, step, micro_batch, self.global_rank))

    def read(self) -> list[tuple[int, float, float]]:
        """What the steps since the last call gave: number from 0, loss, gradient norm before clipping.

        Waits for a GPU, once for all of them.

        Raises:
            Diverged: one of them is no number; the weights are no longer worth anything.
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
            self.totals += window_totals(logits, targets, counted, self.token_sizes)
        return logits

    def on_validation_epoch_end(self) -> None:
        """Add up over devices and report `val/loss`, `val/bpc` and `val/bpb`."""
        totals = self.totals if self.device.type == "mps" else self.totals.to(self.device)
        totals = self.trainer.strategy.reduce(totals, reduce_op="sum").cpu()
        first = self.trainer.datamodule.first_validation_token  # type: ignore[attr-defined]
        self.score = score(totals + first_totals(first, self.net.vocabulary, self.token_sizes))
        self.scored_step = self.global_step
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
        """Add what describes the model and the run, and leave out what only a GPU that replays steps needs."""
        score = self.score if self.scored_step == self.global_step else None
        if self.fallen:  # not before: config.yaml and the newest checkpoint are to say the same
            self.fell_back(self.conditions["compile"], True)
            self.fallen = False
        for state in checkpoint.get("optimizer_states", []):
            for group in state["param_groups"]:
                group["lr"] = float(group["lr"])
                if "capturable" in group:
                    group["capturable"] = False
        checkpoint |= {
            "format": FORMAT,
            "model_config": vars(self.model_config).copy(),
            "vocabulary": self.vocabulary,
            "val_loss": score and score.loss,
            "evaluation": score and measured(score, self.model_config.context),
            "data": self.data,
            "conditions": self.conditions,
        }
