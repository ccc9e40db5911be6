"""What each field of the form is, read off the configuration's types; and values as text and back. No Qt.

A path is the recipe's own: "accumulation.micro_batch_size". Text is what an editor shows. Reading a
text never fails: what is no number stays text, so that the check can say what would be right.
"""

from __future__ import annotations

import functools
import re
import tomllib
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec
import tomlkit
from msgspec import inspect

from trainer_backend.config import KINDS, Section
from trainer_backend.config_check import bare, fields, metadata, section_types
from trainer_backend.optimizer_table import OPTIMIZERS
from trainer_backend.published import number_text
from trainer_backend.schedule_curves import CURVES

Shape: TypeAlias = Literal[
    "integer", "number", "text", "choice", "flag", "list", "pair", "numbers", "table", "points"
]
"""list: texts; pair: a fixed number of numbers; numbers: as many as one likes; table: free keys, as TOML;
points: a list of small tables."""

INTEGER: Final = re.compile(r"[+-]?[0-9]+(_[0-9]+)*", re.ASCII)
REAL: Final = re.compile(r"[+-]?([0-9][0-9_]*\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.ASCII | re.IGNORECASE)
LONGEST_NUMBER: Final = 400
"""Characters; a longer one is a slip, and Python refuses to read very long ones."""


class Absent(msgspec.Struct, frozen=True):
    """The key is not in the recipe."""


ABSENT: Final = Absent()


class FieldSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One field: its place in the recipe, its words, and how it is edited."""

    path: str
    title: str
    help: str
    unit: str
    advanced: bool
    shape: Shape
    optional: bool
    """Whether the recipe may leave it out with a meaning of its own ("no clipping")."""
    required: bool
    """Whether there is no default."""
    default: Any
    choices: tuple[str, ...] = ()
    values: tuple[str | int, ...] = ()
    """What each choice is in the recipe: a Literal may be of whole numbers."""
    words: tuple[str, ...] = ()
    """What the choices are called, where that differs."""
    suggestions: tuple[str, ...] = ()
    """Of a text that is free, but has usual values."""
    browse: str = ""
    """"file", "folder" or "any" when it is a path."""
    instead: str = ""
    """What else than a path it may be: "a hub id such as organisation/name"."""
    columns: tuple[FieldSpec, ...] = ()
    """Of points."""
    takes_blank: bool = False

    @property
    def section(self) -> str:
        """The recipe's table."""
        return self.path.partition(".")[0]

    @property
    def name(self) -> str:
        """The key in its table."""
        return self.path.rpartition(".")[2]


OTHER_UNITS: Final[Mapping[str, tuple[str, str]]] = {
    "from_sample": ("from_token", "tokens"),
    "steps": ("effective_batch_size", "samples"),
}
"""Of a point's column: the key that may stand in its place, and the word behind its number."""


def specs_of(section: str, kind: str) -> tuple[FieldSpec, ...]:
    """The fields of one of the recipe's tables, in the order of its type, without `task.kind`."""
    found = section_types(kind)[section]
    return () if found is None else _specs(section, found)


_ELSEWHERE: Final = frozenset({("task", "kind"), ("targets", "metric")})
"""No fields: the kind has its own editor, and lists of tables of texts are edited in the file."""


@functools.cache
def _specs(section: str, struct: type[Section]) -> tuple[FieldSpec, ...]:
    hints = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
    return tuple(
        _spec(f"{section}.{name}", field, _literals(hints[name]))
        for name, field in fields(struct).items()
        if (section, name) not in _ELSEWHERE
    )


def _literals(hint: Any) -> tuple[str | int, ...]:  # noqa: ANN401 - an annotation
    """The values of a Literal in the order in which they were written (msgspec sorts them)."""
    if typing.get_origin(hint) is Literal:
        return typing.get_args(hint)
    return next(filter(None, map(_literals, typing.get_args(hint))), ())


@functools.cache
def all_specs(kind: str) -> dict[str, FieldSpec]:
    """Every field of a recipe of this kind, by path; the free tables of [published] are no fields."""
    sections = [name for name in section_types(kind) if name != "published"]
    return {spec.path: spec for section in sections for spec in specs_of(section, kind)}


def kind_spec() -> FieldSpec:
    """The choice of the kind of task, which decides the fields of two tables."""
    return FieldSpec(
        path="task.kind",
        title="Kind",
        help="",
        unit="",
        advanced=False,
        shape="choice",
        optional=False,
        required=False,
        default="language-model",
        choices=tuple(KINDS),
        values=tuple(KINDS),
        words=tuple(kind.title for kind in KINDS.values()),
    )


_WORDS: Final = {
    "optimizer.name": tuple(row.label for row in OPTIMIZERS.values()),
    "schedule.kind": tuple(curve.title for curve in CURVES.values()),
}
"""What the choices of a table are called."""


def _spec(path: str, field: inspect.Field, values: tuple[str | int, ...] = ()) -> FieldSpec:
    title, text, extra, examples = metadata(field.type)
    kind = bare(field.type)
    columns: tuple[FieldSpec, ...] = ()
    item = bare(kind.item_type) if isinstance(kind, inspect.VarTupleType) else None
    if isinstance(item, inspect.StructType):
        other = {key for key, _ in OTHER_UNITS.values()}
        columns = tuple(
            _spec(f"{path}.{part.encode_name}", part) for part in item.fields if part.encode_name not in other
        )
    return FieldSpec(
        path=path,
        title=title or path.rpartition(".")[2].replace("_", " ").capitalize(),
        help=text,
        unit=extra.get("unit", ""),
        advanced=bool(extra.get("advanced", False)),
        shape=_shape(kind),
        optional=_takes_none(field.type),
        required=field.required,
        default=_default(field),
        choices=tuple(map(str, values)) if isinstance(kind, inspect.LiteralType) else (),
        values=values if isinstance(kind, inspect.LiteralType) else (),
        words=_WORDS.get(path, ()),
        suggestions=tuple(map(str, examples)) if len(examples) > 1 else (),
        browse=extra.get("path", ""),
        instead=extra.get("instead", ""),
        columns=columns,
        takes_blank=isinstance(kind, inspect.StrType) and not kind.min_length and kind.pattern is None,
    )


def _default(field: inspect.Field) -> Any:  # noqa: ANN401 - plain data
    if field.required:
        return ABSENT
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _takes_none(kind: inspect.Type) -> bool:
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    parts = kind.types if isinstance(kind, inspect.UnionType) else ()
    return any(isinstance(part, inspect.NoneType) for part in parts)


def _shape(kind: inspect.Type) -> Shape:
    match kind:
        case inspect.IntType():
            return "integer"
        case inspect.FloatType():
            return "number"
        case inspect.BoolType():
            return "flag"
        case inspect.LiteralType():
            return "choice"
        case inspect.TupleType():
            return "pair"
        case inspect.VarTupleType():
            return _list_shape(bare(kind.item_type))
        case inspect.DictType():
            return "table"
        case _:
            return "text"


def _list_shape(item: inspect.Type) -> Shape:
    if isinstance(item, inspect.StructType):
        return "points"
    return "numbers" if isinstance(item, inspect.IntType | inspect.FloatType) else "list"


# ------------------------------------------------------------------------- values as text, and back


def text_of(spec: FieldSpec, value: Any) -> str:  # noqa: ANN401 - plain data
    """A value as its editor shows it; `value_of` gives the same value back."""
    if value is None or value is ABSENT:
        return ""
    match spec.shape:
        case "flag":
            return "true" if value else "false"
        case "number":
            return number_text(value)
        case "list":
            return ", ".join(_quoted(item) for item in value)
        case "pair" | "numbers":
            return ", ".join(number_text(item) for item in value)
        case "points":
            return text_of_rows([_point_cells(spec, item) for item in value])
        case "table":
            return toml_text(value)
        case _:
            return str(value)


def value_of(spec: FieldSpec, text: str) -> Any:  # noqa: ANN401 - plain data
    """What a text says, as plain data for the check; `ABSENT` for an empty optional field."""
    if spec.optional and not text.strip():
        return ABSENT
    match spec.shape:
        case "integer":
            return _read_count(text)
        case "number":
            return read_number(text)
        case "choice":
            return dict(zip(spec.choices, spec.values, strict=True)).get(text, text)
        case "flag":
            return {"true": True, "false": False}.get(text, text)
        case "list":
            return _read_list(text)
        case "pair" | "numbers":
            return _read_numbers(text, blank="" if spec.shape == "pair" else [])
        case "points":
            return _read_points(spec, text)
        case "table":
            return read_table(text)
        case _:
            return text


def _read_numbers(text: str, *, blank: str | list[int]) -> Any:  # noqa: ANN401 - plain data
    inside = _BRACKETS.sub(r"\2", text.strip())  # as a list in TOML or Python has them
    return [_read_count(part) for part in inside.split(",")] if inside.strip() else blank


LARGEST_EXACT: Final = 2.0**53
"""Up to here every whole number is a float."""
_BRACKETS: Final = re.compile(r"^([\[(])([^\[\]()]*)[\])]$")


def read_number(text: str) -> int | float | str:
    """A number as TOML has them (`_` between digits allowed); anything else stays text."""
    word = text.strip()
    if len(word) > LONGEST_NUMBER:
        return word
    if INTEGER.fullmatch(word):
        return int(word)
    if REAL.fullmatch(word) and "__" not in word and not word.startswith("_"):
        try:
            return float(word)
        except ValueError:  # "1_.5"
            return word
    return word


def _read_count(text: str) -> int | float | str:
    """A whole number; 1e3 too, as people write a thousand: the recipe gets 1000. 4.0 stays what it is."""
    number = read_number(text)
    is_power = "e" in text.lower() and isinstance(number, float)
    if is_power and float(number).is_integer() and abs(float(number)) < LARGEST_EXACT:
        return int(number)
    return number


def _quoted(item: Any) -> str:  # noqa: ANN401 - plain data
    text = str(item)
    plain = text and text == text.strip() and "," not in text and not text.startswith('"')
    return text if plain else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


_ITEM: Final = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([^,]*))\s*(?:,|$)', re.DOTALL)


