"""How often each mask value or class occurs, and the decision that an unknown value asks for."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import (
    QComboBox,
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QRadioButton,
    QVBoxLayout,
    QWidget,
)

from gradacc_gui.checking.picture_tile import class_colour, hatched
from gradacc_gui.theme import current_theme, set_role, space
from gradacc_gui.widgets.parts import Panel, button, label, put
from gradacc_gui.words import tr
from trainer_backend.preflight.check_words import cost
from trainer_backend.preflight.findings import ClassShares, ValueShare

MOST_LINES = 24


class ClassSwatch(QWidget):
    """The colour that a value has over the pictures."""

    def __init__(self, entry: ValueShare) -> None:
        super().__init__()
        self._entry = entry
        self.setFixedSize(14, 14)

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Filled, or hatched where it is no class."""
        painter = QPainter(self)
        painter.setPen(QPen(QColor(current_theme().line)))
        if self._entry.meaning == "class":
            painter.setBrush(QColor(class_colour(self._entry.value)))
        else:
            painter.setBrush(hatched(current_theme().warning))
        painter.drawRoundedRect(QRectF(0.5, 0.5, 13, 13), 3, 3)
        painter.end()


class ShareBar(QWidget):
    """A share of all pixels or pictures."""

    def __init__(self, entry: ValueShare) -> None:
        super().__init__()
        self._entry = entry
        self.setMinimumWidth(60)
        self.setFixedHeight(6)

    def sizeHint(self) -> QSize:
        """Wide where there is room."""
        return QSize(160, 6)

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Groove, then the share."""
        theme = current_theme()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(theme.line))
        painter.drawRoundedRect(QRectF(self.rect()), 3, 3)
        is_class = self._entry.meaning == "class"
        painter.setBrush(QColor(class_colour(self._entry.value) if is_class else theme.warning))
        if self._entry.share > 0:
            width = max(3.0, self.width() * self._entry.share)
            painter.drawRoundedRect(QRectF(0, 0, width, self.height()), 3, 3)
        painter.end()


class ClassPanel(Panel):
    """A line a value; below it, what an unknown one means is asked."""

    change_requested = Signal(str, object)
    """A key of the recipe and the value that the person decided for it."""

    def __init__(self) -> None:
        super().__init__(tr("Mask values"))
        self.holder: QWidget | None = None
        self.decision: MaskDecision | None = None

    def show_shares(self, shares: ClassShares) -> None:
        """Count and meaning of each value."""
        self.title.setText(tr("Mask values") if shares.what == "pixels" else tr("Classes"))
        counted = (
            tr("counted in all {files:,} masks, {cost}")
            if shares.what == "pixels"
            else tr("{files:,} training pictures")
        )
        self.hint.setText(counted.format(files=shares.files, cost=cost(shares.duration_s)))
        if self.holder is not None:
            self.body.removeWidget(self.holder)
            self.holder.deleteLater()
        self.holder = self._lines(shares)
        self.body.addWidget(self.holder)
        if self.decision is not None:
            self.body.removeWidget(self.decision)
            self.decision.deleteLater()
            self.decision = None
        undecided = [entry for entry in shares.entries if entry.meaning == "undecided"]
        if undecided:
            self.decision = MaskDecision(undecided[0], shares)
            self.decision.change_requested.connect(self.change_requested)
            self.body.addWidget(self.decision)

    def _lines(self, shares: ClassShares) -> QWidget:
        made = QWidget()
        made.setObjectName("clear")
        grid = QGridLayout(made)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setHorizontalSpacing(space(3))
        grid.setVerticalSpacing(space(1))
        is_mask = shares.what == "pixels"
        heads = (
            (tr("value"), "", tr("pixels"), "", tr("masks"), tr("class"))
            if is_mask
            else (tr("class"), "", tr("share"), "", tr("pictures"), "")
        )
        for place, text in enumerate(heads):
            grid.addWidget(_cell(text, "help", right=place in (0, 2, 4)), 0, place)
        for line, entry in enumerate(shares.entries[:MOST_LINES], 1):
            role = "strong-warning" if entry.meaning == "undecided" else ""
            grid.addWidget(_cell(str(entry.value) if is_mask else entry.name, role, right=is_mask), line, 0)
            grid.addWidget(ClassSwatch(entry), line, 1)
            grid.addWidget(_cell(_percent(entry.share), role, right=True), line, 2)
            grid.addWidget(ShareBar(entry), line, 3)
            grid.addWidget(_cell(f"{entry.files:,}", "muted", right=True), line, 4)
            grid.addWidget(_cell(_meaning(entry) if is_mask else "", role or "muted"), line, 5)
        hidden = len(shares.entries) - MOST_LINES
        if hidden > 0:
            more = tr("and {count:,} more values").format(count=hidden)
            grid.addWidget(label(more, "help"), MOST_LINES + 1, 0, 1, 6)
        grid.setColumnStretch(3, 1)
        return made


def _cell(text: str, role: str, *, right: bool = False) -> QLabel:
    made = label(text, role)
    side = Qt.AlignmentFlag.AlignRight if right else Qt.AlignmentFlag.AlignLeft
    made.setAlignment(side | Qt.AlignmentFlag.AlignVCenter)
    return made


def _percent(share: float) -> str:
    if share == 0:
        return "0 %"
    return f"{share:.1%}".replace("%", " %") if share >= 0.001 else "< 0.1 %"


def _meaning(entry: ValueShare) -> str:
    match entry.meaning:
        case "ignored":
            return tr("no loss")
        case "undecided":
            return tr("not decided")
        case "class":
            return str(entry.value) if entry.value else tr("0, background")


class MaskDecision(QFrame):
    """What an unknown value means: not labelled, or a class. Says what is written into the recipe."""

    change_requested = Signal(str, object)

    def __init__(self, entry: ValueShare, shares: ClassShares) -> None:
        super().__init__()
        set_role(self, "notice-warning")
        self._value = entry.value
        column = QVBoxLayout(self)
        column.setContentsMargins(space(3), space(3), space(3), space(3))
        column.setSpacing(space(2))
        column.addWidget(label(tr("What does {value} mean?").format(value=entry.value), "title"))
        column.addWidget(label(_evidence(entry, shares), wrap=True))
        seen = {other.value for other in shares.entries if other.files and other.meaning == "class"}
        free = [number for number in range(shares.classes) if number not in seen]
        self.ignore = QRadioButton(tr("Not labelled: these pixels have no loss"))
        self.is_class = QRadioButton(tr("It is the class"))
        numbers = [str(number) for number in range(min(shares.classes, 256))]
        self.which = QComboBox()
        self.which.addItems(numbers)
        self.which.setAccessibleName(tr("Class"))
        self.which.setCurrentText(str(free[0] if free else shares.classes - 1))
        row = QHBoxLayout()
        row.setSpacing(space(2))
        row.addWidget(self.is_class)
        row.addWidget(self.which)
        row.addStretch(1)
        (self.is_class if free else self.ignore).setChecked(True)
        column.addWidget(self.ignore)
        column.addLayout(row)
        foot = QHBoxLayout()
        foot.setSpacing(space(2))
        self.apply = button("", role="primary", clicked=self._apply)
        self.writes = label("", "help", wrap=True)
        foot.addWidget(self.apply)
        foot.addWidget(self.writes, 1)
        column.addLayout(foot)
        for widget in (self.ignore, self.is_class):
            widget.toggled.connect(lambda _on: self._say())
        self.which.activated.connect(lambda _place: self._choose_class())
        self._say()

    def _choose_class(self) -> None:
        self.is_class.setChecked(True)
        self._say()

    def change(self) -> tuple[str, Any]:
        """The key and the value that the decision writes."""
        if self.ignore.isChecked():
            return "task.ignore_value", self._value
        return "data.mask_values", {str(self._value): int(self.which.currentText())}

    def _say(self) -> None:
        key, value = self.change()
        shown = value if not isinstance(value, dict) else f"{{ {self._value} = {value[str(self._value)]} }}"
        put(self.writes, tr("writes {key} = {value} into the recipe").format(key=key, value=shown))
        words = tr("Ignore {value}") if self.ignore.isChecked() else tr("Use {value} as class {number}")
        self.apply.setText(words.format(value=self._value, number=self.which.currentText()))

    def _apply(self) -> None:
        self.change_requested.emit(*self.change())


def _evidence(entry: ValueShare, shares: ClassShares) -> str:
    where = (
        tr("It lies in thin lines between classes, as borders do.")
        if shares.forms_borders
        else tr("A border would be a thin line between two classes, below 10 %.")
    )
    words = tr("It covers {share} of all pixels, in {files:,} of {all:,} masks, and is not a class. {where}")
    return words.format(share=_percent(entry.share), files=entry.files, all=shares.files, where=where)
