"""What was published beside what is run here, and rules that carry a learning rate over. No Qt."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from gradacc_gui.form.specs import FieldSpec, text_of
from trainer_backend.config_check import show

Rule: TypeAlias = Literal["none", "sqrt", "linear"]
RULES: Final[Mapping[Rule, str]] = {
    "linear": "linear: × κ",
    "sqrt": "square root: × √κ",
    "none": "none: as published",
}
"""κ is the effective batch here over the published one. Linear: Goyal et al. 2017, section 2.1, for SGD;
square root: Krizhevsky 2014 (arXiv 1404.5997); Malladi et al. 2022 (arXiv 2205.10287) for Adam."""


class Difference(msgspec.Struct, frozen=True):
    """One published value beside what is run here."""

    path: str
    title: str
    published: str
    here: str
    same: bool


def leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The published values by their recipe paths ("optimizer.learning_rate"), in order."""
    for key, value in table.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and not prefix:
            yield from leaves(value, f"{path}.")
        elif prefix:
            yield path, value


def compare(
    published: Mapping[str, Any], specs: Mapping[str, FieldSpec], here: Mapping[str, Any]
) -> list[Difference]:
    """Every published value beside the one here; `here` maps paths to values, where a field has one."""
    found = []
    for path, value in leaves(published):
        spec = specs.get(path)
        title = spec.title if spec else path.rpartition(".")[2].replace("_", " ")
        mine = here.get(path)
        found.append(
            Difference(
                path=path,
                title=title,
                published=_text(spec, value),
                here="–" if mine is None else _text(spec, mine),
                same=mine is not None and _same(mine, value),
            )
        )
    return found


def _text(spec: FieldSpec | None, value: Any) -> str:  # noqa: ANN401 - plain data
    if spec is not None and spec.shape in ("number", "pair") and not isinstance(value, str):
        try:
            return text_of(spec, value)
        except TypeError:  # published in another shape: a number where we have two
            return show(value)
    return value if isinstance(value, str) else show(value)


def _same(one: Any, other: Any) -> bool:  # noqa: ANN401 - plain data
    if isinstance(one, float | int) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=1e-12)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def effective_batch_of(published: Mapping[str, Any]) -> int | None:
    """The published effective batch: given, or micro-batch × N × devices."""
    accumulation = published.get("accumulation", {})
    run = published.get("run", {})
    if not isinstance(accumulation, Mapping) or not isinstance(run, Mapping):
        return None
    given = _positive(accumulation.get("effective_batch_size"))
    if given is not None:
        return int(given)
    parts = [
        _positive(accumulation.get("micro_batch_size")),
        _positive(accumulation.get("gradient_accumulation_steps", 1)),
        _positive(run.get("devices", 1)),
    ]
    return None if None in parts else int(math.prod(part for part in parts if part))


def learning_rate_of(published: Mapping[str, Any]) -> float | None:
    """The published learning rate, where it is one positive number."""
    optimizer = published.get("optimizer", {})
    return _positive(optimizer.get("learning_rate")) if isinstance(optimizer, Mapping) else None


def _positive(value: Any) -> float | None:  # noqa: ANN401 - plain data
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
    return value if fits else None


def scaled(learning_rate: float, kappa: float, rule: Rule) -> float:
    """A learning rate carried to an effective batch κ times as large; four significant figures."""
    factor = {"none": 1.0, "sqrt": math.sqrt(kappa), "linear": kappa}[rule]
    return float(f"{learning_rate * factor:.4g}")
