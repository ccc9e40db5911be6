"""From a run that is shown to the header's data: names, numbers, words. No Qt."""

from __future__ import annotations

import math
import time
from typing import Any

import msgspec

from gradacc_gui import words
from gradacc_gui.window.attachment import Attachment
from gradacc_gui.window.header_state import HeaderState
from gradacc_gui.window.numbers import day_and_time, left_s
from gradacc_gui.words import tr
from trainer_backend.protocol import MicroBatchMeasured, OptimizerStepMeasured, RunStarted

NAMES = {"adamw": "AdamW", "sgd": "SGD", "constant": "constant", "cosine": "cosine", "linear": "linear"}


def header_of(run: Attachment, *, now: float | None = None) -> HeaderState:
    """What the header says of `run` at the wall clock's `now`."""
    at = time.time() if now is None else now
    step: OptimizerStepMeasured | None = run.store.latest.get(OptimizerStepMeasured)
    settings = run.in_force.settings
    state = HeaderState(
        name=run_name(run),
        detail=detail(run),
        state=run.state,
        samples_per_s=step.samples_per_s if step else None,
        tokens_per_s=step.tokens_per_s if step else None,
        elapsed_s=run.store.active_s(at) if run.store.attempt else None,
        left=left_words(run, at),
        last_step=last_step(run),
    )
    if settings is None:
        return state
    steps = run.store.accumulation_steps if run.is_live else settings.accumulation_steps
    return msgspec.structs.replace(
        state,
        micro_batch_size=settings.micro_batch_size,
        accumulation_steps=steps,
        world_size=settings.world_size,
        **window(run, step, steps),
    )


def run_name(run: Attachment) -> str:
    """The name it was given, else its directory's."""
    if run.store.started is not None and run.store.started.name:
        return run.store.started.name
    return (run.config.run.name if run.config is not None else "") or run.run.id


def detail(run: Attachment) -> str:
    """Precision, optimizer, schedule, when it started; that it does not need this window."""
    parts: list[str] = []
    started, config = run.store.started, run.config
    if started is not None:
        parts.append(started.precision)
    if config is not None:
        parts += [NAMES[config.optimizer.name], NAMES[config.schedule.kind]]
    first = next((fact for fact in run.store.facts if isinstance(fact.event, RunStarted)), None)
    if first is not None:
        parts.append(tr("started {when}").format(when=day_and_time(first.at)))
    if run.state in ("running", "paused"):
        parts.append(tr("goes on without this window"))
    elif run.state == "loading":
        parts.append(words.phase(run.store.phase) if run.store.phase else tr("Starting…"))
    return " · ".join(parts)


def window(run: Attachment, step: OptimizerStepMeasured | None, asked: int) -> dict[str, Any]:
    """The open window: which step, how many of its micro-batches are done."""
    micro: MicroBatchMeasured | None = run.store.latest.get(MicroBatchMeasured)
    if micro is not None and (step is None or micro.step > step.step):
        done = micro.index + 1
        return {"step": micro.step, "window_cells": max(asked, done), "window_done": done}
    if step is None:
        return {"step": None, "window_cells": asked, "window_done": 0}
    if run.state in ("running", "pausing", "stopping"):
        return {"step": step.step + 1, "window_cells": asked, "window_done": 0}
    return {"step": step.step, "window_cells": step.micro_batches, "window_done": step.micro_batches}


def end_samples(run: Attachment) -> int | None:
    """At how many samples the run ends; None when it is told in optimizer steps or not at all."""
    started, config = run.store.started, run.config
    if started is None:
        return None
    if started.max_samples is not None:
        return started.max_samples
    if config is not None and config.run.epochs is not None and started.samples_per_epoch is not None:
        return config.run.epochs * started.samples_per_epoch
    return None


def last_step(run: Attachment) -> int | None:
    """The step the run will end at, under the N in force."""
    started, settings = run.store.started, run.in_force.settings
    step: OptimizerStepMeasured | None = run.store.latest.get(OptimizerStepMeasured)
    if started is None or settings is None:
        return None
    if started.max_optimizer_steps is not None:
        skipped = step.step - step.updates if step is not None else 0
        return started.max_optimizer_steps + skipped
    end = end_samples(run)
    if end is None:
        return None
    done, seen = (step.step, step.samples_seen) if step is not None else (0, 0)
    return done + max(0, math.ceil((end - seen) / settings.effective_batch))


def left_words(run: Attachment, at: float) -> str:
    """The time left at this attempt's own speed, in words; empty when it cannot be told."""
    started = run.store.started
    step: OptimizerStepMeasured | None = run.store.latest.get(OptimizerStepMeasured)
    if not run.is_live or started is None or step is None or run.state == "paused":
        return ""
    end = end_samples(run)
    last = last_step(run)
    if end is not None:
        todo, done = end - step.samples_seen, step.samples_seen - started.from_samples
    elif last is not None:
        todo, done = last - step.step, step.step - started.from_step
    else:
        return ""
    spent = run.in_force.attempt_s(at)
    if done <= 0 or spent is None or spent <= 0:
        return ""
    return tr("{time} left").format(time=left_s(max(0.0, todo * spent / done)))
