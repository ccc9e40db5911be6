"""The New-run page: panels of fields, what they amount to, the interpreter, and Start."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import tomlkit
from PySide6.QtCore import Qt, QTimer, Signal, SignalInstance
from PySide6.QtGui import QDragEnterEvent, QDropEvent, QHideEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QScrollArea, QVBoxLayout, QWidget

from gradacc_gui.form.arrangement import CHOICE_OF, switches
from gradacc_gui.form.draft import PUBLISHED, Draft
from gradacc_gui.form.factors import Factors, converted
from gradacc_gui.form.fields_area import FieldsArea
from gradacc_gui.form.interpreter_panel import InterpreterPanel
from gradacc_gui.form.memory import Memory, bundled_recipes, is_bundled
from gradacc_gui.form.recipe_bar import RecipeBar
from gradacc_gui.form.start_bar import StartBar
from gradacc_gui.form.this_run import ThisRunPanel
from gradacc_gui.theme import space
from gradacc_gui.window.parts import Notice, button
from gradacc_gui.words import tr
from trainer_backend.config import KINDS, RunConfig
from trainer_backend.errors import UsageError
from trainer_backend.recipe import (
    Recipe,
    default_name,
    load_recipe,
    parse_document,
    recipe_from_document,
    save_recipe,
)

SIDE_WIDTH: Final = 320
NARROW: Final = 860
"""Below it the side column goes under the fields."""
KEEP_DRAFT_MS: Final = 400
FIRST_RECIPE: Final = "stdlib-gpt.toml"
EMPTY: Final = """[run]
max_optimizer_steps = 2_000

[task]
kind = "language-model"

