"""From logits to text."""

from collections.abc import Iterator

import torch
from torch import Tensor

from gpt.model import GPT


def probabilities(logits: Tensor, temperature: float = 1.0, top_k: int | None = None) -> Tensor:
    """Turn logits into the distribution a character is drawn from.

    Args:
        logits: (..., V).
        temperature: divides the logits; 0 puts everything on the largest.
        top_k: keep only that many of the most likely; more than V keeps all.

    Returns:
        (..., V) float64, each row adding up to 1.

    Raises:
        ValueError: temperature below 0 or top_k below 1.
    """
    if not temperature >= 0:
        raise ValueError(f"temperature={temperature:g}: must be a number, at least 0")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k={top_k}: must be a whole number, at least 1")
    logits = logits.double()
    if temperature == 0:
        return torch.zeros_like(logits).scatter(-1, logits.argmax(dim=-1, keepdim=True), 1.0)
    # The largest logit becomes 0 first: a tiny temperature then gives -inf for the others, not inf / inf.
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / temperature
    if top_k is not None:
        best = logits.topk(min(top_k, logits.shape[-1]), dim=-1)
        logits = torch.full_like(logits, -torch.inf).scatter(-1, best.indices, best.values)
    return logits.softmax(dim=-1)


def stream(
    model: GPT,
    tokens: Tensor,
    count: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int | None = None,
) -> Iterator[Tensor]:
    """Continue `tokens`, yielding one new token per row, (B,) int64 on the CPU, at a time.

    Each step reads the last `context` tokens anew. Arguments and errors are those of `generate`.
    """
    generator = torch.Generator()
    generator.seed() if seed is None else generator.manual_seed(seed)
    device = model.embedding.weight.device
    window = tokens[:, -model.config.context :]
    for _ in range(count):
        training = model.training
        model.eval()
        try:
            with torch.inference_mode():
                logits = model(window.to(device))[:, -1].cpu()  # (B, V)
        finally:
            model.train(training)
        drawn = torch.multinomial(probabilities(logits, temperature, top_k), 1, generator=generator)  # (B, 1)
        window = torch.cat((window, drawn), dim=1)[:, -model.config.context :]
        yield drawn[:, 0]


def generate(
    model: GPT,
    tokens: Tensor,
    count: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int | None = None,
) -> Tensor:
    """Continue a prompt.

    Args:
        model: the model; left in the mode it came in.
        tokens: the prompt, (T0,) or (B, T0) int64 with at least one token; only its last `context` count.
        count: how many tokens to add.
        temperature: see `probabilities`.
        top_k: see `probabilities`.
        seed: the same seed gives the same text; None draws one. torch's global generator is not touched.

    Returns:
        (B, T0 + count) int64 on the CPU.

    Raises:
        ValueError: an empty prompt, a negative count, or what `probabilities` refuses.
    """
    tokens = torch.atleast_2d(torch.as_tensor(tokens)).cpu()
    if tokens.shape[1] == 0:
        raise ValueError("prompt: is empty, must hold at least one character")
    if count < 0:
        raise ValueError(f"count={count}: must be a whole number, at least 0")
    probabilities(torch.zeros(1), temperature, top_k)  # refuses wrong settings even when count is 0
    new = list(stream(model, tokens, count, temperature=temperature, top_k=top_k, seed=seed))
    return torch.cat((tokens, torch.stack(new, dim=1)), dim=1) if new else tokens  # (B, T0 + count)
