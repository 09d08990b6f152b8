"""What watches training: the progress display, the logged values and the text samples."""

import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from tqdm import tqdm

from conf.fields import clock
from gpt.checkpoint import build
from gpt.fit.module import LitGPT
from gpt.generate import generate
from gpt.optim import lr_at

LINE_EVERY = 10.0  # seconds between progress lines where there is no bar
SAMPLE_LENGTH = 200
SPIKES_FROM = 20  # losses, before which none is unusual
SPIKES_SAID = 10  # spikes that get a line of their own; all are counted
LONG = 180.0  # seconds from which a run is called long


@dataclass
class Spikes:
    """Counts losses that lie far above what has been usual lately.

    Attributes:
        count: spikes so far.
        usual: running mean of the loss, nats per token.
        spread: running mean of its distance from that.
        seen: losses so far.
    """

    count: int = 0
    usual: float = 0.0
    spread: float = 0.0
    seen: int = 0

    def see(self, loss: float) -> bool:
        """Take the loss of one step into account and say whether it is a spike."""
        spike = self.seen >= SPIKES_FROM and loss > self.usual + max(0.1 * self.usual, 6 * self.spread)
        distance = abs(loss - self.usual) if self.seen else 0.0
        self.seen += 1
        weight = max(1 / self.seen, 0.05)  # of a new loss
        self.spread += weight * (distance - self.spread)
        self.usual += weight * (loss - self.usual)
        self.count += spike
        return spike


