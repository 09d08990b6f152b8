"""Multi-head causal attention in NumPy, one head, one query and one key at a time."""

import math

import numpy as np

from tests.reference.positions import rotary


def softmax(scores):
    """softmax(s)_j = exp(s_j) / sum_k exp(s_k) of one vector; shifted by its maximum, which changes nothing."""
    powers = np.array([math.exp(score - max(scores)) for score in scores])
    return powers / powers.sum()


def linear(x, weight, bias):
    """y = x W^T + b, W stored as (out, in) like torch's; `bias` may be None."""
    return x @ weight.T + (0.0 if bias is None else bias)


def unit_rms(x, eps):
    """x / sqrt(mean(x^2) + eps) of one vector: arXiv:1910.07467, eq. 4, without the gain."""
    return x / math.sqrt(sum(value * value for value in x) / len(x) + eps)


def head(q, k, v, window, seen):
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V (arXiv:1706.03762, eq. 1) of one head over (time, head size).

    A query sees itself and what came before; with a window, the query at time t sees times t -
    window + 1 ... t alone (Mistral 7B, arXiv:2310.06825, section 2). The shares of attention,
    (time, time), are appended to `seen`, a list or None.
    """
    time, size = q.shape
    out = np.zeros((time, size))
    shares = np.zeros((time, time))
    for t in range(time):
        first = 0 if window is None else max(0, t - window + 1)
        scores = np.array([sum(q[t] * k[s]) / math.sqrt(size) for s in range(first, t + 1)])
        for s, weight in enumerate(softmax(scores), start=first):
            out[t] += weight * v[s]
            shares[t, s] = weight
    if seen is not None:
        seen.append(shares)
    return out


def attention(x, qkv, proj, config, window, seen, eps):
    """MultiHead(x) = Concat(head_1, ..., head_h) W^O (arXiv:1706.03762, section 3.2.2), x of shape (time, dim).

    `qkv` and `proj` are (weight, bias), the bias perhaps None. The rows of the weight (3 dim, dim)
    of `qkv` are those of W^Q, W^K and W^V; head h has columns h D to (h + 1) D of each. With
    `qk_norm`, queries and keys are divided by their root mean square before any rotation. With
    `key_offset`, channels D - D // 2 ... D - 1 of a key are those of the key before, and only the
    others are rotated.
    """
    time, dim = x.shape
    size = dim // config.heads
    packed = linear(x, *qkv)
    joined = np.zeros((time, dim))
    for h in range(config.heads):
        q, k, v = (
            packed[:, part * dim + h * size : part * dim + (h + 1) * size] for part in range(3)
        )
        if config.qk_norm:
            q, k = (np.array([unit_rms(row, eps) for row in each]) for each in (q, k))
        if config.positions == "rotary":
            channels = size // 2 if config.key_offset else size
            q, k = rotary(q, channels), rotary(k, channels)
        if config.key_offset:
            offset = size - size // 2  # first of the channels from the key before
            before = np.vstack((np.zeros(size), k[:-1]))
            k = np.hstack((k[:, :offset], before[:, offset:]))
        joined[:, h * size : (h + 1) * size] = head(q, k, v, window, seen)
    return linear(joined, *proj)
