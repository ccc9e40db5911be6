"""What a recipe says was published ([published]) beside what is run here. No torch: the window asks too."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from trainer_backend.config import RunConfig
from trainer_backend.config_check import fields, metadata, section_types, show

NOT_HERE: Final = "–"


class Difference(msgspec.Struct, frozen=True):
    """One published value beside what is run here."""

    path: str
    title: str
    published: str
    here: str
    same: bool

    @property
    def differs(self) -> bool:
        """Whether there is something else here (and not merely nothing)."""
        return not self.same and self.here != NOT_HERE


def leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The published values by their recipe paths ("optimizer.learning_rate"), in order."""
    for key, value in table.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and not prefix:
            yield from leaves(value, f"{path}.")
        elif prefix:
            yield path, value


def values_of(config: RunConfig) -> dict[str, Any]:
    """What a recipe itself asks for, by recipe paths; N and the effective batch either way it gives them."""
    here = {
        f"{section}.{name}": value
        for section, table in msgspec.to_builtins(config).items()
        if section != "published"
        for name, value in table.items()
    }
    here["accumulation.gradient_accumulation_steps"] = config.accumulation_steps
    here["accumulation.effective_batch_size"] = config.effective_batch
    return here


def compare(published: Mapping[str, Any], kind: str, here: Mapping[str, Any]) -> list[Difference]:
    """Every published value beside the one here; `here` maps paths to values, where there is one."""
    titles = _titles(kind)
    return [
        Difference(
            path=path,
            title=titles.get(path) or path.rpartition(".")[2].replace("_", " "),
            published=_text(value),
            here=NOT_HERE if (mine := here.get(path)) is None else _text(mine),
            same=mine is not None and _same(mine, value),
        )
        for path, value in leaves(published)
    ]


def beside_own(config: RunConfig) -> list[Difference]:
    """Every published value of a recipe beside the recipe's own."""
    return compare(msgspec.to_builtins(config.published), config.kind, values_of(config))


def lines(source: str, differences: Iterable[Difference]) -> Iterator[str]:
    """A table for a person; nothing where nothing was published."""
    rows = [(entry.title, entry.published, entry.here) for entry in differences]
    if not rows:
        return
    yield f"As published{f' ({source})' if source else ''}, and in this run:"
    table = [("", "as published", "in this run"), *rows]
    widths = [max(len(row[column]) for row in table) for column in range(3)]
    for row in table:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def number_text(value: Any) -> str:  # noqa: ANN401 - plain data
    """A number in few characters: 0.001, 3e-4, 1e-8."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    text = repr(value)
    return re.sub(r"e([+-])0*(\d)", r"e\1\2", text).replace("e+", "e").removesuffix(".0")


@functools.cache  # msgspec looks at the types anew each time, and the form compares at each key
def _titles(kind: str) -> dict[str, str]:
    return {
        f"{section}.{name}": metadata(field.type)[0]
        for section, found in section_types(kind).items()
        if found is not None and section != "published"
        for name, field in fields(found).items()
    }


def _text(value: Any) -> str:  # noqa: ANN401 - plain data
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return show(value)
    if isinstance(value, int | float):
        return number_text(value)
    if isinstance(value, list | tuple) and all(isinstance(item, int | float) for item in value):
        return ", ".join(map(number_text, value))
    return show(value)


def _same(one: Any, other: Any) -> bool:  # noqa: ANN401 - plain data
    if isinstance(one, float | int) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=1e-12)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)
