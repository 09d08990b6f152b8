from dataclasses import replace

from gpt.optim_config import OptimConfig
from training.errors import diverged, rates_far_above


def test_diverged_training_names_the_learning_rates_that_its_optimizer_uses() -> None:
    muon = OptimConfig()
    adamw = replace(muon, name="adamw")
    said = "loss is nan: training has diverged; lower optim.lr=0.006"
    assert str(diverged("loss is nan", muon)) == f"{said} or optim.muon_lr=0.01"
    assert str(diverged("loss is nan", adamw)) == said
    assert rates_far_above(replace(muon, muon_lr=1)) == "optim.muon_lr=1 is far above 0.01"
    assert rates_far_above(replace(adamw, muon_lr=1)) == ""
