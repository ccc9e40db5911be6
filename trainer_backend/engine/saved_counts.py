"""What a checkpoint keeps of the accumulator besides tensors, with what each value may be."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class SavedCounts(msgspec.Struct, frozen=True):
    """The plain values of `Accumulator.state_dict`, but for the loss scaler's own."""

    step: _Count
    updates: _Count
    samples_seen: _Count
    tokens_seen: _Count
    c: Annotated[float, msgspec.Meta(gt=0)] | None
    """The power of two that the losses were divided by."""
    terms: tuple[str, ...]
    """Names of the loss terms, in their order."""
    own_buffers: tuple[_Count, ...]
    """Which of them have a gradient buffer of their own."""
    micro_batch_ceiling: Annotated[int, msgspec.Meta(ge=1)] | None
    non_finite_in_a_row: _Count
