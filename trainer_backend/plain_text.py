"""Texts of others (names, paths, messages) as a terminal may show them. No torch."""

from __future__ import annotations

import re
from typing import Final

_COMMANDS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""What moves a terminal's cursor, changes its title or colours, or turns the order of letters about."""


def plain(text: str) -> str:
    """A text with its control characters as escapes, but for line ends and tabs.

    The escapes are JSON's, so that a line of JSON stays one.
    """
    return _COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
