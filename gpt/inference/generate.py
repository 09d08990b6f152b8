"""Generate text: sample a token, append it, repeat. Many texts run in threads with NumPy, in large batches on a GPU."""

import math
import secrets
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from base.options import check, option
from base.processes import cores
from gpt.inference.decoder import Decoder
from gpt.inference.weights import Weights, weights_of

if TYPE_CHECKING:
    import torch

    from gpt.model import GPT

# the default of sample.py: a text then repeats itself about as often as the training text does
TEMPERATURE = 0.9
MIN_ROWS = 8  # fewer texts are not worth another thread
MAX_ROWS = 64  # largest batch of texts in a thread
MAX_ROWS_GPU = 1024  # largest batch of texts on a GPU
MAX_CACHE = 2**28  # bytes of keys and values per thread; while they grow, twice that
Result = TypeVar("Result")


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is sampled from the logits, in the order in which the parameters are listed.

    A value out of its range raises `InputError`.
    """

    temperature: float = option(
        1.0, "divisor of the logits; 0: choose the most likely token", least=0
    )
    # arXiv:1805.04833, section 5.4
    top_k: int | None = option(
        None, "sample only from the k most likely tokens; None or k > V: from all", least=1
    )
    # arXiv:1904.09751, section 3.1
    top_p: float = option(
        1.0, "sample only from the smallest set of tokens with this probability", above=0, most=1
    )
    # arXiv:2407.01082, section 3
    min_p: float = option(
        0.0, "least probability of a token, as a fraction of the largest one", least=0, most=1
    )

    def __post_init__(self) -> None:
        check(self)


def probabilities(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Return the distributions from which to sample the next token of B texts: (B, V) float64 -> (B, V)."""
    V = logits.shape[-1]
    if params.temperature == 0:
        return np.eye(V)[logits.argmax(-1)]  # (B, V)
    # Make the largest logit 0 first: `min_p` relies on it, and dividing by a tiny temperature then
    # yields -inf for the others instead of NaN.
    with np.errstate(over="ignore"):
        logits = (logits - logits.max(-1, keepdims=True)) / params.temperature  # (B, V)
    if params.top_k is not None or params.top_p < 1:
        order = np.argsort(-logits, axis=-1, kind="stable")  # (B, V)
        ranked = np.take_along_axis(logits, order, -1)  # (B, V), the largest first
        ranked[:, params.top_k or V :] = -np.inf
        total = np.exp(ranked).cumsum(-1)  # (B, V)
        # Remove a token if the tokens ranked before it already reach top_p. The first token always
        # stays, and with top_p = 1 all that top_k has left.
        reached = total[:, :-1] >= params.top_p * total[:, -1:]  # (B, V - 1)
        ranked[:, 1:][reached] = -np.inf
        np.put_along_axis(logits, order, ranked, -1)
    if params.min_p > 0:
        logits[logits < np.log(params.min_p)] = -np.inf
    probs = np.exp(logits)  # (B, V)
    return probs / probs.sum(-1, keepdims=True)  # (B, V)


