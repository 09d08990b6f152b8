from pathlib import Path

import lightning as L
from lightning.pytorch.demos.boring_classes import BoringModel

from tests.conftest import last
from training.lightning_private import steps_completed, validation_interval
from training.quiet_lightning import quiet_lightning


def test_lightning_counts_steps_where_we_read_them(trained: Path) -> None:
    checkpoint = last("first")
    assert steps_completed(checkpoint) == checkpoint["global_step"] == 30


def test_lightning_keeps_the_validation_interval_where_we_read_it() -> None:
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    with quiet_lightning():
        trainer = L.Trainer(max_steps=2, val_check_interval=2, accelerator="cpu", **quiet)
        trainer.fit(BoringModel())
    assert validation_interval(trainer) == 2
