"""The detectors: silent on healthy runs, not on spikes and drifts; and what they need of a window."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.support.events import optimizer_step
from trainer_backend.noise_scale import NoiseEstimate
from trainer_backend.protocol import AlertRaised, Device, DeviceSampled, HostSampled, Scalar
from trainer_backend.readings.device import NO_TORCH_MEMORY, sampled
from trainer_backend.watching.alert_words import ALERTS, alert_sentence
from trainer_backend.watching.drifts import Against, DriftDetector
from trainer_backend.watching.spikes import LEARNING_LIMIT, SpikeDetector, limit_for
from trainer_backend.watching.watcher import Watcher

Noise = Callable[[np.random.Generator, int], "np.ndarray[Any, Any]"]
NOISES: dict[str, Noise] = {
    "gaussian": lambda rng, n: rng.standard_normal(n),
    "t3": lambda rng, n: rng.standard_t(3, n) / math.sqrt(3),
    "lognormal": lambda rng, n: (rng.lognormal(0, 0.5, n) - 1.13) / 0.6,
}
EVENT = optimizer_step()


def values(noise: str, n: int, seed: int, deviation: float = 0.05) -> Iterator[float]:
    """Values around 1."""
    return iter((1 + deviation * NOISES[noise](np.random.default_rng(seed), n)).tolist())


def window(step: int, **fields: Any) -> Any:
    """A window of four micro-batches of eight."""
    return msgspec.structs.replace(EVENT, step=step, samples_seen=32 * step, **fields)


def watched(watcher: Watcher, first: int, many: int, seed: int = 0, **how: Any) -> list[AlertRaised]:
    """Healthy windows `first` … , with these functions of the step in place of some fields."""
    rng = np.random.default_rng(seed)
    found = []
    for step in range(first, first + many):
        z = rng.standard_normal(3)
        fields = {"loss": 2 + 0.1 * z[0], "gradient_norm": 1 + 0.1 * z[1], "duration_s": 0.04 + 4e-4 * z[2]}
        fields |= {name: value(step) for name, value in how.items()}
        found += watcher.take_step(window(step, **fields))
    return found


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("seed", [1, 2])
def test_healthy_noise_of_any_tail_is_no_spike(noise: str, seed: int) -> None:
    """6,000 windows, in whose heavy tails values of 20 deviations are everyday."""
    detector = SpikeDetector()
    assert [value for value in values(noise, 6000, seed) if detector.take(value)] == []


def test_spikes_of_six_to_ten_deviations_are_found() -> None:
    """Above light noise, once its shape is known."""
    rng, detector, found = np.random.default_rng(4), SpikeDetector(), 0
    for place, value in enumerate(values("gaussian", 12_000, 5)):
        if place > 2000 and place % 100 == 0:
            spike = detector.take(1 + 0.05 * rng.uniform(6, 10))
            found += spike is not None and spike.usual == pytest.approx(1.0, abs=0.02)
        else:
            detector.take(value)
    assert found >= 98


def test_a_falling_loss_is_followed() -> None:
    """What is usual does not lag behind: a value of last week's level is a spike."""
    detector = SpikeDetector()
    noise = values("gaussian", 5000, 6, deviation=0.02)
    assert not [s for s, v in enumerate(noise) if detector.take(v + 4 * math.exp(-s / 300))]
    assert detector.take(1.3)


def test_a_new_level_is_learnt_and_not_called_a_spike_for_ever() -> None:
    """Another data set begins: after some windows it is the usual one."""
    detector = SpikeDetector()
    for value in values("gaussian", 3000, 7):
        detector.take(value)
    told = [detector.take(value + 1) is not None for value in values("gaussian", 4000, 8)]
    assert told[0]
    assert sum(told) == 15


def test_limits_rise_as_tails_grow() -> None:
    """And before the shape is known only the extreme counts."""
    ratios = [0.80, 0.785, 0.77, 0.75, 0.72, 0.65, 0.4]
    limits = [limit_for(ratio) for ratio in ratios]
    assert limits == sorted(limits)
    assert limits[0] < 6
    assert limits[-1] == 1000
    assert SpikeDetector().limit() == LEARNING_LIMIT


