"""Predict the loss that a model reaches, to choose its size, its dropout and the number of steps."""

import numpy as np

DROPOUTS = (0.0, 0.1, 0.2, 0.3)
REPEATS = 15.0  # a text is worth at most about so many times its length, however often it is read
LEARNED = 0.002  # nats; a run may end when more steps would lower the loss by less


def predicted_loss(weights: int, dropout: float, text_tokens: int, tokens_seen: np.ndarray | float) -> np.ndarray:
    raise NotImplementedError


def tokens_needed(weights: int, dropout: float, text_tokens: int) -> float:
    """Return after how many tokens a model has learned a text: from there on its loss falls no more, or rises."""
    epochs = np.geomspace(0.01, 1000, 2000)
    losses = predicted_loss(weights, dropout, text_tokens, epochs * text_tokens)
    return float(epochs[np.argmax(losses <= losses.min() + LEARNED)] * text_tokens)
