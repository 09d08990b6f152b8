"""What is shown of a model while it learns: texts by it, and pictures and histograms of what it has learned."""

import math
import os
import pickle
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.compat.proto.summary_pb2 import Summary
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from conf.fields import one_line
from conf.schema import WatchConfig
from gpt.characters import visible
from gpt.checkpoint import build, model_state
from gpt.evaluate import predictions, surprisals
from gpt.fit.history import History
from gpt.fit.module import LitGPT
from gpt.generate import generate
from gpt.inspection import BINS, attention_maps, calibration, calibration_totals
from gpt.model import GPT

TEMPERATURES = (0.6, 1.0)
SAMPLE_LENGTH = 100  # tokens of each text
SAMPLES_KEPT = 20  # validations whose texts checkpoints keep
HEADS_DRAWN = 4
MAX_WAITING = 100  # pictures; where validations come faster than pictures are drawn, some have none
NICENESS = 19  # of the process that draws: it takes the time that nobody else wants
END_SECONDS = 30.0  # to wait, at the end, for the pictures that are not drawn yet


def boards(trainer: L.Trainer) -> list[TensorBoardLogger]:
    """The loggers that write for TensorBoard."""
    return [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]


def to_boards(trainer: L.Trainer) -> Callable[[int, Summary], None]:
    """Write a summary for a step wherever TensorBoard is written."""

    def write(step: int, summary: Summary) -> None:
        for board in boards(trainer):
            board.experiment.file_writer.add_summary(summary, step)

    return write


def whole_model(trainer: L.Trainer, module: LitGPT) -> GPT | None:
    """The model as one has it on one device, on the first process; None on others. All must call this."""
    if not isinstance(module.net, FSDPModule):
        return module.net if trainer.is_global_zero else None
    gathered = trainer.strategy.lightning_module_state_dict()
    return build(module.model_config, model_state(gathered)) if trainer.is_global_zero else None


class Samples(L.Callback):
    """Has the model go on from the same prompts at each validation, at two temperatures, always from the same seeds.

    Args:
        prompts: (B, T0) int64.
        decode: tokens to text.
    """

    def __init__(self, prompts: Tensor, decode: Callable[[np.ndarray], str]) -> None:
        self.prompts, self.decode = prompts, decode
        self.history = History(SAMPLES_KEPT)  # of [step, [[temperature, prompt, text], ...]]

    def state_dict(self) -> dict[str, Any]:
        """The texts so far."""
        return {"history": self.history.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with them."""
        self.history.load_state_dict(state_dict["history"])

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Generate, keep, and write where TensorBoard is written."""
        assert isinstance(pl_module, LitGPT)
        if not trainer.loggers:
            return
        model = whole_model(trainer, pl_module)
        if model is None:
            return
        texts: list[list[Any]] = []
        given = self.prompts.shape[1]
        for temperature in TEMPERATURES:
            tokens = generate(model, self.prompts, SAMPLE_LENGTH, temperature=temperature, seed=0).numpy()
            texts += [[temperature, self.decode(row[:given]), self.decode(row[given:])] for row in tokens]
            for board in boards(trainer):
                written = as_markdown([(prompt, text) for _, prompt, text in texts[-len(tokens) :]])
                board.experiment.add_text(f"samples/temperature_{temperature:.1f}", written, trainer.global_step)
        self.history.add([trainer.global_step, texts])


def as_markdown(samples: list[tuple[str, str]]) -> str:
    """Prompts and the texts that go on from them, as TensorBoard shows them character by character.

    Every character that is no letter or digit of ASCII is written as a number: neither Markdown nor HTML finds anything
    in it to interpret. What cannot be seen, but for new lines, spaces and tabs, is shown by a stand-in.
    """

    def block(text: str) -> str:
        shown = (each if each in "\n\t " else visible(each) for each in text)
        coded = (each if each.isascii() and each.isalnum() else f"&#{ord(each)};" for part in shown for each in part)
        return f"<pre><code>{''.join(coded)}</code></pre>"

    parts = []
    for prompt, text in samples:
        parts += ["**prompt**", block(prompt), "**the model goes on**", block(text)]
    return "\n\n".join(parts)


@dataclass(frozen=True)
class Shown:
    """What of the validation text is looked at, the same at each validation.

    Attributes:
        names: each of the V tokens as text.
        passage: (T,) int64, of which attention is drawn; at most a context of them.
        characters: the N characters of a longer passage, of which it is drawn what they cost.
        owners: (M,) int64, which of them each of its tokens is a part of.
        windows: that count each of these tokens, last.
    """

    names: list[str]
    passage: Tensor
    characters: list[str]
    owners: Tensor
    windows: list[tuple[Tensor, Tensor, Tensor]]


class Drawer:
    """A process that draws, one picture after the other; it ends with this one."""

    def __init__(self) -> None:
        self.complaints = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpt.fit.draw", str(os.getpid()), str(NICENESS)],
            cwd=Path(__file__).parents[2],
            # One core is enough; notebooks name a back end of their own, which may not be there.
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "agg"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            process_group=0,  # Ctrl-C in a terminal is not for it
        )
        self.wanted: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.drawn: queue.SimpleQueue[tuple[dict[str, Any], bytes | str]] = queue.SimpleQueue()
        # Neither end of a pipe may hold up training.
        self.thread = threading.Thread(target=self._ask, daemon=True)
        self.thread.start()

    def _ask(self) -> None:
        process = self.process
        assert process.stdin and process.stdout
        while (picture := self.wanted.get()) is not None:
            try:
                plain = {key: as_array(value) for key, value in picture["arguments"].items()}
                pickle.dump((picture["name"], plain), process.stdin)
                process.stdin.flush()
                answer = pickle.load(process.stdout)
            except (OSError, EOFError, pickle.UnpicklingError):
                self.drawn.put((picture, self._why()))
                return
            self.drawn.put((picture, answer))

    def _why(self) -> str:
        """What the process has said last, where it has ended by itself."""
        self.complaints.seek(0)
        said = self.complaints.read().decode(errors="replace").strip().rpartition("\n")[2]
        return "the process that draws has ended" + (f": {said}" if said else "")

    def end(self) -> None:
        """End the process, drawn or not."""
        self.wanted.put(None)
        self.process.kill()
        self.thread.join()  # it reads the end of what is drawn
        with suppress(BrokenPipeError):
            with self.process, self.complaints:  # waits, and closes the pipes
                pass