@pytest.mark.parametrize("against", Against)
@pytest.mark.parametrize("noise", NOISES)
def test_a_rise_of_a_tenth_over_500_windows_is_a_drift_and_no_rise_is_none(
    against: Against, noise: str
) -> None:
    """And it is told about when it began."""
    detector = DriftDetector(against, least=0.06)
    assert not [v for s, v in enumerate(values(noise, 10_000, 9)) if detector.take(v, s)]
    drifts = [
        (step, drift)
        for step, value in enumerate(values(noise, 1000, 10), 10_000)
        if (drift := detector.take(value * (1 + 0.1 * min(1, (step - 10_000) / 500)), step))
    ]
    ((step, drift),) = drifts
    assert step < 10_000 + 650
    assert 10_000 <= drift.since < step
    assert drift.before == pytest.approx(1.0, abs=0.05)


def test_a_drift_that_came_back_may_be_told_again() -> None:
    """Up, down, up."""
    detector = DriftDetector(Against.FIRST, least=0.06)
    levels = [1.0] * 1000 + [1.2] * 1000 + [1.0] * 1000 + [1.2] * 1000
    noise = values("gaussian", 4000, 11, deviation=0.02)
    found = [s for s, (level, v) in enumerate(zip(levels, noise, strict=True)) if detector.take(level * v, s)]
    assert len(found) == 2


def test_a_healthy_run_raises_no_alert_also_when_n_changes() -> None:
    """Step times jump with N, norm and noise shrink; nothing of it is a fault."""
    watcher, rng = Watcher(), np.random.default_rng(12)
    found, n = [], 4
    for step in range(1, 6001):
        n = {2000: 16, 4000: 2}.get(step, n)
        z, shrink = rng.standard_normal(3), math.sqrt(4 / n)
        found += watcher.take_step(
            window(
                step, loss=2 + 3 * math.exp(-step / 300) + 0.1 * z[0] * shrink, accumulation_steps=n,
                gradient_norm=math.sqrt(1 + 4 / n) * (1 + 0.1 * z[1] * shrink), micro_batches=n,
                duration_s=0.01 * n * (1 + 0.02 * abs(z[2])) + 0.004,
            ),
            noise=NoiseEstimate(
                windows=50, value=32.0, low=20.0, high=40.0, trace=32.0, squared_gradient=1.0
            ),
        )  # fmt: skip
    assert found == []


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        ("loss-spike", {"loss": 3.5}),
        ("gradient-spike", {"gradient_norm": 5.0}),
    ],
)
def test_a_spike_is_one_alert_with_what_is_usual(code: str, fields: dict[str, float]) -> None:
    """A second one right behind it is not told."""
    watcher = Watcher()
    assert watched(watcher, 1, 3000) == []
    (alert,) = watcher.take_step(window(3001, **fields))
    assert (alert.code, alert.step, alert.since_step) == (code, 3001, 3001)
    assert alert.value == next(iter(fields.values()))
    assert alert.usual == pytest.approx(2.0 if code == "loss-spike" else 1.0, abs=0.05)
    assert watcher.take_step(window(3002, **fields)) == []


@pytest.mark.parametrize(
    ("code", "name", "value"),
    [
        ("loss-drift", "loss", lambda step: 2.0 * (1 + 1e-4 * max(0, step - 2000))),
        ("gradient-drift", "gradient_norm", lambda step: 1.0 + 3e-4 * max(0, step - 2000)),
        ("step-time-drift", "duration_s", lambda step: 0.04 if step < 2000 else 0.05),
        ("step-time-spread", "duration_s", lambda step: 0.1 if step > 2000 and step % 10 == 0 else 0.04),
        ("data-wait", "data_wait_s", lambda step: 0.0 if step < 2000 else 0.012),
    ],
)
def test_each_slow_fault_is_told_once_with_its_beginning(
    code: str, name: str, value: Callable[[int], float]
) -> None:
    """Within a thousand windows of its beginning."""
    found = watched(Watcher(), 1, 3200, seed=13, **{name: value})
    (alert,) = [alert for alert in found if alert.code == code]
    assert 1900 <= alert.since_step <= alert.step <= 3200
    assert {alert.code for alert in found} <= {code, "step-time-drift"}


