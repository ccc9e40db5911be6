"""The recipe in the form: opened, saved, set aside, kept over a restart. Nothing typed is lost silently."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import tomlkit
from PySide6.QtCore import QObject, Signal

from gradacc_gui.form.form_memory import FormMemory, bundled_recipes, is_bundled
from gradacc_gui.recipe.draft import Draft
from gradacc_gui.words import tr
from trainer_backend.errors import UsageError
from trainer_backend.recipe import (
    Recipe,
    load_recipe,
    parse_document,
    recipe_from_document,
    save_recipe,
)

FIRST_RECIPE: Final = "stdlib-gpt.toml"
EMPTY: Final = """[run]
max_optimizer_steps = 2_000

[task]
kind = "language-model"

[accumulation]
micro_batch_size = 8
gradient_accumulation_steps = 4
"""


class OpenRecipe(QObject):
    """Holds the draft. `replaced` comes when another one takes its place."""

    replaced = Signal()
    refused = Signal(str, str)
    """What was not done, and the sentences that say why."""
    noticed = Signal(str, bool)
    """What was done besides, and whether edits can be brought back."""

    imported = Signal(object, Path)
    """The `Imported` of another program's file; the form was not changed."""

    changed_on_disk = Signal(Path)
    """The open recipe's file is not what was opened: it was edited elsewhere, and nothing was written."""

    def __init__(self, memory: FormMemory) -> None:
        super().__init__()
        self.memory = memory
        path = next((path for path in bundled_recipes() if path.name == FIRST_RECIPE), None)
        if path is not None:
            recipe = load_recipe(path)
        else:  # an installation without its recipes still has a form
            recipe = recipe_from_document(parse_document(EMPTY), folder=Path.home())
        self.draft = Draft(recipe, path=path)

    def open(self, path: Path) -> bool:
        """Open a recipe file; False, and nothing changed, when it is not right."""
        try:
            recipe = load_recipe(path)
        except UsageError as error:
            self._refuse_to_open(path.name, str(error))
            return False
        self._take(recipe, path)
        if not is_bundled(path):
            self.memory.remember_recipe(path)
        return True

    def open_text(self, text: str, *, folder: Path | None, name: str) -> bool:
        """Take a recipe's text; False, and nothing changed, when it is not right."""
        where = name or tr("recipe")
        try:
            document = parse_document(text, where)
            recipe = recipe_from_document(document, folder=folder or self.draft.folder, where=where)
        except UsageError as error:
            self._refuse_to_open(where, str(error))
            return False
        self._take(recipe, None)
        return True

    def bring_over(self, path: Path) -> None:
        """Read another program's configuration, and hand out what became of its keys."""
        from gradacc_gui.importing.programs import import_config  # noqa: PLC0415 - YAML's reader, for those who have one

        try:
            imported = import_config(path)
        except UsageError as error:
            self._refuse_to_open(path.name, str(error))
            return
        self.imported.emit(imported, path)

    def _refuse_to_open(self, name: str, sentences: str) -> None:
        self.refused.emit(
            tr("{name} could not be opened. The form was not changed.").format(name=name), sentences
        )

    def _take(self, recipe: Recipe, path: Path | None) -> None:
        former = self.draft
        if former.is_edited:
            self.memory.keep_aside([former.keep(), *self.memory.aside()])
        self._replace(Draft(recipe, path=path))
        if former.is_edited:
            name = former.path.name if former.path else tr("the recipe that was not saved")
            self.noticed.emit(tr("Your edits to {name} were set aside.").format(name=name), True)

    def _replace(self, draft: Draft) -> None:
        self.draft = draft
        self.replaced.emit()
        self.keep()

    def bring_back(self, place: int = 0) -> None:
        """Exchange the form and edits that were set aside: those at `place` of `FormMemory.aside`."""
        aside = self.memory.aside()
        if place >= len(aside):
            return
        kept = aside.pop(place)
        try:
            draft = Draft.restore(kept)
        except UsageError as error:
            self._refuse_to_open(tr("The draft"), str(error))
            return
        self.memory.keep_aside([self.draft.keep(), *aside] if self.draft.is_edited else aside)
        self._replace(draft)

    def restore(self) -> None:
        """Take up the edits that were not saved before the window closed."""
        kept = self.memory.draft()
        if kept is None:
            return
        try:
            self.draft = Draft.restore(kept)
        except UsageError as error:
            self._refuse_to_open(tr("The draft of the last session"), str(error))
            return
        self.noticed.emit(tr("Restored your unsaved changes."), False)

    def keep(self) -> None:
        """Write what was typed and not saved to disk, so that a restart does not lose it."""
        self.memory.keep_draft(self.draft.keep() if self.draft.is_edited else None)

    @property
    def own_path(self) -> Path | None:
        """The file that Save writes to; None: it must be asked for. The installation's are not written."""
        path = self.draft.path
        return None if path is None or is_bundled(path) else path

    def is_changed_on_disk(self) -> bool:
        """Whether the open recipe's file says something else than when it was opened or saved."""
        path = self.draft.path
        if path is None or not path.exists():  # one that is gone is written anew
            return False
        try:
            return tomlkit.dumps(load_recipe(path).document) != self.draft.base_text()
        except UsageError:  # edited into something that is no recipe
            return True

    def reload(self) -> None:
        """Open the recipe's file as it is now; edits are set aside."""
        if self.draft.path is not None:
            self.open(self.draft.path)

    def save(self, path: Path, *, over_changes: bool = False) -> bool:
        """Write the recipe with its comments to `path`.

        False, with a sentence, when that is not possible. A file that was edited elsewhere is only written
        `over_changes`: otherwise `changed_on_disk` asks first.
        """
        if is_bundled(path):
            why = tr("{path} is an example of gradacc's, which updates replace. Save it in another folder.")
            self.refused.emit(tr("The recipe was not saved."), why.format(path=path))
            return False
        is_own = self.draft.path is not None and path.absolute() == self.draft.path.absolute()
        if is_own and not over_changes and self.is_changed_on_disk():
            self.changed_on_disk.emit(path)
            return False
        try:
            recipe = self.draft.recipe()
            moved = path.absolute().parent != self.draft.folder
            document = self.draft.moved_document() if moved else recipe.document
            save_recipe(document, path)
            saved = load_recipe(path)
        except UsageError as error:
            self.refused.emit(tr("The recipe was not saved."), str(error))
            return False
        self.memory.remember_recipe(path)
        self._replace(Draft(saved, path=path))
        return True