[accumulation]
micro_batch_size = 8
gradient_accumulation_steps = 4
"""


class FormPage(QWidget):
    """A recipe as a form. Emits a whole, checked recipe, or nothing.

    `start_requested` and `verify_requested` carry the recipe's text, the folder that its relative paths
    start in, the run's name, and the interpreter's path.
    """

    start_requested = Signal(str, Path, str, str)
    verify_requested = Signal(str, Path, str, str)

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("page")
        self.setAcceptDrops(True)
        self.memory = Memory()
        self.draft = Draft(_first_recipe(), path=_first_path())
        self._config: RunConfig | None = None
        self._faults: dict[str, str] = {}
        self._narrow: bool | None = None
        self._build()
        self._connect()
        self._restore()

    # ------------------------------------------------------------------ building

    def _build(self) -> None:
        self.bar = RecipeBar(self.memory)
        self.notice = Notice()
        self.trouble = Notice("notice-bad")
        self.undo = button("", clicked=self._bring_back)
        self.notice.buttons.addWidget(self.undo)
        self.fields = FieldsArea()
        self.this_run = ThisRunPanel()
        self.interpreter = InterpreterPanel(self.memory)
        self.start_bar = StartBar()
        self._content = _page()
        self._under = QVBoxLayout(self._content)
        self._under.setContentsMargins(0, 0, space(2), 0)
        self._under.setSpacing(space(3))
        self._under.addWidget(self.fields)
        self._under.addStretch(1)
        self.scroll = _scroll(self._content)
        self._side_content = _page()
        self._beside = QVBoxLayout(self._side_content)
        self._beside.setContentsMargins(0, 0, 0, 0)
        self._beside.setSpacing(space(3))
        self._beside.addStretch(1)
        self._side_scroll = _scroll(self._side_content)
        self._side = _page()
        side = QVBoxLayout(self._side)
        side.setContentsMargins(0, 0, 0, 0)
        side.addWidget(self._side_scroll, 1)
        self._side_foot = side
        self._side.setFixedWidth(SIDE_WIDTH)
        left = QVBoxLayout()
        left.setSpacing(space(3))
        for widget in (self.bar, self.notice, self.trouble):
            left.addWidget(widget)
        left.addWidget(self.scroll, 1)
        self._left = left
        row = QHBoxLayout(self)
        row.setContentsMargins(space(5), space(4), space(5), space(4))
        row.setSpacing(space(4))
        row.addLayout(left, 1)
        row.addWidget(self._side)
        self._set_narrow(narrow=False)

    def _connect(self) -> None:
        self._keep_timer = QTimer(self)
        self._keep_timer.setSingleShot(True)
        self._keep_timer.setInterval(KEEP_DRAFT_MS)
        self._keep_timer.timeout.connect(self.keep_draft)
        self.fields.edited.connect(self._edited)
        self.fields.chosen.connect(self._chosen)
        self.fields.kind_chosen.connect(self._kind_chosen)
        self.bar.open_requested.connect(self.set_recipe)
        self.bar.aside_requested.connect(self._bring_back)
        self.bar.save_requested.connect(self._save)
        self.bar.save_as_requested.connect(self.save_as)
        self.interpreter.changed.connect(self._refresh)
        self.start_bar.look_clicked.connect(self.look)
        self.start_bar.start_clicked.connect(lambda: self._emit(self.start_requested))
        self.start_bar.verify_clicked.connect(lambda: self._emit(self.verify_requested))

    def _set_narrow(self, *, narrow: bool) -> None:
        """One column with Start at its foot, or fields with a column beside them."""
        if narrow == self._narrow:
            return
        self._narrow = narrow
        target = self._under if narrow else self._beside
        for place, panel in enumerate((self.this_run, self.interpreter)):
            target.insertWidget(place + 1 if narrow else place, panel)
        (self._left if narrow else self._side_foot).addWidget(self.start_bar)
        self.start_bar.set_horizontal(narrow)
        self._side.setVisible(not narrow)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Change between one column and two."""
        super().resizeEvent(event)
        self._set_narrow(narrow=self.width() < NARROW)
        self.bar.set_narrow(self.width() < 560)

    def showEvent(self, event: QShowEvent) -> None:
        """The interpreter is asked once the page is first seen."""
        super().showEvent(event)
        self.interpreter.ask()
        if not self.isAncestorOf(self.focusWidget() or self):
            self.scroll.setFocus()  # so that the arrow keys scroll, and no key changes a value unseen

    def hideEvent(self, event: QHideEvent) -> None:
        """What was typed is kept before the page goes."""
        super().hideEvent(event)
        self.keep_draft()

    def shut_down(self) -> None:
        """Keep what was typed and end the worker; for a window that closes."""
        self.keep_draft()
        self.interpreter.shut_down()

    # ------------------------------------------------------------------ editing

    def _edited(self, path: str, text: str) -> None:
        self.draft.set_text(path, text)
        if path in switches():
            self.fields.arrange_again()
        self._changed()

    def _chosen(self, before: str, after: str) -> None:
        text = converted(self.draft, before, after)
        self.draft.choose(CHOICE_OF[after], after)
        if text is not None:
            self.draft.set_text(after, text)
        self.fields.show_choice(self.draft, after)
        self._changed()

    def _kind_chosen(self, kind: str) -> None:
        self.draft.set_kind(kind)
        self.fields.show_draft(self.draft)
        self._changed()

    def _changed(self) -> None:
        self._refresh()
        self._keep_timer.start()

    def _refresh(self) -> None:
        """Check the draft and show what came out, everywhere."""
        checked = self.draft.check()
        self._config = checked if isinstance(checked, RunConfig) else None
        self._faults = {} if isinstance(checked, RunConfig) else checked
        self._judge_kinds()
        factors = Factors(self.draft)
        self.fields.show_faults(self._faults)
        self.fields.show_notes(self.draft, factors)
        self.this_run.show_draft(self.draft, self._config)
        self.start_bar.say(faults=len(self._faults), why=self.interpreter.sentence)
        self.bar.show_recipe(self.draft.path, self.draft.folder, edited=self.draft.is_edited)

    def _judge_kinds(self) -> None:
        reasons = {kind: self._why_not(kind) for kind in KINDS}
        self.fields.grey_kinds(reasons)
        if reasons[self.draft.kind]:
            self._faults = {"task.kind": reasons[self.draft.kind], **self._faults}

    def _why_not(self, kind: str) -> str:
        missing = self.interpreter.lacks(kind)
        if not missing:
            return ""
        words = tr("The chosen interpreter has no {names}. Run: {command}")
        return words.format(
            names=tr(" and no ").join(missing), command=self.interpreter.install_command(kind)
        )

    def look(self) -> None:
        """Go to the first field that needs a look."""
        for path in self.fields.in_order(self._faults)[:1]:
            if path == PUBLISHED:
                self.fields.published.set_editing(True)
                self.fields.published.toml.setFocus()
                self.scroll.ensureWidgetVisible(self.fields.published)
            elif (view := self.fields.reveal(path)) is not None:
                view.focus_editor()
                self.scroll.ensureWidgetVisible(view, 0, 40)

    @property
    def faults(self) -> dict[str, str]:
        """The sentence beside each field that needs a look, by path."""
        return dict(self._faults)

    def _emit(self, signal: SignalInstance) -> None:
        """Hand out the recipe, after reading it once more as whoever gets it will."""
        try:
            recipe = self.draft.recipe()
        except UsageError as error:
            self.trouble.say(tr("The recipe cannot be started."), str(error))
            return
        if self._faults or self.interpreter.sentence:
            return
        name = recipe.config.run.name or default_name(self.draft.path)
        signal.emit(tomlkit.dumps(recipe.document), recipe.folder, name, self.interpreter.interpreter)

    # ------------------------------------------------------------------ recipes

    def set_recipe(self, path: Path) -> bool:
        """Open a recipe file. One that is not right leaves the form as it is and says why: False."""
        try:
            recipe = load_recipe(path)
        except UsageError as error:
            self._say_trouble(path.name, str(error))
            return False
        self._take(recipe, path)
        if not is_bundled(path):
            self.memory.remember_recipe(path)
        return True

    def set_config_text(self, text: str, *, folder: Path | None = None, name: str = "") -> bool:
        """Show a recipe's text, of an earlier run say; `name` is what it is called in the sentences."""
        where = name or tr("recipe")
        try:
            recipe = recipe_from_document(
                parse_document(text, where), folder=folder or self.draft.folder, where=where
            )
        except UsageError as error:
            self._say_trouble(where, str(error))
            return False
        self._take(recipe, None)
        return True

    def _say_trouble(self, name: str, sentences: str) -> None:
        self.trouble.say(tr("{name} was not opened; the form is as it was.").format(name=name), sentences)

    def _take(self, recipe: Recipe, path: Path | None) -> None:
        self.trouble.hide()
        self.notice.hide()
        if self.draft.is_edited:
            self.memory.keep_draft(self.draft.keep(), "aside")
            name = self.draft.path.name if self.draft.path else tr("the recipe that was not saved")
            self.undo.setText(tr("Bring them back"))
            self.notice.say(tr("Your edits to {name} were set aside.").format(name=name))
        self._show(Draft(recipe, path=path))

    def _show(self, draft: Draft) -> None:
        self.draft = draft
        self.fields.show_draft(draft)
        self.interpreter.offer(draft.folder)
        self._refresh()
        self._keep_timer.start()

    def _bring_back(self) -> None:
        """Exchange the form and the edits that were set aside."""
        kept = self.memory.draft("aside")
        self.notice.hide()
        if kept is None:
            return
        self.memory.keep_draft(self.draft.keep() if self.draft.is_edited else None, "aside")
        try:
            self._show(Draft.restore(kept))
        except UsageError as error:
            self._say_trouble(tr("The draft"), str(error))

    def _restore(self) -> None:
        kept = self.memory.draft()
        if kept is not None:
            try:
                self.draft = Draft.restore(kept)
                self.notice.say(tr("Edits that were not saved last time are back."))
                self.undo.hide()
            except UsageError as error:
                self._say_trouble(tr("The draft of last time"), str(error))
        self.fields.show_draft(self.draft)
        self._refresh()

    def keep_draft(self) -> None:
        """Write what was typed and not saved to disk, so that a restart does not lose it."""
        self._keep_timer.stop()
        self.memory.keep_draft(self.draft.keep() if self.draft.is_edited else None)

    def _save(self) -> None:
        path = self.draft.path
        if path is None or is_bundled(path):
            self.bar.ask_where_to_save()
        else:
            self.save_as(path)

    def save_as(self, path: Path) -> bool:
        """Write the recipe with its comments to `path`. False, with a sentence shown, when that is not possible."""
        try:
            recipe = self.draft.recipe()
            save_recipe(recipe.document, path)
            saved = load_recipe(path)
        except UsageError as error:
            self.trouble.say(tr("The recipe was not saved."), str(error))
            return False
        self.trouble.hide()
        self.memory.remember_recipe(path)
        self._show(Draft(saved, path=path))
        self.keep_draft()
        return True

    # ------------------------------------------------------------------ drag and drop

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        """Take one .toml file."""
        if _dropped_recipe(event) is not None:
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        """Open it."""
        path = _dropped_recipe(event)
        if path is not None:
            event.acceptProposedAction()
            self.set_recipe(path)


def _page() -> QWidget:
    made = QWidget()
    made.setObjectName("page")
    return made


def _scroll(content: QWidget) -> QScrollArea:
    made = QScrollArea()
    made.setWidgetResizable(True)
    made.setFrameShape(QFrame.Shape.NoFrame)
    made.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    made.setWidget(content)
    return made


def _first_path() -> Path | None:
    return next((path for path in bundled_recipes() if path.name == FIRST_RECIPE), None)


def _first_recipe() -> Recipe:
    """The demo's recipe; one made here where the installation lacks it."""
    path = _first_path()
    if path is not None:
        return load_recipe(path)
    return recipe_from_document(parse_document(EMPTY), folder=Path.home())


def _dropped_recipe(event: QDropEvent) -> Path | None:
    urls = event.mimeData().urls()
    path = Path(urls[0].toLocalFile()) if len(urls) == 1 and urls[0].isLocalFile() else None
    return path if path is not None and path.suffix == ".toml" else None
