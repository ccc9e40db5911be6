"""The account of an import: what became of every key of the file that was read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec
import tomlkit

from trainer_backend.protocol import plain

KeyClass: TypeAlias = Literal["taken", "translated", "changes-the-run", "harmless"]
TITLES: Final[dict[KeyClass, str]] = {
    "taken": "Taken",
    "translated": "Translated",
    "changes-the-run": "Left out, changes the run",
    "harmless": "Left out, harmless",
}
LONGEST_SHOWN: Final = 60
"""Characters of a value."""


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


class RecipeLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a recipe that was imported."""

    text: str = ""
    """Its TOML."""
    comment: str = ""
    """Without the sign in front."""
    is_heading: bool = False
    is_open: bool = False
    """Whether its key is to be filled in."""

    @property
    def whole(self) -> str:
        """The line as the file has it."""
        return " ".join(part for part in (self.text, self.comment and f"# {self.comment}") if part)


class Imported(msgspec.Struct, frozen=True):
    """A recipe's tables and the account of how they came about."""

    source: str
    """Which program's configuration it was."""
    tables: dict[str, dict[str, Any]]
    lines: tuple[KeyLine, ...]
    """One for each key of the file."""
    further: tuple[KeyLine, ...] = ()
    """Recipe keys that a key of the file sets beside the one in its own line."""
    defaults: tuple[KeyLine, ...] = ()
    """Their defaults that were written out, since the file does not have the keys."""
    open: tuple[OpenKey, ...] = ()
    said: tuple[str, ...] = ()
    """Sentences on what differs though every key was understood."""

    def of(self, kind: KeyClass) -> tuple[KeyLine, ...]:
        """The lines of one class, in the file's order."""
        return tuple(line for line in self.lines if line.kind == kind)

    def filled(self, values: Mapping[str, Any]) -> Imported:
        """With what a person entered for keys that were open, by recipe key."""
        tables = {name: dict(table) for name, table in self.tables.items()}
        for path, value in values.items():
            name, _, key = path.partition(".")
            tables.setdefault(name, {})[key] = value
        rest = tuple(one for one in self.open if one.key not in values)
        return msgspec.structs.replace(self, tables=tables, open=rest)

    def recipe_text(self) -> str:
        """The recipe as TOML, with the account as comments."""
        return "".join(f"{line.whole}\n" for line in self.recipe_lines())

    def recipe_lines(self) -> list[RecipeLine]:
        """The recipe's lines, in which each value says where it came from."""
        found = [RecipeLine(comment=one_line(f"Imported from {self.source}."))]
        for line in self.of("changes-the-run"):
            words = f"left out: {line.key} = {shown(line.value)}. {line.note}"
            found.append(RecipeLine(comment=one_line(words)))
        asked = {one.key: one for one in self.open}
        names = dict.fromkeys([*self.tables, *(path.partition(".")[0] for path in asked)])
        for name in names:
            found += [RecipeLine(), RecipeLine(text=f"[{name}]", is_heading=True)]
            for key, value in self.tables.get(name, {}).items():
                path = f"{name}.{key}"
                words = "to be filled in" if path in asked else self.origin(path)
                text = f"{key} = {_toml(value)}"
                found.append(RecipeLine(text=text, comment=one_line(words), is_open=path in asked))
            for path, one in asked.items():
                table, _, key = path.partition(".")
                if table == name and key not in self.tables.get(name, {}):
                    words = f"{key}: to be filled in. {one.why}"
                    found.append(RecipeLine(comment=one_line(words), is_open=True))
        return found

    def origin(self, recipe_key: str) -> str:
        """Where a recipe value came from, for the end of its line; empty when it was taken as it stands."""
        lines = [
            line
            for line in (*self.lines, *self.further)
            if line.to == recipe_key and line.kind == "translated"
        ]
        deciding = [line for line in lines if not line.note.endswith(".")] or lines
        words = [f"{line.key}: {shown(line.value)}{_short_note(line)}" for line in deciding]
        if not words:
            words = ["their default" + _short_note(line) for line in self.defaults if line.to == recipe_key]
        return ", ".join(words)

    def as_json(self) -> dict[str, Any]:
        """What `gradacc import --json` prints."""
        flat = {f"{name}.{key}": value for name, table in self.tables.items() for key, value in table.items()}

        def told(line: KeyLine) -> dict[str, Any]:
            kept = {"key": line.key, "value": plain(line.value), "class": line.kind, "to": line.to}
            return kept | {"note": line.note}

        return {
            "refused": None,
            "source": self.source,
            "recipe": plain(flat),
            "account": [told(line) for line in self.lines],
            "further": [told(line) for line in self.further],
            "defaults": [told(line) for line in self.defaults],
            "open": [one.key for one in self.open],
            "said": list(self.said),
        }


def _toml(value: Any) -> str:  # noqa: ANN401 - plain data
    """A value on one line."""
    match value:
        case list() | tuple():
            return f"[{', '.join(map(_toml, value))}]"
        case dict():
            inside = (f"{tomlkit.key(key).as_string()} = {_toml(inner)}" for key, inner in value.items())
            return f"{{ {', '.join(inside)} }}"
        case _:
            return str(tomlkit.item(value).as_string())


def shown(value: Any) -> str:  # noqa: ANN401 - plain data
    """A value as a person writes it in a file, cut short."""
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 1]}…"


def _short_note(line: KeyLine) -> str:
    """A line's note behind a value; a whole sentence has no place there."""
    return f" ({line.note})" if line.note and not line.note.endswith(".") else ""


def one_line(text: str) -> str:
    """A text as it may stand in a TOML comment or on a terminal: control characters escaped, in one line."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )


def words_of(line: KeyLine) -> str:
    """One line of the account, for people."""
    where = f" -> {line.to} = {shown(line.becomes)}" if line.to else ""
    notes = "; ".join([*(["their default"] if line.is_absent else []), *([line.note] if line.note else [])])
    given = "(absent)" if line.is_absent else f"= {shown(line.value)}"
    return one_line(f"{line.kind:15}  {line.key} {given}{where}" + (f" ({notes})" if notes else ""))
