"""Figures that the header and the panels show, from a store's data. Pure; every unknown is None.

Speed and time left come from this attempt's own windows: rates after a resume do not count steps from
before it, and pauses are in no window's duration.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from gradacc_gui.store import RunStore
from gradacc_gui.store.columns import Track
from trainer_backend.protocol import (
    DeviceSampled,
    Event,
    HostSampled,
    MicroBatchMeasured,
    OptimizerStepMeasured,
    RunStarted,
)
from trainer_backend.run_facts import RunState

RECENT_WINDOWS: Final = 25
"""Windows whose median is the speed: enough to be calm, few enough to follow a changed N."""
RECENT_MICRO_BATCHES: Final = 50


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """How fast the run is now."""

    samples_per_s: float
    tokens_per_s: float


class WindowProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Where in the optimizer step the run is."""

    step: int
    """The window that is open; of a run that is over, the last one."""
    done: int
    """Its micro-batches that are done; the next one, by its place from 0, is running."""
    total: int
    """N of that window."""


class RunProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far the run is."""

    ratio: float | None
    """0 … 1, never more; None when the run has no end."""
    last_step: int | None
    """The optimizer step at which the run will end, with N as it is; None when it has no end."""
    samples_left: float | None


class MemoryLine(msgspec.Struct, frozen=True, kw_only=True):
    """One of the memory figures that are often mistaken for one another."""

    code: str
    """torch-allocated | torch-reserved | process | device, or process-rss | host on a CPU."""
    used_bytes: int | None
    peak_bytes: int | None = None


class MemoryFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of the device that trains (of the machine, on a CPU)."""

    lines: tuple[MemoryLine, ...]
    total_bytes: int | None


