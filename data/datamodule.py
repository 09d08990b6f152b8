"""Load training batches and validation windows for Lightning."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from data.batches import (
    TrainingWindows,
    batches_on_device,
    num_evaluated,
    num_validated,
    on_device,
    train_batch,
)
from data.config import DataConfig
from data.text import Text
from gpt.evaluation import window_batches

ENDLESS = 2**40  # batches: more than any run trains on
RESIDENT = 0.25  # maximum fraction of a GPU's free memory for the training text


class _Batches(IterableDataset):
    """An iterable dataset that calls `make` at the beginning of each pass and iterates over the batches it returns."""

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        return self.make()


class _EndlessBatches(_Batches):
    def __len__(self) -> int:
        # training is one epoch without end, but Lightning only resumes epochs with a length
        return ENDLESS


class TextDataModule(L.LightningDataModule):
    """Load the batches of training and validation for Lightning.

    A training batch is (rows, context + 1) int64: the inputs and, shifted by one token, the
    targets. A validation batch comes from `gpt.evaluation.window_batches`. A training text is
    copied to a CUDA GPU if it needs at most the fraction `RESIDENT` of the GPU's free memory, and
    then the GPU assembles the batches itself.
    """

    def __init__(self, text: Text, config: DataConfig, context: int, seed: int) -> None:
        super().__init__()
        self.text, self.config, self.context = text, config, context
        self.windows = TrainingWindows(text.train, seed, config.batch, context, text.end)

    def train_dataloader(self) -> DataLoader:
        """Return a loader of this device's share of every training batch, starting with the current step's batch."""
        assert self.trainer is not None
        trainer = self.trainer
        rows = self.config.batch // trainer.world_size  # windows of a batch on this device
        mine = slice(trainer.global_rank * rows, (trainer.global_rank + 1) * rows)
        tokens: np.ndarray | Tensor = self.text.train
        device = trainer.strategy.root_device
        if device.type == "cuda":
            free_bytes, _ = torch.cuda.mem_get_info(device)
            tokens = on_device(self.text.train, device, int(RESIDENT * free_bytes))

        def batches() -> Iterator[Tensor]:
            windows = self.windows
            first_step = trainer.global_step  # above 0 in a resumed run
            if isinstance(tokens, Tensor):  # the text is on the GPU
                return batches_on_device(tokens, windows, first_step, mine)
            return (train_batch(windows, step, mine) for step in count(first_step))

        return DataLoader(_EndlessBatches(batches), batch_size=None)

    @property
    def num_validated(self) -> int:
        """How many tokens each validation evaluates, over all devices."""
        return num_validated(len(self.text.validation), self.config.val_tokens)

    def num_evaluated(self, steps: int) -> int:
        """Return how many tokens are evaluated after a run of `steps` steps."""
        trained = steps * self.config.batch * self.context
        return num_evaluated(len(self.text.validation), trained, self.config.val_tokens)

    def val_dataloader(self) -> DataLoader:
        """Return a loader of this device's share of the validation windows, in the same order in every validation."""
        assert self.trainer is not None
        trainer = self.trainer
        text = self.text.evaluated
        windows = text.windows(self.context, most=self.num_validated)  # takes time in a list

        def batches() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
            return window_batches(
                text, windows, rank=trainer.global_rank, ranks=trainer.world_size
            )

        return DataLoader(_Batches(batches), batch_size=None)
