"""The targets of a run while it trains: what was reached so far, what is missed, what a miss does.

`see` takes every event as it is put, from any thread, and does next to nothing; `judge` runs in the training
thread at a border, a few times a second at most. The exact verdicts at the end are `targets.judge`'s.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from trainer_backend.config import RunConfig
from trainer_backend.goals import MEASURED, Target, targets_of
from trainer_backend.protocol import (
    AnyEvent,
    DeviceSampled,
    EvaluationMeasured,
    HostSampled,
    OptimizerStepMeasured,
    TargetJudged,
    Warned,
)
from trainer_backend.trainer.metric_history import MetricHistory, values_of

GIB: Final = 2**30
JOULES_PER_KWH: Final = 3.6e6
SECONDS_PER_HOUR: Final = 3600.0
FIRST_STEPS: Final = 2
"""Not counted: they compile, fill caches and start loader workers."""
ENOUGH_STEPS: Final = 20
Verdict: TypeAlias = Literal["met", "missed", "unknown"]
LOOK_S: Final = 0.25
AGAIN_S: Final = 20.0
"""Time between two verdicts that say the same with another number."""
MOVED: Final = 0.01


class Quantiles:
    """Any quantile of positive numbers, to half a per cent, in constant time a number."""

    BASE: Final = math.log(1.005)

    def __init__(self) -> None:
        self.count = 0
        self._counts: dict[int, int] = {}

    def add(self, value: float) -> None:
        """Take a number."""
        if value > 0 and math.isfinite(value):
            place = round(math.log(value) / self.BASE)
            self._counts[place] = self._counts.get(place, 0) + 1
            self.count += 1

    def at(self, share: float) -> float | None:
        """The value below which this share of them lies; None without any."""
        left = max(1, math.ceil(share * self.count))
        for place in sorted(self._counts):
            left -= self._counts[place]
            if left <= 0:
                return math.exp(place * self.BASE)
        return None


class Spent(NamedTuple):
    """What earlier attempts took."""

    seconds: float = 0.0
    joules: float | None = None


class QuantityNow(NamedTuple):
    """What is known of a quantity now."""

    reached: float | None
    measurements: int
    is_enough: bool = True
    expected: float | None = None
    """Of a sum: at the run's end."""


