"""From a run that is shown to the header's data: names, numbers, words. No Qt."""

from __future__ import annotations

import time

from gradacc_gui import words
from gradacc_gui.derive import headline
from gradacc_gui.derive import left_s as seconds_left
from gradacc_gui.run.attachment import Attachment
from gradacc_gui.run.header_state import HeaderState
from gradacc_gui.run.numbers import day_and_time, left_s
from gradacc_gui.words import tr
from trainer_backend.optimizer_table import OPTIMIZERS
from trainer_backend.run_facts import RunState

BUSY = ("evaluating", "saving", "compiling")
"""Phases in which no micro-batch moves, although the run is running."""
AT_WORK = (RunState.RUNNING, RunState.PAUSING, RunState.STOPPING)


def header_of(run: Attachment, *, now: float | None = None) -> HeaderState:
    """What the header says of `run` at the wall clock's `now`."""
    config = run.config
    told = headline(
        run.store,
        time.time() if now is None else now,
        epochs=config.run.epochs if config is not None else None,
        tail=config.accumulation.tail if config is not None else "step",
    )
    state, strip, speed, progress = run.state, told.strip, told.speed, told.progress
    left = (
        seconds_left(progress.samples_left, speed) if state in (RunState.RUNNING, RunState.PAUSING) else None
    )
    asked = asked_factors(run)
    return HeaderState(
        name=run_name(run),
        detail=detail(run),
        state=state,
        micro_batch_size=told.micro_batch_size or asked[0],
        accumulation_steps=told.accumulation_steps or asked[1],
        world_size=told.world_size or asked[2],
        step=strip.step if strip is not None else None,
        last_step=progress.last_step,
        window_cells=strip.total if strip is not None else 0,
        window_done=strip.done if strip is not None else 0,
        samples_per_s=speed.samples_per_s if speed is not None else None,
        tokens_per_s=speed.tokens_per_s if speed is not None else None,
        elapsed_s=told.elapsed_s if run.store.attempt else None,
        doing=_doing(run) if state in AT_WORK and run.store.phase in BUSY else "",
        left=tr("{time} left").format(time=left_s(left)) if left is not None else "",
    )


def asked_factors(run: Attachment) -> tuple[int | None, int | None, int | None]:
    """Micro-batch, N and world of the recipe, for as long as the trainer has not said its own."""
    if run.config is None:
        return None, None, None
    asked = run.config.accumulation
    return asked.micro_batch_size, run.config.accumulation_steps, run.config.run.devices


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
        parts += [OPTIMIZERS[config.optimizer.name].title, config.schedule.kind]
    if (first := run.store.so_now.first_started_at) is not None:
        parts.append(tr("since {when}").format(when=day_and_time(first)))
    if run.state in (RunState.RUNNING, RunState.PAUSED):
        parts.append(tr("keeps running if you close this window"))
    elif run.state is RunState.LOADING:
        parts.append(words.phase(run.store.phase) if run.store.phase else tr("Starting…"))
    return " · ".join(parts)


def _doing(run: Attachment) -> str:
    """What the trainer does, and how far a save is."""
    done = run.store.so_now.phase_done
    doing = words.phase(run.store.phase)
    return doing if done is None else f"{doing} {done:.0%}"
