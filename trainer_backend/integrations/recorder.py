"""A run directory and a live queue for a loop that is not ours.

A plain loop of the user's own, with N read anew for each window:

    with Recorder("mine", micro_batch_size=8, accumulation_steps=4) as run:
        for window in run.windows(loader):
            for inputs, targets in window:
                loss = criterion(model(inputs), targets)
                (loss / len(window)).backward()
                run.micro_batch(loss, samples=len(inputs))
            optimizer.step()
            optimizer.zero_grad()
            run.optimizer_step(learning_rate=optimizer.param_groups[0]["lr"])
"""

from __future__ import annotations

import itertools
import math
import os
import platform
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
import tomlkit
import torch

from trainer_backend.inbox import Inbox
from trainer_backend.integrations.counting import AnyWindow, CountingRule
from trainer_backend.integrations.remote import Remote
from trainer_backend.journal import JournalWriter
from trainer_backend.protocol import (
    AnyEvent,
    Device,
    EvaluationMeasured,
    MicroBatchMeasured,
    OptimizerStepMeasured,
    PhaseEntered,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
)
from trainer_backend.readings import Sampler
from trainer_backend.run_directory import RunDirectory
from trainer_backend.settings import MICRO_BATCH, STEPS
from trainer_backend.trainer.devices import describe
from trainer_backend.trainer.provenance import Commit, versions
from trainer_backend.trainer.training import torch_memory_of

Item = TypeVar("Item")


class _UnreadMicroBatch(msgspec.Struct):
    """A micro-batch whose loss may still be on the device."""

    loss: Any
    samples: int
    tokens: int
    weight: float
    duration_s: float


