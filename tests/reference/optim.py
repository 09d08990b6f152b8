"""The schedule by its parts, the momentum as a sum, and the normalisation of rows one number at a time."""

import math


def learning_rate(step, steps, config):
    """Learning rate of `step`, counted from 0: the smaller of a linear rise and a fall.

    The rise reaches lr after `warmup` steps in warmup + 1 equal parts. The fall is half a cosine
    over what is left (Loshchilov and Hutter, arXiv:1608.03983, eq. 5) or a straight line over the
    last `cooldown` share (trapezoid: Hägele et al., arXiv:2405.18392, eq. 1).
    """
    lr, min_lr, warmup, cosine = (
        config.lr,
        config.min_lr,
        config.warmup,
        config.schedule == "cosine",
    )
    if step < warmup and cosine:
        return lr * (step + 1) / (warmup + 1)
    start = warmup if cosine else steps - config.cooldown * steps
    passed = 0.0 if step <= start else 1.0 if step >= steps else (step - start) / (steps - start)
    if cosine:
        return min_lr + 0.5 * (lr - min_lr) * (1 + math.cos(math.pi * passed))
    return min(lr * min(1.0, (step + 1) / (warmup + 1)), lr - (lr - min_lr) * passed)


def momentum(gradients):
    """0.95 of the mean of all gradients, the newest last, weighted by age with two decays, and 0.05 of the newest."""
    ages = reversed(range(len(gradients)))
    weights = [0.44 * 0.15 * 0.85**age + 0.56 * 0.02 * 0.98**age for age in ages]
    mean = sum(weight * gradient for weight, gradient in zip(weights, gradients, strict=True))
    return 0.95 * mean + 0.05 * gradients[-1]


def rows_normalised(updates, beta2):
    """Updates of a matrix in turn, after NorMuon's normalisation of rows (arXiv:2510.05491, algorithm 1).

    An update is a list of rows of numbers. Each row is divided by the root of the running mean of
    its mean square; then the whole gets back its norm.
    """
    means = [0.0] * len(updates[0])
    results = []
    for update in updates:
        means = [
            beta2 * v + (1 - beta2) * sum(x * x for x in row) / len(row)
            for v, row in zip(means, update, strict=True)
        ]
        rows = [
            [x / (math.sqrt(v) or 1.0) for x in row] for v, row in zip(means, update, strict=True)
        ]
        before, after = (
            math.sqrt(sum(x * x for row in each for x in row)) for each in (update, rows)
        )
        results.append([[x * before / after for x in row] for row in rows])
    return results
