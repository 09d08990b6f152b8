"""Predict the loss that a model reaches, to choose its size, its dropout and the number of steps.

With N weights, a dropout of p, and R epochs of a text of U tokens, the loss in nats per token is

    L = E + A (sqrt(1/N + 1/N') (1 + a p) + c D^-0.7) + m R^q (N/U)^b / (1 + h p)

The first two terms are those of Hoffmann et al. 2022 (arXiv:2203.15556), equation 2, with what
repetition is worth, as in Muennighoff et al. 2023 (arXiv:2305.16264), section 5: D is the number
of tokens that the model would have to read once to learn as much, and N' is how many weights a
text of this length can use. The last term is what a model
loses because it memorises the text. E and A depend on the text; E is left out, and A is about 75 for
English and 91 for source code. docs/experiments.md says from which runs the constants come.
"""

import numpy as np

DROPOUTS = (0.0, 0.1, 0.2, 0.3)
LEARNED = 0.0003  # nats; a run may end where more steps would lower the loss by less

SCALE = 80.0  # A
TOKENS = 44.0  # c
# All repetitions of a text are worth at most this many readings of new text.
REPEATS = 40.0
USABLE_WEIGHTS = 2.0e6  # N' of a text of a million tokens
USABLE_EXPONENT = 0.36  # how N' grows with the length of the text
DROPPED = 2.0  # a
MEMORISED = 2.2e-4  # m
EPOCHS_EXPONENT = 1.8  # q
WEIGHTS_EXPONENT = 1.41  # b
PROTECTION = 50.0  # h


def predicted_loss(
    weights: int, dropout: float, text_tokens: int, tokens_seen: np.ndarray | float
) -> np.ndarray:
    """Return the loss in nats per token, less E, of a model that has read `tokens_seen` tokens, repeats included."""
    epochs = np.asarray(tokens_seen) / text_tokens
    repetitions = np.maximum(epochs - 1, 0)
    new_epochs = np.minimum(epochs, 1) + REPEATS * (1 - np.exp(-repetitions / REPEATS))
    data = TOKENS * (text_tokens * new_epochs) ** -0.7
    usable = USABLE_WEIGHTS * (text_tokens / 1e6) ** USABLE_EXPONENT
    size = (1 / weights + 1 / usable) ** 0.5 * (1 + DROPPED * dropout)
    memorised = (
        epochs**EPOCHS_EXPONENT
        * (weights / text_tokens) ** WEIGHTS_EXPONENT
        / (1 + PROTECTION * dropout)
    )
    return SCALE * (size + data) + MEMORISED * memorised


def tokens_needed(weights: int, dropout: float, text_tokens: int) -> float:
    """Return after how many tokens a model has learned a text: with more, its loss falls by less than `LEARNED`."""
    epochs = np.geomspace(0.01, 1000, 2000)
    losses = predicted_loss(weights, dropout, text_tokens, epochs * text_tokens)
    is_learned = losses <= losses.min() + LEARNED
    first = np.argmax(is_learned)
    return float(epochs[first] * text_tokens)
