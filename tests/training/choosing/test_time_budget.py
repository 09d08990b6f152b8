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
TOKENS_PER_STEP = 8 * 256


def weights_of(model):
    return untrained(model, VOCABULARY).num_parameters()


class PretendedClock:
    """A clock by which a step of the default model takes `milliseconds`, and steps of others in proportion."""

    def __init__(self, monkeypatch, milliseconds):
        self.seconds_per_flop = (
            milliseconds / 1000 / untrained(ModelConfig(), VOCABULARY).flops_per_token()
        )
        monkeypatch.setattr(
            time_budget, "time_step", lambda config, *_: self.step_seconds(config.model)
        )
        monkeypatch.setattr(processes, "elapsed", lambda: 0.0)
        monkeypatch.setattr(hardware, "available", lambda device: 2**40)

    def step_seconds(self, model):
        return self.seconds_per_flop * untrained(model, VOCABULARY).flops_per_token()

    def configs(self, minutes):
        config = compose([f"minutes={minutes}", "compile=false", "threads=1"])
        return config, with_constants(config, "32-true", 1)

    def text(self, characters):
        return SimpleNamespace(train=range(characters), tokenizer=SimpleNamespace(size=VOCABULARY))

    def choose(self, characters, minutes):
        config, default = self.configs(minutes)
        text = self.text(characters)
        return fit_into_minutes(config, default, text, Machine("cpu"))

    def losses_of_smaller(self, chosen, characters, minutes):
        """What each smaller model would reach in the time, with each dropout."""
        losses = []
        for model, weights in candidates(*self.configs(minutes), self.text(characters)):
            if weights > weights_of(chosen):
                break
            steps = TRAINING_SHARE * 60 * minutes / self.step_seconds(model)
            for dropout in DROPOUTS:
                needed = tokens_needed(weights, dropout, characters)
                tokens = min(steps * TOKENS_PER_STEP, needed)
                losses.append(float(predicted_loss(weights, dropout, characters, tokens)))
        return losses


@pytest.mark.parametrize("characters", [TINY, CORPUS])
@pytest.mark.parametrize("milliseconds", MILLISECONDS)
def test_more_time_is_never_worse(characters, milliseconds, monkeypatch):
    clock = PretendedClock(monkeypatch, milliseconds)
    choices = [clock.choose(characters, minutes) for minutes in MINUTES]
    losses = [choice.loss for choice in choices]
    assert losses == sorted(losses, reverse=True)
    for choice, minutes in zip(choices, MINUTES, strict=True):
        model = choice.model
        assert (
            choice.tokens_seen
            <= tokens_needed(weights_of(model), model.dropout, characters) * 1.001
        )
        assert choice.loss <= min(clock.losses_of_smaller(model, characters, minutes)) + 1e-9