class Recorder:
    """One attempt at a run, written by the process that trains it.

    `name` is the run's; `library` what trains it. `rule` says where a new N is exact.
    Losses may be device tensors: they are read once a window, after its optimizer step.
    """

    def __init__(  # noqa: PLR0913 - what is known of a run; all but three have a default
        self,
        name: str,
        *,
        micro_batch_size: int,
        accumulation_steps: int,
        library: str = "own loop",
        rule: CountingRule | None = None,
        max_optimizer_steps: int | None = None,
        samples_per_epoch: int | None = None,
        parameters: int = 0,
        loss_unit: str = "sample",
        world_size: int = 1,
        readings_every_s: float = 0.5,
        parent: Path | None = None,
    ) -> None:
        self.run = RunDirectory.create(_recipe_text(name, library), name=name, parent=parent)
        self._stack = ExitStack()
        self._stack.enter_context(self.run.locked())
        self._remote = Remote(
            Inbox(self.run.inbox_path),
            self.put,
            rule or AnyWindow(),
            steps=accumulation_steps,
        )
        self._writer = JournalWriter(
            self.run.journal_path,
            attempt=1,
            on_tick=self._remote.tick,
            on_committed=self._remote.committed,
        )
        self._micro_batch_size = micro_batch_size
        self._pending: list[_UnreadMicroBatch] = []
        self._step = 0
        self._samples_seen = 0
        self._tokens_seen = 0
        self._closed = False
        self._window_at = self._micro_batch_at = time.perf_counter()
        devices = _devices()
        self.put(
            RunStarted(
                name=name,
                pid=os.getpid(),
                host=platform.node(),
                versions=versions("torch", *((library,) if library in sys.modules else ())),
                commit=Commit(Path.cwd()).value(),
                devices=devices,
                precision="fp32",
                parameters=parameters,
                micro_batch_size=micro_batch_size,
                accumulation_steps=accumulation_steps,
                world_size=world_size,
                horizon_samples=None,
                max_samples=None,
                max_optimizer_steps=max_optimizer_steps,
                samples_per_epoch=samples_per_epoch,
                loss_unit=loss_unit,
                gradient_norm_every=0,
                from_step=0,
                from_samples=0,
                from_tokens=0,
                # What else is in force only the loop knows.
                settings={MICRO_BATCH: micro_batch_size, STEPS: accumulation_steps},
            )
        )
        self.put(PhaseEntered(phase="training"))
        self._sampler = Sampler(self.put, devices, readings_every_s, torch_memory_of(_device()))
        self._sampler.start()

    def put(self, event: AnyEvent) -> None:
        """Queue any event; never waits."""
        self._writer.put(event)

    # ------------------------------------------------------------------------- the loop's side

    @property
    def accumulation_steps(self) -> int:
        """N of the window that runs or comes."""
        return self._remote.steps

    @property
    def stop_asked(self) -> bool:
        """Whether the window (or the command line) asked the run to end."""
        return self._remote.stop_asked

    def windows(self, micro_batches: Iterable[Item]) -> Iterator[list[Item]]:
        """Lists of N micro-batches, N as asked at each window's start; the last may be shorter.

        Ends early when a stop is asked for.
        """
        source = iter(micro_batches)
        while not self.stop_asked:
            window = list(itertools.islice(source, self.next_accumulation_steps()))
            if not window:
                return
            yield window

    def next_accumulation_steps(self) -> int:
        """Between two windows: waits while paused, makes an asked N the current one, and gives N."""
        return self._remote.next_accumulation_steps(self._samples_seen)

    def restart_counter(self, epoch: int | None = None, *, done: int = 0) -> None:
        """The library counts micro-batches from `done` again, in an epoch of `epoch` (None: not known)."""
        self._remote.restart_counter(epoch, done)

    def micro_batch(
        self,
        loss: Any,  # noqa: ANN401 - a tensor or a number
        *,
        samples: int,
        tokens: int | None = None,
        weight: float | None = None,
    ) -> None:
        """A forward and backward is done; `loss` is the mean over `weight` (by default, samples)."""
        at = time.perf_counter()
        if not self._pending:
            self._remote.begin_window()
        detached = loss.detach() if hasattr(loss, "detach") else loss
        self._pending.append(
            _UnreadMicroBatch(
                detached,
                samples,
                samples if tokens is None else tokens,
                float(samples if weight is None else weight),
                at - self._micro_batch_at,
            )
        )
        self._micro_batch_at = at
        if getattr(detached, "is_cuda", False):
            return  # reading it would wait for the device; the window's end reads them all
        self._measure(len(self._pending) - 1)

    def optimizer_step(
        self,
        *,
        learning_rate: float,
        gradient_norm: Any = None,  # noqa: ANN401 - a tensor or a number
        skipped: str = "",
    ) -> None:
        """The window's update is done. `gradient_norm`: before clipping, None when it is not known."""
        if not self._pending:
            return
        pending, asked = self._pending, self._remote.steps
        for index, entry in enumerate(pending):
            if getattr(entry.loss, "is_cuda", False):
                self._measure(index)
        at = time.perf_counter()
        duration_s = max(at - self._window_at, 1e-9)
        samples, tokens = sum(p.samples for p in pending), sum(p.tokens for p in pending)
        weight = sum(p.weight for p in pending)
        total = sum(float(p.loss) * p.weight for p in pending if p.weight)
        self._step += 1
        self._pending = []
        self._remote.end_window(len(pending))
        self.put(
            OptimizerStepMeasured(
                step=self._step,
                updates=self._step,
                accumulation_steps=asked,
                micro_batches=len(pending),
                micro_batch_size=self._micro_batch_size,
                samples=samples,
                tokens=tokens,
                weight=weight,
                loss=total / weight if weight else None,
                gradient_norm=None if gradient_norm is None else float(gradient_norm),
                learning_rate=learning_rate,
                samples_seen=self._samples_seen,
                tokens_seen=self._tokens_seen,
                duration_s=duration_s,
                data_wait_s=0.0,
                samples_per_s=samples / duration_s,
                tokens_per_s=tokens / duration_s,
                loss_scale=None,
                skipped=skipped,
            )
        )
        self._window_at = self._micro_batch_at = time.perf_counter()

    def _measure(self, index: int) -> None:
        entry = self._pending[index]
        entry.loss = float(entry.loss)
        self._samples_seen += entry.samples
        self._tokens_seen += entry.tokens
        self.put(
            MicroBatchMeasured(
                step=self._step + 1,
                index=index,
                samples=entry.samples,
                tokens=entry.tokens,
                weight=entry.weight,
                loss=entry.loss if entry.weight else None,
                gradient_norm=None,
                duration_s=entry.duration_s,
                samples_seen=self._samples_seen,
                tokens_seen=self._tokens_seen,
            )
        )

    def evaluation(
        self, loss: float | None, metrics: dict[str, float], *, samples: int, duration_s: float
    ) -> None:
        """Record an evaluation's loss and metrics."""
        self.put(
            EvaluationMeasured(
                step=self._step,
                samples_seen=self._samples_seen,
                tokens_seen=self._tokens_seen,
                loss=None if loss is None or math.isnan(loss) else loss,
                metrics=metrics,
                samples=samples,
                duration_s=duration_s,
            )
        )

    # ------------------------------------------------------------------------------ the end

    def close(self, reason: str = "finished", *, error: BaseException | None = None) -> None:
        """End the attempt; only the first call does."""
        if self._closed:
            return
        self._closed = True
        self._sampler.stop()
        self._remote.end()
        step, samples = self._step, self._samples_seen
        if error is not None:
            said = f"{type(error).__name__}: {error}"
            self.put(RunFailed(step=step, samples_seen=samples, reason=said, code="library-raised"))
        elif self.stop_asked:
            self.put(RunStopped(step=step, samples_seen=samples, reason="stop"))
        else:
            self.put(RunFinished(step=step, samples_seen=samples, reason=reason))
        self._writer.close()
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        del kind, where
        self.close(error=error)


def _recipe_text(name: str, library: str) -> str:
    document = tomlkit.document()
    document.add(
        tomlkit.comment("This run was trained by your own script. Start that script again to train more.")
    )
    document["run"] = {"name": name}
    document["external"] = {"library": library, "script": sys.argv[0] if sys.argv else ""}
    return tomlkit.dumps(document)


def _devices() -> tuple[Device, ...]:
    return (describe(_device()),)


def _device() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
