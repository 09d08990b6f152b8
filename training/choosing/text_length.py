"""Choose steps, dropout, validation interval and early stopping by the length of the training text."""

from conf.schema import TrainerConfig

# The choices for the default model, by training characters; docs/experiments/short_texts.csv lists the runs.
#   characters     16,000    54,000    180,000    690,000 and more
#   steps             230       420        770    1,500
#   dropout           0.2       0.2          0    0
# So steps grow with the square root of the length.
WHOLE = 690_000  # training tokens of the shortest text for which nothing is adapted
EPOCHS = 10.0  # a text that is read more often is memorised without dropout
DROPOUT, LITTLE_DROPOUT = 0.2, 0.1  # above `MANY_WEIGHTS`, and between the two limits
MANY_WEIGHTS, FEW_WEIGHTS = 3.0, 0.5  # per training token; with fewer than the latter, a model cannot memorise the text
START_SHARE = 0.25  # fraction of the steps for a run that starts from a trained model
VALIDATIONS = 12  # in a run on a short text, so that one of them is near the lowest loss
MOST_VALIDATIONS = 40  # in a run with more steps than the text needs
PATIENCE = VALIDATIONS // 3


def steps_for(tokens: int, started: bool) -> int:
    """Return the number of training steps for a training text with `tokens` tokens."""
    share = min(1.0, tokens / WHOLE) ** 0.5 * (START_SHARE if started else 1)
    return max(1, round(TrainerConfig.max_steps * share / 10)) * 10


def dropout_for(weights: int, tokens: int, read: float) -> float:
    """Return the dropout that keeps a model from memorising a text of `tokens` tokens, of which it reads `read`."""
    if read <= EPOCHS * tokens or weights < FEW_WEIGHTS * tokens:
        return 0.0
    return DROPOUT if weights > MANY_WEIGHTS * tokens else LITTLE_DROPOUT


def interval_for(tokens: int, started: bool, steps: int) -> int:
    """Return the number of steps between two validations of a run on a short text (fewer than `WHOLE` tokens)."""
    rising = min(steps, steps_for(tokens, started))  # the loss may rise from about here on
    return min(TrainerConfig.val_check_interval, max(-(-rising // VALIDATIONS), steps // MOST_VALIDATIONS))
