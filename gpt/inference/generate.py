"""Generate text: sample a token, append it, repeat."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpt.inference.decoder import Decoder, first_needed
from gpt.inference.parallel import generate_many
from gpt.inference.sampling import SamplingParams, probabilities, random_numbers, sample_tokens
from gpt.inference.weights import Weights, weights_of

if TYPE_CHECKING:
    import torch

    from gpt.model import GPT

BLOCK = 256  # random numbers generated at once


def stream(
    weights: Weights, prompts: Sequence[np.ndarray], count: int, params: SamplingParams, seeds: Sequence[int]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Continue B prompts in one batch, by `count` tokens each; every text depends on its own seed and prompt alone.

    A prompt is (n,) int64 with n at least 1; prompts may differ in length.

    Yields:
        tokens (B,) int64 and the logits (B, V) float64 that they were sampled from.
    """
    generators = [random_numbers(seed, prompt) for seed, prompt in zip(seeds, prompts, strict=True)]
    B, V = len(prompts), len(weights.embedding)
    decoder, logits = Decoder(weights, B), np.empty((B, V))
    lengths = np.array([len(prompt) for prompt in prompts])
    for length in sorted(set(lengths.tolist())):
        rows = np.flatnonzero(lengths == length)
        tokens = np.stack([prompts[row] for row in rows.tolist()])  # (rows, length)
        logits[rows] = decoder.read(tokens[:, first_needed(weights, length) :], rows)[:, -1]
    seen = np.zeros((B, V), bool)
    for row, prompt in enumerate(prompts):
        seen[row, prompt] = True
    for k in range(count):
        if k % BLOCK == 0:
            numbers = np.stack([generator.random(BLOCK) for generator in generators])  # (B, BLOCK)
        tokens = sample_tokens(probabilities(logits, params, seen), numbers[:, k % BLOCK])
        yield tokens, logits
        seen[np.arange(B), tokens] = True
        if k + 1 < count:
            logits = decoder.step(tokens)


def generate(
    model: "GPT", tokens: "torch.Tensor", count: int, *, seed: int | None = None, **params: Any
) -> "torch.Tensor":
    """Continue prompts, without dropout.

    Args:
        model: the model, whose training mode stays as it is.
        tokens: the prompts, (T0,) or (B, T0) int64 with at least one token.
        count: number of tokens to add, also beyond the context; gpt/inference/decoder.py explains how.
        seed: row i uses seed + i; None: a random seed. No global generator is used.
        **params: see `SamplingParams`.

    Returns:
        (B, T0 + count) int64 on the CPU.

    Raises:
        ValueError: an empty prompt, a token outside the vocabulary, a negative count, or what `SamplingParams` refuses.
    """
    import torch

    tokens = torch.atleast_2d(torch.as_tensor(tokens)).cpu()
    if tokens.shape[1] == 0:
        raise ValueError("prompt: is empty, must hold at least one token")
    if count < 0:
        raise ValueError(f"count={count}: must be a whole number, at least 0")
    model.check_values(tokens)
    rules, prompts, weights = SamplingParams(**params), tokens.numpy(), weights_of(model)
    seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed

    def work(part: slice) -> Iterator[np.ndarray]:
        added = np.empty((part.stop - part.start, count), np.int64)
        yield added  # where count is 0, this is all
        seeds = range(seed + part.start, seed + part.stop)
        for k, (sampled, _) in enumerate(stream(weights, list(prompts[part]), count, rules, seeds)):
            added[:, k] = sampled
            yield added

    added = np.concatenate(list(generate_many(work, len(prompts), weights)))  # (B, count)
    return torch.cat((tokens, torch.from_numpy(added)), dim=1)  # (B, T0 + count)
