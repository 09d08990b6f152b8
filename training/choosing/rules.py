"""The rules by which a run chooses what is `auto`: docs/tasks.md has them in words, docs/experiments.md the reasons.

A text has U training tokens, of which a run reads some more than once. N is the number of weights of the blocks:
embeddings grow with the alphabet, but do not help to memorise.
"""

from conf.schema import Config, TrainerConfig
from gpt.config import ModelConfig, OptimConfig
from gpt.model import untrained

SHORT_TEXT = 690_000  # a run is adapted to a text of fewer training tokens
# fraction of the steps that a run on a short text needs if it starts from a trained model
START_SHARE = 0.25
# From this many weights per token on, a model has so much dropout, and learns a text in so many
# epochs: more would not lower its loss.
LEARNING = ((10.0, 0.2, 28.0), (3.0, 0.2, 20.0), (0.5, 0.1, 14.0), (0.0, 0.0, 20.0))
DECAY_WITH_DROPOUT = 0.2
# A text that is read less often needs no dropout, and a long run on it reads larger batches.
FEW_EPOCHS = 10.0
MANY_EPOCHS = 14.0  # one that is read less often needs a dropout of 0.1 at most
DOUBLED_FROM = 4000  # steps of which half, with twice the batch, reach at least as low a loss
# of a run on a short text, or with a time limit
MIN_VALIDATIONS = 12
MAX_VALIDATIONS = 40
# In few steps the learning rate is higher, and the warm-up shorter.
RAISED_BELOW = 1300  # steps
HIGHEST_RATE = 5.0  # times the default rate
SHORT_WARMUP = 6  # the warm-up is at most the steps divided by this
# In so many steps with a dropout that the run chooses, the rates are lower, and the weight decay is
# higher.
MANY_STEPS = 4000
IN_MANY_STEPS = {"lr": 0.0042, "muon_lr": 0.007, "weight_decay": 0.3}


def block_weights(model: ModelConfig) -> int:
    """Return N, the number of weights of a model without embeddings and head."""
    return sum(parameter.numel() for parameter in untrained(model, 1).blocks.parameters())


def learning(model: ModelConfig, tokens: int) -> tuple[float, float]:
    """Return the dropout of a model that reads a text often, and after how many epochs it has learned it."""
    weights = block_weights(model)
    return next(
        (dropout, epochs) for least, dropout, epochs in LEARNING if weights >= least * tokens
    )


def dropout_for(model: ModelConfig, tokens: int, tokens_seen: float) -> float:
    """Return the dropout of a model that reads `tokens_seen` tokens, repetitions included."""
    dropout, _ = learning(model, tokens)
    if tokens_seen <= FEW_EPOCHS * tokens:
        return 0.0
    return dropout if tokens_seen >= MANY_EPOCHS * tokens else min(0.1, dropout)


def share_of_steps(config: Config, tokens: int) -> float:
    """Return which fraction of the usual steps a run needs: a short text needs less from a trained model."""
    return START_SHARE if config.init_from and tokens < SHORT_TEXT else 1.0


def steps_for(tokens: int, share: float) -> int:
    """Return a `share` of the steps of a short text, a multiple of 10: they grow with the square root of U."""
    steps = TrainerConfig.max_steps * share * (tokens / SHORT_TEXT) ** 0.5
    return max(1, round(steps / 10)) * 10


def schedule_for(name: str, steps: float) -> tuple[float, int]:
    """Return the learning rate and the warm-up of a run of `steps` steps with the optimizer `name`.

    With Muon, this is the rate of the weights that Muon leaves to AdamW, and a short run needs a
    higher one.
    """
    times = 1.0
    if name == "muon":
        times = min(HIGHEST_RATE, max(1.0, RAISED_BELOW / steps))
    return float(f"{times * OptimConfig.lr:.2g}"), min(
        OptimConfig.warmup, int(steps / SHORT_WARMUP)
    )
