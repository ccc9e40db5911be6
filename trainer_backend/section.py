"""What every table of a recipe is built from."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

LARGEST: Final = 1_000_000
"""Upper bound for counts that a person types; beyond it a number is a slip."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the recipe."""


Count: TypeAlias = Annotated[int, Meta(ge=1, le=LARGEST)]
Samples: TypeAlias = Annotated[int, Meta(ge=1, le=10**15)]
Positive: TypeAlias = Annotated[float, Meta(gt=0, le=1e12)]
Fraction: TypeAlias = Annotated[float, Meta(gt=0, lt=1)]
