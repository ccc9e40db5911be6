"""A field on the page: title and unit, editor, and one line beneath that is help or, in red, the fault."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QHBoxLayout, QLabel, QVBoxLayout, QWidget

from gradacc_gui.form.editors import (
    ComboBox,
    Editor,
    FlagBox,
    editor_for,
    focus_widget,
    line_of,
    set_names,
)
from gradacc_gui.recipe.arrangement import BLANKS, Alternatives, title_of
from gradacc_gui.recipe.field_specs import FieldSpec, text_of
from gradacc_gui.theme import set_role, space
from gradacc_gui.widgets.line_edit import LineEdit
from gradacc_gui.widgets.parts import label, put
from gradacc_gui.words import tr


class FieldView(QWidget):
    """One field. `edited(path, text)` tells what a person did; setters never emit."""

    edited = Signal(str, str)

    def __init__(self, spec: FieldSpec) -> None:
        super().__init__()
        self.setObjectName("clear")
        self.spec = spec
        self.editor: Editor = editor_for(spec)
        self._help, self._extra, self._error = spec.help, "", ""
        self.note = label(spec.help, "help", wrap=True)
        self._published: QLabel | None = None
        self._title = label(title_of(spec))
        self._unit = label(spec.unit, "help")
        self._build()
        self.editor.edited.connect(lambda text: self.edited.emit(self.path, text))
        self._tell_screen_reader()

    def _build(self) -> None:
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(space(1))
        row = QHBoxLayout()
        row.setSpacing(space(1))
        row.addWidget(self._title)
        row.addStretch(1)
        row.addWidget(self._unit)
        if isinstance(self.editor, FlagBox):
            self._title.setText(" ")  # the box bears the title; the row keeps the boxes in line
        else:
            self._title.setBuddy(focus_widget(self.editor))
        column.addLayout(row)
        column.addWidget(self.editor)
        column.addWidget(self.note)
        column.addStretch(1)
        line = line_of(self.editor)
        if line is not None:
            line.setPlaceholderText(placeholder(self.spec))

    @property
    def path(self) -> str:
        """The recipe path that it edits."""
        return self.spec.path

    @property
    def title(self) -> str:
        """What it is called."""
        return title_of(self.spec)

    def set_text(self, text: str) -> None:
        """Show a value's text."""
        self.editor.set_text(text)

    def set_help(self, text: str) -> None:
        """Other help, where it depends on the value."""
        if text != self._help:
            self._help = text
            self._say()

    def set_extra(self, extra: str) -> None:
        """A few words computed from the value, in front of the help ("= 20 optimizer steps")."""
        if extra != self._extra:
            self._extra = extra
            self._say()

    def set_error(self, sentence: str) -> None:
        """Show what would be right in place of the help; "" when it is right."""
        if sentence != self._error:
            self._error = sentence
            self.editor.set_invalid(bool(sentence))
            self._say()

    @property
    def error(self) -> str:
        """The sentence that is shown in red; empty: none."""
        return self._error

    def _say(self) -> None:
        sentence_end = "" if self._extra.endswith(".") else "."
        both = f"{self._extra}{sentence_end} {self._help}"
        helped = both if self._extra and self._help else self._extra or self._help
        put(self.note, self._error or helped)
        set_role(self.note, "error" if self._error else "help")
        self._tell_screen_reader()

    def _tell_screen_reader(self) -> None:
        name = f"{self.title}, {self.spec.unit}" if self.spec.unit else self.title
        set_names(self.editor, name, self.note.text())

    def set_published(self, text: str) -> None:
        """What was published, where it differs from the field; "" takes it away."""
        if self._published is None:
            if not text:
                return
            self._published = label(role="warning", wrap=True)
            layout = self.layout()
            assert isinstance(layout, QVBoxLayout)
            layout.insertWidget(2, self._published)
        put(self._published, tr("published: {value}").format(value=text) if text else "")
        self._published.setVisible(bool(text))

    def focus_editor(self) -> None:
        """Put the keyboard into it, with its text selected."""
        focus_widget(self.editor).setFocus()
        line = line_of(self.editor)
        if line is not None:
            line.selectAll()


def placeholder(spec: FieldSpec) -> str:
    """What stands in an empty field: what empty means, else the default."""
    if spec.path in BLANKS:
        return tr(BLANKS[spec.path])
    if spec.path == "data.path" and spec.takes_blank and not spec.required:
        return tr("Python standard library")
    if spec.optional:
        return tr("none")
    if spec.instead:
        return tr("a {browse}, or {instead}").format(browse=tr(spec.browse), instead=tr(spec.instead))
    if spec.suggestions or spec.required:
        return ""
    default = text_of(spec, spec.default)
    return tr("default {value}").format(value=default) if default else ""


class ChoiceView(FieldView):
    """One number and what it counts, for fields of which a recipe has one."""

    chosen = Signal(str)
    """The path that is counted now."""

    def __init__(self, choice: Alternatives, specs: tuple[FieldSpec, ...]) -> None:
        self.choice = choice
        self._specs = {spec.path: spec for spec in specs}
        self.counts = ComboBox(choice.paths, [tr(word) for word in choice.words])
        super().__init__(specs[0])
        self._unit.hide()
        self.counts.setAccessibleName(tr("{title}: what is counted").format(title=tr(choice.title)))
        self.counts.edited.connect(self.chosen)
        layout = self.layout()
        assert isinstance(layout, QVBoxLayout)
        layout.removeWidget(self.editor)
        row = QHBoxLayout()
        row.setSpacing(space(1))
        row.addWidget(self.editor, 3)
        row.addWidget(self.counts, 2)
        layout.insertLayout(1, row)

    @property
    def path(self) -> str:
        """The path that is counted now."""
        return self.spec.path

    def show_choice(self, path: str, text: str) -> None:
        """Count `path` from now on, and show its text."""
        self.spec = self._specs[path]
        self.counts.set_text(path)
        self._help = self.choice.help or self.spec.help
        assert isinstance(self.editor, LineEdit)
        self.editor.setPlaceholderText(placeholder(self.spec))
        self.editor.set_text(text)
        put(self._title, title_of(self.spec))
        self._say()
