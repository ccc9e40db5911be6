"""The gradient noise scale: how large an effective batch is worth its samples. No torch.

Micro-batch i has n_i units (tokens or samples) and mean gradient g_i; N micro-batches; n = sum n_i;
m = sum n_i g_i / n; G the true gradient, tr(Sigma) the trace of its covariance per unit.
B_noise = tr(Sigma) / |G|^2 (McCandlish et al. 2018, arXiv 1812.06162, equation 2.8 and appendix A).

    sample = window_noise(weights, squared_norms, norm ** 2, samples=32)   # one window
    scale.add(sample)                                                     # smoothed
    scale.estimate()                                                      # value and interval
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

HALF_LIFE_WINDOWS: Final = 200.0
"""Measured windows after which an old one counts half: the noise scale rises while a run trains."""
FEWEST_WINDOWS: Final = 8
"""Below it there is no interval, so no estimate."""
COVERAGE: Final = 0.95
MOST_SPREAD: Final = 3.0
"""An interval whose ends are further apart than this factor says too little for advice: it is what the
noise scale itself is good for (SGD on scikit-learn's digits; for Adam see arXiv 2505.23971)."""


class NoiseSums(msgspec.Struct, frozen=True, kw_only=True):
    """What one window's micro-batches add up to; sums of several ranks may be added."""

    micro_batches: int
    """Those that have weight."""
    weight: float
    weighted_squares: float
    """Sum of n_i |g_i|^2; NaN when a norm is unknown."""


class NoiseSample(msgspec.Struct, frozen=True, kw_only=True):
    """One window's unbiased estimates, per sample of the effective batch. Either may be negative."""

    micro_batches: int
    trace: float
    """tr(Sigma) of one sample's gradient."""
    squared_gradient: float
    """|G|^2."""


class NoiseEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The smoothed noise scale in samples, with its 95 % interval."""

    windows: int
    """Measured windows behind it."""
    value: float | None
    """None when the mean of |G|^2 is not above 0."""
    low: float | None
    """None when nothing can be said."""
    high: float | None
    """None: no upper end; the noise scale is at least `low`."""
    trace: float
    squared_gradient: float

    @property
    def is_narrow(self) -> bool:
        """Whether the interval is narrow enough for advice."""
        return self.low is not None and self.high is not None and self.high <= MOST_SPREAD * self.low


def sums_of(weights: Sequence[float], norms: Sequence[float | None]) -> NoiseSums:
    """The sums over a window's micro-batches: weights n_i and norms |g_i| of their own means."""
    pairs = [(weight, norm) for weight, norm in zip(weights, norms, strict=True) if weight > 0]
    squares = math.fsum(weight * (math.nan if norm is None else norm) ** 2 for weight, norm in pairs)
    return NoiseSums(
        micro_batches=len(pairs), weight=math.fsum(weight for weight, _ in pairs), weighted_squares=squares
    )


def window_noise(sums: NoiseSums, norm: float, samples: int) -> NoiseSample | None:
    """One window's sample; None for fewer than two micro-batches, an unknown norm, or a non-finite one.

    `norm` is |m|, of the window's mean gradient before clipping; `samples` are the window's.
    tr(Sigma) = (sum n_i |g_i|^2 - n |m|^2) / (N - 1),  |G|^2 = |m|^2 - tr(Sigma) / n.
    """
    if sums.micro_batches < 2 or samples < 1 or not math.isfinite(sums.weighted_squares + norm):
        return None
    trace = (sums.weighted_squares - sums.weight * norm**2) / (sums.micro_batches - 1)
    return NoiseSample(
        micro_batches=sums.micro_batches,
        trace=trace * samples / sums.weight,
        squared_gradient=norm**2 - trace / sums.weight,
    )


class NoiseScale:
    """Smooths samples: numerator and denominator apart, then their ratio (the mean of ratios is wrong).

    A window counts N - 1 times, halved every `half_life` windows.
    """

    def __init__(self, half_life: float = HALF_LIFE_WINDOWS) -> None:
        self._keep = 0.5 ** (1.0 / half_life)
        self._windows = 0
        self._weight = self._squared_weight = 0.0
        self._means = (0.0, 0.0)
        self._spread = [0.0, 0.0, 0.0]
        """Weighted sums of squared deviations: trace, both, squared gradient."""

    def add(self, sample: NoiseSample) -> None:
        """One window more."""
        weight = float(sample.micro_batches - 1)
        self._windows += 1
        self._weight = self._keep * self._weight + weight
        self._squared_weight = self._keep**2 * self._squared_weight + weight**2
        share = weight / self._weight
        off = (sample.trace - self._means[0], sample.squared_gradient - self._means[1])
        self._means = (self._means[0] + share * off[0], self._means[1] + share * off[1])
        left = weight * (1.0 - share)
        pairs = (off[0] ** 2, off[0] * off[1], off[1] ** 2)
        self._spread = [self._keep * old + left * new for old, new in zip(self._spread, pairs, strict=True)]

    def estimate(self) -> NoiseEstimate | None:
        """The noise scale now; None before the first window."""
        if not self._windows:
            return None
        trace, squared = self._means
        low, high = self._interval()
        value = trace / squared if squared > 0 and trace > 0 else None
        return NoiseEstimate(
            windows=self._windows, value=value, low=low, high=high, trace=trace, squared_gradient=squared
        )

    def _interval(self) -> tuple[float | None, float | None]:
        """Fieller's interval of |G|^2 / tr(Sigma), turned over: its denominator is far from 0."""
        count = self._weight**2 / self._squared_weight
        if self._windows < FEWEST_WINDOWS or count < FEWEST_WINDOWS - 1:
            return None, None
        variances = [part / self._weight / (count - 1.0) for part in self._spread]
        found = fieller(
            self._means[1], self._means[0],
            variances=(variances[2], variances[1], variances[0]),
            quantile=student_quantile(0.5 + COVERAGE / 2, count - 1.0),
        )  # fmt: skip
        if found is None or found[1] <= 0 or self._means[0] <= 0:
            return None, None
        least, most = found
        return 1.0 / most, (1.0 / least if least > 0 else None)


def fieller(
    above: float, below: float, *, variances: tuple[float, float, float], quantile: float
) -> tuple[float, float] | None:
    """The interval of the ratio above / below of two means; None when it is not bounded (Fieller 1954).

    `variances`: of the mean above, of both, of the mean below.
    """
    square = quantile**2
    a = below**2 - square * variances[2]
    b = above * below - square * variances[1]
    c = above**2 - square * variances[0]
    discriminant = b**2 - a * c
    if a <= 0 or discriminant < 0:
        return None
    root = math.sqrt(discriminant)
    return (b - root) / a, (b + root) / a


def student_quantile(probability: float, freedom: float) -> float:
    """Student's t, by Cornish and Fisher's expansion (to 0.1 % from five degrees of freedom on)."""
    z = _normal_quantile(probability)
    terms = (
        (z**3 + z) / 4.0,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96.0,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384.0,
    )
    return z + sum(term / freedom ** (power + 1) for power, term in enumerate(terms))


@functools.cache
def _normal_quantile(probability: float) -> float:
    from statistics import NormalDist  # noqa: PLC0415 - 10 ms, and only who estimates needs it

    return NormalDist().inv_cdf(probability)


# ------------------------------------------------------------------------------------- advice

Verdict: TypeAlias = Literal["small", "right", "large"]


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What the noise scale says about an effective batch, once it can."""

    verdict: Verdict
    effective_batch: int
    low: float
    high: float
    step_ratio: float
    """Optimizer steps over the fewest possible: 1 + B_noise / B."""
    sample_ratio: float
    """Samples over the fewest possible: 1 + B / B_noise."""
    accumulation_steps: int
    """N whose effective batch is nearest the noise scale."""


def advise(estimate: NoiseEstimate | None, *, effective_batch: int, samples_a_round: int) -> Advice | None:
    """Advice; None while the interval is too wide for it.

    S = S_min (1 + B_noise / B), E = E_min (1 + B / B_noise) (McCandlish et al. 2018, equation 2.11).
    "right" is within a factor of two around the interval.
    """
    if estimate is None or not estimate.is_narrow or estimate.value is None:
        return None
    assert estimate.low is not None
    assert estimate.high is not None
    small, large = effective_batch < estimate.low / 2, effective_batch > estimate.high * 2
    return Advice(
        verdict="small" if small else "large" if large else "right",
        effective_batch=effective_batch,
        low=estimate.low,
        high=estimate.high,
        step_ratio=1.0 + estimate.value / effective_batch,
        sample_ratio=1.0 + effective_batch / estimate.value,
        accumulation_steps=max(1, round(estimate.value / samples_a_round)),
    )


def best_accumulation(noise_scale: float, micro_batch_size: int, step_ratio: float) -> float:
    """N that reaches a loss soonest: sqrt(B_noise / b x t_opt / t_micro).

    From T(N) = (N t_micro + t_opt) x S_min (1 + B_noise / (b N)); `step_ratio` is t_opt / t_micro.
    """
    return math.sqrt(noise_scale / micro_batch_size * step_ratio)


def smoothed(samples: Iterable[NoiseSample]) -> NoiseScale:
    """A noise scale that has taken these samples."""
    scale = NoiseScale()
    for sample in samples:
        scale.add(sample)
    return scale
