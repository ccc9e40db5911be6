"""A text that a model wrote after a prompt, and who reads along."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeAlias

OnText: TypeAlias = Callable[[str], None]
"""Hears each finished part of a text."""


@dataclasses.dataclass(frozen=True)
class Continuation:
    """A text that a model wrote, and how it ended."""

    text: str
    tokens: int
    ended: bool
    """By a token that ends texts; False: at the number of tokens that was allowed."""
