"""Predict the loss that a model reaches, to choose its size, its dropout and the number of steps.

With N weights, a dropout of p, and R epochs of a text of U tokens, the loss in nats per token is

    L = E + A (N^-0.5 (1 + a p) + c D^-0.7) + m (R exp(-g p))^q (N / U)^b

Here D are the tokens that the run would have to read, each only once, to learn as much from them: Hoffmann et al. 2022
(arXiv:2203.15556), equation 2, with what reading a text again is worth, Muennighoff et al. 2023 (arXiv:2305.16264),
equation 5. The last term, ours, is what a model loses because it memorises the text. Only E depends on the text, so it
is left out. docs/experiments.md says from which runs the other constants come.
"""

import numpy as np

DROPOUTS = (0.0, 0.1, 0.2, 0.3)
LEARNED = 0.002  # nats; a run ends where more steps would lower the loss by less

SCALE = 80.0  # A
TOKENS = 49.0  # c
DROPPED = 0.85  # a
REPEATS = 25.0  # R*: however often a text is read, the repetitions are worth at most so many readings of new text
MEMORISED = 5e-4  # m
DELAY = 4.9  # g
EPOCHS_EXPONENT = 1.7  # q
WEIGHTS_EXPONENT = 0.7  # b


def predicted_loss(weights: int, dropout: float, text_tokens: int, tokens_seen: np.ndarray | float) -> np.ndarray:
    """Return the loss in nats per token, less E, of a model that sees so many tokens of a text, in whole or again."""
    epochs = np.asarray(tokens_seen) / text_tokens
    repetitions = np.maximum(epochs - 1, 0)
    new_epochs = np.minimum(epochs, 1) + REPEATS * (1 - np.exp(-repetitions / REPEATS))
    size = weights**-0.5 * (1 + DROPPED * dropout)
    data = TOKENS * (text_tokens * new_epochs) ** -0.7
    memorised = (epochs * np.exp(-DELAY * dropout)) ** EPOCHS_EXPONENT * (weights / text_tokens) ** WEIGHTS_EXPONENT
    return SCALE * (size + data) + MEMORISED * memorised


def tokens_needed(weights: int, dropout: float, text_tokens: int) -> float:
    """Return after how many tokens a model has learned a text: with more, its loss falls by less than `LEARNED`."""
    epochs = np.geomspace(0.01, 1000, 2000)
    losses = predicted_loss(weights, dropout, text_tokens, epochs * text_tokens)
    is_learned = losses <= losses.min() + LEARNED
    return float(epochs[np.argmax(is_learned)] * text_tokens)
