"""Who asks."""

from __future__ import annotations

import getpass
from typing import Final

from trainer_backend.plain_text import plain

LONGEST: Final = 64
"""Characters of a name that are kept: a variable may give thousands."""


def person() -> str:
    """The name of whoever sits here, for the record of what was asked."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError, ImportError):  # no such user in this system's lists
        return "someone"
    return plain(name.encode("utf-8", "replace").decode("utf-8"))[:LONGEST]
