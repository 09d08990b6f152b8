from pathlib import Path

from tests.conftest import last
from training.lightning_private import steps_completed


def test_lightning_counts_steps_where_we_read_them(trained: Path) -> None:
    checkpoint = last("first")
    assert steps_completed(checkpoint) == checkpoint["global_step"] == 30
