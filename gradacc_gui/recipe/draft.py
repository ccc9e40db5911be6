"""What a person has typed into the form: texts over a recipe's document. No Qt.

Nothing typed is changed or dropped: a text that is no number stays as it is and has a problem. The
document (with its comments) is only written with what differs from it.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any, Final

import msgspec
import tomlkit
from tomlkit.items import Table, Trivia
from tomlkit.toml_document import TOMLDocument

from gradacc_gui.recipe.arrangement import CHOICE_OF, CHOICES, Alternatives
from gradacc_gui.recipe.field_specs import (
    ABSENT,
    FieldSpec,
    all_specs,
    read_table,
    text_of,
    toml_fault,
    toml_text,
    value_of,
)
from gradacc_gui.recipe.points import points_fault, write_points
from gradacc_gui.recipe.wording import beside_field, field_path
from trainer_backend.config import KINDS, RunConfig
from trainer_backend.config_check import Problem, check, check_value, section_types
from trainer_backend.errors import UsageError
from trainer_backend.recipe import Recipe, parse_document, recipe_from_document, set_value

PUBLISHED: Final = "published"
"""The path under which the whole [published] table is edited, as TOML."""
PER_KIND: Final = ("task", "data")


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A draft as it is kept on disk between two starts of the window."""

    document: str
    folder: str
    recipe: str
    """The recipe file's path; empty when there is none."""
    kind: str
    texts: dict[str, str]
    chosen: dict[str, str]