class Headline(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of the header: place in the run, effective batch, rates, time left; None is unknown."""

    state: RunState
    phase: str
    name: str
    micro_batch_size: int | None
    accumulation_steps: int | None
    world_size: int | None
    effective_batch: int | None
    strip: WindowProgress | None
    speed: Speed | None
    elapsed_s: float
    left_s: float | None
    progress: RunProgress


def effective_batch(micro_batch_size: int, accumulation_steps: int, world_size: int) -> int:
    """Samples of one optimizer step."""
    return micro_batch_size * accumulation_steps * world_size


def speed_of(durations_s: Sequence[float], samples: Sequence[float], tokens: Sequence[float]) -> Speed | None:
    """The median rate of windows (or micro-batches); None without one that took time.

    A median, so that one slow window (an evaluation, a swapped-out machine) does not shake it.
    """
    rows = [row for row in zip(durations_s, samples, tokens, strict=True) if row[0] > 0]
    if not rows:
        return None
    return Speed(
        samples_per_s=statistics.median(count / duration_s for duration_s, count, _ in rows),
        tokens_per_s=statistics.median(count / duration_s for duration_s, _, count in rows),
    )


def window_strip(
    step: OptimizerStepMeasured | None,
    micro: MicroBatchMeasured | None,
    micro_batches: int,
    *,
    from_step: int = 0,
    over: bool = False,
) -> WindowProgress:
    """Which micro-batch of which window is running, from the newest of each measurement.

    `micro_batches`: how many a whole window has, over all ranks.
    """
    closed = max(step.step if step is not None else 0, from_step)
    if micro is not None and micro.step > closed:
        done = micro.index + 1
        return WindowProgress(step=micro.step, done=done, total=max(micro_batches, done))
    if over:
        total = step.micro_batches if step is not None else 0
        return WindowProgress(step=closed, done=total, total=total)
    return WindowProgress(step=closed + 1, done=0, total=micro_batches)


class Length(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds a run: samples, optimizer steps, or both; how its epochs end."""

    max_samples: int | None = None
    max_optimizer_steps: int | None = None
    samples_per_epoch: int | None = None
    """Where an epoch's last window may be short; None when all windows are alike."""


def length_of(started: RunStarted, *, epochs: int | None = None, tail: str = "step") -> Length:
    """The bounds that the trainer stated; `epochs` and `tail`: the recipe's, for runs that count epochs."""
    per_epoch = started.samples_per_epoch
    by_epochs = epochs * per_epoch if epochs is not None and per_epoch is not None else None
    return Length(
        max_samples=started.max_samples or by_epochs,
        max_optimizer_steps=started.max_optimizer_steps,
        samples_per_epoch=per_epoch if tail == "step" else None,
    )


def steps_until(end: int, *, seen: int, window_samples: float, samples_per_epoch: int | None) -> int:
    """Optimizer steps from `seen` samples, a window's border, to the one that reaches `end`.

    With `samples_per_epoch` each epoch ends with a window of its own, short or whole.
    """
    if window_samples <= 0 or seen >= end:
        return 0
    if not samples_per_epoch:
        return math.ceil((end - seen) / window_samples)
    steps, at = 0, seen % samples_per_epoch
    if at and seen - at + samples_per_epoch < end:
        steps += math.ceil((samples_per_epoch - at) / window_samples)
        seen, at = seen - at + samples_per_epoch, 0
    whole, rest = divmod(end - seen, samples_per_epoch) if not at else (0, end - seen)
    return steps + whole * math.ceil(samples_per_epoch / window_samples) + math.ceil(rest / window_samples)


def progress_of(
    started: RunStarted,
    length: Length,
    step: OptimizerStepMeasured | None,
    *,
    samples_seen: int,
    window_samples: float,
    finished: bool = False,
) -> RunProgress:
    """How far the run is on whichever of its limits comes first; `window_samples` is the effective batch.

    `last_step` is counted from the newest window's border, so that it does not change within a window.
    """
    steps_done = step.step if step is not None else started.from_step
    if finished:
        return RunProgress(ratio=1.0, last_step=steps_done, samples_left=0.0)
    updates = step.updates if step is not None else started.from_step
    border = step.samples_seen if step is not None else started.from_samples
    shares: list[float] = []
    left: list[float] = []
    steps_left: list[int] = []
    if length.max_samples:
        shares.append(samples_seen / length.max_samples)
        left.append(length.max_samples - samples_seen)
        steps_left.append(
            steps_until(
                length.max_samples,
                seen=border,
                window_samples=window_samples,
                samples_per_epoch=length.samples_per_epoch,
            )
        )
    if length.max_optimizer_steps:
        shares.append(updates / length.max_optimizer_steps)
        steps_left.append(max(0, length.max_optimizer_steps - updates))
        left.append(steps_left[-1] * window_samples - max(0, samples_seen - border))
    if not left:
        return RunProgress(ratio=None, last_step=None, samples_left=None)
    return RunProgress(
        ratio=min(1.0, max(shares)),
        last_step=steps_done + min(steps_left),
        samples_left=max(0.0, min(left)),
    )


def left_s(samples_left: float | None, speed: Speed | None) -> float | None:
    """Seconds until the end at this speed; None when there is no end or no speed yet."""
    if samples_left is None or speed is None or speed.samples_per_s <= 0:
        return None
    return samples_left / speed.samples_per_s


def memory_of(device: DeviceSampled | None, host: HostSampled | None) -> MemoryFigures:
    """The lines to tell apart: four of a GPU, or process and machine when there is none."""
    if device is not None:
        return MemoryFigures(
            lines=(
                MemoryLine(
                    code="torch-allocated",
                    used_bytes=device.torch_allocated_bytes,
                    peak_bytes=device.torch_allocated_peak_bytes,
                ),
                MemoryLine(
                    code="torch-reserved",
                    used_bytes=device.torch_reserved_bytes,
                    peak_bytes=device.torch_reserved_peak_bytes,
                ),
                MemoryLine(code="process", used_bytes=device.process_memory_bytes),
                MemoryLine(code="device", used_bytes=device.memory_used_bytes),
            ),
            total_bytes=device.memory_total_bytes,
        )
    if host is not None:
        return MemoryFigures(
            lines=(
                MemoryLine(code="process-rss", used_bytes=host.process_rss_bytes),
                MemoryLine(code="host", used_bytes=host.host_memory_used_bytes),
            ),
            total_bytes=host.host_memory_total_bytes,
        )
    return MemoryFigures(lines=(), total_bytes=None)


# ------------------------------------------------------------------------- from a whole store


def store_speed(store: RunStore) -> Speed | None:
    """This attempt's speed: its newest windows, or its first micro-batches before a window is complete."""
    track, own = _own_rows(store, OptimizerStepMeasured, RECENT_WINDOWS)
    durations, samples, tokens = (
        track.tail(name, RECENT_WINDOWS)[own].tolist() for name in ("duration_s", "samples", "tokens")
    )
    return speed_of(durations, samples, tokens) or _first_speed(store)


def _first_speed(store: RunStore) -> Speed | None:
    """Of the newest micro-batches: what each had is what was seen after it less what was before."""
    rows = RECENT_MICRO_BATCHES
    track, own = _own_rows(store, MicroBatchMeasured, rows)
    durations, samples_seen, tokens_seen = (
        track.tail(name, rows)[own] for name in ("duration_s", "samples_seen", "tokens_seen")
    )
    started = store.started
    if started is not None and len(durations) < rows:  # the attempt's first is among them
        samples_seen = np.concatenate(([started.from_samples], samples_seen))
        tokens_seen = np.concatenate(([started.from_tokens], tokens_seen))
    else:
        durations = durations[1:]
    return speed_of(durations.tolist(), np.diff(samples_seen).tolist(), np.diff(tokens_seen).tolist())


def _own_rows(store: RunStore, kind: type[Event], rows: int) -> tuple[Track, npt.NDArray[np.bool_]]:
    """A measurement's track, and which of its newest rows this attempt made."""
    track = store.track(kind)
    began = store.started.from_step if store.started is not None else 0
    return track, (track.tail("step", rows) > began) & (track.tail("at", rows) >= (store.started_at or 0.0))


def headline(store: RunStore, now: float, *, epochs: int | None = None, tail: str = "step") -> Headline:
    """What the header shows at the wall clock's `now`; `epochs` and `tail` as the recipe states them."""
    started, over = store.started, store.state.is_over
    step: OptimizerStepMeasured | None = store.latest.get(OptimizerStepMeasured)
    micro: MicroBatchMeasured | None = store.latest.get(MicroBatchMeasured)
    speed = store_speed(store)
    if started is None:
        nothing = RunProgress(ratio=None, last_step=None, samples_left=None)
        return Headline(
            state=store.state, phase=store.phase, name="", micro_batch_size=None, accumulation_steps=None,
            world_size=None, effective_batch=None, strip=None, speed=None, elapsed_s=0.0, left_s=None,
            progress=nothing,
        )  # fmt: skip
    n, size = store.accumulation_steps, store.micro_batch_size
    world = store.world_size
    batch = effective_batch(size, n, world)
    seen = max(micro.samples_seen if micro is not None else 0, started.from_samples)
    length = length_of(started, epochs=epochs, tail=tail)
    finished = store.state is RunState.FINISHED
    progress = progress_of(started, length, step, samples_seen=seen, window_samples=batch, finished=finished)
    return Headline(
        state=store.state, phase=store.phase, name=started.name, micro_batch_size=size, accumulation_steps=n,
        world_size=world, effective_batch=batch,
        strip=window_strip(step, micro, n * world, from_step=started.from_step, over=over), speed=speed,
        elapsed_s=store.active_s(now), left_s=None if over else left_s(progress.samples_left, speed),
        progress=progress,
    )  # fmt: skip
