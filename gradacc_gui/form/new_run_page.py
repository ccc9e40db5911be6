"""The New-run page: panels of fields, what they amount to, the interpreter, and Start."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Final

import tomlkit
from PySide6.QtCore import QEvent, QObject, Qt, QTimer, Signal, SignalInstance
from PySide6.QtGui import QDragEnterEvent, QDropEvent, QHideEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QScrollArea, QVBoxLayout, QWidget

from gradacc_gui.checking.check_view import CheckView
from gradacc_gui.form.bars import RecipeBar, StartBar
from gradacc_gui.form.data_inspection import DataInspection
from gradacc_gui.form.fields_area import FieldsArea
from gradacc_gui.form.form_memory import FormMemory
from gradacc_gui.form.import_view import ImportView
from gradacc_gui.form.interpreter_panel import InterpreterPanel
from gradacc_gui.form.open_recipe import OpenRecipe
from gradacc_gui.form.this_run import ThisRunPanel
from gradacc_gui.importing.account import Imported, OpenKey
from gradacc_gui.planning.plan_view import PlanView
from gradacc_gui.recipe.arrangement import CHOICE_OF, switches
from gradacc_gui.recipe.draft import PUBLISHED, Draft
from gradacc_gui.recipe.estimate import Factors, converted
from gradacc_gui.recipe.field_specs import text_of
from gradacc_gui.recipe.schedule_preview import preview
from gradacc_gui.theme import space
from gradacc_gui.widgets.parts import Notice, button
from gradacc_gui.words import tr
from trainer_backend.config import KINDS, RunConfig
from trainer_backend.errors import UsageError
from trainer_backend.preflight.check_words import title
from trainer_backend.recipe import Recipe, default_name

SIDE_WIDTH: Final = 320
FOREIGN_SUFFIXES: Final = (".yaml", ".yml", ".json")
NARROW: Final = 860
"""Below it the side column goes under the fields."""
NARROW_BAR: Final = 960
"""Below it the bar leaves out its title, and what the menu of recipes has too."""
KEEP_DRAFT_MS: Final = 400
WARM_UP_MS: Final = 1500
"""So long a recipe of a kind with heavy libraries is looked at before these are loaded for its check."""


class FormPage(QWidget):
    """A recipe as a form. Emits a whole, checked recipe, or nothing.

    `start_requested`, `queue_requested` and `verify_requested` carry the recipe's text, the folder that its
    relative paths start in, the run's name, and the interpreter's path.
    """

    start_requested = Signal(str, Path, str, str)
    queue_requested = Signal(str, Path, str, str)
    verify_requested = Signal(str, Path, str, str)

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("page")
        self.setAcceptDrops(True)
        self.setMinimumSize(320, 200)  # the two columns' own minimum would never let it become one column
        self.memory = FormMemory()
        self.recipe = OpenRecipe(self.memory)
        self._config: RunConfig | None = None
        self._faults: dict[str, str] = {}
        self._narrow: bool | None = None
        self._keeps_import = False
        """While the recipe of an import takes the draft's place."""
        self._left_open: tuple[OpenKey, ...] = ()
        """What the import in the form does not know."""
        self._build()
        self._connect()
        self.recipe.restore()
        self._show()
        self._order_focus()

    # ------------------------------------------------------------------ building

    def _build(self) -> None:
        self.bar = RecipeBar(self.memory)
        self.notice = Notice()
        self.trouble = Notice("notice-bad")
        self.undo = button(tr("Restore them"), clicked=self.recipe.bring_back)
        self.notice.buttons.addWidget(self.undo)
        self.conflict = Notice("notice-warning")
        self.conflict.buttons.addWidget(button(tr("Reload"), clicked=self._reload))
        self.conflict.buttons.addWidget(button(tr("Keep mine"), clicked=self._keep_mine))
        self.fields = FieldsArea()
        self.this_run = ThisRunPanel()
        self.interpreter = InterpreterPanel(self.memory)
        self.data = DataInspection()
        self._side_panels: list[QWidget] = [self.this_run, self.interpreter]
        self.start_bar = StartBar()
        self._content = _page()
        self._under = QVBoxLayout(self._content)
        self._under.setContentsMargins(0, 0, space(2), 0)
        self._under.setSpacing(space(3))
        self._under.addWidget(self.fields)
        self._under.addStretch(1)
        self.area = _scroll(self._content)
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
        for widget in (self.bar, self.notice, self.conflict, self.trouble):
            left.addWidget(widget)
        left.addWidget(self.area, 1)
        self.checks, self.plans, self.imports = CheckView(), PlanView(), ImportView()
        for view in (self.checks, self.plans, self.imports):
            view.hide()
            left.addWidget(view, 1)
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
        self._keep_timer.timeout.connect(self.recipe.keep)
        self._warm_timer = QTimer(self)
        self._warm_timer.setSingleShot(True)
        self._warm_timer.setInterval(WARM_UP_MS)
        self._warm_timer.timeout.connect(self._warm_up)
        self.recipe.replaced.connect(self._replaced)
        self.recipe.refused.connect(self.trouble.say)
        self.recipe.noticed.connect(self._noticed)
        self.recipe.imported.connect(self._show_import)
        self.recipe.changed_on_disk.connect(self._changed_on_disk)
        self.fields.edited.connect(self._edited)
        self.fields.chosen.connect(self._chosen)
        self.fields.kind_chosen.connect(self._kind_chosen)
        self.bar.open_requested.connect(self.recipe.open)
        self.bar.import_requested.connect(self.recipe.bring_over)
        self.bar.open_import_requested.connect(self._open_import)
        self.bar.save_import_requested.connect(self._save_import)
        self.bar.aside_requested.connect(self.recipe.bring_back)
        self.bar.save_requested.connect(self._save)
        self.bar.save_as_requested.connect(self.recipe.save)
        self.interpreter.changed.connect(self._refresh)
        self.data.changed.connect(self._refresh)
        self.bar.views.chosen.connect(self.show_view)
        self.bar.again.clicked.connect(lambda _on=False: self._check_or_cancel())
        self.bar.start.clicked.connect(lambda _on=False: self._emit(self.start_requested))
        self.checks.change_requested.connect(self._apply_change)
        self.checks.changed.connect(self._checked)
        self.plans.use_requested.connect(self._use_pair)
        self.plans.changed.connect(self._checked)
        for made in (self.bar.views.button("check"), self.bar.again):
            made.installEventFilter(self)
        self.start_bar.look_clicked.connect(self.look)
        self.start_bar.start_clicked.connect(lambda: self._emit(self.start_requested))
        self.start_bar.queue_clicked.connect(lambda: self._emit(self.queue_requested))
        self.start_bar.verify_clicked.connect(lambda: self._emit(self.verify_requested))

    def _order_focus(self) -> None:
        """Tab goes through the fields, then to the interpreter, then to Start.

        Qt's own order is that in which widgets were made, and fields are made last. Those of a later kind of
        task stand behind their panel's first button (`SectionPanel`), so this holds for them too.
        """
        chain, widget = [], self.nextInFocusChain()
        while widget is not self and widget is not None:
            if widget.focusPolicy() & Qt.FocusPolicy.TabFocus and widget.window() is self.window():
                chain.append(widget)
            widget = widget.nextInFocusChain()
        fields = [widget for widget in chain if self.fields.isAncestorOf(widget)]
        last = [
            widget
            for region in (self.interpreter, self.start_bar)
            for widget in chain
            if region.isAncestorOf(widget)
        ]
        for before, after in itertools.pairwise([fields[-1], *last]):
            QWidget.setTabOrder(before, after)

    def _set_narrow(self, *, narrow: bool) -> None:
        """One column with Start at its foot, or fields with a column beside them."""
        if narrow == self._narrow:
            return
        self._narrow = narrow
        for panel in self._side_panels:
            self._place_side_panel(panel)
        (self._left if narrow else self._side_foot).addWidget(self.start_bar)
        self.start_bar.set_horizontal(narrow)
        self._show_parts()

    def _show_parts(self) -> None:
        """The form with its side column, or the check or an import's account in the place of both."""
        view = self.bar.views.choice()
        is_form = view == "form"
        self.area.setVisible(is_form)
        self._side.setVisible(is_form and not self._narrow)
        self.start_bar.setVisible(is_form)
        self.checks.setVisible(view == "check")
        self.plans.setVisible(view == "plan")
        self.imports.setVisible(view == "import")

    def show_view(self, view: str) -> None:
        """Show the "form", its "check" or the "import"; the form is checked when its check is looked at."""
        self.bar.show_view(view)
        self._show_parts()
        if view == "check" and not self.checks.is_about(self.startable()):
            self._check()
        if view == "plan" and self.plans.state in ("empty", "failed"):
            self._plan()

    def _place_side_panel(self, panel: QWidget) -> None:
        target = self._under if self._narrow else self._beside
        target.insertWidget(self._side_panels.index(panel) + (1 if self._narrow else 0), panel)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Change between one column and two."""
        super().resizeEvent(event)
        self._set_narrow(narrow=self.width() < NARROW)
        self.bar.set_narrow(self.width() < NARROW_BAR)

    def showEvent(self, event: QShowEvent) -> None:
        """The interpreter is asked once the page is first seen."""
        super().showEvent(event)
        self.interpreter.ask()
        self.data.set_active(True)
        self._expect_check()
        if self.draft.path is not None and self.recipe.is_changed_on_disk():
            self._changed_on_disk(self.draft.path)

    def hideEvent(self, event: QHideEvent) -> None:
        """What was typed is kept before the page goes."""
        super().hideEvent(event)
        self.data.set_active(False)
        self._warm_timer.stop()
        self.checks.cool()
        self._keep_now()

    def _keep_now(self) -> None:
        if self._keep_timer.isActive():
            self._keep_timer.stop()
            self.recipe.keep()

    def shut_down(self) -> None:
        """Keep what was typed and end the worker; for a window that closes."""
        self._keep_now()
        self._warm_timer.stop()
        self.interpreter.shut_down()
        self.data.shut_down()
        self.checks.close_down()
        self.plans.close_down()

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
        self._expect_check()

    def _changed(self) -> None:
        self._refresh()
        self._keep_timer.start()

    def _refresh(self) -> None:
        """Check the draft and show what came out, everywhere."""
        checked = self.draft.check()
        self._config = checked if isinstance(checked, RunConfig) else None
        self._faults = {} if isinstance(checked, RunConfig) else checked
        self._judge_kinds()
        self.data.ask(self.draft)
        self._faults = {**self.data.facts.faults, **self._stand_in_faults(), **self._faults}
        factors = Factors(self.draft)
        self.fields.show_faults(self._faults)
        self.fields.show_notes(self.draft, factors, self._config, self.data.facts.notes)
        self.this_run.show_draft(self.draft, self._config, self.data.facts.samples_an_epoch)
        if self._config is not None:  # what is half typed leaves the last picture
            self.fields.schedule.show_preview(preview(self._config, self.data.facts.samples_an_epoch))
        self._refresh_start()
        self.bar.show_recipe(self.draft.path, self.draft.folder, edited=self.draft.is_edited)

    def _refresh_start(self) -> None:
        """Whether a run may be started, and what is in its way: a field, the interpreter, a check's stop."""
        why = self.interpreter.sentence
        known = self.startable() if self.checks.state in {"done", "failed"} else None
        stops = self.checks.stops(known)
        if stops and not why:
            why = tr("The check found: {names}.").format(names=", ".join(title(entry, tr) for entry in stops))
        self.start_bar.say(faults=len(self._faults), why=why)
        self.bar.start.setEnabled(not self._faults and not why)
        self.checks.show_current(known)

    def _judge_kinds(self) -> None:
        reasons = {kind: self._why_not(kind) for kind in KINDS}
        self.fields.grey_kinds(reasons)
        if reasons[self.draft.kind]:
            self._faults = {"task.kind": reasons[self.draft.kind], **self._faults}
        if package := self.interpreter.package_for(self.draft.text("optimizer.name")):
            words = tr("{names} not installed in the chosen interpreter. Run: {command}")
            command = f'"{self.interpreter.interpreter}" -m pip install {package}'
            self._faults = {"optimizer.name": words.format(names=package, command=command), **self._faults}

    def _why_not(self, kind: str) -> str:
        missing = self.interpreter.lacks(kind)
        if not missing:
            return ""
        words = tr("{names} not installed in the chosen interpreter. Run: {command}")
        return words.format(
            names=tr(" and no ").join(missing), command=self.interpreter.install_command(kind)
        )

    def look(self) -> None:
        """Go to the first field that needs a look."""
        self.data.look_again()
        for path in self.fields.in_order(self._faults)[:1]:
            if path == PUBLISHED:
                self.fields.published.set_editing(True)
                self.fields.published.toml.setFocus()
                self.area.ensureWidgetVisible(self.fields.published)
            elif (view := self.fields.reveal(path)) is not None:
                view.focus_editor()
                self.area.ensureWidgetVisible(view, 0, 40)

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
        if not self._faults and not self.interpreter.sentence:
            signal.emit(*self._handed_out(recipe))

    def _handed_out(self, recipe: Recipe) -> tuple[str, Path, str, str]:
        name = recipe.config.run.name or default_name(self.draft.path)
        return tomlkit.dumps(recipe.document), recipe.folder, name, self.interpreter.interpreter

    # ------------------------------------------------------------------ checking

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """A pointer or the focus on Check: its libraries take seconds to load, so that begins now."""
        if event.type() in (QEvent.Type.Enter, QEvent.Type.FocusIn):
            self._warm_up()
        return super().eventFilter(watched, event)

    def _expect_check(self) -> None:
        """Where libraries take longer than a person waits, they are loaded beside the form."""
        if self.isVisible() and KINDS[self.draft.kind].requires:
            self._warm_timer.start()

    def _warm_up(self) -> None:
        if not self._faults:
            self.checks.warm_up(self.interpreter.known, self.draft.kind)

    def _plan(self) -> None:
        """Measure what fits of the recipe in the form, or say which field is in the way."""
        asked = self.startable()
        if asked is not None:
            self.plans.plan(asked, self.interpreter.known)
            return
        first = next(iter(self._faults.values()), self.interpreter.sentence)
        self.plans.refuse(tr("Fix the form first: {fault}").format(fault=first))

    def _use_pair(self, size: int, steps: int) -> None:
        """Write a pair of the plan into the form, in place of what made its effective batch."""
        path = "accumulation.gradient_accumulation_steps"
        self.draft.choose(CHOICE_OF[path], path)
        for key, value in (("accumulation.micro_batch_size", size), (path, steps)):
            self.draft.set_text(key, text_of(self.draft.specs[key], value))
        self.fields.show_draft(self.draft)
        self._changed()
        self.show_view("form")

    def _check_or_cancel(self) -> None:
        if self.bar.views.choice() == "plan":
            if self.plans.state == "running":
                self.plans.cancel()
            else:
                self._plan()
            return
        if self.checks.state == "running":
            self.checks.cancel()
        else:
            self._check()

    def _checked(self) -> None:
        """One check begins or is over: what it found may be mended, and checked again."""
        self._refresh_start()
        plans = self.bar.views.choice() == "plan"
        running = (self.plans if plans else self.checks).state == "running"
        again = tr("Measure again") if plans else tr("Check again")
        self.bar.again.setText(tr("Cancel") if running else again)
        if self.checks.state == "done" and self.checks.isVisible():
            self._warm_up()

    def _check(self) -> None:
        """Check what stands in the form, or say which field is in the way."""
        asked = self.startable()
        if asked is not None:
            self.checks.check(asked, self.interpreter.known)
            return
        first = next(iter(self._faults.values()), self.interpreter.sentence)
        self.checks.refuse(tr("Fix the form first: {fault}").format(fault=first))

    def _apply_change(self, key: str, value: Any) -> None:  # noqa: ANN401 - a TOML value
        """Write what a check offers into the form, and check again."""
        if key in CHOICE_OF:
            self.draft.choose(CHOICE_OF[key], key)
        if isinstance(value, dict):
            value = {**(self.draft.valid_value(key) or {}), **value}
        self.draft.set_text(key, text_of(self.draft.specs[key], value))
        self.fields.show_draft(self.draft)
        self._changed()
        self._check()

    def startable(self) -> tuple[str, Path, str, str] | None:
        """The recipe as it would be started: text, folder, name, Python; None while anything is wrong."""
        if self._faults or self.interpreter.sentence:
            return None
        try:
            return self._handed_out(self.draft.recipe())
        except UsageError:
            return None

    # ------------------------------------------------------------------ recipes

    @property
    def draft(self) -> Draft:
        """The values in the form."""
        return self.recipe.draft

    def set_recipe(self, path: Path) -> bool:
        """Open a recipe file. One that is not right leaves the form as it is and says why: False."""
        return self.recipe.open(path)

    def open_copy(self, text: str, folder: Path, name: str) -> bool:
        """Begin with a recipe's text that has no file yet; False, and the form as it was, when it is bad."""
        self.show_view("form")
        return self.recipe.open_text(text, folder=folder, name=name)

    def _show(self) -> None:
        """Show the draft that is in the form."""
        self.fields.show_draft(self.draft)
        self.interpreter.offer(self.draft.folder)
        self._refresh()

    def _replaced(self) -> None:
        for notice in (self.notice, self.conflict, self.trouble):
            notice.hide()
        if not self._keeps_import:
            self._left_open = ()
            self.bar.withdraw_import()
            if self.bar.views.choice() == "import":
                self.show_view("form")
        self._show()
        self._expect_check()

    def _noticed(self, sentence: str, can_undo: bool) -> None:
        self.undo.setVisible(can_undo)
        self.notice.say(sentence)

    def _changed_on_disk(self, path: Path) -> None:
        sentence = tr("{name} was changed on disk since you opened it.").format(name=path.name)
        more = tr("Reload opens the changed file and sets your edits aside. Keep mine overwrites the file.")
        self.conflict.say(sentence, more if self.draft.is_edited else "")

    def _reload(self) -> None:
        self.conflict.hide()
        self.recipe.reload()

    def _keep_mine(self) -> None:
        self.conflict.hide()
        if self.draft.path is not None:
            self.recipe.save(self.draft.path, over_changes=True)

    def _save(self) -> None:
        path = self.recipe.own_path
        if path is None:
            self.bar.ask_where_to_save()
        else:
            self.recipe.save(path)

    # ------------------------------------------------------------------ other programs

    def _show_import(self, imported: Imported, path: Path) -> None:
        """Show what became of another program's file; the form stays as it is until that is taken over."""
        self.trouble.hide()
        self.imports.show_import(imported, path)
        self.bar.show_import(imported.source, path, self.imports.proposed_path)
        self.show_view("import")
        self.imports.open_keys.focus_first()

    def _open_import(self) -> bool:
        """Take the recipe that was made into the form."""
        path = self.imports.path
        assert path is not None  # the button stands beside an import
        self._keeps_import, self._left_open = True, self.imports.recipe().open
        taken = self.recipe.open_text(
            self.imports.recipe().recipe_text(), folder=path.parent, name=self.imports.proposed_path.name
        )
        self._keeps_import = False
        if taken:
            self.show_view("form")
        return taken

    def _stand_in_faults(self) -> dict[str, str]:
        """A sentence for each path that an import could not know and nobody has entered yet."""
        words = tr("Enter this before starting. {why}")
        return {
            one.key: words.format(why=one.why)
            for one in self._left_open
            if isinstance(one.stand_in, str) and self.draft.value(one.key) == one.stand_in
        }

    def _save_import(self, path: Path) -> None:
        if self._open_import():
            self._keeps_import = True
            self.recipe.save(path)
            self._keeps_import = False

    # ------------------------------------------------------------------ drag and drop

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        """Take one recipe, or another program's configuration."""
        if _dropped_file(event) is not None:
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        """Open it."""
        path = _dropped_file(event)
        if path is None:
            return
        event.acceptProposedAction()
        if path.suffix == ".toml":
            self.set_recipe(path)
        else:
            self.recipe.bring_over(path)


def _page() -> QWidget:
    made = QWidget()
    made.setObjectName("page")
    return made


def _scroll(content: QWidget) -> QScrollArea:
    made = QScrollArea()
    made.setWidgetResizable(True)
    made.setFrameShape(QFrame.Shape.NoFrame)
    made.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    made.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # it follows the field that has the focus
    made.setWidget(content)
    return made


def _dropped_file(event: QDropEvent) -> Path | None:
    urls = event.mimeData().urls()
    path = Path(urls[0].toLocalFile()) if len(urls) == 1 and urls[0].isLocalFile() else None
    return path if path is not None and path.suffix in (".toml", *FOREIGN_SUFFIXES) else None
