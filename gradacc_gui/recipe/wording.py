"""A fault of the recipe as it is said beside its field, where the field's name stands already. No Qt."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gradacc_gui.recipe.arrangement import title_of
from gradacc_gui.recipe.field_specs import FieldSpec, text_of
from gradacc_gui.words import tr
from trainer_backend.config import RunConfig
from trainer_backend.config_check import Problem


def beside_field(problem: Problem, specs: Mapping[str, FieldSpec]) -> str:
    """The sentence without its path, with titles for other paths, and with a value to try."""
    sentence = problem.message
    spec = _spec_of(problem.path, specs)
    if spec is not None and (comma := _comma_fault(spec, problem.value)):
        return comma
    if spec is not None and spec.shape == "pair" and spec.default is None:
        return tr("Enter 2 numbers separated by a comma: 0, 4095.")
    if spec is not None and spec.shape == "pair":
        return tr("Enter {count} numbers separated by a comma, each from 0 to below 1: {example}.").format(
            count=len(spec.default), example=text_of(spec, spec.default)
        )
    if spec is not None and spec.browse and problem.value in (None, ""):
        wanted = tr(_PATH_WANTED[spec.browse])
        if not spec.instead:
            return wanted
        return wanted.removesuffix(".") + tr(", or write {instead}.").format(instead=tr(spec.instead))
    if spec is not None:
        sentence = re.sub(rf"^{re.escape(spec.path)}[\w.\[\]]* = ", "", sentence)
        sentence = re.sub(rf"^{re.escape(spec.path)}[\w.\[\]]* is (\w)", _capital, sentence)
    sentence = re.sub(r"\b[a-z]+\.[a-z_]+\b", lambda found: _title(found[0], specs), sentence)
    if (
        spec is not None
        and "Try " not in sentence
        and "Keep " not in sentence
        and (example := _example(spec))
    ):
        sentence += " " + tr("Try {example}.").format(example=example)
    return sentence


def _comma_fault(spec: FieldSpec, value: object) -> str:
    """What to write in place of a number with a comma in it; empty when that is not what is wrong.

    A comma is never guessed at: 1,000 is a thousand to some people, and one to others.
    """
    if spec.shape not in ("integer", "number") or not isinstance(value, str):
        return ""
    if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+", value):
        words = tr('"{typed}" is not a number here. Leave out the commas: {plain}')
        return words.format(typed=value, plain=value.replace(",", ""))
    if spec.shape == "number" and re.fullmatch(r"[+-]?\d*,\d+(e[+-]?\d+)?", value, re.IGNORECASE):
        words = tr('"{typed}" is not a number here. Use a decimal point: {plain}')
        return words.format(typed=value, plain=value.replace(",", "."))
    return ""


_PATH_WANTED = {
    "file": "Missing. Choose a file.",
    "folder": "Missing. Choose a folder.",
    "any": "Missing. Choose a file or folder.",
}


def _capital(found: re.Match[str]) -> str:
    return found[1].upper()


def _title(path: str, specs: Mapping[str, FieldSpec]) -> str:
    return title_of(specs[path]) if path in specs else path


def _spec_of(path: str, specs: Mapping[str, FieldSpec]) -> FieldSpec | None:
    found = field_path(path, specs)
    return specs[found] if found else None


def field_path(path: str, specs: Mapping[str, FieldSpec]) -> str:
    """The field that a problem's path lies in ("optimizer.betas[1]" → "optimizer.betas"); empty: none."""
    parts = re.split(r"[.\[]", path)
    for count in (2, 1):
        if ".".join(parts[:count]) in specs:
            return ".".join(parts[:count])
    return ""


def _example(spec: FieldSpec) -> str:
    """A value that is right: what a run has that says nothing."""
    if spec.shape in ("choice", "flag", "points", "table", "list", "numbers") or spec.suggestions:
        return ""
    section = getattr(RunConfig(), spec.section)
    value = getattr(section, spec.name, spec.default)
    return text_of(spec, value)
