"""With a pretended clock: more minutes are never worse, and no text is read more often than is useful."""

from types import SimpleNamespace

import pytest

from base import processes
from gpt.config import ModelConfig
from gpt.model import untrained
from tests.conf.test_defaults import compose
from training.choosing import hardware, time_budget
from training.choosing.choose import with_constants
from training.choosing.scaling_law import DROPOUTS, predicted_loss, tokens_needed
from training.choosing.time_budget import TRAINING_SHARE, candidates, fit_into_minutes
from training.machine import Machine

VOCABULARY = 65
TINY = 1_003_854  # training characters of tiny Shakespeare, split 90/10
CORPUS = 6_500_000  # of the built-in text
MINUTES = (0.5, 1, 2, 5, 10, 20, 40, 60, 120, 240, 480, 1440)
MILLISECONDS = (1, 3, 10, 45, 100, 222, 300)


@pytest.mark.parametrize("characters", [TINY, CORPUS])
@pytest.mark.parametrize("milliseconds", MILLISECONDS)  # of a step of the default model
def test_more_time_is_never_worse(characters, milliseconds, monkeypatch):
    def facts(model):
        """The number of weights, and the seconds of a step."""
        net = untrained(model, VOCABULARY)
        return net.num_parameters(), milliseconds / 1000 * net.flops_per_token() / default_flops

    default_flops = untrained(ModelConfig(), VOCABULARY).flops_per_token()
    monkeypatch.setattr(time_budget, "time_step", lambda config, *_: facts(config.model)[1])
    monkeypatch.setattr(processes, "elapsed", lambda: 0.0)
    monkeypatch.setattr(hardware, "available", lambda device: 2**40)
    text = SimpleNamespace(train=range(characters), tokenizer=SimpleNamespace(size=VOCABULARY))
    losses = []
    for minutes in MINUTES:
        config = compose([f"minutes={minutes}", "compile=false", "threads=1"])
        default = with_constants(config, "32-true", 1)
        choice = fit_into_minutes(config, default, text, Machine("cpu"))
        losses.append(choice.loss)
        most_weights, _ = facts(choice.model)
        needed = tokens_needed(most_weights, choice.model.dropout, characters)
        assert choice.tokens_seen <= needed * 1.001
        for model, weights in candidates(config, default, text):
            if weights > most_weights:
                break
            steps = TRAINING_SHARE * 60 * minutes / facts(model)[1]
            for dropout in DROPOUTS:
                tokens = min(steps * 8 * 256, tokens_needed(weights, dropout, characters))
                reached = float(predicted_loss(weights, dropout, characters, tokens))
                assert choice.loss <= reached + 1e-9, "a smaller model would be better"
    assert losses == sorted(losses, reverse=True)
