import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentspec.kernels.noise import GAMMA, GUMBEL_SPAN, gumbel, uniform

WORD = 2**64


def naive_uniform(seed: int, position: int, token: int) -> float:
    def mix(value: int) -> int:
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % WORD
        value = (value ^ (value >> 27)) * 0x94D049BB133111EB % WORD
        return value ^ (value >> 31)

    key = mix((mix(seed % WORD) + position * GAMMA) % WORD)
    bits = mix((key + (token + 1) * GAMMA) % WORD)
    return ((bits >> 12) + 0.5) / 2**52


@given(
    seed=st.integers(-(2**70), 2**70),
    position=st.integers(0, 2**31),
    tokens=st.lists(st.integers(0, 2**31), min_size=1, max_size=8),
)
def test_uniform_is_the_documented_function_of_seed_position_and_token(seed, position, tokens):
    got = uniform(seed, position, torch.tensor(tokens))
    assert got.tolist() == [naive_uniform(seed, position, token) for token in tokens]
    assert bool(((got > 0) & (got < 1)).all())


def test_noise_of_a_token_does_not_depend_on_the_other_candidates():
    everything = gumbel(7, 100, torch.arange(50_000))
    some = torch.tensor([3, 49_999, 17])
    assert gumbel(7, 100, some).tolist() == everything[some].tolist()


def kolmogorov_smirnov(sample: np.ndarray) -> float:
    """Largest distance between the empirical distribution and the uniform one, times sqrt(n)."""
    ordered = np.sort(sample)
    n = len(ordered)
    above = np.arange(1, n + 1) / n - ordered
    below = ordered - np.arange(n) / n
    return math.sqrt(n) * max(above.max(), below.max())


AXES = {
    "tokens": lambda: uniform(1, 5, torch.arange(200_000)).numpy(),
    "positions": lambda: np.array([float(uniform(1, p, torch.tensor([9]))) for p in range(20_000)]),
    "seeds": lambda: np.array([float(uniform(s, 5, torch.tensor([9]))) for s in range(20_000)]),
}


@pytest.mark.parametrize("axis", AXES)
def test_noise_is_uniform_along_every_argument(axis):
    sample = AXES[axis]()
    assert kolmogorov_smirnov(sample) < 1.95  # exceeded by chance once in a thousand; the sample is fixed
    counts = np.bincount((sample * 256).astype(int), minlength=256)
    expected = len(sample) / 256
    assert ((counts - expected) ** 2 / expected).sum() < 341  # 255 degrees of freedom, 0.9998 quantile


@pytest.mark.parametrize("shift", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (0, 1, -1)])
def test_neighbouring_arguments_are_uncorrelated(shift):
    seed, position, token = shift
    tokens = torch.arange(1, 100_001)
    a = uniform(10, 20, tokens).numpy()
    b = uniform(10 + seed, 20 + position, tokens + token).numpy()
    assert abs(np.corrcoef(a, b)[0, 1]) < 4 / math.sqrt(len(a))


def test_the_span_of_the_noise_bounds_every_value_it_can_take():
    extremes = [0.5 * 2.0**-52, (2**52 - 0.5) * 2.0**-52]
    least, greatest = (-math.log(-math.log(u)) for u in extremes)
    assert 0 < extremes[0] < extremes[1] < 1
    assert greatest - least < GUMBEL_SPAN < greatest - least + 1


def test_gumbel_moments():
    sample = gumbel(3, 8, torch.arange(400_000))
    assert float(sample.mean()) == pytest.approx(0.5772, abs=0.01)
    assert float(sample.var()) == pytest.approx(math.pi**2 / 6, abs=0.02)
