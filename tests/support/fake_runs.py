"""Plausible runs, written through the real journal: for charts, pictures and benchmarks, without torch.

    run = write_run(folder, Plan(steps=400, n_changes={62: 8, 200: 16}, nan_steps=(90,)))

The wall clock of the events is made up, so that a run of hours is written in a second.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

from trainer_backend.journal import JournalWriter
from trainer_backend.protocol import (
    AccumulationChanged,
    AnyEvent,
    CheckpointSaved,
    CommandAccepted,
    Device,
    DeviceSampled,
    EvaluationMeasured,
    HostSampled,
    MicroBatchMeasured,
    NoiseScaleMeasured,
    NonFiniteSeen,
    OptimizerStepMeasured,
    PhaseEntered,
    RankMeasured,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
    Warned,
)
from trainer_backend.run_directory import RunDirectory

GIB: Final = 1024**3
TOKENS_A_SAMPLE: Final = 128

RECIPE: Final = """\
[run]
name = "{name}"
max_optimizer_steps = {steps}

[task]
kind = "language-model"

[accumulation]
micro_batch_size = 8
gradient_accumulation_steps = {n}

[optimizer]
max_grad_norm = 1.0
"""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a made-up run shall be."""

    name: str = "stdlib-gpt"
    seed: int = 1
    steps: int = 400
    """Optimizer steps written by this attempt."""
    total_steps: int = 2_000
    """Where the run would end."""
    n: int = 4
    n_changes: Mapping[int, int] = {}
    """N from a step on."""
    micro_batch_size: int = 8
    micro_batch_s: float = 0.037
    spike_steps: tuple[int, ...] = ()
    nan_steps: tuple[int, ...] = ()
    infinite_steps: tuple[int, ...] = ()
    evaluate_every: int = 40
    """Steps between evaluations; 0 is never."""
    checkpoint_every: int = 100
    readings_every_s: float = 0.5
    noise_every: int = 0
    """Steps between measurements of the noise scale; 0 is never."""
    gpu: bool = True
    ranks: tuple[float, ...] = ()
    """Of a run on several ranks: how long each computes, as a share of the step."""
    attempt: int = 1
    from_step: int = 0
    began_at: float = 1_780_000_000.0
    end: Literal["", "finished", "stopped", "failed"] = ""


class BackdatedWriter(JournalWriter):
    """A journal writer that takes the wall clock from its caller."""

    def put_at(self, at: float, event: AnyEvent) -> None:
        """Queue an event as if it had happened at `at`."""
        self._queue.put((at, event))


def write_run(folder: Path, plan: Plan | None = None) -> RunDirectory:
    """Make a run directory under `folder` and write a whole attempt into it."""
    plan = plan or Plan()
    run = new_run(folder, plan)
    continue_run(run, plan)
    return run


def new_run(folder: Path, plan: Plan) -> RunDirectory:
    """A run directory with its recipe and no journal."""
    recipe = RECIPE.format(name=plan.name, steps=plan.total_steps, n=plan.n)
    return RunDirectory.create(recipe, name=plan.name, parent=folder)


def continue_run(run: RunDirectory, plan: Plan) -> None:
    """Write one more attempt."""
    writer = BackdatedWriter(run.journal_path, attempt=plan.attempt)
    for at, event in events(plan):
        writer.put_at(at, event)
    writer.close()


def feed(run: RunDirectory, plan: Plan, *, speed: float = 1.0, seconds: float | None = None) -> None:
    """Write an attempt as time passes, `speed` times as fast as the plan says, holding the run's lock."""
    began = time.monotonic()
    with run.locked():
        writer = JournalWriter(run.journal_path, attempt=plan.attempt)
        for at, event in events(plan):
            wait_s = (at - plan.began_at) / speed - (time.monotonic() - began)
            if wait_s > 0:
                time.sleep(wait_s)
            if seconds is not None and time.monotonic() - began > seconds:
                break
            writer.put(event)
        writer.close()


def events(plan: Plan) -> Iterator[tuple[float, AnyEvent]]:
    """Everything an attempt says, with its wall clock."""
    return _Story(plan).tell()


