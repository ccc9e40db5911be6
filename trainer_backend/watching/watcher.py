"""What is watched in a run, and the alerts that come of it. Takes measurements in order; pure Python.

    watcher = Watcher()
    for alert in watcher.take_step(measured):
        put(alert)

Every limit is relative to what was usual in this run, and is moved or learnt anew when N changes.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from trainer_backend.noise_scale import NoiseEstimate
from trainer_backend.protocol import AlertRaised, DeviceSampled, HostSampled, OptimizerStepMeasured, Scalar
from trainer_backend.watching.drifts import Against, Drift, DriftDetector
from trainer_backend.watching.levels import Level, Spread
from trainer_backend.watching.spikes import SpikeDetector

QUIET_WINDOWS: Final = 25
"""Windows after a spike in which the same quantity raises no other alert."""
WAIT_SHARE: Final = 0.2
"""Share of the time that waiting for data may take."""
WAIT_PACE: Final = 1 / 64
WAIT_WINDOWS: Final = 128
UPDATE_RATIO: Final = 0.1
"""Size of an update over that of its weights that is too large once training has settled."""
UPDATE_MEASURES: Final = 12
"""Measurements before it counts; half as many must agree."""
MIB: Final = 2**20
SLOWING: Final = 0x8 | 0x20 | 0x40 | 0x80
"""NVML's reasons that slow a GPU down for heat or a fault; its power cap (0x4) is everyday."""
SLOWED_READINGS: Final = 60


