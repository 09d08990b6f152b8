"""Turn logits into the next token: temperature, top-k, top-p, min-p, random numbers."""

import zlib
from dataclasses import dataclass

import numpy as np

from base.options import check, option

TEMPERATURE = 0.9  # the default: the text then repeats itself about as often as the training text does


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is sampled from the logits, in the order in which the parameters are listed.

    Args:
        temperature: divides the logits; 0 chooses the most likely token.
        top_k: sample only from the k most likely tokens; None or k > V: from all. Source: arXiv:1805.04833, section
            5.4.
        top_p: sample only from the smallest set of tokens with this total probability. Source: arXiv:1904.09751,
            section 3.1.
        min_p: sample only from tokens with at least this fraction of the largest probability. Source: arXiv:2407.01082,
            section 3.

    Raises:
        InputError: a value is out of its range.
    """

    temperature: float = option(1.0, "divisor of the logits", least=0)
    top_k: int | None = option(None, "number of most likely tokens to keep", least=1)
    top_p: float = option(1.0, "total probability to keep", above=0, most=1)
    min_p: float = option(0.0, "fraction of the largest probability to keep", least=0, most=1)

    def __post_init__(self) -> None:
        check(self)


def probabilities(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Return the distributions from which to sample the next token of B texts: (B, V) -> (B, V) float64."""
    if params.temperature == 0:
        return np.eye(logits.shape[-1])[logits.argmax(-1)]  # (B, V)
    # Make the largest logit 0 first: dividing by a tiny temperature then yields -inf for the others instead of NaN.
    with np.errstate(over="ignore"):
        logits = (logits - logits.max(-1, keepdims=True)) / params.temperature
    if params.top_k is not None or params.top_p < 1:
        order = np.argsort(-logits, axis=-1, kind="stable")  # (B, V)
        ranked = np.take_along_axis(logits, order, -1)
        if params.top_k is not None:
            ranked[:, params.top_k :] = -np.inf
        if params.top_p < 1:
            ranked_probs = np.exp(ranked) / np.exp(ranked).sum(-1, keepdims=True)
            # Remove a token if the tokens ranked before it already reach top_p. The first token always stays.
            ranked[:, 1:][ranked_probs.cumsum(-1)[:, :-1] >= params.top_p] = -np.inf
        np.put_along_axis(logits, order, ranked, -1)
    if params.min_p > 0:
        logits[logits < np.log(params.min_p)] = -np.inf
    probs = np.exp(logits)
    return probs / probs.sum(-1, keepdims=True)


def sample_tokens(probs: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return one token for each distribution and random number in [0, 1): (B, V), (B,) -> (B,) int64."""
    total = probs.cumsum(-1)
    return (total <= numbers[:, None] * total[:, -1:]).sum(-1)


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    """Return the log-softmax of the logits, without `SamplingParams`: (..., V) float64 -> (..., V) float64."""
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def random_numbers(seed: int, prompt: np.ndarray) -> np.random.Generator:
    """Return a generator for one text, seeded with both `seed` and the tokens of the prompt."""
    return np.random.default_rng([seed, zlib.crc32(np.asarray(prompt, "<i8").tobytes())])