def as_array(value: Any) -> Any:
    """A tensor as NumPy has it; anything else as it is."""
    return value.numpy() if isinstance(value, Tensor) else value


class Pictures(L.Callback):
    """Shows in TensorBoard, at each validation, what the model has learned: pictures, and histograms on request.

    The numbers are computed here; they are drawn in a process of their own and written when that is done. Training does
    not wait for them, a run only at its very end, and not for long. Pictures that are not drawn when the run is stopped
    are lost. Where validations come faster than pictures can be drawn, some have none, which is said once.
    """

    def __init__(self, config: WatchConfig, shown: Shown, say: Callable[[str], None]) -> None:
        self.config, self.shown, self.say = config, shown, say
        self.drawer: Drawer | None = None
        self.waiting = 0  # pictures that are sent and not written yet
        self.given_up = False
        self.behind = False  # and some were left out

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the sums."""
        self.totals = torch.zeros(3, BINS, dtype=torch.float64)

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, *_: Any
    ) -> None:
        """See how sure the model is of what it predicts; the first process' share of the windows will do."""
        if self.config.pictures and trainer.is_global_zero and boards(trainer):
            _, targets, counted = batch
            self.totals += calibration_totals(outputs[counted], targets[counted])

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Compute what is to be drawn."""
        assert isinstance(pl_module, LitGPT)
        if not boards(trainer) or not (self.config.pictures or self.config.histograms):
            return
        model = whole_model(trainer, pl_module)
        if model is None:
            return
        step = trainer.global_step
        if self.config.histograms:
            for tag, values in histograms(model, self.shown.passage):
                for board in boards(trainer):
                    board.experiment.add_histogram(tag, values, step)
        last = step >= trainer.max_steps or trainer.should_stop
        if self.config.pictures and not self.given_up:
            if self.waiting >= MAX_WAITING and not last:
                if not self.behind:
                    self.say("pictures   are drawn more slowly than validations come: some are left out")
                self.behind = True
                return
            self._send(learned(model, self.totals, self.shown, self.config.heads(), step))

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Tensor, batch_idx: int
    ) -> None:
        """Write what has been drawn meanwhile."""
        while self._write(to_boards(trainer)):
            pass

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Leave at once."""
        self.end()

    def finish(self, write: Callable[[int, Summary], None]) -> None:
        """Wait a while for what is left, and end the process.

        Args:
            write: takes a step and what to write for it.
        """
        until = time.monotonic() + END_SECONDS
        while self.waiting and self._write(write, until - time.monotonic()):
            pass
        if self.waiting:
            self.say(f"pictures   {self.waiting} were not drawn within {END_SECONDS:g} seconds")
        self.end()

    def end(self) -> None:
        """End the process, drawn or not."""
        if self.drawer:
            self.drawer.end()
            self.drawer = None

    def _send(self, pictures: Iterator[dict[str, Any]]) -> None:
        if self.drawer is None:
            try:
                self.drawer = Drawer()
            except OSError as error:
                self._give_up(one_line(error))
                return
        for picture in pictures:
            self.waiting += 1
            self.drawer.wanted.put(picture)

    def _write(self, write: Callable[[int, Summary], None], wait: float = 0.0) -> bool:
        """Write the next picture if it has been drawn, or is within so many seconds, and say whether it was."""
        if self.drawer is None:
            return False
        try:
            picture, answer = self.drawer.drawn.get(wait > 0, wait if wait > 0 else None)
        except queue.Empty:
            return False
        if isinstance(answer, str):
            self._give_up(answer)
            return False
        self.waiting -= 1
        width, height = (int.from_bytes(answer[at : at + 4], "big") for at in (16, 20))  # as PNG has them
        image = Summary.Image(encoded_image_string=answer, width=width, height=height, colorspace=4)
        try:
            write(picture["step"], Summary(value=[Summary.Value(tag=picture["tag"], image=image)]))
        except OSError as error:  # such as a full disk, which is to cost no more than pictures
            self._give_up(one_line(error))
        return not self.given_up

    def _give_up(self, reason: str) -> None:
        """Say why there are no more pictures; training goes on."""
        self.say(f"pictures   are not drawn any more: {reason}")
        self.waiting, self.given_up = 0, True
        self.end()