def _read_list(text: str) -> list[str]:
    if not text.strip():
        return []
    found, at = [], 0
    while at < len(text):
        match = _ITEM.match(text, at)
        if match is None:  # a quote that is not closed, or text after one: taken as it stands
            found.append(text[at:].strip())
            break
        quoted, plain = match.groups()
        found.append(plain.strip() if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL))
        at = max(match.end(), at + 1)
    return found


def _point_cells(spec: FieldSpec, item: Any) -> tuple[str, ...]:  # noqa: ANN401 - plain data
    values = item if isinstance(item, dict) else msgspec.to_builtins(item)
    return tuple(_point_cell(column, values) for column in spec.columns)


def _point_cell(column: FieldSpec, values: dict[str, Any]) -> str:
    key, unit = OTHER_UNITS.get(column.name, ("", ""))
    if values.get(key) is not None:
        return f"{values[key]} {unit}"
    return text_of(column, values.get(column.name))


def point_value(column: FieldSpec, cell: str) -> tuple[str, Any]:
    """The key and the value that a cell of a point says: 64000, or "1000000 tokens" of the other key."""
    key, unit = OTHER_UNITS.get(column.name, ("", ""))
    number, _, word = cell.strip().rpartition(" ")
    if unit and word == unit:
        return key, value_of(column, number)
    return column.name, value_of(column, cell)


