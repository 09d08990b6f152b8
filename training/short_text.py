"""What a run takes for a short text where nothing is typed: fewer steps, dropout, an end when it memorises."""

from collections.abc import Iterable
from dataclasses import replace

from base.errors import printable
from conf.schema import Config
from data.text import Text
from gpt.config import ModelConfig
from training.init_from import model_to_start_from
from training.machine import untrained

# What the default model gets, by training characters. docs/experiments.md, "Short texts", has the runs behind it.
#   characters     16,000    54,000    180,000    690,000 and more
#   steps             230       420        770    1,500
#   dropout           0.2       0.2          0    0
# So steps grow with the root of the length.
WHOLE = 690_000  # training tokens from which nothing is adapted
EPOCHS = 10.0  # a text that is read more often is memorised without dropout
DROPOUT, LITTLE_DROPOUT = 0.2, 0.1  # with over `MANY_WEIGHTS` weights for each training token, with fewer
MANY_WEIGHTS, FEW_WEIGHTS = 3.0, 0.5  # with fewer than the latter, a model cannot memorise the text
START_SHARE = 0.25  # of the steps, for a run that starts from a trained model
VALIDATIONS = 12  # in a run, so that one of them is near the lowest loss
MOST_VALIDATIONS = 40  # in a run with more steps than the text needs
PATIENCE = VALIDATIONS // 3


def steps_for(tokens: int, started: bool) -> int:
    """Return the number of steps by the length of the training text; `started`: from a trained model."""
    share = min(1.0, tokens / WHOLE) ** 0.5 * (START_SHARE if started else 1)
    return max(1, round(Config().trainer.max_steps * share / 10)) * 10


def dropout_for(model: ModelConfig, vocabulary: int, tokens: int, read: int) -> float:
    """Return the dropout of a model that reads `read` tokens in all of a training text of `tokens`."""
    weights = untrained(model, vocabulary).num_parameters() / tokens
    if read <= EPOCHS * tokens or weights < FEW_WEIGHTS:
        return 0.0
    return DROPOUT if weights > MANY_WEIGHTS else LITTLE_DROPOUT


def fit_to_text(
    config: Config, typed: Iterable[str], tokens: int, vocabulary: int, started: bool
) -> tuple[Config, str]:
    """Adapt steps, dropout and validations to a short text, as far as they are not `typed`.

    Args:
        config: of a fresh run.
        typed: the keys that were typed.
        tokens: length of the training split.
        vocabulary: number of distinct tokens.
        started: whether the run starts from a trained model, which needs no dropout and fewer steps.

    Returns:
        The configuration, and a line for the introduction; empty if nothing has changed.
    """
    given, trainer, said = set(typed), config.trainer, list[str]()
    if tokens >= WHOLE or config.data.overfit is not None:
        return config, ""
    if "trainer.max_steps" not in given:
        trainer = replace(trainer, max_steps=steps_for(tokens, started))
        said.append(f"{'at most ' if config.minutes else ''}{trainer.max_steps} steps")
    free = not started and "model.dropout" not in given
    read = trainer.max_steps * config.data.batch * config.model.context
    if free and (dropout := dropout_for(config.model, vocabulary, tokens, read)):
        config = replace(config, model=replace(config.model, dropout=dropout))
        said += [] if config.minutes else [f"dropout {dropout:g}"]  # not if few steps fit
    rising = min(trainer.max_steps, steps_for(tokens, started))  # the loss may rise from about here on
    interval = max(-(-rising // VALIDATIONS), trainer.max_steps // MOST_VALIDATIONS)
    if "trainer.val_check_interval" not in given and interval < trainer.val_check_interval:
        trainer = replace(trainer, val_check_interval=interval)
        said += [] if config.minutes else [f"validation every {interval}"]
    if not given & {"trainer.max_steps", "callbacks"}:
        config = replace(config, callbacks={"early_stopping": {"patience": PATIENCE}})
    return replace(config, trainer=trainer), ", ".join(said)


def about_short_text(text: Text, adapted: str, started: bool) -> list[str]:
    """Return the lines about a short text for the introduction of its run."""
    if not adapted:
        return []
    lines = [f"short text {len(text.train):,} training {text.tokenizer.unit}s: {adapted}"]
    if not started and (run := model_to_start_from(text)):
        way = f"init_from={printable(run)} would start from what that model knows: lower and sooner (docs/tasks.md)"
        lines.append(f"           {way}")
    return lines
