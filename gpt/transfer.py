"""Start from another model's weights: a longer context, new characters."""

from dataclasses import replace

import torch
from torch import Tensor

from gpt.model import GPT


def with_context(model: GPT, context: int) -> GPT:
    """Copy a model for windows of another length; logits up to the shorter of the two stay the same.

    Raises:
        ValueError: a longer context with learned positions.
    """
    if model.config.positions == "learned" and context > model.config.context:
        raise ValueError(f"must be at most {model.config.context}, the number of learned positions")
    other = GPT(replace(model.config, context=context), model.vocabulary).to(model.head.weight)
    init_from(other, model, torch.arange(model.vocabulary, device=model.head.weight.device))
    return other


@torch.no_grad()
def init_from(model: GPT, trained: GPT, token_map: Tensor) -> None:
    """Copy the weights of a trained model, whose tokens are some of this one's.

    In a text of trained tokens, their logits stay the same. The rows of a new token in embedding and head are the means
    of the trained rows, so its logit is the mean of theirs: n new tokens beside V trained ones add at most
    ln(1 + n / V) nats to the loss of such a text.
    Source: Hewitt, Initializing New Word Embeddings for Pretrained Language Models (2021).

    Args:
        model: of the same shape, except for vocabulary, dropout and context; learned positions may be fewer.
        trained: the trained model.
        token_map: (V,) int64, the token of `model` for each of the V tokens of `trained`.
    """
    weights = trained.state_dict()
    for name, weight in model.state_dict().items():
        if name in ("embedding.weight", "head.weight"):
            weight[:] = weights[name].mean(0)
            weight[token_map] = weights[name]
        else:
            weight[:] = weights[name][: len(weight)]  # the first of the learned positions, all of other weights