class Gates:
    """The targets of one attempt."""

    def __init__(
        self,
        config: RunConfig,
        put: Callable[[AnyEvent], None],
        *,
        samples_per_epoch: int | None = None,
        overridden: frozenset[str] | set[str] = frozenset(),
        spent: Spent | None = None,
    ) -> None:
        self._config = config
        self._put = put
        self._targets = targets_of(config.targets)
        self._samples_per_epoch = samples_per_epoch
        self._spent = spent or Spent()
        self._began_s = time.monotonic()
        self._looked_s = -math.inf
        self._steps = 0
        self._duration, self._throughput = Quantiles(), Quantiles()
        self._peak_bytes: dict[str, int] = {}
        self._joules: dict[int, float] = {}
        self._values: dict[str, float] = {}
        self._evaluations = 0
        self._evaluated_at = 0
        self._reached = (0, 0)
        """Samples and updates."""
        self._told: dict[tuple[str, str], tuple[TargetJudged, float]] = {}
        self._unmeasured: set[str] = set()
        self.overridden = set(overridden)
        self.open: Target | None = None
        """The target whose miss has paused the run and waits for an answer."""
        self.cause = ""
        """The target because of which the run is about to go back; empty where it is another's wish."""
        self.rolled_back: set[str] = set()
        """Targets for which the run went back once."""

    def __bool__(self) -> bool:
        return bool(self._targets)

    # ------------------------------------------------------------------------------- taking

    def see(self, event: AnyEvent) -> None:
        """Take an event. Any thread; what is read meanwhile is at worst one event old."""
        match event:
            case OptimizerStepMeasured():
                self._steps += 1
                self._reached = event.samples_seen, event.updates
                if self._steps > FIRST_STEPS:
                    self._duration.add(event.duration_s)
                    self._throughput.add(event.samples_per_s)
            case DeviceSampled():
                self._peak("device", event.torch_reserved_peak_bytes)
                if event.energy_joules is not None:
                    self._joules[event.device] = event.energy_joules
            case HostSampled():
                self._peak("host", event.process_rss_bytes)
            case EvaluationMeasured():
                self._values = values_of(event)
                self._evaluated_at = event.samples_seen
                self._evaluations += 1
                self._looked_s = -math.inf
            case _:
                pass

    def _peak(self, where: str, size_bytes: int | None) -> None:
        if size_bytes is not None and size_bytes > self._peak_bytes.get(where, 0):
            self._peak_bytes[where] = size_bytes

    # ------------------------------------------------------------------------------- judging

    def judge(self, step: int, samples_seen: int) -> list[Target]:
        """Tell what has changed; gives the targets that were missed just now and are not overridden."""
        now = time.monotonic()
        if not self._targets or now - self._looked_s < LOOK_S:
            return []
        self._looked_s = now
        self._warn_of_unmeasured()
        missed = []
        for target in self._targets:
            fact = self._judged(target, step, samples_seen)
            place = (target.key, target.bound)
            before = self._told.get(place)
            is_new_miss = fact.verdict == "missed" and (before is None or before[0].verdict != "missed")
            acts = is_new_miss and not fact.overridden
            if before is None or before[0].verdict != fact.verdict or self._has_moved(before, fact, now):
                self._told[place] = fact, now
                self._put(msgspec.structs.replace(fact, acted=acts))
            if acts:
                missed.append(target)
        return missed

    @staticmethod
    def _has_moved(before: tuple[TargetJudged, float], fact: TargetJudged, now: float) -> bool:
        then, told_s = before
        if fact.reached is None or then.reached is None:
            return then.reached is not fact.reached
        return now - told_s >= AGAIN_S and abs(fact.reached - then.reached) > MOVED * abs(then.reached)

    def _judged(self, target: Target, step: int, samples_seen: int) -> TargetJudged:
        found = self._found(target.metric)
        return TargetJudged(
            step=step,
            samples_seen=samples_seen,
            key=target.key,
            bound=target.bound,
            target=target.limit,
            reached=found.reached,
            verdict=self._verdict(target, found),
            act=target.act,
            measurements=found.measurements,
            expected=found.expected,
            overridden=target.key in self.overridden,
        )

    def _verdict(self, target: Target, found: QuantityNow) -> Verdict:
        if found.reached is None or not found.is_enough:
            return "unknown"
        if is_met(target, found.reached):
            return "unknown" if target.metric in _SUMS else "met"
        is_evaluated = target.metric not in MEASURED
        if target.by_sample is not None:
            at = self._evaluated_at if is_evaluated else self._reached[0]
            return "missed" if at >= target.by_sample else "unknown"
        return "unknown" if is_evaluated else "missed"  # it may still be reached by the end

    def _found(self, metric: str) -> QuantityNow:
        match metric:
            case "peak_memory":
                return self._peak_memory()
            case "step_time":
                return self._step_time(0.5)
            case "step_time_p95":
                return self._step_time(0.95)
            case "throughput":
                return self._median_throughput()
            case "cost":
                return self._energy()
            case "money":
                return self._money()
            case "time_to_finish":
                return self._sum(self._hours())
            case _:
                name = "loss" if metric == "validation_loss" else metric
                return QuantityNow(self._values.get(name), self._evaluations)

    def _step_time(self, share: float) -> QuantityNow:
        count = self._duration.count
        return QuantityNow(self._duration.at(share), count, count >= ENOUGH_STEPS)

    def _median_throughput(self) -> QuantityNow:
        count = self._throughput.count
        return QuantityNow(self._throughput.at(0.5), count, count >= ENOUGH_STEPS)

    def _peak_memory(self) -> QuantityNow:
        peak = self._peak_bytes.get("device", self._peak_bytes.get("host"))
        return QuantityNow(None if peak is None else peak / GIB, self._steps, self._steps > FIRST_STEPS)

    def _hours(self) -> float:
        return (self._spent.seconds + time.monotonic() - self._began_s) / SECONDS_PER_HOUR

    def _energy(self) -> QuantityNow:
        kwh = self._kwh()
        return QuantityNow(None, 0) if kwh is None else self._sum(kwh)

    def _kwh(self) -> float | None:
        if not self._joules and self._spent.joules is None:
            return None
        return (sum(list(self._joules.values())) + (self._spent.joules or 0.0)) / JOULES_PER_KWH

    def _money(self) -> QuantityNow:
        prices, hours, kwh = self._config.prices, self._hours(), self._kwh()
        if prices.per_kwh is not None and kwh is None:
            return QuantityNow(None, 0)
        return self._sum((prices.per_hour or 0.0) * hours + (prices.per_kwh or 0.0) * (kwh or 0.0))

    def _sum(self, value: float) -> QuantityNow:
        """A sum that grows evenly: what it comes to is told once a little of the run is done."""
        done = self._done_ratio()
        is_known = done is not None and self._steps >= ENOUGH_STEPS
        return QuantityNow(value, self._steps, expected=value / done if is_known and done else None)

    def _done_ratio(self) -> float | None:
        run, (samples, updates) = self._config.run, self._reached
        if run.max_optimizer_steps is not None:
            return updates / run.max_optimizer_steps
        if run.max_samples is not None:
            return samples / run.max_samples
        if run.epochs is not None and self._samples_per_epoch:
            return samples / (run.epochs * self._samples_per_epoch)
        return None

    def _warn_of_unmeasured(self) -> None:
        """A metric that the first evaluation did not bring will not come."""
        if not self._evaluations:
            return
        for target in self._targets:
            name = "loss" if target.metric == "validation_loss" else target.metric
            if target.metric in MEASURED or name in self._values or name in self._unmeasured:
                continue
            self._unmeasured.add(name)
            known = ", ".join(sorted(self._values)) or "nothing"
            self._put(Warned(code="target-not-measured", values={"name": name, "known": known}))


_SUMS: Final = frozenset({"cost", "money", "time_to_finish"})


def is_met(target: Target, reached: float) -> bool:
    """Whether a value keeps a target's bound; NaN does not."""
    return reached >= target.limit if target.bound == "at-least" else reached <= target.limit


def watching(put: Callable[[AnyEvent], None], see: Callable[[AnyEvent], None]) -> Callable[[AnyEvent], None]:
    """`put`, with a look at each event on its way."""

    def put_and_see(event: AnyEvent) -> None:
        put(event)
        see(event)

    return put_and_see


class Goals(NamedTuple):
    """What a run is held to, and whether it still gets better."""

    gates: Gates
    evaluations: MetricHistory


def goals_of(config: RunConfig, put: Callable[[AnyEvent], None]) -> Goals:
    """Of a run that begins."""
    return Goals(Gates(config, put), MetricHistory(config.early_stopping))
