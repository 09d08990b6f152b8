"""From logits to the probabilities that a sampler draws from, one character at a time."""

import math

import numpy as np


def probabilities(logits, temperature=1.0, top_k=None, top_p=1.0, min_p=0.0):
    """p_i = exp(z_i / T) / sum_j exp(z_j / T) for the logits z of one row, over those that are kept, else 0.

    Kept are the k largest (Fan et al., arXiv:1805.04833), of these the fewest that reach top_p
    (Holtzman et al., arXiv:1904.09751, eq. 2), of these those with p_i >= min_p p_max (Nguyen et
    al., arXiv:2407.01082, section 3).
    """
    z = logits
    order = sorted(range(len(z)), key=lambda i: -z[i])
    kept = order[: 1 if temperature == 0 else top_k]
    power = {i: math.exp((z[i] - z[order[0]]) / (temperature or 1.0)) for i in kept}
    total, nucleus = 0.0, []
    for i in kept:
        if nucleus and total >= top_p:
            break
        nucleus.append(i)
        total += power[i] / sum(power.values())
    result = np.zeros(len(z))
    for i in nucleus:
        if power[i] >= min_p * power[order[0]]:
            result[i] = power[i]
    return result / result.sum()
