"""What becomes of each key of another program's configuration: one row a key, one table a program."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec

Fate: TypeAlias = Literal["read", "changes", "harmless", "refuses"]
NOTHING: Final = frozenset({"", "none", "null", "no", "off", "false", "[]", "{}"})
"""Words that mean a key is not used."""

SUPERVISED_ONLY: Final = "gradacc does supervised training only, so this file is not imported."
"""The end of a refusal."""


class KeyRow(msgspec.Struct, frozen=True):
    """One key of a program."""

    fate: Fate
    """read: a reader of the program makes something of it; changes: left out, and the run differs;
    harmless: left out, and the result is the same; refuses: a file that uses it is not imported."""
    default: Any = None
    """Theirs, which holds where a file does not have the key."""
    words: str = ""
    """What leaving it out means, or why it is refused."""

    def is_unused(self, value: Any) -> bool:  # noqa: ANN401 - YAML
        """Whether this value of the key is as good as leaving the key out."""
        if value is None or (type(value) is type(self.default) and value == self.default):
            return True
        if isinstance(value, str) and isinstance(self.default, bool):
            return value.strip().lower() == str(self.default).lower()
        if self.default not in (None, False, 0, "", [], {}):
            return False
        return not value or (isinstance(value, str) and value.strip().lower() in NOTHING)


KeyRows: TypeAlias = dict[str, KeyRow]


def read(**defaults: Any) -> KeyRows:  # noqa: ANN401 - YAML
    """Keys that a reader makes something of, with their defaults."""
    return {key: KeyRow("read", default) for key, default in defaults.items()}


def changes(words: str, **defaults: Any) -> KeyRows:  # noqa: ANN401 - YAML
    """Keys that are left out though the run differs; what they do there and what happens here."""
    return {key: KeyRow("changes", default, words) for key, default in defaults.items()}


def harmless(words: str, names: str = "", /, **defaults: Any) -> KeyRows:  # noqa: ANN401 - YAML
    """Keys that do not concern the result, and why; `names`, with blanks between, have no default."""
    rows = dict.fromkeys(names.split()) | defaults
    return {key: KeyRow("harmless", default, words) for key, default in rows.items()}


def refuses(words: str, **defaults: Any) -> KeyRows:  # noqa: ANN401 - YAML
    """Keys that say that something else than supervised training is done; what that is."""
    return {key: KeyRow("refuses", default, words) for key, default in defaults.items()}