def learned(
    model: GPT, totals: Tensor, shown: Shown, heads: list[tuple[int, int]], step: int
) -> Iterator[dict[str, Any]]:
    """What is to be drawn of a model, each with its `tag` and `step`, and what `gpt.fit.draw` needs to draw it.

    Args:
        model: the model.
        totals: of its calibration, see `gpt.inspection`.
        shown: what of the text is looked at.
        heads: layer and head of those whose attention is drawn; none are up to `HEADS_DRAWN` across all.
        step: steps taken.
    """

    def picture(tag: str, name: str, **arguments: Any) -> dict[str, Any]:
        return {"tag": tag, "step": step, "name": name, "arguments": {"step": step} | arguments}

    device = model.embedding.weight.device
    maps = attention_maps(model, shown.passage.to(device)).half()  # (layers, heads, T, T)
    names = [shown.names[token] for token in shown.passage.tolist()]
    for layer, head in heads or spread_over(model.config.layers, model.config.heads):
        name = f"L{layer}H{head}"
        yield picture(
            f"view_attention/{name}", "attention", head=name, characters=names, weights=maps[layer, head].clone()
        )

    nats = torch.cat([surprisals(*each) for each in predictions(model, shown.windows)])[-len(shown.owners) :]
    bits = torch.zeros(len(shown.characters)).index_add(0, shown.owners, nats.float() / math.log(2))  # (N,)
    yield picture("view/surprisal", "surprisal", characters=shown.characters, bits=bits)

    yield picture("view/calibration", "calibration", **calibration(totals)._asdict())


def spread_over(layers: int, heads: int) -> list[tuple[int, int]]:
    """Up to `HEADS_DRAWN` heads, evenly from the first of the first layer to the last of the last."""
    count = min(HEADS_DRAWN, layers * heads)
    return [divmod(round(index), heads) for index in np.linspace(0, layers * heads - 1, count).tolist()]


@torch.no_grad()
def histograms(model: GPT, passage: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Every weight, and what comes out of every block and its two parts, and at the end, where a passage goes in.

    Yields:
        tags and values, of any shape.
    """
    for name, weight in model.named_parameters():
        yield f"weights/{name}", weight.detach().float().cpu()
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda module, given, made: seen.update({name: made.float().cpu()})

    parts = re.compile(r"blocks\.\d+(\.attention|\.mlp)?|head")
    watched = {name: module for name, module in model.named_modules() if parts.fullmatch(name)}
    hooks = [module.register_forward_hook(keep(name)) for name, module in watched.items()]
    try:
        tokens = passage[None]  # (1, T)
        for _ in predictions(model, [(tokens, tokens, torch.ones_like(tokens, dtype=torch.bool))]):
            pass
    finally:
        for hook in hooks:
            hook.remove()
    for name, values in seen.items():
        yield f"activations/{'logits' if name == 'head' else name}", values
