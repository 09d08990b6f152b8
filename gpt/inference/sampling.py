"""Turn logits into the next token: no repeated n-grams, temperature, top-k, top-p, min-p, random numbers."""

import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from base.options import check, option

TEMPERATURE = 0.9  # the default: the text then repeats itself about as often as the training text does


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is sampled from the logits, in the order in which the parameters are listed.

    Args:
        no_repeat_ngram_size: length n of the n-grams that must not occur twice in the text, unless every token would
            repeat an n-gram; None allows all n-grams. Source: arXiv:1705.04304, section 2.5.
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

    no_repeat_ngram_size: int | None = option(None, "length of n-grams that must not occur twice", least=1)
    temperature: float = option(1.0, "divisor of the logits", least=0)
    top_k: int | None = option(None, "number of most likely tokens to keep", least=1)
    top_p: float = option(1.0, "total probability to keep", above=0, most=1)
    min_p: float = option(0.0, "fraction of the largest probability to keep", least=0, most=1)

    def __post_init__(self) -> None:
        check(self)


class NGrams:
    """The n-grams that a growing text contains, for `SamplingParams.no_repeat_ngram_size`."""

    def __init__(self, size: int, prompt: Sequence[int]) -> None:
        self.size = size
        self.newest: tuple[int, ...] = ()  # the last n - 1 tokens, or all of a shorter text
        self.following = defaultdict[tuple[int, ...], set[int]](set)  # the tokens that have followed each (n - 1)-gram
        for token in prompt:
            self.add(token)

    def add(self, token: int) -> None:
        if len(self.newest) == self.size - 1:
            self.following[self.newest].add(token)
        self.newest = (*self.newest, token)[-self.size + 1 :] if self.size > 1 else ()

    def allowed(self, logits: np.ndarray) -> np.ndarray:
        """Return the logits, (V,), with -inf for each token that would repeat an n-gram, unless all would."""
        banned = self.following.get(self.newest, ())
        if not 0 < len(banned) < len(logits):
            return logits
        logits = logits.copy()
        logits[list(banned)] = -np.inf
        return logits


def probabilities(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Return the distributions from which to sample the next token of B texts: (B, V) -> (B, V) float64.

    `params` apply, except `no_repeat_ngram_size`, which `NGrams` applies. A logit of -inf excludes its token.
    """
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
