"""What only the person knows, asked for beside the recipe that lacks it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFrame, QGridLayout, QScrollArea, QWidget

from gradacc_gui.form.account_tally import Swatch
from gradacc_gui.form.editors import PathEdit, line_of
from gradacc_gui.form.field_view import FieldView
from gradacc_gui.importing.account import OpenKey
from gradacc_gui.recipe.field_specs import ABSENT, all_specs, text_of, value_of
from gradacc_gui.recipe.wording import beside_field
from gradacc_gui.theme import space
from gradacc_gui.widgets.parts import Panel, clear_widget
from gradacc_gui.words import tr
from trainer_backend.config_check import check_value, section_types

ABREAST: Final = 2


class OpenKeysPanel(Panel):
    """One field for each open key, and why the file leaves it open."""

    filled = Signal()
    """Another set of keys has a right value now."""

    def __init__(self) -> None:
        super().__init__(tr("To be filled in"))
        self.head.insertWidget(0, Swatch("open"))
        self.head.setSpacing(space(2))
        self.fields: dict[str, FieldView] = {}
        """By recipe key."""
        self.values: dict[str, Any] = {}
        """What was entered and is right, by recipe key."""
        self._kind = ""
        self._area = QScrollArea()
        self._area.setObjectName("clear")
        self._area.setWidgetResizable(True)
        self._area.setFrameShape(QFrame.Shape.NoFrame)
        self.body.addWidget(self._area)

    def show_keys(self, keys: Sequence[OpenKey], kind: str, folder: Path) -> None:
        """Ask for these; relative paths start in `folder`."""
        self._kind = kind
        self.fields, self.values = {}, {}
        specs = all_specs(kind)
        holder = clear_widget()
        grid = QGridLayout(holder)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setHorizontalSpacing(space(4))
        grid.setVerticalSpacing(space(2))
        for number, one in enumerate(keys):
            field = FieldView(specs[one.key])
            field.set_help(one.why)
            if isinstance(field.editor, PathEdit):
                field.editor.set_folder(folder)
            elif (line := line_of(field.editor)) is not None and one.stand_in is not None:
                stand_in = text_of(field.spec, one.stand_in)
                line.setPlaceholderText(tr("{value} until you enter it").format(value=stand_in))
            field.edited.connect(self._take)
            self.fields[one.key] = field
            grid.addWidget(field, *divmod(number, ABREAST))
        for column in range(min(ABREAST, len(keys))):
            grid.setColumnStretch(column, 1)
        self._area.setWidget(holder)
        self.setVisible(bool(keys))
        self._count()

    def natural_height(self) -> int:
        """Pixels that all fields take."""
        content: QWidget | None = self._area.widget()
        inner = 0 if content is None else content.sizeHint().height()
        return inner + self.title.sizeHint().height() + 2 * space(3) + space(2) + 2

    def focus_first(self) -> None:
        """Put the keyboard into the first field that is still empty."""
        rest = [field for key, field in self.fields.items() if key not in self.values]
        for field in rest[:1]:
            field.focus_editor()
            self._area.ensureWidgetVisible(field)

    def _take(self, path: str, text: str) -> None:
        field = self.fields[path]
        before = dict(self.values)
        self.values.pop(path, None)
        sentence = ""
        value = value_of(field.spec, text) if text.strip() else ABSENT
        if value is not ABSENT:
            section = section_types(self._kind)[field.spec.section]
            assert section is not None
            problem = check_value(path, value, section, field.spec.name)
            if problem is None:
                self.values[path] = value
            else:
                sentence = beside_field(problem, all_specs(self._kind))
        field.set_error(sentence)
        if before != self.values:
            self._count()
            self.filled.emit()

    def _count(self) -> None:
        rest = len(self.fields) - len(self.values)
        if rest == 1:
            words = tr("1 key that only you know")
        elif rest:
            words = tr("{count} keys that only you know").format(count=rest)
        else:
            words = tr("All filled in.")
        self.hint.setText(words)
