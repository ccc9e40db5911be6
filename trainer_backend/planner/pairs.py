"""From a few measured micro-batch sizes to every pair (micro-batch, N). Pure: no torch.

Memory of a micro-batch of b samples is c + A b above the point where activations outweigh what the
optimizer's step takes, and flat below it; time is alpha + beta b. Both lines are taken between measured
sizes, and extended beyond the last two.

Letters: b samples in a micro-batch, B samples in the effective batch, N = B / b.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

MOST_EXTRA: Final = 2
"""Probes beside the first three, until the fastest pair is a measured one."""
MOST_PAIRS: Final = 24
LONGEST_PROBE_S: Final = 30.0
WINDOWS_A_PROBE: Final = 12.0
"""Micro-batches that a probe runs, about."""
EQUAL_RATIO: Final = 0.95
"""Share of the best throughput from which on a larger micro-batch is not worth its memory."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One micro-batch size, measured in a process of its own with the longest samples."""

    size: int
    fits: bool
    """False: memory ran out."""
    idle_bytes: int = 0
    """Most memory before the first forward: weights, optimizer state, libraries."""
    peak_bytes: int = 0
    micro_s: float = 0.0
    """One micro-batch of usual samples, forward and backward."""
    step_s: float = 0.0
    """The optimizer's step and what else happens once a window."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan is for."""

    device: str
    name: str
    total_bytes: int
    other_bytes: int
    """In use by other programs."""
    limit_bytes: int
    """What the peak may be."""


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """One way to make the effective batch."""

    micro_batch_size: int
    accumulation_steps: int
    peak_bytes: int
    fits: bool
    is_measured: bool
    step_s: float
    """Seconds an optimizer step."""
    samples_per_s: float