class Watch(L.Callback):
    """Measures training, logs it every `log_every_n_steps` and shows it: a bar in a terminal, lines elsewhere.

    It must come after the callbacks that work after a validation, so that their time is not counted as
    training, and before the one that saves in mid-interval, so that no step is missing from what it saves.

    Args:
        say: prints a line for people and keeps it in the run's log.
        characters_per_step: characters trained on in one step, over all devices.
        warn: whether to say what takes long and how to shorten it; not where its time was asked for.
    """

    def __init__(self, say: Callable[[str], None], characters_per_step: int, warn: bool) -> None:
        """Count from zero; a resumed run goes on counting where it was."""
        self.say, self.characters_per_step, self.warn = say, characters_per_step, warn
        self.loss_sum, self.loss_count = 0.0, 0
        self.spikes = Spikes()
        self.seconds = 0.0  # of fitting, validations and checkpoints included
        self.started: float | None = None  # when fitting began; None outside of it
        self.first: int | None = None  # the step that fitting began at
        # Of steps alone, and how many they were; not the first of a process, which is slower and may compile.
        self.stepping, self.stepped = 0.0, 0

    def state_dict(self) -> dict[str, Any]:
        """What has been counted so far."""
        return {
            "loss_sum": self.loss_sum,
            "loss_count": self.loss_count,
            "spikes": vars(self.spikes),
            "seconds": self.seconds + (time.perf_counter() - self.started if self.started else 0.0),
            "stepping": self.stepping,
            "stepped": self.stepped,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting."""
        self.loss_sum, self.loss_count = state_dict["loss_sum"], state_dict["loss_count"]
        self.spikes = Spikes(**state_dict["spikes"])
        self.seconds, self.stepping, self.stepped = (state_dict[key] for key in ("seconds", "stepping", "stepped"))

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clocks and the display."""
        assert isinstance(pl_module, LitGPT)
        self.first = trainer.global_step
        self.started = self.marked = self.last_line = time.perf_counter()
        self.logged = self.stepping, self.stepped
        self.first_steps: list[float] = []
        self.bits = "bpb" if int(pl_module.bytes.max()) == 1 and int(pl_module.characters.min()) == 0 else "bpc"
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
            self.say("compiling  about 20 seconds the first time, a few after that")

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Tensor, batch_idx: int
    ) -> None:
        """Count the step; at the end of an interval, log it."""
        assert self.first is not None
        step = trainer.global_step
        loss = float(outputs["loss"])
        self.loss_sum += loss
        self.loss_count += 1
        usual = self.spikes.usual
        if self.spikes.see(loss) and trainer.is_global_zero and self.spikes.count <= SPIKES_SAID:
            self.say(f"step {step}: the loss jumped to {loss:.4f} from about {usual:.4f}")
        now = time.perf_counter()
        if step - self.first > 1:
            self.stepping += now - self.marked
            self.stepped += 1
        if step - self.first <= 20:
            self.first_steps.append(now - self.marked)
        self.marked = now
        if step - self.first == 20 and self.warn:
            self._warn_if_long(trainer, step)
        if step % trainer.log_every_n_steps == 0 or step == trainer.max_steps:  # type: ignore[attr-defined]
            assert isinstance(pl_module, LitGPT)
            self._log(trainer, pl_module, float(outputs["grad_norm"]), step)
        if self.bar is not None:
            self.bar.update(step - self.bar.n)
        if step == trainer.max_steps:
            trainer.should_stop = True  # Lightning then validates once more, whatever the interval

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Say what the validation gave."""
        assert isinstance(pl_module, LitGPT) and pl_module.score is not None
        score = pl_module.score
        if trainer.is_global_zero:
            self.say(
                f"step {trainer.global_step}/{trainer.max_steps}  validation loss {score.loss:.4f}  bpc {score.bpc:.4f}"
            )
        self.marked = self.last_line = time.perf_counter()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop the clocks and the display."""
        assert self.started is not None
        self.seconds += time.perf_counter() - self.started
        self.started = None
        if self.bar is not None:
            self.bar.close()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Leave the terminal as it was."""
        if self.started:
            self.on_train_end(trainer, pl_module)

    def _log(self, trainer: L.Trainer, module: LitGPT, grad_norm: float, step: int) -> None:
        loss = self.loss_sum / self.loss_count
        seconds, steps = self.stepping - self.logged[0], self.stepped - self.logged[1]
        speed = steps * self.characters_per_step / seconds if steps else None
        self.loss_sum, self.loss_count = 0.0, 0
        self.logged = self.stepping, self.stepped
        values = {
            "train/loss": loss,
            "train/loss_spikes": self.spikes.count,
            "optim/lr": lr_at(step - 1, module.optim_config, module.max_steps),
            "optim/grad_norm": grad_norm,
        }
        shown = f"loss {loss:.4f}  {self.bits} {loss / math.log(2):.4f}"
        if speed:
            values["perf/chars_per_s"] = speed
            shown += f"  {speed:,.0f} characters/s"
        for logger in trainer.loggers:
            logger.log_metrics(values, step=step)
        if self.bar is not None:
            self.bar.set_description_str(shown + "  ", refresh=False)
        elif trainer.is_global_zero and time.perf_counter() - self.last_line >= LINE_EVERY:
            left = f"  {clock((trainer.max_steps - step) * self.characters_per_step / speed)} left" if speed else ""
            self.say(f"step {step}/{trainer.max_steps}  {shown}{left}")
            self.last_line = time.perf_counter()

    def _warn_if_long(self, trainer: L.Trainer, step: int) -> None:
        per_step = statistics.median(self.first_steps)
        left = (trainer.max_steps - step) * per_step
        if left > LONG and trainer.is_global_zero:
            fits = max(50, int((120 / per_step) // 50 * 50))
            self.say(
                f"at the speed of this machine {trainer.max_steps} steps take about {clock(left)}; "
                f"trainer.max_steps={fits} takes about {clock(fits * per_step)}"
            )


class Samples(L.Callback):
    """Writes a text by the model into TensorBoard at each validation, always from the same seed.

    Args:
        prompt: tokens that the text continues, (T0,); they are not shown.
        decode: tokens to text.
    """

    def __init__(self, prompt: Tensor, decode: Callable[[np.ndarray], str]) -> None:
        """Keep the prompt."""
        self.prompt, self.decode = prompt, decode

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Generate and write."""
        boards = [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
        if not boards:
            return
        assert isinstance(pl_module, LitGPT)
        model = pl_module.net
        if isinstance(model, FSDPModule):  # of which every process has a part
            contents = {"state_dict": trainer.strategy.lightning_module_state_dict()}
            pl_module.on_save_checkpoint(contents)
            model = build("the model", contents)[0] if trainer.is_global_zero else model
        if not trainer.is_global_zero:
            return
        tokens = generate(model, self.prompt, SAMPLE_LENGTH, temperature=0.8, seed=0)
        text = self.decode(tokens[0, len(self.prompt) :].numpy())
        for board in boards:
            board.experiment.add_text("sample", as_markdown(text), trainer.global_step)


class Prune(L.Callback):
    """Ends a trial that a search gives up. It must come before the callback that saves, which keeps that it did.

    Args:
        hopeless: takes the step and the validation bits per character, says whether to give up; asked on one process.
    """

    def __init__(self, hopeless: Callable[[int, float], bool]) -> None:
        """Not given up yet."""
        self.hopeless = hopeless
        self.pruned = False

    def state_dict(self) -> dict[str, Any]:
        """Whether it was given up."""
        return {"pruned": self.pruned}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What was given up stays so."""
        self.pruned = state_dict["pruned"]

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Ask, where there are steps left; all processes agree."""
        assert isinstance(pl_module, LitGPT) and pl_module.score is not None
        if trainer.sanity_checking or trainer.global_step >= trainer.max_steps:
            return
        asked = trainer.is_global_zero and self.hopeless(trainer.global_step, pl_module.score.bpc)
        self.pruned = trainer.strategy.reduce_boolean_decision(asked, all=False)
        trainer.should_stop = trainer.should_stop or self.pruned


def as_markdown(text: str) -> str:
    """Wrap text as a Markdown code block by indentation, which no character in the text can end."""
    return "\n".join("    " + line for line in text.split("\n"))