def _read_points(spec: FieldSpec, text: str) -> list[Any]:
    return [
        dict(point_value(column, cell) for column, cell in zip(spec.columns, row, strict=True) if cell)
        for row in rows_of(text, len(spec.columns))
    ]


def toml_text(value: Any) -> str:  # noqa: ANN401 - plain data
    """A table as TOML lines, comments kept where it still has them."""
    return tomlkit.dumps(value).strip()


def read_table(text: str) -> dict[str, Any] | str:
    """A table's TOML lines as data; text that is no TOML stays text (`toml_fault` says why)."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def toml_fault(text: str) -> str:
    """What is wrong with TOML lines, in a sentence; empty when nothing is."""
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return f"Not valid TOML: {error}. Write one key = value per line."
    except RecursionError:
        return "Not valid TOML: nested too deep."
    return ""


TextRow: TypeAlias = tuple[str, ...]


def rows_of(text: str, columns: int) -> list[TextRow]:
    """The cells of each row that is not empty. "1,000" is one cell: what separates ends in a blank."""
    rows = []
    for part in re.split(r",\s+", text):
        cells = [cell.strip() for cell in re.split(r":\s+", part, maxsplit=columns - 1)]
        if any(cells):
            rows.append(tuple([*cells, *[""] * columns][:columns]))
    return rows


def text_of_rows(rows: Sequence[TextRow]) -> str:
    """The same as text; what separates rows and cells there cannot stand inside a cell."""
    cells = [[re.sub(r"([,:])(\s+|$)", r"\1", cell.strip()) for cell in row] for row in rows]
    return ", ".join(": ".join(row) for row in cells if any(row))
