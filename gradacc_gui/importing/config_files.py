"""A configuration file as plain data: JSON or YAML, whatever its size, nesting and repetitions."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any, Final

import yaml

from trainer_backend.errors import UsageError

LARGEST_BYTES: Final = 256 * 1024
MOST_VALUES: Final = 20_000
"""Counted as if every alias were written out: a few hundred bytes of YAML can stand for billions."""
DEEPEST: Final = 24
LARGEST_INTEGER: Final = 2**63
_YAML: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml where PyYAML was built with it: many times faster."""


def read_config(path: Path) -> dict[str, Any]:
    """The keys and values of a file. Raises UsageError with a sentence, within a second."""
    text = _text(path)
    try:
        if path.suffix.lower() == ".json":
            given = json.loads(text)
        else:
            size = _Size(path)
            for event in yaml.parse(text, _YAML):
                size.take(event)
            given = yaml.load(text, _YAML)  # noqa: S506 - a safe loader
        values = _Values(path)
        found = values.plain(given, "", 0)
    except RecursionError as error:
        raise UsageError(_too_deep(path)) from error
    except (ValueError, yaml.YAMLError) as error:
        message = f"{path} is neither JSON nor YAML: {' '.join(str(error).split())[:300]}."
        raise UsageError(message) from error
    if not isinstance(found, dict):
        message = f"{path} holds no keys and values. Choose the configuration file itself."
        raise UsageError(message)
    return found


def _text(path: Path) -> str:
    try:
        if not path.is_file():
            message = f"{path} is no file. Choose the configuration file itself."
            raise UsageError(message)
        if path.stat().st_size > LARGEST_BYTES:
            message = f"{path} is larger than {LARGEST_BYTES // 1024} KiB; that is no configuration."
            raise UsageError(message)
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"{path} is not text in UTF-8 (byte {error.start}). Save it as UTF-8."
        raise UsageError(message) from error
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}. Check the path."
        raise UsageError(message) from error


def _too_deep(path: Path) -> str:
    return f"{path} is nested more than {DEEPEST} levels deep; that is no configuration."


class _Size:
    """How many values a YAML file stands for, from its events, without making anything of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sizes: dict[str, int] = {}
        """By anchor."""
        self._open: list[tuple[str | None, int]] = []
        """Nodes that have begun: (anchor, values so far)."""

    def take(self, event: yaml.Event) -> None:
        """Count one event. Raises UsageError."""
        match event:
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._open.append((event.anchor, 1))
                if len(self._open) > DEEPEST:
                    raise UsageError(_too_deep(self._path))
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._add(*self._open.pop())
            case yaml.ScalarEvent():
                self._add(event.anchor, 1)
            case yaml.AliasEvent():
                if event.anchor not in self._sizes:
                    message = (
                        f"{self._path}: *{event.anchor} refers to nothing before it. Write the value out."
                    )
                    raise UsageError(message)
                self._add(None, self._sizes[event.anchor])
            case _:
                pass

    def _add(self, anchor: str | None, count: int) -> None:
        if anchor:
            self._sizes[anchor] = count
        if self._open:
            outer, before = self._open[-1]
            self._open[-1] = (outer, before + count)
        if count > MOST_VALUES:
            message = f"{self._path} stands for more than {MOST_VALUES:,} values; that is no configuration."
            raise UsageError(message)


class _Values:
    """Makes plain values of what a reader made, and counts them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._count = 0

    def plain(self, value: Any, key: str, depth: int) -> Any:  # noqa: ANN401 - YAML
        """Text, numbers, true and false, lists and tables only. Raises UsageError."""
        self._count += 1
        if self._count > MOST_VALUES:
            message = f"{self._path} has more than {MOST_VALUES:,} values; that is no configuration."
            raise UsageError(message)
        if depth > DEEPEST:
            raise UsageError(_too_deep(self._path))
        match value:
            case dict():
                return {
                    self._text(str(name), key): self.plain(inner, str(name), depth + 1)
                    for name, inner in value.items()
                }
            case list() | tuple() | set():
                return [self.plain(inner, key, depth + 1) for inner in value]
            case str():
                return self._text(value, key)
            case int() if abs(value) >= LARGEST_INTEGER:
                message = f"{self._path}: {key} is a whole number of over 18 digits. Correct it in the file."
                raise UsageError(message)
            case bool() | int() | float() | None:
                return value
            case dt.date():
                return value.isoformat()
            case _:
                return self._text(str(value), key)

    def _text(self, text: str, key: str) -> str:
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            message = (
                f"{self._path}: {key or 'a key'} has half of a character (a lone surrogate). Correct it."
            )
            raise UsageError(message)
        return text
