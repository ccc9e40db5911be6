"""What the columns of the runs list show, and how they sort. No Qt."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import msgspec

from gradacc_gui.run.header_state import STATE_WORDS
from gradacc_gui.run.numbers import DASH, clock_s, count, day_and_time, gibibytes, real
from gradacc_gui.session.runs import RunSummary
from gradacc_gui.words import tr
from trainer_backend.run_facts import RunState

N_KEY: Final = "accumulation.gradient_accumulation_steps"
RATE_KEY: Final = "optimizer.learning_rate"


class RunColumn(msgspec.Struct, frozen=True):
    """One column."""

    key: str
    title: str
    width: int
    """Pixels, until a person drags it."""
    text: Callable[[RunSummary], str]
    value: Callable[[RunSummary], Any]
    """What it sorts by; None comes last."""
    number: bool = False
    """Stands at the right; the first click sorts the greatest first."""


def _setting(key: str) -> Callable[[RunSummary], Any]:
    def value(line: RunSummary) -> Any:  # noqa: ANN401 - a TOML value
        return line.settings.get(key)

    return value


def _number_text(
    value: Callable[[RunSummary], Any], words: Callable[[Any], str]
) -> Callable[[RunSummary], str]:
    def text(line: RunSummary) -> str:
        found = value(line)
        return words(found) if isinstance(found, int | float) and not isinstance(found, bool) else DASH

    return text


def _at(value: float | None) -> str:
    return day_and_time(value) if value else DASH


COLUMNS: Final = (
    RunColumn("state", "State", 118, lambda line: tr(STATE_WORDS[line.state][0]),
              lambda line: line.state.value),
    RunColumn("name", "Name", 300, lambda line: line.name, lambda line: line.name.lower()),
    RunColumn("n", "N", 60, _number_text(_setting(N_KEY), count), _setting(N_KEY), number=True),
    RunColumn("batch", "Effective batch", 112, lambda line: count(line.effective_batch),
              lambda line: line.effective_batch, number=True),
    RunColumn("lr", "Learning rate", 104, _number_text(_setting(RATE_KEY), real), _setting(RATE_KEY),
              number=True),
    RunColumn("loss", "Loss", 84, lambda line: real(line.loss), lambda line: line.loss, number=True),
    RunColumn("val", "Validation loss", 112, lambda line: real(line.validation_loss),
              lambda line: line.validation_loss, number=True),
    RunColumn("memory", "Peak memory", 104, lambda line: gibibytes(line.peak_memory_bytes),
              lambda line: line.peak_memory_bytes, number=True),
    RunColumn("step", "Step", 76, lambda line: count(line.step) if line.step else DASH,
              lambda line: line.step or None, number=True),
    RunColumn("samples", "Samples", 96, lambda line: count(line.samples_seen) if line.samples_seen else DASH,
              lambda line: line.samples_seen or None, number=True),
    RunColumn("duration", "Duration", 92, lambda line: clock_s(line.duration_s), lambda line: line.duration_s,
              number=True),
    RunColumn("started", "Started", 112, lambda line: _at(line.started_at),
              lambda line: line.started_at or line.created_at or None),
    RunColumn("seen", "Last event", 112, lambda line: _at(line.seen_at), lambda line: line.seen_at),
    RunColumn("kind", "Kind of task", 128, lambda line: line.kind or DASH, lambda line: line.kind or None),
    RunColumn("note", "Note", 180, lambda line: " ".join(line.about.note.split()) or DASH,
              lambda line: line.about.note.lower() or None),
    RunColumn("id", "Id", 240, lambda line: line.run.id, lambda line: line.run.id),
)  # fmt: skip
BY_KEY: Final = {column.key: column for column in COLUMNS}
SHOWN_FIRST: Final = ("state", "name", "n", "batch", "lr", "loss", "val", "memory", "duration", "started")
NEVER_HIDDEN: Final = ("state", "name")
NEWEST_FIRST: Final = ("started", True)
UNFINISHED: Final = frozenset({RunState.WAITING, RunState.PENDING, RunState.INTERRUPTED})


def is_unfinished(line: RunSummary) -> bool:
    """Whether a run stands on top: it is live, waits, or was cut off."""
    return line.state.is_alive or line.state in UNFINISHED


def in_order(lines: list[RunSummary], key: str, *, descending: bool) -> list[RunSummary]:
    """The runs sorted by a column, unfinished ones on top, unknown values last."""
    value = BY_KEY[key].value

    def known(line: RunSummary) -> Any:  # noqa: ANN401 - what a column sorts by
        found = value(line)
        if isinstance(found, bool | float | int):
            return None if math.isnan(found) else float(found)
        return found

    keyed = [(known(line), line) for line in lines]
    kind = str if any(isinstance(own, str) for own, _ in keyed) else float
    there = [(kind(own), line) for own, line in keyed if own is not None]
    there.sort(key=lambda pair: pair[0], reverse=descending)
    ordered = [line for _, line in there] + [line for own, line in keyed if own is None]
    return sorted(ordered, key=is_unfinished, reverse=True)


def why_not_deleted(lines: list[RunSummary]) -> str:
    """Why these runs cannot be deleted, as a sentence; empty when they can."""
    for line in lines:
        if line.state.is_alive:
            return tr("{name} is live. Stop it before you delete it.").format(name=line.name)
        if line.state is RunState.WAITING:
            return tr("{name} waits in the queue. Remove it there first.").format(name=line.name)
    return ""