class Draft:
    """A recipe being edited. Its base is always a recipe that was checked."""

    def __init__(self, recipe: Recipe, *, path: Path | None = None) -> None:
        self.path = path
        """The recipe file; None for one that has none yet."""
        self.folder = recipe.folder
        self._document = recipe.document
        self._base: dict[str, Any] = recipe.document.unwrap()
        self._base.pop("source", None)
        self._base_kind = recipe.config.kind
        self.kind = self._base_kind
        self._texts: dict[str, str] = {}
        """Edits: "optimizer.name", but "causal-lm:task.model" in the tables that each kind has of its own."""
        self._shown: dict[str, str] = {}
        self._chosen = {choice.key: self._base_choice(choice) for choice in CHOICES}
        self._implied = self._implied_values()

    # ------------------------------------------------------------------ what editors show

    @property
    def specs(self) -> dict[str, FieldSpec]:
        """The fields of the present kind, by path."""
        return all_specs(self.kind)

    def text(self, path: str) -> str:
        """What the editor of `path` shows."""
        key = self._key(path)
        if key in self._texts:
            return self._texts[key]
        return self._base_text(path)

    def set_text(self, path: str, text: str) -> None:
        """Take what was typed, whatever it is."""
        key = self._key(path)
        if text == self._base_text(path):
            self._texts.pop(key, None)
        else:
            self._texts[key] = text

    def chosen(self, choice: Alternatives) -> str:
        """Which of the fields that exclude each other is used."""
        return self._chosen[choice.key]

    def choose(self, choice: Alternatives, path: str) -> None:
        """Use another of them; its text is what was last typed for it, or "" the first time."""
        if path not in choice.paths:
            message = f"{path} is none of {choice.paths}"
            raise ValueError(message)
        self._chosen[choice.key] = path

    def set_kind(self, kind: str) -> None:
        """Another kind of task; what was typed for the former one is kept until the page closes."""
        if kind in KINDS:
            self.kind = kind

    def changed_paths(self) -> tuple[str, ...]:
        """Fields whose text differs from the recipe's, of the present kind."""
        prefix = f"{self.kind}:"
        return tuple(
            key.removeprefix(prefix) for key in self._texts if ":" not in key or key.startswith(prefix)
        )

    @property
    def is_edited(self) -> bool:
        """Whether anything differs from the recipe."""
        if self.kind != self._base_kind:
            return True
        if any(self._chosen[choice.key] != self._base_choice(choice) for choice in CHOICES):
            return True
        return bool(self.changed_paths())

    def is_default(self, path: str) -> bool:
        """Whether a field says what it would say in an empty recipe."""
        return self.text(path) == text_of(self.specs[path], self.specs[path].default)

    # ------------------------------------------------------------------ what it says

    def value(self, path: str) -> Any:  # noqa: ANN401 - plain data
        """What a field says; `ABSENT` where it says nothing. Not checked."""
        choice = CHOICE_OF.get(path)
        if choice is not None and self._chosen[choice.key] != path:
            return ABSENT
        return value_of(self.specs[path], self.text(path)) if path in self.specs else ABSENT

    def valid_value(self, path: str) -> Any:  # noqa: ANN401 - plain data
        """A field's value when it alone is right, else None."""
        value = self.value(path)
        spec = self.specs.get(path)
        section = section_types(self.kind)[spec.section] if spec else None
        if value is ABSENT or spec is None or section is None:
            return None
        return None if check_value(path, value, section, spec.name) else value

    def published(self) -> dict[str, Any]:
        """The [published] table; empty while its lines are wrong."""
        table = read_table(self.text(PUBLISHED))
        return table if isinstance(table, dict) else {}

    def data(self) -> dict[str, Any]:
        """The whole recipe as plain data, ready for the check."""
        data = copy.deepcopy(self._base)
        if self.kind != self._base_kind:
            data["task"], data["data"] = {"kind": self.kind}, {}
        for path, value in {**self._implied, **self._changes()}.items():
            section, _, name = path.partition(".")
            if path == PUBLISHED:
                data[PUBLISHED] = value
            elif value is ABSENT:
                data.get(section, {}).pop(name, None)
            else:
                data.setdefault(section, {})[name] = value
        return data

    def _changes(self) -> dict[str, Any]:
        """Values of the fields that differ from the recipe, by path."""
        changes = {
            path: value_of(self.specs[path], self.text(path))
            for path in self.changed_paths()
            if path != PUBLISHED and path in self.specs
        }
        for choice in CHOICES:
            moved = self._chosen[choice.key] != self._base_choice(choice)
            for path in choice.paths:
                if path != self._chosen[choice.key]:
                    changes[path] = ABSENT
                elif moved:
                    changes[path] = value_of(self.specs[path], self.text(path))
        if PUBLISHED in self._texts:
            changes[PUBLISHED] = read_table(self._texts[PUBLISHED])
        return changes

    def check(self) -> RunConfig | dict[str, str]:
        """The configuration, or a sentence for each field that needs a look, by the field's path."""
        faults = self._written_faults()
        checked = check(self.data())
        if isinstance(checked, RunConfig) and not faults:
            return checked
        problems = [] if isinstance(checked, RunConfig) else checked
        found: dict[str, str] = {}
        for problem in problems:
            found.setdefault(self._place(problem), beside_field(problem, self.specs))
        return found | faults

    def _place(self, problem: Problem) -> str:
        """Where a problem is shown: its field (of those that exclude each other the first), or a table."""
        path = field_path(problem.path, self.specs)
        if not path:
            return problem.path.partition(".")[0]
        choice = CHOICE_OF.get(path)
        return choice.paths[0] if choice is not None else path

    def _written_faults(self) -> dict[str, str]:
        points = {
            path: fault
            for path, spec in self.specs.items()
            if spec.shape == "points" and (fault := points_fault(spec, self.text(path)))
        }
        tables = [path for path, spec in self.specs.items() if spec.shape == "table"]
        return points | {
            path: fault
            for path in (*tables, PUBLISHED)
            if self._key(path) in self._texts and (fault := toml_fault(self.text(path)))
        }

    # ------------------------------------------------------------------ as a recipe

    def document(self) -> TOMLDocument:
        """The recipe with the edits in it, comments kept. Only for a draft that has no problem."""
        document = tomlkit.parse(tomlkit.dumps(self._document))
        document.pop("source", None)
        if self.kind != self._base_kind:
            _new_task(document, self.kind)
        base = {} if self.kind != self._base_kind else self._base
        for path, value in {**self._implied, **self._changes()}.items():
            section, _, name = path.partition(".")
            kept = (base if section in PER_KIND else self._base).get(section, {})
            if path == PUBLISHED:
                _set_published(document, self._texts[PUBLISHED])
            elif value is ABSENT:
                set_value(document, path, None)
            elif path in self.specs and self.specs[path].shape == "points":
                write_points(document, path, value)
            elif name not in kept or kept[name] != value or type(kept[name]) is not type(value):
                set_value(document, path, _item(self.specs[path], value, self.text(path)))
        return document

    def recipe(self) -> Recipe:
        """The draft as a checked recipe. Raises UsageError while it has a problem."""
        checked = self.check()
        if not isinstance(checked, RunConfig):
            raise UsageError("\n".join(checked.values()))
        text = tomlkit.dumps(self.document())
        where = str(self.path) if self.path else "recipe"
        return recipe_from_document(parse_document(text, where), folder=self.folder, where=where)

    def moved_document(self) -> TOMLDocument:
        """The same for another folder: paths that were relative to this one are written out."""
        document = self.document()
        for path, spec in self.specs.items():
            value = self.value(path)
            if spec.browse and isinstance(value, str) and value and not Path(value).is_absolute():
                there = self.folder / value
                if there.exists():
                    set_value(document, path, str(there))
        return document

    # ------------------------------------------------------------------ kept between two starts

    def base_text(self) -> str:
        """The recipe as it was opened or saved last, without the edits."""
        return tomlkit.dumps(self._document)

    def keep(self) -> Kept:
        """Everything typed, right or not."""
        return Kept(
            document=self.base_text(),
            folder=str(self.folder),
            recipe=str(self.path) if self.path else "",
            kind=self.kind,
            texts=dict(self._texts),
            chosen=dict(self._chosen),
        )

    @classmethod
    def restore(cls, kept: Kept) -> Draft:
        """The draft of an earlier start. Raises UsageError when its recipe is not understood any more."""
        recipe = recipe_from_document(parse_document(kept.document), folder=Path(kept.folder))
        draft = cls(recipe, path=Path(kept.recipe) if kept.recipe else None)
        draft.set_kind(kept.kind)
        draft._texts = dict(kept.texts)
        for choice in CHOICES:
            if kept.chosen.get(choice.key) in choice.paths:
                draft._chosen[choice.key] = kept.chosen[choice.key]
        return draft

    # ------------------------------------------------------------------ inside

    def _key(self, path: str) -> str:
        return f"{self.kind}:{path}" if path.partition(".")[0] in PER_KIND else path

    def _base_text(self, path: str) -> str:
        key = self._key(path)
        if key not in self._shown:
            self._shown[key] = self._read_base_text(path)
        return self._shown[key]

    def _read_base_text(self, path: str) -> str:
        if path == PUBLISHED:
            return _lines_of(self._document.get(PUBLISHED, {}), PUBLISHED)
        spec = self.specs[path]
        if spec.section in PER_KIND and self.kind != self._base_kind:
            return text_of(spec, spec.default)
        implied = self._implied.get(path, ABSENT)
        if implied is not ABSENT:
            return text_of(spec, implied)
        table = self._base.get(spec.section, {})
        if spec.name not in table:
            return text_of(spec, spec.default)
        written: Any = self._document[spec.section]
        if spec.shape == "table":
            return _lines_of(written[spec.name], path)
        if spec.shape == "number":  # as it was written: 3e-4 rather than 0.0003
            return str(written[spec.name].as_string())
        return text_of(spec, table[spec.name])

    def _base_choice(self, choice: Alternatives) -> str:
        for path in choice.paths:
            section, _, name = path.partition(".")
            if name in self._base.get(section, {}):
                return path
        return choice.paths[0]

    def _implied_values(self) -> dict[str, Any]:
        """What a run has whose recipe lacks a whole table, where that is not the table's own default."""
        implied: dict[str, Any] = {}
        whole = RunConfig()
        for path, spec in self.specs.items():
            if spec.section in self._base or spec.section in PER_KIND:
                continue
            value = getattr(getattr(whole, spec.section), spec.name)
            if value != spec.default:
                implied[path] = value
        return implied


def _new_task(document: TOMLDocument, kind: str) -> None:
    task = tomlkit.table()
    task["kind"] = kind
    document["task"] = task
    document.pop("data", None)


def _set_published(document: TOMLDocument, text: str) -> None:
    if not text.strip():
        document.pop(PUBLISHED, None)
        return
    document[PUBLISHED] = _table(text)


def _lines_of(table: Any, path: str) -> str:  # noqa: ANN401 - any of tomlkit's tables
    """A table's own lines; headers of tables inside it start at the table, not at the recipe."""
    if not isinstance(table, Table):
        return toml_text(table.unwrap() if hasattr(table, "unwrap") else table)
    return re.sub(rf"^(\s*\[+\s*){re.escape(path)}\.", r"\1", toml_text(table), flags=re.MULTILINE)


def _table(text: str) -> Table:
    """TOML lines as a table, their comments kept."""
    return Table(parse_document(text.strip() + "\n"), Trivia(), is_aot_element=False)


def _item(spec: FieldSpec, value: Any, text: str) -> Any:  # noqa: ANN401 - any TOML value
    """A value as it is best written in the recipe."""
    match spec.shape:
        case "table":
            return _table(text)
        case _:
            return value
