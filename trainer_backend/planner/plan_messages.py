"""What a planning process says, one message a line. No torch."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from trainer_backend.planner.pairs import Machine, Plan, Probe


class ProbeDone(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What one probe process says."""

    machine: Machine
    probe: Probe
    longest: str
    samples: int | None
    """Of the data set, where known."""


class PlanProgress(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A probe begins."""

    size: int
    number: int


class PlanFailed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """No plan, and why."""

    message: str


PlanMessage: TypeAlias = Plan | PlanProgress | PlanFailed
