"""Memory now: what torch allocated and reserved, what this process and the whole device hold."""

from __future__ import annotations

from typing import Final

import msgspec
from PySide6.QtWidgets import QHBoxLayout, QVBoxLayout, QWidget

from gradacc_gui.derive import MemoryFigures
from gradacc_gui.run.numbers import gibibytes
from gradacc_gui.theme import space
from gradacc_gui.widgets.parts import Bar, Panel, label, put
from gradacc_gui.words import tr


class MemoryRow(msgspec.Struct, frozen=True):
    """One line of the panel; `used` None is not known."""

    name: str
    used: int | None
    series: int
    total: int | None
    tip: str


LINES: Final[dict[str, tuple[str, int, str]]] = {
    "torch-allocated": ("torch allocated", 0, "Tensors in use now."),
    "torch-reserved": ("torch reserved", 2, "Held by torch's allocator, including its free blocks."),
    "process": (
        "this process",
        1,
        "Held by the trainer, as the driver reports it, including the CUDA context.",
    ),
    "device": ("whole device", 3, "All processes on this device."),
    "process-rss": ("this process", 1, "Resident memory of the trainer."),
    "host": ("whole machine", 3, "All processes of this machine."),
}
"""A line's word, its series colour (as on the chart), and what it counts."""


def rows_of(memory: MemoryFigures) -> list[MemoryRow]:
    """The lines, worded."""
    rows = []
    for line in memory.lines:
        word, series, tip = LINES[line.code]
        name = tr(word)
        if line.peak_bytes is not None:
            name = tr("{name} (peak {peak})").format(name=name, peak=gibibytes(line.peak_bytes))
        rows.append(MemoryRow(name, line.used_bytes, series, memory.total_bytes, tr(tip)))
    return rows


class _RowWidget(QWidget):
    def __init__(self, row: MemoryRow) -> None:
        super().__init__()
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(2)
        line = QHBoxLayout()
        self.name = label(role="help")
        self.value = label()
        line.addWidget(self.name)
        line.addStretch(1)
        line.addWidget(self.value)
        self.bar = Bar(row.series)
        column.addLayout(line)
        column.addWidget(self.bar)
        self.show_row(row)

    def show_row(self, row: MemoryRow) -> None:
        put(self.name, row.name)
        put(self.value, gibibytes(row.used) if row.used is not None else tr("not known"))
        self.bar.set_ratio(row.used / row.total if row.used is not None and row.total else None)
        self.setToolTip(row.tip)
        self.setAccessibleName(f"{row.name}: {gibibytes(row.used)}")


class MemoryPanel(Panel):
    """Bars for the newest reading."""

    def __init__(self) -> None:
        super().__init__(tr("Memory"))
        self._rows: list[_RowWidget] = []
        self.reason = label(role="help", wrap=True)
        self.reason.hide()
        self.empty = label(tr("Readings appear once the trainer runs."), "help", wrap=True)
        self.body.addWidget(self.empty)
        self._place = QVBoxLayout()
        self._place.setSpacing(space(2))
        self.body.addLayout(self._place)
        self.body.addWidget(self.reason)

    def show_memory(self, memory: MemoryFigures) -> None:
        """Show the newest readings."""
        self._show(rows_of(memory), memory.total_bytes)

    def set_reason(self, sentence: str) -> None:
        """Why something is not known here; empty when all is."""
        put(self.reason, sentence)
        self.reason.setVisible(bool(sentence))

    def _show(self, rows: list[MemoryRow], total: int | None) -> None:
        self.empty.setVisible(not rows)
        put(self.hint, tr("of {total}").format(total=gibibytes(total)) if total else "")
        if len(rows) != len(self._rows):
            for old in self._rows:
                self._place.removeWidget(old)
                old.hide()  # deleted at Qt's next turn only
                old.deleteLater()
            self._rows = [_RowWidget(row) for row in rows]
            for widget in self._rows:
                self._place.addWidget(widget)
        for widget, row in zip(self._rows, rows, strict=True):
            widget.show_row(row)

    def texts(self) -> list[tuple[str, str]]:
        """Names and values as shown."""
        return [(row.name.text(), row.value.text()) for row in self._rows]
