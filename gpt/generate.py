"""From logits to text: which token comes next, again and again."""

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from gpt.decode import Decoder, Weights

if TYPE_CHECKING:
    import torch

    from gpt.model import GPT

BLOCK = 256  # random numbers drawn at once
LEAST_ROWS = 8  # texts that are worth a thread of their own
MOST_ROWS = 64  # texts read side by side in a thread
MOST_ROWS_GPU = 1024  # texts read side by side on a GPU
MOST_CACHE = 2**29  # bytes of keys and values in a thread
Result = TypeVar("Result")


@dataclass(frozen=True)
class Drawing:
    """How the next token is drawn from the logits, in the order in which the rules apply.

    Args:
        repetition_penalty: what has occurred in the text becomes less likely: its logit is divided by this where it is
            positive, and multiplied where it is negative. Source: CTRL, arXiv:1909.05858, section 4.1.
        temperature: divides the logits; 0 takes the most likely token.
        top_k: keep only that many of the most likely; more than V keeps all. Source: arXiv:1805.04833, section 5.4.
        top_p: keep the most likely ones that together reach this share. Source: arXiv:1904.09751, section 3.1.
        min_p: keep those that are at least this many times as likely as the first. Source: arXiv:2407.01082, section 3.

    Raises:
        ValueError: a number out of its range, in one line.
    """

    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not self.repetition_penalty > 0:
            raise ValueError(f"repetition_penalty={self.repetition_penalty:g}: must be a number above 0")
        if not self.temperature >= 0:
            raise ValueError(f"temperature={self.temperature:g}: must be a number, at least 0")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k={self.top_k}: must be a whole number, at least 1")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p:g}: must be a number, above 0 and at most 1")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p={self.min_p:g}: must be a number, at least 0 and at most 1")


def probabilities(logits: np.ndarray, drawing: Drawing, seen: np.ndarray | None = None) -> np.ndarray:
    """Turn logits into the distribution that a token is drawn from.

    Args:
        logits: (B, V) float64.
        drawing: the rules.
        seen: (B, V) bool, which tokens have occurred; only a repetition penalty looks at it.

    Returns:
        (B, V) float64, each row adding up to 1.
    """
    if drawing.repetition_penalty != 1 and seen is not None:
        penalty = np.where(logits > 0, 1 / drawing.repetition_penalty, drawing.repetition_penalty)
        logits = np.where(seen, logits * penalty, logits)
    if drawing.temperature == 0:
        return np.eye(logits.shape[-1])[logits.argmax(-1)]  # (B, V)
    # The largest logit becomes 0 first: a tiny temperature then gives -inf for the others, not inf / inf.
    with np.errstate(over="ignore"):
        logits = (logits - logits.max(-1, keepdims=True)) / drawing.temperature
    if drawing.top_k is not None or drawing.top_p < 1:
        order = np.argsort(-logits, axis=-1, kind="stable")  # (B, V)
        ranked = np.take_along_axis(logits, order, -1)
        if drawing.top_k is not None:
            ranked[:, drawing.top_k :] = -np.inf
        if drawing.top_p < 1:
            shares = np.exp(ranked) / np.exp(ranked).sum(-1, keepdims=True)
            # One is left out where those before it reach the share already; the first never is.
            ranked[:, 1:][shares.cumsum(-1)[:, :-1] >= drawing.top_p] = -np.inf
        np.put_along_axis(logits, order, ranked, -1)
    if drawing.min_p > 0:
        logits[logits < np.log(drawing.min_p)] = -np.inf
    shares = np.exp(logits)
    return shares / shares.sum(-1, keepdims=True)


