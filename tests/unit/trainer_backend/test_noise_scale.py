"""The noise scale's arithmetic, held against cases whose noise scale is known."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from trainer_backend.noise_scale import (
    NoiseEstimate,
    NoiseSample,
    NoiseScale,
    advise,
    best_accumulation,
    fieller,
    student_quantile,
    sums_of,
    window_noise,
)

MICRO_BATCH = 4
NOISE_SCALE = 100.0


def gaussian(many: int, micro_batches: int, dimensions: int, seed: int) -> list[NoiseSample]:
    """Windows of Gaussian gradients with tr(Sigma) = 50 and |G|^2 = 0.5."""
    rng = np.random.default_rng(seed)
    gradient = np.zeros(dimensions)
    gradient[0] = math.sqrt(0.5)
    noise_sd = math.sqrt(50 / dimensions / MICRO_BATCH)
    found = []
    for _ in range(many):
        g = gradient + noise_sd * rng.standard_normal((micro_batches, dimensions))
        sums = sums_of([MICRO_BATCH] * micro_batches, np.linalg.norm(g, axis=1).tolist())
        sample = window_noise(sums, float(np.linalg.norm(g.mean(0))), MICRO_BATCH * micro_batches)
        assert sample is not None
        found.append(sample)
    return found


def scale_of(samples: list[NoiseSample], half_life: float = 1e9) -> NoiseEstimate:
    """The estimate that these samples give."""
    scale = NoiseScale(half_life)
    for sample in samples:
        scale.add(sample)
    estimate = scale.estimate()
    assert estimate is not None
    return estimate


@pytest.mark.parametrize("micro_batches", [2, 4, 8, 16])
def test_gaussian_gradients_give_the_noise_scale_they_were_made_with(micro_batches: int) -> None:
    """At any N."""
    estimate = scale_of(gaussian(1500, micro_batches, 300, seed=micro_batches))
    assert estimate.value == pytest.approx(NOISE_SCALE, rel=0.06)
    assert estimate.low is not None
    assert estimate.high is not None
    assert estimate.low < NOISE_SCALE < estimate.high


def test_the_interval_holds_the_right_value_as_often_as_it_says() -> None:
    """About 95 of 100 intervals do."""
    held = 0
    for seed in range(200):
        estimate = scale_of(gaussian(40, 4, 60, seed=1000 + seed))
        assert estimate.low is not None
        held += estimate.low <= NOISE_SCALE <= (estimate.high or math.inf)
    assert 0.90 <= held / 200 <= 1.0


def test_unequal_weights_give_what_equal_ones_give_when_they_are_equal() -> None:
    """The simpler formulas are a special case."""
    norms, norm = [3.0, 4.0, 5.0], 3.5
    sample = window_noise(sums_of([2.0] * 3, norms), norm, samples=6)
    assert sample is not None
    u2, squares = (3 * norm) ** 2, sum(n * n for n in norms)
    assert sample.trace == pytest.approx(2 * (3 * squares - u2) / 6)
    assert sample.squared_gradient == pytest.approx((u2 - squares) / 6)


def test_unequal_weights_stay_unbiased() -> None:
    """Micro-batches of 1, 3 and 8 samples."""
    rng = np.random.default_rng(3)
    weights, dimensions = np.array([1.0, 3.0, 8.0]), 40
    gradient = np.zeros(dimensions)
    gradient[0] = 1.0
    scale = NoiseScale(1e9)
    for _ in range(4000):
        g = gradient + rng.standard_normal((3, dimensions)) * np.sqrt(0.5 / weights)[:, None]
        mean = (weights[:, None] * g).sum(0) / weights.sum()
        sums = sums_of(weights.tolist(), np.linalg.norm(g, axis=1).tolist())
        sample = window_noise(sums, float(np.linalg.norm(mean)), samples=12)
        assert sample is not None
        scale.add(sample)
    estimate = scale.estimate()
    assert estimate is not None
    assert estimate.trace == pytest.approx(20.0, rel=0.02)
    assert estimate.squared_gradient == pytest.approx(1.0, rel=0.03)


def test_tokens_are_told_in_samples() -> None:
    """A sample of 50 tokens counts once."""
    by_sample = window_noise(sums_of([2.0, 2.0], [3.0, 4.0]), 3.0, samples=4)
    by_token = window_noise(sums_of([200.0, 200.0], [3.0, 4.0]), 3.0, samples=4)
    assert by_sample is not None
    assert by_token is not None
    assert by_token.trace == pytest.approx(by_sample.trace)
    assert by_token.squared_gradient == pytest.approx(by_sample.squared_gradient)


@pytest.mark.parametrize(
    ("weights", "norms", "norm"),
    [
        ([4.0], [1.0], 1.0),
        ([4.0, 0.0], [1.0, None], 1.0),
        ([4.0, 4.0], [1.0, None], 1.0),
        ([4.0, 4.0], [1.0, math.inf], 1.0),
        ([4.0, 4.0], [1.0, 2.0], math.nan),
        ([], [], 0.0),
    ],
)
def test_what_cannot_be_compared_is_no_sample(
    weights: list[float], norms: list[float | None], norm: float
) -> None:
    """One micro-batch, an unknown norm, a number that is not finite."""
    assert window_noise(sums_of(weights, norms), norm, samples=8) is None


def test_a_micro_batch_without_weight_is_left_out() -> None:
    """It has no gradient to compare."""
    with_empty = window_noise(sums_of([4.0, 0.0, 4.0], [1.0, None, 2.0]), 1.0, samples=8)
    assert with_empty == window_noise(sums_of([4.0, 4.0], [1.0, 2.0]), 1.0, samples=8)


def test_without_signal_there_is_no_upper_end_and_no_advice() -> None:
    """|G|^2 may be 0, so the noise scale may be anything large."""
    random_ = random.Random(5)  # noqa: S311 - no secret
    samples = [
        NoiseSample(micro_batches=4, trace=random_.gauss(50, 5), squared_gradient=random_.gauss(0.02, 1))
        for _ in range(100)
    ]
    estimate = scale_of(samples)
    assert estimate.low is not None
    assert estimate.low > 50
    assert estimate.high is None
    assert advise(estimate, effective_batch=8, samples_a_round=4) is None


def test_a_few_windows_say_nothing() -> None:
    """An interval of five windows would be a guess."""
    assert NoiseScale().estimate() is None
    estimate = scale_of(gaussian(5, 4, 60, seed=1))
    assert estimate.low is None
    assert estimate.high is None


def test_negative_squared_gradients_count() -> None:
    """The mean of ratios would be far off, and leaving them out would be biased."""
    samples = gaussian(3000, 2, 60, seed=8)
    assert any(sample.squared_gradient < 0 for sample in samples)
    assert scale_of(samples).value == pytest.approx(NOISE_SCALE, rel=0.1)


def test_old_windows_fade() -> None:
    """The noise scale rises in training."""
    scale = NoiseScale(half_life=20)
    for trace in [10.0] * 200 + [90.0] * 200:
        scale.add(NoiseSample(micro_batches=4, trace=trace, squared_gradient=1.0))
    estimate = scale.estimate()
    assert estimate is not None
    assert estimate.value == pytest.approx(90.0, rel=0.01)


def test_fieller_of_a_certain_denominator_is_the_ordinary_interval() -> None:
    """And one that may be 0 has none."""
    low, high = fieller(10.0, 2.0, variances=(1.0, 0.0, 0.0), quantile=2.0) or (0.0, 0.0)
    assert [low, high] == pytest.approx([4.0, 6.0])
    assert fieller(10.0, 1.0, variances=(1.0, 0.0, 1.0), quantile=2.0) is None


@pytest.mark.parametrize(("freedom", "value"), [(5, 2.5706), (10, 2.2281), (30, 2.0423), (1e6, 1.95996)])
def test_student_quantiles_are_those_of_the_tables(freedom: float, value: float) -> None:
    """To two in a thousand."""
    assert student_quantile(0.975, freedom) == pytest.approx(value, rel=2e-3)


@pytest.mark.parametrize(
    ("batch", "verdict", "steps"), [(8, "small", 25), (64, "right", 25), (512, "large", 25)]
)
def test_advice_compares_the_effective_batch_with_the_interval(batch: int, verdict: str, steps: int) -> None:
    """Within a factor of two around it is right."""
    estimate = NoiseEstimate(
        windows=100, value=100.0, low=80.0, high=125.0, trace=100.0, squared_gradient=1.0
    )
    advice = advise(estimate, effective_batch=batch, samples_a_round=4)
    assert advice is not None
    assert (advice.verdict, advice.accumulation_steps) == (verdict, steps)
    assert advice.step_ratio == pytest.approx(1 + 100 / batch)
    assert advice.sample_ratio == pytest.approx(1 + batch / 100)


def test_a_wide_interval_gives_no_advice() -> None:
    """Its ends are a factor of five apart."""
    wide = NoiseEstimate(windows=9, value=100.0, low=40.0, high=200.0, trace=100.0, squared_gradient=1.0)
    assert advise(wide, effective_batch=64, samples_a_round=4) is None


@pytest.mark.parametrize(
    ("batch", "share"), [(10, 0.0909), (50, 0.3333), (100, 0.5), (200, 0.6667), (1000, 0.9091)]
)
def test_one_step_on_a_quadratic_makes_the_share_of_progress_that_the_theory_says(
    batch: int, share: float
) -> None:
    """Loss |w|^2 / 2 with gradients G + noise: the best rate and its progress, averaged over noise."""
    rng = np.random.default_rng(batch)
    dimensions, squared = 50, 1.0
    g = np.zeros((40_000, dimensions))
    g[:, 0] = math.sqrt(squared)
    g += rng.standard_normal(g.shape) * math.sqrt(NOISE_SCALE * squared / dimensions / batch)
    along, whole = g[:, 0].mean() * math.sqrt(squared), (g**2).sum(1).mean()
    best = along**2 / (2 * whole)  # of eps x along - eps^2 x whole / 2, at eps = along / whole
    assert best / (squared / 2) == pytest.approx(share, rel=0.03)


def test_the_best_n_balances_the_optimizer_step_against_the_micro_batches() -> None:
    """N* = sqrt(B_noise / b x t_opt / t_micro) has the least time to a loss of all N."""
    noise_scale, size, ratio = 200.0, 4, 0.5

    def time_to_target(n: float) -> float:
        return (n + ratio) * (1 + noise_scale / (size * n))

    best = best_accumulation(noise_scale, size, ratio)
    assert best == pytest.approx(5.0)
    assert all(time_to_target(best) <= time_to_target(n) for n in np.linspace(1, 40, 400))
