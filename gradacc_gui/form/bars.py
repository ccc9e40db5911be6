"""The bars above and below the form: which recipe it holds, and Start with what stands in its way."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtWidgets import QBoxLayout, QHBoxLayout, QMenu, QVBoxLayout, QWidget

from gradacc_gui.form.form_memory import FormMemory, bundled_recipes, is_bundled
from gradacc_gui.theme import space
from gradacc_gui.widgets.desktop import ask_for_file, ask_where_to_save
from gradacc_gui.widgets.parts import ElidedLabel, Segments, button, label, put
from gradacc_gui.words import tr

FILTER = "TOML (*.toml)"
FOREIGN = "JSON, YAML (*.json *.yaml *.yml)"


class RecipeBar(QWidget):
    """Title, the recipe's name with its edited mark, Recipes, Save."""

    open_requested = Signal(Path)
    save_requested = Signal()
    save_as_requested = Signal(Path)
    import_requested = Signal(Path)
    open_import_requested = Signal()
    """Take the recipe that an import makes into the form."""

    save_import_requested = Signal(Path)
    """And save it there."""

    aside_requested = Signal(int)
    """Which of the edits that were set aside, the newest first."""

    def __init__(self, memory: FormMemory) -> None:
        super().__init__()
        self.setObjectName("page")
        self.setMinimumWidth(200)  # else its buttons would keep the page from becoming narrow
        self._memory = memory
        self._path: Path | None = None
        self._folder = Path.home()
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(space(2))
        self.title = label(tr("New run"), "page-title")
        row.addWidget(self.title)
        self.views = Segments(
            [
                ("form", tr("Form")),
                ("check", tr("Check")),
                ("plan", tr("What fits?")),
                ("import", tr("Import account")),
            ],
            tr("View of the recipe"),
        )
        self.views.button("check").setToolTip(
            tr("Shows the first optimizer step as the model will see it, and checks the rest.")
        )
        self.views.button("plan").setToolTip(
            tr("Measures which micro-batch and N fit into memory, and which is fastest.")
        )
        row.addWidget(self.views)
        self.name = ElidedLabel("", "help")
        row.addWidget(self.name, 1)
        self.recipes = button(tr("Recipes"), icon_name="chevron-down")
        self.recipes.setLayoutDirection(Qt.LayoutDirection.RightToLeft)
        self.menu = QMenu(self.recipes)
        self.menu.setToolTipsVisible(True)
        self.menu.aboutToShow.connect(self.fill_menu)
        self.recipes.setMenu(self.menu)
        self.save = button(tr("Save"), clicked=self.save_requested.emit)
        self.save_as = button(tr("Save as…"), clicked=self.ask_where_to_save)
        self.save.setShortcut(QKeySequence(QKeySequence.StandardKey.Save))
        self.again = button(tr("Check again"))
        self.start = button(tr("Start"), role="primary")
        self.save_import = button(tr("Save recipe as…"), clicked=self._ask_where_to_save_import)
        self.open_import = button(
            tr("Open in the form"), role="primary", clicked=self.open_import_requested.emit
        )
        for made in (self.recipes, self.save, self.save_as, self.again, self.start):
            row.addWidget(made)
        for made in (self.save_import, self.open_import):
            row.addWidget(made)
        self._import_path = Path.home()
        self._recipe_words = self._import_words = ""
        self.views.button("import").hide()
        self._narrow = False
        self.show_view("form")
        opening = QAction(self)
        opening.setShortcut(QKeySequence(QKeySequence.StandardKey.Open))
        opening.setShortcutContext(Qt.ShortcutContext.WindowShortcut)
        opening.triggered.connect(self.ask_what_to_open)
        self.addAction(opening)

    def show_recipe(self, path: Path | None, folder: Path, *, edited: bool) -> None:
        """Name the recipe."""
        self._path, self._folder = path, folder
        name = path.name if path else tr("not saved yet")
        words = tr("recipe {name}").format(name=name) + (" · " + tr("edited") if edited else "")
        self._recipe_words = words
        self.save.setEnabled(edited)
        self._show_name()

    def show_import(self, source: str, path: Path, proposed: Path) -> None:
        """Offer the account of an imported file; `source`: the program that it was written for."""
        self._import_path = proposed
        self._import_words = tr("{name}, read as {program}").format(name=path.name, program=source)
        self.views.button("import").show()

    def withdraw_import(self) -> None:
        """Another recipe is open: the account is no longer about it."""
        self.views.button("import").hide()

    def _show_name(self) -> None:
        is_import = self.views.choice() == "import"
        self.name.set_full_text(self._import_words if is_import else self._recipe_words)
        self.name.setToolTip("" if is_import or not self._path else str(self._path))

    def show_view(self, view: str) -> None:
        """The buttons of the form, of its check, or of an import's account."""
        self.views.choose(view)
        is_form = view == "form"
        for made in (self.recipes, self.save):
            made.setVisible(is_form)
        self.save_as.setVisible(is_form and not self._narrow)
        for made in (self.again, self.start):
            made.setVisible(view in ("check", "plan"))
        self.start.setVisible(view == "check")
        for made in (self.save_import, self.open_import):
            made.setVisible(view == "import")
        self._show_name()

    def set_narrow(self, narrow: bool) -> None:
        """Leave out what is in the menu too."""
        self._narrow = narrow
        self.title.setVisible(not narrow)
        self.show_view(self.views.choice())

    def fill_menu(self) -> None:
        """Bundled recipes, recent ones, and a way to all others."""
        self.menu.clear()
        self.menu.addAction(tr("Open…"), self.ask_what_to_open)
        self.menu.addAction(tr("Save as…"), self.ask_where_to_save)
        self.menu.addAction(tr("Import from another trainer…"), self.ask_what_to_import)
        for place, aside in enumerate(self._memory.aside()):
            name = Path(aside.recipe).name or tr("a recipe not saved yet")
            self.menu.addAction(
                tr("Restore the edits to {name}").format(name=name),
                partial(self.aside_requested.emit, place),
            )
        for title, paths in (
            (tr("Examples"), bundled_recipes()),
            (tr("Recent"), self._memory.recent_recipes()),
        ):
            if paths:
                self.menu.addSeparator()
                heading = self.menu.addAction(title)
                heading.setEnabled(False)
            for path in paths:
                action = self.menu.addAction(path.stem, partial(self.open_requested.emit, path))
                action.setToolTip(str(path))

    def ask_what_to_open(self) -> None:
        """A file dialog for a recipe."""
        ask_for_file(self, tr("Open a recipe"), self._folder, self.open_requested.emit, FILTER)

    def ask_what_to_import(self) -> None:
        """A file dialog for another trainer's configuration."""
        title = tr("Import from another trainer")
        ask_for_file(self, title, self._folder, self.import_requested.emit, FOREIGN)

    def ask_where_to_save(self) -> None:
        """A file dialog for a recipe's new place."""
        folder = self._folder
        if is_bundled(self._path):  # an example is saved among the person's own, not in the installation
            folder = next((path.parent for path in self._memory.recent_recipes()), Path.home())
        start = folder / (self._path.name if self._path else "run.toml")
        ask_where_to_save(self, tr("Save the recipe"), start, self.save_as_requested.emit, FILTER)

    def _ask_where_to_save_import(self) -> None:
        ask_where_to_save(
            self, tr("Save the recipe"), self._import_path, self.save_import_requested.emit, FILTER
        )


