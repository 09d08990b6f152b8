"""Places in the plane against the equations of t-SNE, one pair at a time, and against what neighbours are."""

import math

import numpy as np
import pytest

from gpt.fit.neighbours import affinities, gradient, nearest, project, similarities, spread


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


def divergence(places: np.ndarray, wanted: np.ndarray) -> float:
    """The Kullback-Leibler divergence of the affinities in the plane from those that are wanted (equations 2 to 4)."""
    count = len(places)
    near = {
        (i, j): 1 / (1 + math.dist(places[i], places[j]) ** 2) for i in range(count) for j in range(count) if i != j
    }
    total = sum(near.values())
    return sum(wanted[pair] * math.log(wanted[pair] / (value / total)) for pair, value in near.items())


def clusters(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """60 vectors of very different lengths in four directions, and which direction each has."""
    groups = np.arange(60) % 4
    directions = np.linalg.qr(rng.normal(size=(16, 4)))[0].T
    return (directions[groups] + 0.15 * rng.normal(size=(60, 16))) * rng.uniform(0.1, 10, (60, 1)), groups


def test_similarities_and_nearest_equal_loops() -> None:
    vectors = np.random.default_rng(0).normal(size=(9, 5))
    expected = np.array([[cosine(a, b) for b in vectors] for a in vectors])
    np.testing.assert_allclose(similarities(vectors), expected, atol=1e-12)
    np.fill_diagonal(expected, -2)
    assert nearest(vectors).tolist() == [max(range(9), key=row.__getitem__) for row in expected]


@pytest.mark.parametrize("perplexity", [1.5, 4.0])
def test_affinities_have_the_perplexity(perplexity: float) -> None:
    """One point at a time: the width of its Gaussian by a fine search instead of bisection."""
    vectors = np.random.default_rng(1).normal(size=(12, 6))
    distances = 2 - 2 * similarities(vectors)
    joint = np.zeros((12, 12))
    for i in range(12):
        best = (math.inf, np.zeros(12))
        for exponent in np.linspace(-3, 6, 3_000):
            weights = np.exp(-distances[i] * math.exp(exponent))
            weights[i] = 0
            shares = weights / weights.sum()
            entropy = -sum(share * math.log(share) for share in shares if share > 0)
            best = min(best, (abs(entropy - math.log(perplexity)), shares), key=lambda pair: pair[0])
        assert best[0] < 5e-3
        joint[i] += best[1]
    np.testing.assert_allclose(affinities(distances, perplexity), (joint + joint.T) / 24, atol=5e-4)


def test_gradient_is_that_of_the_divergence() -> None:
    rng = np.random.default_rng(2)
    places, wanted = rng.normal(size=(7, 2)), rng.uniform(0.1, 1, (7, 7))
    wanted = (wanted + wanted.T) * (1 - np.eye(7))
    wanted /= wanted.sum()
    for i in range(7):
        for axis in range(2):
            step = np.zeros_like(places)
            step[i, axis] = 1e-5
            slope = (divergence(places + step, wanted) - divergence(places - step, wanted)) / 2e-5
            assert gradient(places, wanted)[i, axis] == pytest.approx(slope, abs=1e-7)


def test_neighbours_stay_neighbours() -> None:
    vectors, groups = clusters(np.random.default_rng(3))
    places = project(vectors)
    assert np.array_equal(places, project(vectors)), "nothing is drawn at random"
    assert np.array_equal(places, project(vectors * 2.0 ** (np.arange(60) % 5)[:, None])), "nor do lengths matter"
    distances = np.linalg.norm(places[:, None] - places, axis=-1) + 1e9 * np.eye(60)
    near = groups[distances.argsort(1)[:, :5]]
    assert (near == groups[:, None]).mean() > 0.95
    kept = (distances.argsort(1)[:, :5] == nearest(vectors)[:, None]).any(1).mean()
    assert kept > 0.8


@pytest.mark.parametrize("count", [1, 2, 3, 4, 90])
def test_any_number_of_vectors_has_places(count: int) -> None:
    rng = np.random.default_rng(count)
    for vectors in (
        rng.normal(size=(count, 8)),
        np.zeros((count, 8)),
        np.ones((count, 1)),
        1e-30 * np.ones((count, 3)),
    ):
        places = spread(project(vectors), 0.1)
        assert places.shape == (count, 2) and np.isfinite(places).all()


def test_places_are_pushed_apart() -> None:
    places = np.random.default_rng(4).normal(size=(30, 2))
    places[1] = places[0]
    apart = spread(places, 0.2)
    distances = np.linalg.norm(apart[:, None] - apart, axis=-1) + 1e9 * np.eye(30)
    assert distances.min() > 0.18
    far = 10 * np.arange(6.0).reshape(3, 2)
    np.testing.assert_allclose(spread(far, 0.2), far, atol=1e-4)
