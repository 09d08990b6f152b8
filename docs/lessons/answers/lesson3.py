"""Answers to the exercises of lesson 3. Try each yourself first."""

import numpy as np


def block_weights(dim, inner):
    """Number of weights of a block with biases and two layer norms."""
    # Query, key, value and output: four square matrices. Heads only split their rows.
    attention = 4 * dim * dim + 4 * dim
    feed_forward = 2 * dim * inner + inner + dim
    norms = 2 * (dim + dim)  # a scale and a shift each
    return attention + feed_forward + norms


def shift_right(target, start):
    """The start token, then all but the last letter: (N, T) -> (N, T)."""
    shown = np.full_like(target, start)
    shown[:, 1:] = target[:, :-1]  # the last letter is dropped
    return shown


def rotate(x, positions):
    """Rotary positions with complex numbers: (T, D), (T,) -> (T, D)."""
    half = x.shape[1] // 2
    frequency = 10_000.0 ** (-np.arange(half) / half)  # (D/2,)
    z = x[:, :half] + 1j * x[:, half:]  # (T, D/2)
    z = z * np.exp(1j * positions[:, None] * frequency)  # (T, D/2)
    # In a logit, z at position s times the conjugate of w at t has the factor exp(i (s - t)
    # frequency): the distance.
    return np.concatenate((z.real, z.imag), axis=1)  # (T, D)


def fold(scale, shift, weight, bias):
    """The layer with the scale and shift of the norm before it folded in: (C,), (C,), (out, C), (out,)."""
    # W (scale * x + shift) + b: the scale multiplies the columns of W, and W shift is a constant.
    # After a post-norm, the scaled vectors are the stream itself, which the next residual needs
    # unchanged.
    return weight * scale, bias + weight @ shift


def move(dim, distance):
    """The matrix (C, C) that maps each position's sinusoids to those `distance` positions later."""
    matrix = np.zeros((dim, dim))
    for i in range(0, dim, 2):
        angle = distance * 10_000.0 ** (-i / dim)
        # sin(a + b) = sin a cos b + cos a sin b and cos(a + b) = cos a cos b - sin a sin b: a
        # rotation of each pair.
        matrix[i : i + 2, i : i + 2] = [
            [np.cos(angle), np.sin(angle)],
            [-np.sin(angle), np.cos(angle)],
        ]
    return matrix


def norm_gradient(x, gradient):
    """The gradient of x, from that of its layer norm without scale and shift: (N, C), (N, C) -> (N, C)."""
    size = x.std(1, keepdims=True)  # (N, 1)
    y = (x - x.mean(1, keepdims=True)) / size  # (N, C)
    # Remove the part along the mean and the part along y, which the norm does not pass on; divide
    # the rest by the size.
    along = (gradient * y).mean(1, keepdims=True)  # (N, 1)
    return (gradient - gradient.mean(1, keepdims=True) - along * y) / size