def sample_tokens(probs: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return one token for each distribution and random number in [0, 1): (B, V), (B,) -> (B,) int64."""
    total = probs.cumsum(-1)  # (B, V)
    # (B,), the first token up to which the probabilities sum to more than the number, which is
    # scaled because rounding moves the sum from 1
    return (total <= numbers[:, None] * total[:, -1:]).sum(-1)


def stream(
    weights: Weights,
    prompts: Sequence[np.ndarray],
    count: int,
    params: SamplingParams,
    seeds: Sequence[int],
) -> Iterator[np.ndarray]:
    """Continue B prompts, each (n,) int64 with n >= 1, and yield the next tokens (B,).

    A text depends only on its prompt and seed, not on the other prompts.
    """
    generators = []
    for prompt, seed in zip(prompts, seeds, strict=True):
        checksum = zlib.crc32(prompt.astype("<i8").data)
        generators.append(np.random.default_rng([seed, checksum]))
    decoder = Decoder(weights, len(prompts))
    logits = decoder.begin(prompts)  # (B, V)
    for k in range(count):
        numbers = np.array([generator.random() for generator in generators])  # (B,)
        tokens = sample_tokens(probabilities(logits, params), numbers)  # (B,)
        yield tokens
        if k + 1 < count:
            logits = decoder.read(tokens[:, None])[:, 0]  # (B, 1, V) -> (B, V)


def generate_many(
    work: Callable[[Any], Iterator[Result]],
    rows: Sequence[Any],
    weights: Weights,
    progress: Callable[[int], Any] = lambda tokens: None,
) -> Iterator[Result]:
    """Call `work` for parts of `rows`, one row a text, that fit into memory, and yield the last result for each part.

    With NumPy the parts run in parallel threads, with torch one after the other. `work` yields
    after each token; `progress` then gets the number of texts, possibly in another thread.
    """
    config = weights.config
    # of one text
    cache_bytes = 2 * config.layers * config.attention_window * config.dim * weights.dtype.itemsize
    # Only NumPy: on MPS torch aborts the process if two threads use it.
    threads = cores() if weights.xp is np else 1
    if "cuda" in str(weights.device):
        free, _ = weights.xp.cuda.mem_get_info(weights.device)
        # A quarter of the free memory, because reading a prompt copies the cache, and logits need
        # memory, too.
        max_rows = min(MAX_ROWS_GPU, free // 4 // cache_bytes)
    else:
        max_rows = min(MAX_ROWS, MAX_CACHE // cache_bytes)
    size = max(MIN_ROWS, math.ceil(len(rows) / threads))  # texts of each part but the last
    size = max(1, min(size, max_rows))
    parts = [rows[start : start + size] for start in range(0, len(rows), size)]
    stopped = Event()

    def last_result(part: Sequence[Any]) -> Any:
        result = None
        for result in work(part):  # noqa: B007
            if stopped.is_set():
                break
            progress(len(part))
        return result

    # One BLAS thread per part: in matrix products this small, more of them would only wait for
    # each other.
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(threads) as pool:
        try:
            yield from pool.map(last_result, parts)
        finally:  # after Ctrl-C, or when no more results are read
            stopped.set()


def generate(
    model: "GPT",
    tokens: "np.typing.ArrayLike | torch.Tensor",
    count: int,
    *,
    seed: int | None = None,
    **params: Any,
) -> "torch.Tensor":
    """Return a prompt, or several prompts of the same length, followed by `count` sampled tokens.

    Args:
        model: the model, which runs without dropout. Its training mode does not change.
        tokens: the prompt (T0,) or the prompts (B, T0), at least one token each: a tensor, an
            array or a list.
        count: number of tokens to add. The text may exceed the context, as
            gpt/inference/decoder.py explains.
        seed: prompt i is continued with the random seed `seed` + i; None: a random seed. No global
            generator is used.
        **params: the fields of `SamplingParams`, such as `temperature`.

    Returns:
        An int64 tensor on the CPU, (T0 + count,) for a prompt (T0,) and (B, T0 + count) for
        prompts (B, T0).

    Raises:
        ValueError: the prompt is empty, a token is outside the vocabulary, `count` is negative, or
            a value in `params` is out of its range.
    """
    import torch

    if isinstance(tokens, list):
        tokens = np.array(tokens)  # torch converts a list of arrays slowly, with a warning
    prompt = torch.as_tensor(tokens, dtype=torch.int64, device="cpu")  # (T0,) or (B, T0)
    prompts = torch.atleast_2d(prompt)  # (B, T0)
    B, T0 = prompts.shape
    if prompts.numel() == 0:
        raise ValueError("prompt: is empty, must contain at least one token")
    if count < 0:
        raise ValueError(f"count={count}: must be a whole number, at least 0")
    model.check_values(prompts)
    sampling = SamplingParams(**params)
    weights = weights_of(model)
    if seed is None:
        seed = secrets.randbits(32)

    texts = np.pad(prompts.numpy(), ((0, 0), (0, count)))  # (B, T0 + count)

    def work(part: Sequence[int]) -> Iterator[None]:
        given = list(texts[part, :T0])
        sampled = stream(weights, given, count, sampling, [seed + row for row in part])
        for k, column in enumerate(sampled, T0):
            texts[part, k] = column  # (texts of the part,)
            yield  # a token of each is done

    # `list` runs `work` for all parts, which fills `texts`
    list(generate_many(work, range(B), weights))
    return torch.from_numpy(texts).view(*prompt.shape[:-1], -1)  # (..., T0 + count)