class StartBar(QWidget):
    """The buttons are enabled only while everything is right."""

    start_clicked = Signal()
    queue_clicked = Signal()
    verify_clicked = Signal()
    look_clicked = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("page")
        self.setMinimumWidth(200)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(space(2))
        self.box = QBoxLayout(QBoxLayout.Direction.TopToBottom)
        self.box.setSpacing(space(2))
        self.look = button("", role="fault", clicked=self.look_clicked.emit)
        self.why = label("", "error", wrap=True)
        self.verify = button(tr("Check equivalence first"), clicked=self.verify_clicked.emit)
        self.verify.setToolTip(
            tr("Compares the gradients of N micro-batches with those of one large batch, on this model.")
        )
        self.start = button(tr("Start"), role="primary", clicked=self.start_clicked.emit)
        self.start.setShortcut(QKeySequence("Ctrl+Return"))
        self.start.setToolTip(tr("Start the run (Ctrl+Return)"))
        self.queue = button(tr("Add to queue"), clicked=self.queue_clicked.emit)
        self.queue.setToolTip(tr("Start the run as soon as its device is free (Ctrl+Shift+Return)"))
        self.queue.setShortcut(QKeySequence("Ctrl+Shift+Return"))
        column.addWidget(self.look)
        column.addWidget(self.why)
        column.addLayout(self.box)
        self.box.addWidget(self.verify)
        beside = QHBoxLayout()
        beside.setSpacing(space(2))
        beside.addWidget(self.queue)
        beside.addWidget(self.start, 1)
        self.box.addLayout(beside)
        for made in (self.verify, self.queue, self.start):
            made.setMinimumHeight(34)
        self.say(faults=0, why="")

    def say(self, *, faults: int, why: str) -> None:
        """How many fields need a look, and what else is in the way ("" is nothing)."""
        words = (
            tr("Fix 1 field before starting.")
            if faults == 1
            else tr("Fix {count} fields before starting.").format(count=faults)
        )
        self.look.setText(words)
        self.look.setVisible(bool(faults))
        put(self.why, "" if faults else why)
        self.why.setVisible(bool(self.why.text()))
        for made in (self.verify, self.queue, self.start):
            made.setEnabled(not faults and not why)

    def set_horizontal(self, horizontal: bool) -> None:
        """One row at the page's foot, or a column at its side."""
        direction = QBoxLayout.Direction.LeftToRight if horizontal else QBoxLayout.Direction.TopToBottom
        self.box.setDirection(direction)