class Watcher:
    """Watches one attempt at a run. `take_step` and `take_reading` may be called from two threads."""

    def __init__(self, *, by_tokens: bool = False) -> None:
        self._by_tokens = by_tokens
        """Whether windows end at a number of tokens: a shorter one is then as usual as any other."""
        self._loss, self._norm = SpikeDetector(), SpikeDetector()
        self._loss_drift = DriftDetector(Against.LOWEST, least=0.06)
        self._norm_drift = DriftDetector(Against.BEFORE, least=0.06)
        self._time_drift = DriftDetector(Against.FIRST, least=0.06, again=True)
        self._memory_drift = DriftDetector(Against.FIRST, least=0.1, floor=100.0 * MIB, again=True)
        self._spread = Spread()
        self._wait = Level(WAIT_SHARE, WAIT_PACE, WAIT_WINDOWS)
        self._slowed = Level(0.5, 1 / SLOWED_READINGS, SLOWED_READINGS)
        self._shape: tuple[int, int] | None = None
        """N and samples a micro-batch of the window before."""
        self._quiet_until: dict[str, int] = {}
        self._ratios: deque[float] = deque(maxlen=UPDATE_MEASURES // 2)
        self._ratios_seen = 0
        self._is_large = False
        self._place = (0, 0)
        """Step and samples of the newest window, for alerts about readings too."""

    # ----------------------------------------------------------------------------- windows

    def take_step(
        self,
        event: OptimizerStepMeasured,
        *,
        micro_batch_size: int | None = None,
        noise: NoiseEstimate | None = None,
    ) -> list[AlertRaised]:
        """One window more.

        `micro_batch_size`: as it was asked for (a window may run smaller ones, or end with a short one).
        `noise`: the noise scale as far as it is known.
        """
        step = event.step
        self._place = (step, event.samples_seen)
        is_short = event.micro_batches < event.accumulation_steps and not self._by_tokens
        if event.skipped or is_short:
            return []  # a skipped one is told by itself; a short tail is another kind of window
        shape = (event.accumulation_steps, micro_batch_size or event.micro_batch_size)
        if self._shape is not None and shape != self._shape:
            self._rebase(self._shape, shape, noise)
        self._shape = shape
        found: list[AlertRaised | None] = []
        if event.loss is not None and math.isfinite(event.loss):
            found += [
                self._spiked("loss-spike", self._loss, event.loss),
                self._drifted("loss-drift", self._loss_drift.take(event.loss, step)),
            ]
        if event.gradient_norm is not None and math.isfinite(event.gradient_norm):
            found += [
                self._spiked("gradient-spike", self._norm, event.gradient_norm),
                self._drifted("gradient-drift", self._norm_drift.take(event.gradient_norm, step)),
            ]
        found += self._timed(event)
        return [alert for alert in found if alert is not None]

    def _timed(self, event: OptimizerStepMeasured) -> list[AlertRaised | None]:
        """Step time, its spread, and the share of it that waits for data."""
        working_s = event.duration_s - event.data_wait_s
        slower = self._drifted("step-time-drift", self._time_drift.take(working_s, event.step))
        spread = self._drifted("step-time-spread", self._spread.take(working_s, event.step))
        share = event.data_wait_s / event.duration_s if event.duration_s > 0 else 0.0
        waits = None
        if self._wait.take(share, event.step):
            waits = self._alert("data-wait", self._wait.since, self._wait.mean, WAIT_SHARE)
        return [slower, spread, waits]

    def _spiked(self, code: str, detector: SpikeDetector, value: float) -> AlertRaised | None:
        spike = detector.take(value)
        if spike is None:
            return None
        step = self._place[0]
        is_quiet = step < self._quiet_until.get(code, 0)
        self._quiet_until[code] = step + QUIET_WINDOWS
        if is_quiet:
            return None
        return self._alert(code, step, value, spike.usual, {"deviations": round(spike.times, 1)})

    def _drifted(self, code: str, drift: Drift | None) -> AlertRaised | None:
        if drift is None:
            return None
        percent = 100.0 * (drift.level - drift.before) / abs(drift.before) if drift.before else math.inf
        return self._alert(code, drift.since, drift.level, drift.before, {"percent": round(percent, 1)})

    def _alert(
        self, code: str, since: int, value: float, usual: float | None, more: dict[str, Scalar] | None = None
    ) -> AlertRaised:
        step, samples = self._place
        return AlertRaised(
            code=code, step=step, since_step=since, samples_seen=samples, value=value, usual=usual,
            values=more or {},
        )  # fmt: skip

    def _rebase(self, before: tuple[int, int], after: tuple[int, int], noise: NoiseEstimate | None) -> None:
        """Another N: noise of loss and norm shrinks by sqrt(B / B'); the norm's mean by rho, if it is known.

        rho^2 = (|G|^2 + tr(Sigma) / B') / (|G|^2 + tr(Sigma) / B).
        """
        old, new = before[0] * before[1], after[0] * after[1]
        shrink = math.sqrt(old / new)
        self._loss.rescale(1.0, shrink)
        if noise is not None and noise.value is not None:
            rho = math.sqrt((1.0 + noise.value / new) / (1.0 + noise.value / old))
            self._norm.rescale(rho, rho * shrink)
        else:
            self._norm = SpikeDetector()
        self._norm_drift.rebase()
        self._time_drift.rebase()
        self._spread = Spread()
        if before[1] != after[1]:
            self._memory_drift.rebase()

    # --------------------------------------------------------- what is measured now and then

    def take_update_ratio(self, ratio: float) -> list[AlertRaised]:
        """The largest size of an update over that of its weights, of some tensors; every n-th window."""
        self._ratios_seen += 1
        self._ratios.append(ratio)
        if self._ratios_seen < UPDATE_MEASURES:
            return []
        least = min(self._ratios)
        if least > UPDATE_RATIO and not self._is_large:
            self._is_large = True
            return [self._alert("update-large", self._place[0], least, UPDATE_RATIO)]
        self._is_large = self._is_large and least > UPDATE_RATIO / 2
        return []

    def take_unreached(self, names: tuple[str, ...], of: int) -> list[AlertRaised]:
        """Parameters that no window so far gave a gradient, by name; asked for once."""
        if not names:
            return []
        more: dict[str, Scalar] = {"count": len(names), "of": of, "first": names[0]}
        return [self._alert("no-gradient", 1, float(len(names)), None, more)]

    def take_reading(self, event: HostSampled | DeviceSampled) -> list[AlertRaised]:
        """One reading of the machine or of a device more."""
        if isinstance(event, DeviceSampled):
            return self._take_device(event)
        used = (event.process_rss_bytes or 0) + (event.workers_rss_bytes or 0)
        drift = self._memory_drift.take(float(used), self._place[0]) if used else None
        alert = self._drifted("memory-growth", drift)
        return [] if alert is None else [alert]

    def _take_device(self, event: DeviceSampled) -> list[AlertRaised]:
        if event.slowed_by is None:
            return []
        if not self._slowed.take(float(event.slowed_by & SLOWING != 0), self._place[0]):
            return []
        more: dict[str, Scalar] = {"device": event.device, "temperature": event.temperature_celsius}
        return [self._alert("gpu-slowed", self._slowed.since, self._slowed.mean, None, more)]
