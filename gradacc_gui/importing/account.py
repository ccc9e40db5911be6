"""The account of an import: what became of every key of the file that was read."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec
import tomlkit
from tomlkit.items import Table

from trainer_backend.config_check import show

KeyClass: TypeAlias = Literal["taken", "translated", "changes-the-run", "harmless"]
TITLES: Final[dict[KeyClass, str]] = {
    "taken": "Taken",
    "translated": "Translated",
    "changes-the-run": "Left out, changes the run",
    "harmless": "Left out, harmless",
}


class KeyLine(msgspec.Struct, frozen=True, kw_only=True):
    """One key: of the file, or one that it does not have and whose default holds."""

    key: str
    value: Any
    kind: KeyClass = msgspec.field(name="class")
    to: str = ""
    """The recipe key that it went to; empty when it was left out."""
    becomes: Any = None
    """What the recipe key is set to."""
    note: str = ""
    """A sentence: how it was translated, what leaving it out means, why it is harmless."""
    is_absent: bool = False
    """Whether the file does not have it; `value` is then their default."""


class OpenKey(msgspec.Struct, frozen=True, kw_only=True):
    """A recipe key that only the person can fill in."""

    key: str
    why: str
    """A sentence: what the file says instead."""
    stand_in: Any = None
    """What the recipe holds until then; None where it can be left out."""


class Imported(msgspec.Struct, frozen=True):
    """A recipe's tables and the account of how they came about."""

    source: str
    """Which program's configuration it was."""
    tables: dict[str, dict[str, Any]]
    lines: tuple[KeyLine, ...]
    """One for each key of the file."""
    defaults: tuple[KeyLine, ...] = ()
    """Their defaults that were written out, since the file does not have the keys."""
    open: tuple[OpenKey, ...] = ()
    said: tuple[str, ...] = ()
    """Sentences on what differs though every key was understood."""

    def of(self, kind: KeyClass) -> tuple[KeyLine, ...]:
        """The lines of one class, in the file's order."""
        return tuple(line for line in self.lines if line.kind == kind)

    def recipe_text(self) -> str:
        """The recipe as TOML, with the account as comments."""
        document = tomlkit.document()
        document.add(tomlkit.comment(one_line(f"Imported from {self.source}.")))
        for line in self.of("changes-the-run"):
            document.add(tomlkit.comment(one_line(f"left out: {line.key} = {show(line.value)}. {line.note}")))
        for name, values in self.tables.items():
            document.add(name, self._table(name, values))
        return tomlkit.dumps(document)

    def _table(self, name: str, values: dict[str, Any]) -> Table:
        section = tomlkit.table()
        asked = {one.key: one for one in self.open}
        for key, value in values.items():
            item = tomlkit.item(value)
            words = "to be filled in" if f"{name}.{key}" in asked else self.origin(f"{name}.{key}")
            if words:
                item.comment(one_line(words))
            section.add(key, item)
        for path, one in asked.items():
            table, _, key = path.partition(".")
            if table == name and key not in values:
                section.add(tomlkit.comment(one_line(f"{key}: to be filled in. {one.why}")))
        return section

    def origin(self, recipe_key: str) -> str:
        """Where a recipe value came from, for the end of its line; empty when it was taken as it stands."""
        words = [
            f"{line.key} = {show(line.value)}"
            for line in self.lines
            if line.to == recipe_key and line.kind == "translated"
        ]
        if not words and any(line.to == recipe_key for line in self.defaults):
            return "their default"
        return ", ".join(words)

    def as_json(self) -> dict[str, Any]:
        """What `gradacc import --json` prints."""
        flat = {f"{name}.{key}": value for name, table in self.tables.items() for key, value in table.items()}

        def plain(line: KeyLine) -> dict[str, Any]:
            kept = {"key": line.key, "value": line.value, "class": line.kind, "to": line.to}
            return kept | {"note": line.note}

        return {
            "refused": None,
            "source": self.source,
            "recipe": flat,
            "account": [plain(line) for line in self.lines],
            "defaults": [plain(line) for line in self.defaults],
            "open": [one.key for one in self.open],
            "said": list(self.said),
        }


def one_line(text: str) -> str:
    """A text as it may stand in a TOML comment or on a terminal: control characters escaped, in one line."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )


def words_of(line: KeyLine) -> str:
    """One line of the account, for people."""
    where = f" -> {line.to} = {show(line.becomes)}" if line.to else ""
    note = f" ({line.note})" if line.note else ""
    return one_line(f"{line.kind:15}  {line.key} = {show(line.value)}{where}{note}")