def draw(shares: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The tokens at which the cumulative distribution passes random numbers.

    Args:
        shares: (B, V) float64, each row adding up to 1.
        numbers: (B,) float64 in [0, 1).

    Returns:
        (B,) int64.
    """
    total = shares.cumsum(-1)
    return (total <= numbers[:, None] * total[:, -1:]).sum(-1)


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    """Natural logarithms of the probabilities that the model itself gives: (..., V) float64."""
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def stream(
    weights: Weights,
    prompts: Sequence[np.ndarray],
    count: int,
    drawing: Drawing,
    seeds: Sequence[int],
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Continue prompts side by side, one token of each at a time.

    What a text draws follows from its own seed and prompt, whatever its neighbours.

    Args:
        weights: of the model.
        prompts: B of them, (n,) int64 each, of any lengths, at least 1.
        count: how many tokens to add.
        drawing: the rules.
        seeds: one for each prompt.

    Yields:
        tokens (B,) int64 and the logits (B, V) float64 that they were drawn from.
    """
    generators = [random_numbers(seed, prompt) for seed, prompt in zip(seeds, prompts, strict=True)]
    B, V = len(prompts), len(weights.embedding)
    decoder, logits = Decoder(weights, B), np.empty((B, V))
    lengths = np.array([len(prompt) for prompt in prompts])
    for length in sorted(set(lengths.tolist())):
        rows = np.flatnonzero(lengths == length)
        tokens = np.stack([prompts[row] for row in rows.tolist()])  # (rows, length)
        logits[rows] = decoder.read(tokens[:, needed(weights, length) :], rows)[:, -1]
    seen = np.zeros((B, V), bool)
    for row, prompt in enumerate(prompts):
        seen[row, prompt] = True
    for k in range(count):
        if k % BLOCK == 0:
            numbers = np.stack([generator.random(BLOCK) for generator in generators])  # (B, BLOCK)
        tokens = draw(probabilities(logits, drawing, seen), numbers[:, k % BLOCK])
        yield tokens, logits
        seen[np.arange(B), tokens] = True
        if k + 1 < count:
            logits = decoder.step(tokens)


def random_numbers(seed: int, prompt: np.ndarray) -> np.random.Generator:
    """What a text draws from: texts of one seed and different prompts have nothing in common."""
    return np.random.default_rng([seed, zlib.crc32(np.asarray(prompt, "<i8").tobytes())])


def needed(weights: Weights, length: int) -> int:
    """Where to begin with a prompt of `length` tokens: what comes before has no influence on what follows it."""
    config = weights.config
    T = config.context
    if config.absolute:  # begun anew as often as it takes; see gpt/decode.py
        step = T - T // 2
        return -(-max(0, length - T) // step) * step
    # Each block looks S - 1 places back, and one more for its offset keys; the token shift looks back one.
    return max(0, length - config.layers * config.span - 2)


def weights_of(model: "GPT") -> Weights:
    """The weights of a model as decoding uses them, on a CPU as NumPy arrays."""
    import torch

    state = {
        name: value if value.dtype == torch.float64 else value.float() for name, value in model.state_dict().items()
    }
    if model.embedding.weight.device.type == "cpu":
        return Weights(model.config, {name: value.numpy() for name, value in state.items()})
    return Weights(model.config, state)


def side_by_side(
    work: Callable[[slice], Iterator[Result]],
    rows: int,
    weights: Weights,
    progress: Callable[[int], Any] = lambda tokens: None,
) -> Iterator[Result]:
    """Do the rows of a large batch in parts, as many at once as fit into memory.

    On a CPU the parts go to all cores: what NumPy computes in two threads runs at the same time. On a GPU of NVIDIA's
    they come one after the other, for each keeps all of it busy.

    Args:
        work: goes on with a part of the rows, yielding what there is after each token.
        rows: how many there are.
        weights: of the model, which say how many texts fit into memory at once.
        progress: told how many tokens have been added; called in any thread.

    Yields:
        The last that `work` yielded for each part, in order.
    """
    config = weights.config
    cache = 2 * config.layers * config.span * config.dim * weights.dtype.itemsize  # bytes, of one text
    threads, memory, most = cores(), MOST_CACHE, MOST_ROWS
    if weights.cuda:
        import torch

        # Of what is free a quarter: a cache is there twice while a prompt is read, and logits of many steps beside it.
        threads, memory, most = 1, torch.cuda.mem_get_info(weights.device)[0] // 4, MOST_ROWS_GPU
    most = max(1, min(most, memory // cache))  # rows of a part
    parts = max(1, min(threads, rows // LEAST_ROWS), -(-rows // most))
    borders = np.linspace(0, rows, parts + 1).round().astype(int)
    slices = [slice(int(start), int(stop)) for start, stop in zip(borders[:-1], borders[1:], strict=True)]
    given_up = Event()

    def last(part: slice) -> Any:
        result = None
        for result in work(part):  # noqa: B007
            if given_up.is_set():
                break
            progress(part.stop - part.start)
        return result

    # The threads are those of the parts: BLAS' own would only wait for each other in products this small.
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(min(parts, threads)) as pool:
        try:
            yield from pool.map(last, slices)
        finally:  # Ctrl-C, or a reader that has seen enough
            given_up.set()
            pool.shutdown(cancel_futures=True)


def cores() -> int:
    """How many threads may compute at the same time; OMP_NUM_THREADS says so for NumPy and torch, too."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(os.environ.get("OMP_NUM_THREADS") or usable)


def generate(
    model: "GPT", tokens: "torch.Tensor", count: int, *, seed: int | None = None, **drawing: Any
) -> "torch.Tensor":
    """Continue a prompt.

    Args:
        model: the model; its mode does not matter, nothing is dropped.
        tokens: the prompt, (T0,) or (B, T0) int64 with at least one token.
        count: how many tokens to add; text of any length, see gpt/decode.py for what a place sees of it.
        seed: row i draws from seed + i; None draws one. No global generator is touched.
        **drawing: see `Drawing`.

    Returns:
        (B, T0 + count) int64 on the CPU.

    Raises:
        ValueError: an empty prompt, a token outside the vocabulary, a negative count, or what `Drawing` refuses.
    """
    import torch

    tokens = torch.atleast_2d(torch.as_tensor(tokens)).cpu()
    if tokens.shape[1] == 0:
        raise ValueError("prompt: is empty, must hold at least one token")
    if count < 0:
        raise ValueError(f"count={count}: must be a whole number, at least 0")
    low, high = tokens.aminmax()
    if low < 0 or high >= model.vocabulary:
        wrong = int(low) if low < 0 else int(high)
        raise ValueError(f"tokens: {wrong} is outside the vocabulary, must be 0 to {model.vocabulary - 1}")
    rules, prompts, weights = Drawing(**drawing), tokens.numpy(), weights_of(model)
    seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed

    def work(part: slice) -> Iterator[np.ndarray]:
        added = np.empty((part.stop - part.start, count), np.int64)
        yield added  # where count is 0, this is all
        seeds = range(seed + part.start, seed + part.stop)
        for k, (drawn, _) in enumerate(stream(weights, list(prompts[part]), count, rules, seeds)):
            added[:, k] = drawn
            yield added

    added = np.concatenate(list(side_by_side(work, len(prompts), weights)))  # (B, count)
    return torch.cat((tokens, torch.from_numpy(added)), dim=1)  # (B, T0 + count)
