"""Start from another model's weights: a longer context, new characters."""

from dataclasses import replace

import torch
from torch import Tensor

from gpt.model import GPT


def with_context(model: GPT, context: int) -> GPT:
    """Copy a model and change its context; logits at positions inside both contexts stay the same.

    Raises:
        ValueError: a longer context with learned positions.
    """
    if model.config.positions == "learned" and context > model.config.context:
        raise ValueError(f"must be at most {model.config.context}, the number of learned positions")
    other = GPT(replace(model.config, context=context), model.vocabulary).to(model.head.weight)
    copy_weights(other, model, torch.arange(model.vocabulary, device=model.head.weight.device))
    return other


@torch.no_grad()
def copy_weights(model: GPT, trained: GPT, token_map: Tensor) -> None:
    """Copy the weights of a trained model, whose vocabulary is a part of this model's.

    In a text of trained tokens, the logits of trained tokens stay the same. A new token's rows in embedding and head
    are the means of the trained rows, so the new token's logit is the mean of the trained logits. n new tokens beside
    V trained ones add at most ln(1 + n / V) nats to the loss of such a text.
    Source: Hewitt, Initializing New Word Embeddings for Pretrained Language Models (2021).

    Args:
        model: may differ in vocabulary, dropout and context, but must not have more learned positions.
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