class _Story:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.random = random.Random(plan.seed * 1000 + plan.attempt)  # noqa: S311 - no secret
        self.at = plan.began_at
        self.n = plan.n
        self.samples_seen = 0
        for step in range(1, plan.from_step + 1):
            self.n = plan.n_changes.get(step, self.n)
            self.samples_seen += self.n * plan.micro_batch_size
        self.reading_due = self.at

    def tell(self) -> Iterator[tuple[float, AnyEvent]]:
        plan = self.plan
        yield self.at, PhaseEntered(phase="importing-torch")
        self.at += 2.5
        yield self.at, PhaseEntered(phase="reading-data")
        self.at += 0.6
        yield self.at, PhaseEntered(phase="building-model")
        self.at += 0.2
        yield self.at, self._started()
        if not plan.gpu:
            yield self.at, Warned(code="nvml-library-missing")
        yield self.at, PhaseEntered(phase="training")
        for step in range(plan.from_step + 1, plan.from_step + plan.steps + 1):
            yield from self._window(step)
        yield from self._ending(plan.from_step + plan.steps)

    def _started(self) -> RunStarted:
        plan = self.plan
        gpu = Device(index=0, kind="cuda", name="NVIDIA RTX 4070", uuid="GPU-1", memory_total_bytes=12 * GIB)
        return RunStarted(
            name=plan.name, pid=os.getpid(), host="host",
            versions={"python": "3.12.4", "torch": "2.14.1", "gradacc": "0.1.0"}, commit="",
            devices=(gpu if plan.gpu else Device(index=0, kind="cpu", name="CPU"),), precision="bf16",
            parameters=842_368, micro_batch_size=plan.micro_batch_size, accumulation_steps=self.n,
            world_size=max(1, len(plan.ranks)), micro_batches=self.n if plan.ranks else None,
            hosts=tuple("ab"[rank // 2 % 2] for rank in range(len(plan.ranks))),
            horizon_samples=None, max_samples=None, max_optimizer_steps=plan.total_steps,
            samples_per_epoch=95_000, loss_unit="token", gradient_norm_every=16, from_step=plan.from_step,
            from_samples=self.samples_seen, from_tokens=self.samples_seen * TOKENS_A_SAMPLE,
        )  # fmt: skip

    def _window(self, step: int) -> Iterator[tuple[float, AnyEvent]]:
        plan = self.plan
        if step in plan.n_changes and step > plan.from_step + 1 and plan.n_changes[step] != self.n:
            command_id = f"{step:020d}-n"
            yield self.at, CommandAccepted(command_id=command_id, applies_at_step=step)
            yield self.at, AccumulationChanged(
                command_id=command_id, step=step, before=self.n, after=plan.n_changes[step],
                asked_by="you", asked_at=self.at - 0.2,
            )  # fmt: skip
        self.n = plan.n_changes.get(step, self.n)
        began, losses = self.at, []
        for index in range(self.n):
            losses.append(self._loss(step, noise=0.25))
            yield self._micro_batch(step, index, losses[-1])
            if self.at >= self.reading_due:
                self.reading_due += plan.readings_every_s
                yield from ((self.at, reading) for reading in self._readings(step))
        yield self.at, self._step(step, began, losses)
        yield from ((self.at, measured) for measured in self._ranks(step, self.at - began))
        if plan.noise_every and step % plan.noise_every == 0:
            yield self.at, self._noise(step)
        if not math.isfinite(sum(losses)):
            yield self.at, NonFiniteSeen(
                step=step, index=None, quantity="loss", value=math.nan, policy="skip",
                sample_indices=(), in_a_row=1,
            )  # fmt: skip
        if plan.evaluate_every and step % plan.evaluate_every == 0:
            self.at += 0.8
            yield self.at, EvaluationMeasured(
                step=step, samples_seen=self.samples_seen, tokens_seen=self.samples_seen * TOKENS_A_SAMPLE,
                loss=self._loss(step, noise=0.02) + 0.08, metrics={}, samples=512, duration_s=0.8,
            )  # fmt: skip
        if plan.checkpoint_every and step % plan.checkpoint_every == 0:
            yield self.at, CheckpointSaved(
                command_id=None, step=step, samples_seen=self.samples_seen,
                path=f"checkpoints/step-{step}", size_bytes=10_140_000, duration_s=0.05,
            )  # fmt: skip

    def _loss(self, step: int, noise: float) -> float:
        plan = self.plan
        if step in plan.nan_steps:
            return math.nan
        if step in plan.infinite_steps:
            return math.inf
        value = 1.9 + 3.5 * math.exp(-step / 40) + 0.4 * math.exp(-step / 400)
        spike = 2.5 if step in plan.spike_steps else 0.0
        return max(0.0, value + spike + self.random.gauss(0, noise))

    def _micro_batch(self, step: int, index: int, loss: float) -> tuple[float, AnyEvent]:
        size = self.plan.micro_batch_size
        duration_s = self.plan.micro_batch_s * max(0.5, self.random.gauss(1, 0.05))
        self.at += duration_s
        self.samples_seen += size
        return self.at, MicroBatchMeasured(
            step=step, index=index, samples=size, tokens=size * TOKENS_A_SAMPLE,
            weight=float(size * TOKENS_A_SAMPLE), loss=loss, gradient_norm=None, duration_s=duration_s,
            samples_seen=self.samples_seen, tokens_seen=self.samples_seen * TOKENS_A_SAMPLE,
        )  # fmt: skip

    def _step(self, step: int, began: float, losses: list[float]) -> OptimizerStepMeasured:
        plan, count = self.plan, len(losses)
        loss = sum(losses) / count
        finite = math.isfinite(loss)
        norm = (0.9 + 1.9 * math.exp(-step / 30)) * max(0.2, self.random.gauss(1, 0.12))
        samples = count * plan.micro_batch_size
        duration_s = self.at - began
        warm = min(1.0, step / 40)
        decay = 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, step / plan.total_steps)))
        return OptimizerStepMeasured(
            step=step, updates=step, accumulation_steps=self.n, micro_batches=count,
            micro_batch_size=plan.micro_batch_size, samples=samples, tokens=samples * TOKENS_A_SAMPLE,
            weight=float(samples * TOKENS_A_SAMPLE), loss=loss, gradient_norm=norm if finite else math.nan,
            learning_rate=1e-3 * warm * decay, samples_seen=self.samples_seen,
            tokens_seen=self.samples_seen * TOKENS_A_SAMPLE, duration_s=duration_s, data_wait_s=0.001,
            samples_per_s=samples / duration_s, tokens_per_s=samples * TOKENS_A_SAMPLE / duration_s,
            loss_scale=None, skipped="" if finite else "non-finite",
        )  # fmt: skip

    def _ranks(self, step: int, step_s: float) -> Iterator[RankMeasured]:
        """The rank that computes longest waits for nobody."""
        shares, longest = self.plan.ranks, max(self.plan.ranks, default=0.0)
        for rank, share in enumerate(shares):
            yield RankMeasured(
                step=step, rank=rank, samples_seen=self.samples_seen,
                tokens_seen=self.samples_seen * TOKENS_A_SAMPLE,
                micro_batches=self.n // len(shares) + (rank < self.n % len(shares)),
                computed_s=step_s * share, waited_s=step_s * (longest - share) + 0.01 * step_s,
                memory_bytes=int((4.1 + 0.1 * rank) * GIB), memory_total_bytes=12 * GIB,
            )  # fmt: skip

    def _noise(self, step: int) -> NoiseScaleMeasured:
        """Rising as a run trains, its interval narrowing."""
        scale, windows = 30.0 + 60.0 * (1 - math.exp(-step / 200)), step // self.plan.noise_every
        spread = 1.0 + 2.0 / math.sqrt(windows)
        return NoiseScaleMeasured(
            step=step, samples_seen=self.samples_seen, tokens_seen=self.samples_seen * TOKENS_A_SAMPLE,
            micro_batches=self.n, effective_batch=self.n * self.plan.micro_batch_size, trace=scale,
            squared_gradient=1.0, windows=windows, noise_scale=scale * self.random.gauss(1, 0.01),
            noise_scale_low=scale / spread if windows > 7 else None,
            noise_scale_high=scale * spread if windows > 11 else None,
        )  # fmt: skip

    def _readings(self, step: int) -> Iterator[DeviceSampled | HostSampled]:
        gauss = self.random.gauss
        if self.plan.gpu:
            allocated = int((3.1 + gauss(0, 0.08)) * GIB)
            yield DeviceSampled(
                device=0, memory_used_bytes=int((7.9 + gauss(0, 0.03)) * GIB), memory_reserved_bytes=None,
                memory_total_bytes=12 * GIB, process_memory_bytes=int((5.2 + gauss(0, 0.01)) * GIB),
                torch_allocated_bytes=allocated, torch_reserved_bytes=int(4.6 * GIB),
                torch_allocated_peak_bytes=int(3.4 * GIB), torch_reserved_peak_bytes=int(4.6 * GIB),
                utilization_percent=min(100.0, 95 + gauss(0, 2)),
                temperature_celsius=71 - 8 * math.exp(-step / 60), power_watts=182 + gauss(0, 6),
                energy_joules=182.0 * (self.at - self.plan.began_at),
            )  # fmt: skip
        yield HostSampled(
            process_rss_bytes=int((1.4 + 0.2 * (1 - math.exp(-step / 50)) + gauss(0, 0.01)) * GIB),
            workers_rss_bytes=0, host_memory_used_bytes=int((9.6 + gauss(0, 0.05)) * GIB),
            host_memory_total_bytes=32 * GIB, process_cpu_percent=max(0.0, 180 + gauss(0, 12)),
            host_cpu_percent=min(100.0, max(0.0, 52 + gauss(0, 5))),
        )  # fmt: skip

    def _ending(self, step: int) -> Iterator[tuple[float, AnyEvent]]:
        match self.plan.end:
            case "finished":
                seen = self.samples_seen
                yield self.at, RunFinished(step=step, samples_seen=seen, reason="max_optimizer_steps")
            case "stopped":
                yield self.at, RunStopped(step=step, samples_seen=self.samples_seen, reason="asked")
            case "failed":
                yield self.at, RunFailed(
                    step=step, samples_seen=self.samples_seen, reason="ValueError: the batch is empty",
                    where="my_task.py:41",
                )  # fmt: skip
            case _:
                pass
