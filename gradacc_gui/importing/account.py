"""The account of an import: what became of every key of the file that was read."""

from __future__ import annotations

import math
from typing import Any, Final, Literal

import msgspec
import tomlkit

from trainer_backend.errors import UsageError

STAND_INS: Final = {"task.model": "path/to/model", "data.path": "path/to/data.jsonl"}
"""What most files do not say, so that the recipe opens and its form shows what is to be filled in."""

Outcome = Literal["taken", "translated", "left out"]


class KeyOutcome(msgspec.Struct, frozen=True):
    """One key of the file."""

    key: str
    value: Any
    outcome: Outcome
    recipe_key: str
    """Where it went; empty when it was left out."""
    note: str = ""


class Imported(msgspec.Struct, frozen=True):
    """A recipe's tables and the account of how they came about."""

    source: str
    """Which trainer's format it was."""
    tables: dict[str, dict[str, Any]]
    lines: tuple[KeyOutcome, ...]

    def recipe_text(self) -> str:
        """The recipe as TOML, with the account as comments."""
        document = tomlkit.document()
        document.add(tomlkit.comment(f"Imported from {self.source}."))
        for line in self.lines:
            if line.outcome == "left out":
                document.add(tomlkit.comment(f"left out: {line.key} = {line.value!r}. {line.note}".rstrip()))
        for name, table in self.tables.items():
            section = tomlkit.table()
            for key, value in table.items():
                item = tomlkit.item(value)
                note = self._note(f"{name}.{key}")
                if STAND_INS.get(f"{name}.{key}") == value:
                    note = "to be filled in"
                if note:
                    item.comment(note)
                section.add(key, item)
            document.add(name, section)
        return tomlkit.dumps(document)

    def _note(self, recipe_key: str) -> str:
        notes = [
            f"{line.key} = {line.value!r}" + (f"; {line.note}" if line.note else "")
            for line in self.lines
            if line.recipe_key == recipe_key and line.outcome == "translated"
        ]
        return "; ".join(notes).replace("\n", " ")


def words_of(line: KeyOutcome) -> str:
    """One line of the account, for people."""
    where = f" -> {line.recipe_key}" if line.recipe_key else ""
    note = f" ({line.note})" if line.note else ""
    return f"{line.outcome:10}  {line.key} = {line.value!r}{where}{note}"


class Account:
    """Collects an import: values by recipe key, and a line for each key of the file."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._given = given
        self._values: dict[str, Any] = {}
        self._lines: list[KeyOutcome] = []
        self._done: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ANN401 - YAML
        """A key's value, without an account of it; "auto" counts as not given."""
        value = self._given.get(key, default)
        return default if value in ("auto", None) else value

    def number(self, key: str, default: float | None = None) -> float | None:
        """A key's value as a finite number (YAML reads 1e-4 as text). Raises UsageError."""
        value = self.get(key)
        if value is None:
            return default
        try:
            number = float(value) if not isinstance(value, bool) else math.nan
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            message = f"{key} = {value!r} is not a number. Mend it in the file."
            raise UsageError(message)
        return number

    def whole(self, key: str, default: int | None = None) -> int | None:
        """A key's value as a whole number. Raises UsageError."""
        number = self.number(key)
        if number is None:
            return default
        if not number.is_integer():
            message = f"{key} = {self.get(key)!r} is not a whole number. Mend it in the file."
            raise UsageError(message)
        return int(number)

    def section(self, key: str) -> dict[str, Any]:
        """A key's value as keys and values; empty when it is not given. Raises UsageError."""
        value = self.get(key) or {}
        if not isinstance(value, dict):
            message = f"{key} = {value!r} should hold keys and values. Mend it in the file."
            raise UsageError(message)
        return value

    def put(self, recipe_key: str, value: Any) -> None:  # noqa: ANN401 - TOML
        """Set a recipe value that no single key of the file gave."""
        self._values[recipe_key] = value

    def value(self, recipe_key: str, default: Any = None) -> Any:  # noqa: ANN401 - TOML
        """What a recipe key has been set to."""
        return self._values.get(recipe_key, default)

    def take(self, key: str, recipe_key: str) -> None:
        """Carry a key over as it is, when the file has it."""
        value = self.get(key)
        if value is None:
            return
        if not isinstance(value, (str, int, float)):
            message = f"{key} = {value!r} is not one value. Mend it in the file."
            raise UsageError(message)
        self.translate(key, recipe_key, value)

    def take_number(self, key: str, recipe_key: str) -> None:
        """Carry a number over, when the file has it. Raises UsageError."""
        if self.get(key) is not None:
            self.translate(key, recipe_key, self.number(key))

    def take_whole(self, key: str, recipe_key: str, default: int | None = None) -> None:
        """Carry a whole number over; `default` is set when the file has none. Raises UsageError."""
        if self.get(key) is not None:
            self.translate(key, recipe_key, self.whole(key))
        elif default is not None:
            self.put(recipe_key, default)

    def translate(self, key: str, recipe_key: str, value: Any, note: str = "") -> None:  # noqa: ANN401
        """Carry a key over as `value`."""
        same = value == self._given.get(key) and key == recipe_key.rpartition(".")[2]
        self._values[recipe_key] = value
        outcome: Outcome = "taken" if same and not note else "translated"
        if key in self._given:
            self._note(KeyOutcome(key, self._given[key], outcome, recipe_key, note))

    def leave(self, key: str, note: str = "") -> None:
        """Say that a key was left out, when the file has it."""
        if key in self._given and key not in self._done:
            self._note(KeyOutcome(key, self._given[key], "left out", "", note))

    def settled(self, key: str, note: str) -> None:
        """A key that holds here without a setting of its own."""
        if key in self._given and key not in self._done:
            self._note(KeyOutcome(key, self._given[key], "translated", "", note))

    def _note(self, line: KeyOutcome) -> None:
        self._done.add(line.key)
        self._lines.append(line)

    def finish(self, source: str) -> Imported:
        """Leave out what is left, and give the whole."""
        for key in self._given:
            self.leave(key, "gradacc has no such setting.")
        for recipe_key, stand_in in STAND_INS.items():
            self._values.setdefault(recipe_key, stand_in)
        tables: dict[str, dict[str, Any]] = {}
        for recipe_key, value in self._values.items():
            name, _, key = recipe_key.partition(".")
            tables.setdefault(name, {})[key] = value
        return Imported(source, tables, tuple(self._lines))