def test_short_and_skipped_windows_are_not_judged() -> None:
    """An epoch's tail is another kind of window; a skipped one is told by itself."""
    watcher = Watcher()
    watched(watcher, 1, 3000)
    assert watcher.take_step(window(3001, loss=9.0, micro_batches=1)) == []
    assert watcher.take_step(window(3001, loss=9.0, skipped="non-finite")) == []
    assert watcher.take_step(window(3001, loss=math.nan, gradient_norm=None)) == []


def host(rss: float) -> HostSampled:
    """A reading of this process's memory, in GiB."""
    return HostSampled(
        process_rss_bytes=int(rss * 2**30), workers_rss_bytes=0, host_memory_used_bytes=None,
        host_memory_total_bytes=None, process_cpu_percent=None, host_cpu_percent=None,
    )  # fmt: skip


def test_growing_memory_is_told_again_as_it_grows_on() -> None:
    """A leak of 1 MB a reading; caches that fill at first are none."""
    watcher = Watcher()
    level = [watcher.take_reading(host(2 - math.exp(-place / 20))) for place in range(1500)]
    assert not any(level)
    leak = [watcher.take_reading(host(2 + place / 1000)) for place in range(1500)]
    alerts = [alert for found in leak for alert in found]
    assert [alert.code for alert in alerts] == ["memory-growth"] * len(alerts)
    assert 3 <= len(alerts) <= 8
    assert "GiB" in alert_sentence(alerts[0])


@pytest.mark.parametrize(("bits", "told"), [(0x40, 1), (0x8, 1), (0x4, 0), (0x1, 0), (None, 0)])
def test_a_gpu_slowed_by_heat_or_a_fault_is_told_and_its_power_cap_is_not(
    bits: int | None, told: int
) -> None:
    """The cap is everyday on a card at full load."""
    watcher = Watcher()
    device = Device(index=0, kind="cuda", name="GPU")

    def reading(slowed_by: int | None) -> DeviceSampled:
        return sampled(device, NO_TORCH_MEMORY, temperature_celsius=91.0, slowed_by=slowed_by)

    assert not any(watcher.take_reading(reading(0)) for _ in range(100))
    alerts = [alert for _ in range(200) for alert in watcher.take_reading(reading(bits))]
    assert [alert.code for alert in alerts] == ["gpu-slowed"] * told


def test_updates_that_stay_large_are_told_and_large_first_ones_are_not() -> None:
    """Weights that begin at 0 change by all of themselves."""
    watcher = Watcher()
    assert not any(watcher.take_update_ratio(ratio) for ratio in [1.0] * 8 + [0.001] * 30)
    alerts = [alert for _ in range(20) for alert in watcher.take_update_ratio(0.3)]
    assert [alert.code for alert in alerts] == ["update-large"]


def test_every_alert_has_a_sentence_that_says_since_when_or_where() -> None:
    """No blank is left in any of them."""
    more: dict[str, Scalar] = {
        "percent": 12.0,
        "deviations": 7.1,
        "device": 0,
        "temperature": 90.0,
        "count": 2,
        "of": 9,
        "first": "w",
    }
    for code in ALERTS:
        alert = AlertRaised(
            code=code, step=1200, since_step=900, samples_seen=1, value=0.5, usual=0.25, values=more
        )
        text = alert_sentence(alert)
        assert "?" not in text
        assert "{" not in text
        assert text.endswith(".")


def test_windows_by_tokens_are_watched_though_they_end_before_n() -> None:
    """Their number of micro-batches is no fault, and a spike among them is one."""
    watcher, rng = Watcher(by_tokens=True), np.random.default_rng(30)
    short = {"micro_batches": 3, "accumulation_steps": 8}
    for step in range(1, 2500):
        loss = 2 + 0.05 * rng.standard_normal()
        assert watcher.take_step(window(step, loss=loss, gradient_norm=1.0, duration_s=0.1, **short)) == []
    told = watcher.take_step(window(2500, loss=3.0, gradient_norm=1.0, duration_s=0.1, **short))
    assert [alert.code for alert in told] == ["loss-spike"]
