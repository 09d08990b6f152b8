from pathlib import Path

from gpt.training_checkpoint import read
from tests.conftest import Call


def test_a_checkpoint_before_the_first_validation_is_saved(train: Call, workplace: Path) -> None:
    """The best score of EarlyStopping is infinite until then, which does not make the weights infinite."""
    settings = ["callbacks=early_stopping", "trainer.max_steps=3", "trainer.val_check_interval=3"]
    ended = train("name=early", *settings, "trainer.checkpoint_minutes=1e-6")
    assert ended.status == 0, ended
    previous = read(Path("runs/early/checkpoints/previous.ckpt"))
    assert previous["global_step"] < 3
    (stopping,) = (state for name, state in previous["callbacks"].items() if name.startswith("EarlyStopping"))
    assert stopping["best_score"].isinf()
