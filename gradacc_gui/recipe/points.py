"""What is wrong with which cell of a schedule of N as it is typed, and how it goes into the recipe. No Qt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Final

import tomlkit
from tomlkit.items import AoT, Array
from tomlkit.toml_document import TOMLDocument

from gradacc_gui.recipe.field_specs import ABSENT, FieldSpec, TextRow, point_value, rows_of
from gradacc_gui.words import tr
from trainer_backend.config import AccumulationSection
from trainer_backend.config_check import check_value
from trainer_backend.recipe import set_value

_RIGHT: Final = {"from_sample": 0, "steps": 1}
"""A point that is right, to hold a single cell to the recipe's bounds in."""


def wrong_cells(spec: FieldSpec, rows: Sequence[TextRow]) -> list[tuple[int, int]]:
    """Row and column of each cell that is wrong; an empty row is right."""
    wrong = []
    last: dict[str, int] = {}
    for place, row in enumerate(rows):
        if not any(cell.strip() for cell in row):
            continue
        for number, (column, cell) in enumerate(zip(spec.columns, row, strict=True)):
            key, value = point_value(column, cell)
            rest = {name: right for name, right in _RIGHT.items() if name != column.name}
            point = {**rest, key: value}
            problem = check_value(spec.path, [point], AccumulationSection, "schedule")
            is_bad: bool = value is ABSENT or problem is not None
            if not is_bad and column.name == "from_sample":
                is_bad = value <= last.get(key, -1) or (bool(last) and key not in last)
                last[key] = max(last.get(key, -1), value)
            if is_bad:
                wrong.append((place, number))
    return wrong


def points_fault(spec: FieldSpec, text: str) -> str:
    """What would be right in the first cell that is not, in a sentence; empty when all are."""
    rows = rows_of(text, len(spec.columns))
    wrong = wrong_cells(spec, rows)
    if not wrong:
        return ""
    place, number = wrong[0]
    column = spec.columns[number]
    if column.name == "steps":
        sentence = tr(
            "Row {row}: enter N as a whole number from 1 to 1,000,000, without commas,"
            " or the effective batch: 256 samples."
        )
    elif isinstance(value := point_value(column, rows[place][number])[1], int) and place and value >= 0:
        sentence = tr(
            "Row {row}: its sample must be larger than the one in the row above, in the same unit."
            " Sort the rows."
        )
    else:
        sentence = tr(
            "Row {row}: enter the sample from which N applies, as a whole number: 64000, or the token:"
            " 1000000 tokens."
        )
    return sentence.format(row=place + 1)


def write_points(document: TOMLDocument, path: str, points: Sequence[dict[str, int]]) -> None:
    """Bring a recipe's list of points to `points`; those that stay keep their place and their comments."""
    section, _, name = path.partition(".")
    tables: Any = document
    entries: Any = tables.get(section, {}).get(name)
    if not points:
        set_value(document, path, None)
        return
    if not isinstance(entries, Array | AoT) or not entries:
        entries = tomlkit.array()
        set_value(document, path, entries)
        entries = tables[section][name]
    make = tomlkit.table if isinstance(entries, AoT) else tomlkit.inline_table
    before, after = [_start(entry) for entry in entries], [_start(point) for point in points]
    for _, old, old_end, new, new_end in reversed(SequenceMatcher(None, before, after).get_opcodes()):
        both = min(old_end - old, new_end - new)
        for place, point in zip(range(old, old + both), points[new : new + both], strict=True):
            for key in set(entries[place]) - set(point):
                del entries[place][key]
            for key, value in point.items():
                if entries[place].get(key) != value:
                    entries[place][key] = value
        for place in reversed(range(old + both, old_end)):
            del entries[place]
        for place, point in enumerate(points[new + both : new_end], start=old + both):
            made = make()
            made.update(point)
            entries.insert(place, made)


def _start(point: Mapping[str, Any]) -> tuple[Any, Any]:
    return point.get("from_sample"), point.get("from_token")
