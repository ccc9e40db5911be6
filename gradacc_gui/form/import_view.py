"""Another program's configuration, brought over: the account of its keys, and the recipe that comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QVBoxLayout, QWidget

from gradacc_gui.form.account_panel import AccountPanel
from gradacc_gui.form.account_tally import AccountTally
from gradacc_gui.form.open_keys_panel import OpenKeysPanel
from gradacc_gui.form.recipe_preview import RecipePreview
from gradacc_gui.importing.account import Imported
from gradacc_gui.theme import space
from gradacc_gui.widgets.parts import Panel
from gradacc_gui.words import tr

NARROW: Final = 860
OPEN_SHARE: Final = 0.45
"""Of the height, for the fields to be filled in; more of them scroll."""


class ImportView(QWidget):
    """Give it an import with `show_import`; `recipe` is that with what was filled in since."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("page")
        self.path: Path | None = None
        """The file that was imported."""
        self._imported: Imported | None = None
        self.tally, self.account = AccountTally(), AccountPanel()
        self.open_keys = OpenKeysPanel()
        self.preview = RecipePreview()
        self.recipe_panel = Panel(tr("Recipe"))
        self.recipe_panel.body.addWidget(self.preview)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(space(3))
        column.addWidget(self.tally)
        left = QVBoxLayout()
        left.setSpacing(space(3))
        left.addWidget(self.account, 1)
        left.addWidget(self.open_keys)
        self._row = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._row.setSpacing(space(3))
        self._row.addLayout(left, 5)
        self._row.addWidget(self.recipe_panel, 3)
        column.addLayout(self._row, 1)
        self.tally.chosen.connect(self._go_to)
        self.open_keys.filled.connect(self._show_recipe)

    def show_import(self, imported: Imported, path: Path) -> None:
        """The account of a file, and fields for what it leaves open."""
        self._imported, self.path = imported, path
        kind = str(imported.tables["task"]["kind"])
        self.account.show_import(imported)
        self.open_keys.show_keys(imported.open, kind, path.parent)
        self._show_recipe()
        self._fit()

    def recipe(self) -> Imported:
        """The import with what was filled in."""
        assert self._imported is not None  # shown before anything can be asked of it
        return self._imported.filled(self.open_keys.values)

    @property
    def proposed_path(self) -> Path:
        """Where the recipe would be saved: beside the file, under its name."""
        assert self.path is not None  # as above
        return self.path.with_suffix(".toml")

    def _show_recipe(self) -> None:
        recipe = self.recipe()
        self.tally.show_import(recipe)
        self.recipe_panel.hint.setText(tr("{name}, not saved yet").format(name=self.proposed_path.name))
        self.preview.show_lines(recipe.recipe_lines())

    def _go_to(self, group: str) -> None:
        if group == "open":
            self.open_keys.focus_first()
            return
        for known in self.account.heads:
            if known == group:
                self.account.go_to(known)

    def _fit(self) -> None:
        self.open_keys.setFixedHeight(
            min(self.open_keys.natural_height(), max(space(35), int(self.height() * OPEN_SHARE)))
        )

    def resizeEvent(self, event: QResizeEvent) -> None:
        """The recipe stands beside the account, or below it where the page is narrow."""
        super().resizeEvent(event)
        is_wide = self.width() >= NARROW
        way = QBoxLayout.Direction.LeftToRight if is_wide else QBoxLayout.Direction.TopToBottom
        self._row.setDirection(way)
        self._fit()