class Plan(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Every pair, the chosen one, and what it was found by."""

    machine: Machine
    effective_batch: int
    pairs: tuple[Pair, ...]
    probes: tuple[Probe, ...]
    chosen: int | None
    """Place in `pairs`; None when nothing fits."""
    longest: str
    """What the longest samples are: "1,312 tokens"; empty when all are alike."""
    optimizer_steps: int | None
    """Of the whole run, where it is known."""
    duration_s: float

    @property
    def best(self) -> Pair | None:
        """The chosen pair."""
        return None if self.chosen is None else self.pairs[self.chosen]

    @property
    def speed_up(self) -> float | None:
        """Samples a second with the chosen N over those with N = 1 at the same micro-batch."""
        best = self.best
        if best is None:
            return None
        lines = Lines(self.probes)
        micro_s, step_s = lines.micro_s(best.micro_batch_size), lines.step_s(best.micro_batch_size)
        return (micro_s + step_s) * best.accumulation_steps / (micro_s * best.accumulation_steps + step_s)


class Lines:
    """Memory and time between and beyond the measured sizes."""

    def __init__(self, probes: Sequence[Probe]) -> None:
        self._good = sorted((probe for probe in probes if probe.fits), key=lambda probe: probe.size)
        self._failed = min((probe.size for probe in probes if not probe.fits), default=math.inf)

    def peak_bytes(self, size: int) -> int:
        """Predicted peak of a micro-batch of `size`."""
        return round(self._at(size, [probe.peak_bytes for probe in self._good]))

    def micro_s(self, size: int) -> float:
        """Predicted seconds a micro-batch."""
        return max(1e-9, self._at(size, [probe.micro_s for probe in self._good]))

    def step_s(self, size: int) -> float:
        """Seconds once a window: hardly a matter of the size, so the nearest measured one."""
        return min(self._good, key=lambda probe: abs(probe.size - size)).step_s

    def is_measured(self, size: int) -> bool:
        """Whether this size was probed."""
        return any(probe.size == size for probe in self._good)

    def fits(self, size: int, limit_bytes: int) -> bool:
        """Whether the peak stays below the limit, and no smaller size ran out of memory."""
        return size < self._failed and self.peak_bytes(size) <= limit_bytes

    def _at(self, size: int, values: Sequence[float]) -> float:
        sizes = [probe.size for probe in self._good]
        if len(sizes) == 1:
            return values[0] * size / sizes[0] if size > sizes[0] else values[0]
        right = next((place for place, known in enumerate(sizes) if known >= size), len(sizes) - 1)
        left = max(0, right - 1)
        right = left + 1
        slope = (values[right] - values[left]) / (sizes[right] - sizes[left])
        return values[left] + max(0.0, slope) * (size - sizes[left])


def sizes_for(effective_batch: int, most: int | None = None) -> list[int]:
    """The micro-batch sizes that divide the effective batch, the smallest first; at most `most` samples."""
    found = [size for size in range(1, effective_batch + 1) if effective_batch % size == 0]
    found = [size for size in found if most is None or size <= most]
    while len(found) > MOST_PAIRS:  # of a highly divisible number: the ends, and every second between
        found = [found[0], *found[1:-1][::2], found[-1]]
    return found


def pairs_of(
    sizes: Sequence[int], effective_batch: int, probes: Sequence[Probe], limit: int
) -> tuple[Pair, ...]:
    """Every pair, by growing micro-batch."""
    lines = Lines(probes)
    found = []
    for size in sizes:
        steps = effective_batch // size
        step_s = steps * lines.micro_s(size) + lines.step_s(size)
        found.append(
            Pair(
                micro_batch_size=size, accumulation_steps=steps, peak_bytes=lines.peak_bytes(size),
                fits=lines.fits(size, limit), is_measured=lines.is_measured(size), step_s=step_s,
                samples_per_s=effective_batch / step_s,
            )
        )  # fmt: skip
    return tuple(found)


def fastest(pairs: Sequence[Pair]) -> int | None:
    """Place of the fastest pair that fits; among nearly equal ones (1 %) the one with less memory."""
    fitting = [place for place, pair in enumerate(pairs) if pair.fits]
    if not fitting:
        return None
    best_s = min(pairs[place].step_s for place in fitting)
    return next(place for place in fitting if pairs[place].step_s <= 1.01 * best_s)


def knee(pairs: Sequence[Pair]) -> Pair | None:
    """The smallest micro-batch that reaches nearly the best throughput of those that fit."""
    fitting = [pair for pair in pairs if pair.fits]
    best = max((pair.samples_per_s for pair in fitting), default=0.0)
    return next((pair for pair in fitting if pair.samples_per_s >= EQUAL_RATIO * best), None)


def probe_all(
    sizes: Sequence[int], effective_batch: int, limit: int, probe: Callable[[int], Probe]
) -> list[Probe]:
    """Measure the smallest size, one in the middle, the largest that will fit, and what then seems best.

    Nothing larger than what the line so far says fits is tried. Stops after the first when that fails.
    """
    probes = [probe(sizes[0])]
    if not probes[0].fits or len(sizes) == 1:
        return probes
    first = probes[0]
    each = max(1, first.peak_bytes - first.idle_bytes) / first.size
    # The activations of one sample are at most all that the first probe took beside the idle memory.
    safe = [size for size in sizes[1:] if first.idle_bytes + size * each <= limit and _is_short(first, size)]
    middle = _nearest(safe, max(2, min(16, round(math.sqrt(sizes[-1]))))) if safe else sizes[1]
    probes.append(probe(middle))
    for _ in range(1 + MOST_EXTRA):
        tried = {one.size for one in probes}
        lines = Lines(probes)
        good = [one for one in probes if one.fits]
        allowed = [
            size
            for size in sizes
            if lines.fits(size, limit) and WINDOWS_A_PROBE * lines.micro_s(size) <= LONGEST_PROBE_S
        ] or sizes[:1]
        pairs = pairs_of(allowed, effective_batch, probes, limit)
        place = fastest(pairs)
        largest = max(allowed, default=sizes[0])
        wanted = largest if len(good) < 3 else pairs[place].micro_batch_size if place is not None else largest
        if wanted in tried:
            wanted = pairs[place].micro_batch_size if place is not None else wanted
        if wanted in tried:
            break
        probes.append(probe(wanted))
    return probes


def _is_short(known: Probe, size: int) -> bool:
    """Whether a probe of `size` ends in time, were time proportional to the size."""
    return WINDOWS_A_PROBE * known.micro_s * size / known.size <= LONGEST_PROBE_S or size <= known.size


def _nearest(sizes: Sequence[int], wanted: int) -> int:
    return min(sizes, key=lambda size: abs(math.log(size / wanted)))
