"""One import in progress: values are looked up with their defaults, and what becomes of each is noted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from gradacc_gui.importing.account import Imported, KeyClass, KeyLine, OpenKey, shown
from gradacc_gui.importing.key_rows import KeyRow, KeyRows
from trainer_backend.config_check import Problem, check, check_value, fields, section_types, show
from trainer_backend.errors import UsageError
from trainer_backend.recipe import RecipeError

KIND = "causal-lm"
_SECTIONS = section_types(KIND)
_TRUE, _FALSE = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})
AUTO = "auto"
ASKED_FIRST = frozenset({"task.model", "data.path"})
"""Open keys without which nothing can be tried."""


class RefusedError(UsageError):
    """The file asks for something that gradacc does not train."""


class KeyReading:
    """The keys of a file by a program's rows, and the recipe that comes about."""

    def __init__(self, program: str, rows: KeyRows, given: dict[str, Any]) -> None:
        self.program = program
        self.rows = rows
        self.given = given
        self.values: dict[str, Any] = {}
        """By recipe key."""
        self._lines: dict[str, KeyLine] = {}
        self._further: dict[str, KeyLine] = {}
        self._defaults: dict[str, KeyLine] = {}
        self._open: dict[str, OpenKey] = {}
        self._said: list[str] = []

    # ------------------------------------------------------------- looking up

    def has(self, key: str) -> bool:
        """Whether the file gives a value; empty and "auto" (their launcher fills it in) are none."""
        return self.given.get(key) not in (None, AUTO)

    def value(self, key: str) -> Any:  # noqa: ANN401 - YAML
        """The file's value, else their default."""
        return self.given[key] if self.has(key) else self.rows[key].default

    def number(self, key: str) -> float | None:
        """A finite number (YAML reads 1e-4 as text). Raises UsageError."""
        return self.as_number(key, self.value(key))

    def as_number(self, key: str, value: Any) -> float | None:  # noqa: ANN401 - YAML
        """A value as a finite number. Raises UsageError."""
        if value is None:
            return None
        try:
            number = float(value) if not isinstance(value, bool) else math.nan
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        return number if math.isfinite(number) else self.wrong(key, value, "a number")

    def whole(self, key: str) -> int | None:
        """A whole number. Raises UsageError."""
        number = self.number(key)
        if number is None:
            return None
        return int(number) if number.is_integer() else self.wrong(key, self.value(key), "a whole number")

    def flag(self, key: str) -> bool | None:
        """True or false, also in words. Raises UsageError."""
        value = self.value(key)
        if value is None or isinstance(value, bool):
            return value
        word = str(value).strip().lower()
        if word in _TRUE:
            return True
        return False if word in _FALSE else self.wrong(key, value, "true or false")

    def text(self, key: str) -> str | None:
        """A text that is not blank. Raises UsageError."""
        value = self.value(key)
        if value is None or (isinstance(value, str) and not value.strip()):
            return None
        if not isinstance(value, (str, int, float)) or isinstance(value, bool):
            return self.wrong(key, value, "text")
        return str(value).strip()

    def texts(self, key: str) -> list[str] | None:
        """A list of texts, or texts with commas between them. Raises UsageError."""
        return self.as_texts(key, self.value(key))

    def as_texts(self, key: str, value: Any) -> list[str] | None:  # noqa: ANN401 - YAML
        """A value as a list of texts. Raises UsageError."""
        if value is None:
            return None
        if isinstance(value, str):
            value = value.split(",")
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            return self.wrong(key, value, "a list of names")
        return [one.strip() for one in value if one.strip()]

    def table(self, key: str) -> dict[str, Any]:
        """Keys and values; empty when there are none. Raises UsageError."""
        value = self.value(key)
        if value is None or value == "":
            return {}
        if not isinstance(value, dict):
            return self.wrong(key, value, "keys and values")
        return {name: inner for name, inner in value.items() if inner is not None}

    def is_used(self, key: str) -> bool:
        """Whether the file gives the key a value that does something."""
        return self.has(key) and not self.rows[key].is_unused(self.given[key])

    @staticmethod
    def wrong(key: str, value: Any, wanted: str) -> NoReturn:  # noqa: ANN401 - YAML
        """Refuse a value that their program cannot have meant."""
        message = f"{key} = {show(value)} is not {wanted}. Correct it in the file."
        raise UsageError(message)

    # ------------------------------------------------------------- noting

    def put(self, to: str, value: Any, *keys: str, note: str = "") -> bool:  # noqa: ANN401 - TOML
        """Set a recipe key to what `keys` mean together; the first names their default when all are absent.

        False when the recipe does not take such a value, which is then said of the keys.
        """
        problem = self._problem(to, value)
        present = [key for key in keys if key in self.given]
        if problem is not None:
            for key in present:
                self.leave(key, problem.message)
            return False
        self.values[to] = value
        self._further.pop(to, None)
        self._defaults.pop(to, None)
        for key in present:
            before = self._lines.get(key)
            if before is None or not before.to:
                same = _is_same(self.given[key], value) and not note
                self._note(key, "taken" if same else "translated", to=to, becomes=value, note=note)
            elif before.to != to:
                self._further[to] = KeyLine(
                    key=key, value=self.given[key], kind="translated", to=to, becomes=value, note=note
                )
        if keys and not present:
            default = self.rows[keys[0]].default if keys[0] in self.rows else None
            self._defaults[to] = KeyLine(
                key=keys[0], value=default, kind="translated", to=to, becomes=value, note=note, is_absent=True
            )
        return True

    @staticmethod
    def _problem(to: str, value: Any) -> Problem | None:  # noqa: ANN401 - TOML
        name, _, key = to.partition(".")
        section = _SECTIONS[name]
        assert section is not None  # the kind is known
        return check_value(to, value, section, key)

    def leave(self, key: str, words: str, *, to: str = "") -> None:
        """Note that a key was left out though the run differs."""
        self._note(key, "changes-the-run", to=to, note=words)

    def settle(self, key: str, words: str) -> None:
        """Note that a key does not concern the result."""
        if key not in self._lines:
            self._note(key, "harmless", note=words)

    def hold(self, key: str, to: str, words: str) -> None:
        """Note that what a key means holds by a recipe key that others set."""
        if key not in self._lines:
            self._note(key, "translated", to=to, becomes=self.values.get(to), note=words)

    def ask(self, to: str, why: str, *keys: str, stand_in: Any = None) -> None:  # noqa: ANN401 - TOML
        """Leave a recipe key to the person; `stand_in` keeps the recipe valid until then."""
        self._open[to] = OpenKey(key=to, why=why, stand_in=stand_in)
        if stand_in is not None:
            self.values[to] = stand_in
        for key in keys:
            self._note(key, "translated", to=to, becomes=stand_in, note=why)

    def forget(self, to: str) -> None:
        """Take back that a recipe key is left to the person: the file says it after all."""
        self._open.pop(to, None)

    def say(self, sentence: str) -> None:
        """Tell what differs though every key was understood."""
        if sentence not in self._said:
            self._said.append(sentence)

    def _note(self, key: str, kind: KeyClass, *, to: str = "", becomes: Any = None, note: str = "") -> None:  # noqa: ANN401
        if key in self.given or "." in key:
            value = self.given.get(key) if key in self.given else self._inner(key)
            self._lines[key] = KeyLine(key=key, value=value, kind=kind, to=to, becomes=becomes, note=note)

    def _inner(self, key: str) -> Any:  # noqa: ANN401 - YAML
        """The value of a key inside a table, written with dots."""
        value: Any = self.given
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    # ------------------------------------------------------------- the whole

    def refuse_what_is_not_trained(self) -> None:
        """Raise RefusedError for the first key that says the file is for something else."""
        for key, row in self.rows.items():
            if row.fate == "refuses" and key in self.given and not row.is_unused(self.given[key]):
                message = f"{key} = {shown(self.given[key])}: {row.words}"
                raise RefusedError(message)

    def finish(self) -> Imported:
        """Note what no reader touched, and see to it that the recipe opens. Raises RecipeError."""
        for key in self.given:
            if key not in self._lines:
                self._note_by_row(key, self.rows.get(key))
        self._fill_in()
        tables = self._checked()
        place = {key: number for number, key in enumerate(self.given)}
        lines = [
            line
            for _, line in sorted(
                self._lines.items(), key=lambda item: place.get(item[0], place.get(item[0].split(".")[0], 0))
            )
        ]
        return Imported(
            self.program,
            tables,
            tuple(lines),
            tuple(line for to, line in self._further.items() if to in self.values),
            tuple(line for to, line in self._defaults.items() if to in self.values),
            tuple(sorted(self._open.values(), key=lambda one: one.key not in ASKED_FIRST)),
            tuple(self._said),
        )

    def _note_by_row(self, key: str, row: KeyRow | None) -> None:
        value = self.given[key]
        if row is None:
            self.leave(
                key, f"gradacc does not know this key of {self.program}; what it does there is missing."
            )
        elif row.fate == "changes" and not row.is_unused(value):
            self.leave(key, row.words)
        elif row.fate == "harmless":
            self.settle(key, row.words)
        elif row.is_unused(value):
            self.settle(key, "Their default." if value not in (None, False, "") else "It is off.")
        else:
            self.settle(key, "The other keys leave it without effect.")

    def _fill_in(self) -> None:
        self.values["task.kind"] = KIND
        if "task.model" not in self.values:
            self.ask("task.model", "The file names no model.", stand_in="path/to/model")
        if "data.path" not in self.values:
            self.ask("data.path", "The file names no data.", stand_in="path/to/data.jsonl")
        if "task.max_length" not in self.values:
            self.ask("task.max_length", "The file does not say how many tokens a sample may have.")

    def _checked(self) -> dict[str, dict[str, Any]]:
        """The tables, without values that cannot stand together; each is reported at its keys."""
        for _ in range(len(self.values)):
            tables = self._tables()
            problems = check(tables)
            if not isinstance(problems, list):
                return tables
            dropped = [problem for problem in problems if problem.path in self.values]
            if not dropped:
                raise RecipeError("The import", problems)
            for problem in dropped:
                del self.values[problem.path]
                for line in [line for line in self._lines.values() if line.to == problem.path]:
                    self.leave(line.key, problem.message)
        return self._tables()

    def _tables(self) -> dict[str, dict[str, Any]]:
        """The values by table, in the order in which a recipe's keys are documented."""
        tables: dict[str, dict[str, Any]] = {}
        for name, section in _SECTIONS.items():
            if section is None:
                continue
            inside = {
                key: self.values[f"{name}.{key}"] for key in fields(section) if f"{name}.{key}" in self.values
            }
            if inside:
                tables[name] = inside
        return tables


def _is_same(given: Any, value: Any) -> bool:  # noqa: ANN401 - YAML
    """Whether a value was carried over as it stands; 1e-4 as text is the number."""
    if isinstance(given, str) and isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(given) == value
        except ValueError:
            return False
    if isinstance(given, bool) or isinstance(value, bool):
        return given is value
    return bool(given == value)


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A program whose configurations are read."""

    name: str
    rows: KeyRows
    readers: tuple[Callable[[KeyReading], None], ...]
    """Each makes recipe values of some keys; in this order."""
    signs: frozenset[str]
    """Keys of which one suggests this program; the program that knows most of the file's keys is taken."""
