"""Events of every kind with any values that their types allow, for property tests; and plain ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, get_args, get_type_hints

import msgspec
from hypothesis import strategies as st

from trainer_backend.protocol import AnyCommand, Device, Event, MicroBatchMeasured, OptimizerStepMeasured

LARGEST = 2**63 - 1

for _kind, _strategy in (
    (int, st.integers(-LARGEST, LARGEST)),
    (float, st.floats(width=64)),
    # Words that a reader may take for numbers are as good names as any other.
    (str, st.sampled_from(["NaN", "Infinity", "-Infinity", "null", "1", "true", ""]) | st.text(max_size=20)),
):
    st.register_type_strategy(_kind, _strategy)


def events(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Any event (or part of one) of this kind."""
    hints = get_type_hints(kind)
    return st.builds(kind, **{name: st.from_type(hints[name]) for name in kind.__struct_fields__})


for _part in (Device, *get_args(AnyCommand)):
    st.register_type_strategy(_part, events)


def same(one: Any, other: Any) -> bool:
    """Equal in type and value, where NaN equals NaN."""
    if isinstance(one, msgspec.Struct):
        return type(one) is type(other) and same(msgspec.structs.astuple(one), msgspec.structs.astuple(other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)):
        return isinstance(other, (list, tuple)) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return type(one) is type(other) and bool(one == other)


def micro_batch(step: int = 1, index: int = 0, **values: Any) -> MicroBatchMeasured:
    """A micro-batch like any other."""
    fields = {
        "samples": 8,
        "tokens": 1024,
        "weight": 1024.0,
        "loss": 2.5,
        "gradient_norm": None,
        "duration_s": 0.01,
        "samples_seen": 8 * step,
        "tokens_seen": 1024 * step,
    }
    return MicroBatchMeasured(step=step, index=index, **(fields | values))


def optimizer_step(step: int = 1, **values: Any) -> OptimizerStepMeasured:
    """An optimizer step like any other."""
    fields = {
        "updates": step,
        "accumulation_steps": 4,
        "micro_batches": 4,
        "micro_batch_size": 8,
        "samples": 32,
        "tokens": 4096,
        "weight": 4096.0,
        "loss": 2.5,
        "gradient_norm": 1.0,
        "learning_rate": 1e-3,
        "samples_seen": 32 * step,
        "tokens_seen": 4096 * step,
        "duration_s": 0.04,
        "data_wait_s": 0.0,
        "samples_per_s": 800.0,
        "tokens_per_s": 102_400.0,
        "loss_scale": None,
        "skipped": "",
    }
    return OptimizerStepMeasured(step=step, **(fields | values))


def steps_of(events: Sequence[Event]) -> list[int]:
    """The steps that micro-batches among these belong to, in order."""
    return [event.step for event in events if isinstance(event, MicroBatchMeasured)]
