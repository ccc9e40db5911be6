"""One chart as a card: title, legend, plotting area."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen, QResizeEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QSizePolicy, QToolButton, QVBoxLayout, QWidget

from gradacc_gui.charts import ticks
from gradacc_gui.charts.curve import colour_of
from gradacc_gui.charts.lane import Lane, ViewSettings
from gradacc_gui.charts.specs import Chart as ChartSpec
from gradacc_gui.charts.specs import CurveSpec
from gradacc_gui.charts.view import ChartView, MarkLine
from gradacc_gui.store import Axis, RunPosition, RunStore
from gradacc_gui.theme import Theme, application_font, current_theme, set_role, space
from gradacc_gui.words import tr
from trainer_backend.protocol import Event

SWATCH_PX: Final = 12
MOST_CORNER_PX: Final = 60
"""Of a unit that may stand above the scale; a longer one would reach into the plot."""


class Legend(QWidget):
    """Names of the lines, each behind a stroke as it is drawn. Those without room are cut."""

    def __init__(self, lines: Sequence[CurveSpec]) -> None:
        super().__init__()
        self._lines = _named(lines)
        self.theme = current_theme()
        self.setFont(application_font(12))
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setToolTip("\n".join(tr(line.name) for line in self._lines))

    def set_lines(self, lines: Sequence[CurveSpec]) -> None:
        """Name these lines in the legend instead of the ones before."""
        self._lines = _named(lines)
        self.setToolTip("\n".join(tr(line.name) for line in self._lines))
        self.update()

    def _widths(self) -> list[int]:
        metrics = self.fontMetrics()
        return [SWATCH_PX + 7 + metrics.horizontalAdvance(tr(line.name)) for line in self._lines]

    def whole_width(self) -> int:
        """Pixels that all names take."""
        return sum(width + 12 for width in self._widths()) - 12

    def sizeHint(self) -> QSize:
        """One line of text, as wide as there is room."""
        return QSize(40, 18)

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: ARG002 - Qt's
        """Draw names from the right, so that the newest stay visible in a narrow card."""
        painter = QPainter(self)
        widths = self._widths()
        over = self.whole_width() - self.width()
        if over > 0:
            each = (self.width() + 12) // max(1, len(widths)) - 12
            widths = [max(SWATCH_PX, min(width, each)) for width in widths]
        lines = list(zip(self._lines, widths, strict=True))
        x = self.width() - sum(width + 12 for _, width in lines) + 12
        middle = self.height() / 2
        for line, width in lines:
            self._draw_swatch(painter, line, x, middle)
            painter.setPen(QColor(self.theme.muted))
            room = width - SWATCH_PX - 5
            name = self.fontMetrics().elidedText(tr(line.name), Qt.TextElideMode.ElideRight, room)
            box = QRectF(x + SWATCH_PX + 5, 0, room + 1, self.height())
            painter.drawText(box, Qt.AlignmentFlag.AlignVCenter, name)
            x += width + 12
        painter.end()

    def _draw_swatch(self, painter: QPainter, line: CurveSpec, x: float, middle: float) -> None:
        colour = colour_of(line, self.theme)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        if line.style in {"dots", "points"}:
            size = 4.0 if line.style == "dots" else 7.0
            if line.style == "dots":
                colour.setAlpha(170)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(colour)
            painter.drawEllipse(QRectF(x + SWATCH_PX - size - 1, middle - size / 2 + 0.5, size, size))
        else:
            pen = QPen(colour, 2, Qt.PenStyle.DashLine if line.dash else Qt.PenStyle.SolidLine)
            if line.dash:
                pen.setDashPattern([2, 1.5])
            painter.setPen(pen)
            painter.drawLine(int(x), int(middle) + 1, int(x) + SWATCH_PX, int(middle) + 1)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)


def _named(lines: Sequence[CurveSpec]) -> tuple[CurveSpec, ...]:
    return tuple(line for line in lines if line.in_legend)


class ChartCard(QFrame):
    """A chart that is drawn only when told to, and only while it can be seen."""

    log_changed = Signal()

    def __init__(self, spec: ChartSpec) -> None:
        super().__init__()
        set_role(self, "panel")
        self.view = ChartView()
        self.title = QLabel()
        set_role(self.title, "title")
        self.unit = QLabel()
        set_role(self.unit, "help")
        self.legend = Legend(())
        self.log = QToolButton()
        self.log.setText(tr("log"))
        self.log.setToolTip(tr("Logarithmic scale"))
        self.log.setCheckable(True)
        self.log.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.log.toggled.connect(self.log_changed)
        head = QHBoxLayout()
        head.setContentsMargins(space(3), 0, space(3), 0)
        head.setSpacing(space(2))
        head.addWidget(self.title)
        head.addWidget(self.unit)
        head.addWidget(self.legend, 1)
        head.addWidget(self.log)
        column = QVBoxLayout(self)
        column.setContentsMargins(1, space(2), 1, space(1))
        column.setSpacing(space(1))
        band = QWidget()
        band.setObjectName("clear")
        band.setFixedHeight(22)
        band.setLayout(head)
        column.addWidget(band)
        column.addWidget(self.view, 1)
        self.setMinimumSize(220, 132)
        self.seen: tuple[Any, ...] = ()
        """What was drawn last, to know whether anything changed."""
        self.painted_at = 0.0
        self._ratio = 0.0
        self.set_spec(spec)
        self.set_theme(current_theme())

    def set_spec(self, spec: ChartSpec) -> None:
        """Show another set of lines (a run on another kind of device)."""
        self.spec = spec
        self.title.setText(tr(spec.title))
        self.unit.setText(tr(spec.unit))
        self.legend.set_lines(spec.lines)
        self.log.setVisible(spec.can_log)
        self.view.set_lanes([Lane(lane, self.view.scene()) for lane in spec.lanes])
        self._ratio = 0.0
        self.seen = ()
        self.setAccessibleName(tr(spec.title))
        self.view.setAccessibleName(tr("Chart: {title}").format(title=tr(spec.title)))
        self.title.setToolTip(
            tr(
                "Wheel: zoom. Drag: zoom to a range. Right drag: move. Double click: whole run.\n"
                "Keyboard: ← → move, ↑ ↓ zoom, Home shows the whole run. All gestures: press F1."
            )
        )

    @property
    def kinds(self) -> set[type[Event]]:
        """Measurements that this chart shows."""
        return {line.kind for line in self.spec.lines}

    def set_theme(self, theme: Theme) -> None:
        """Apply a theme's colours to title, legend and plot."""
        self.view.set_theme(theme)
        self.legend.theme = theme
        self.legend.update()
        self._ratio = 0.0
        self.log.setStyleSheet(
            f"QToolButton {{ border: 1px solid {theme.line}; border-radius: 4px; padding: 0 6px;"
            f" min-height: 16px; font-size: 11px; color: {theme.muted}; background: transparent; }}"
            f" QToolButton:checked {{ color: {theme.accent}; border-color: {theme.accent}; }}"
            f" QToolButton:focus {{ border-color: {theme.accent}; }}"
        )
        self.seen = ()

    def set_unit(self, text: str) -> None:
        """Set the unit behind the title."""
        if self.unit.text() != text:
            self.unit.setText(text)
            self._make_room()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Where names of lines and the unit do not fit in one row, the unit stands above the scale."""
        super().resizeEvent(event)
        self._make_room()

    def _make_room(self) -> None:
        log = self.log.sizeHint().width() + space(2) if self.spec.can_log else 0
        others = (
            self.title.sizeHint().width() + self.unit.sizeHint().width() + self.legend.whole_width() + log
        )
        fits = others + space(10) <= self.width()
        self.unit.setVisible(fits)
        is_short = self.unit.sizeHint().width() <= MOST_CORNER_PX
        corner = "" if fits or not is_short else self.unit.text()
        if self.view.corner != corner:
            self.view.corner = corner
            self.view.place_lanes()
            self.seen = ()

    def refresh(self, store: RunStore, settings: ViewSettings, waiting: str, reasons: dict[str, str]) -> None:
        """Fetch what `settings` shows, to be drawn. `reasons`: why a field lacks values, by field."""
        view, axis = self.view, settings.view.axis
        self._apply_look()
        view.axis, view.x_range = axis, (settings.view.x0, settings.view.x1)
        view.changes = _change_lines(store, axis)
        view.place_lanes()
        view.attempts = [mark.place.on(axis) for mark in store.markers.attempts]
        view.lost = [(mark.begin.on(axis), mark.end.on(axis)) for mark in store.markers.lost]
        view.lane_messages = {}
        for place, lane in enumerate(view.lanes):
            lane.levels = _levels(store, lane.spec.level_setting, axis)
            lane.target = _target(store, lane)
            lane.refresh(store, settings)
            if lane.is_empty:
                view.lane_messages[place] = _reason(lane, reasons)
        view.message = self._message(waiting)
        if not view.message:
            for place, words in view.lane_messages.items():
                view.lane_messages[place] = words or tr(view.lanes[place].spec.empty)
        if self.spec.key == "memory":
            self.set_unit(
                " / ".join(dict.fromkeys(ticks.byte_unit(lane.y_range[1])[0] for lane in view.lanes))
            )

    def _apply_look(self) -> None:
        """Colours, and dots as sharp as this screen: after a change of theme, lines or screen."""
        ratio = self.devicePixelRatioF()
        if ratio != self._ratio:
            self._ratio = ratio
            for lane in self.view.lanes:
                lane.set_look(self.view.theme, ratio)

    def show_nothing(self, words: str) -> None:
        """No run: a sentence in place of the curves, for the view to draw."""
        self.view.message = words

    def _message(self, waiting: str) -> str:
        if any(not lane.is_empty for lane in self.view.lanes):
            return ""
        told = [words for words in self.view.lane_messages.values() if words]
        return told[0] if told else waiting


def _change_lines(store: RunStore, axis: Axis) -> list[MarkLine]:
    return [
        MarkLine(
            mark.step if axis == "steps" else mark.place.on(axis),  # the first step with the new N
            f"N {mark.before} → {mark.after}",
            tr("from step {step:,}").format(step=mark.step),
        )
        for mark in store.markers.n_changes
    ]


def _levels(store: RunStore, key: str, axis: Axis) -> list[tuple[float, float | None]]:
    if not key:
        return []

    def number(value: object) -> float | None:
        return float(value) if isinstance(value, int | float) else None

    found: list[tuple[RunPosition, Any]] = store.levels(key)
    return [(place.on(axis), number(value)) for place, value in found]


def _target(store: RunStore, lane: Lane) -> float | None:
    """The recipe's target of a lane, in the lane's unit; None when it sets none."""
    if not lane.spec.target_setting:
        return None
    value = store.run.recipe_value(lane.spec.target_setting)
    return value * lane.spec.target_unit if isinstance(value, int | float) else None


def _reason(lane: Lane, reasons: dict[str, str]) -> str:
    """Why none of a lane's lines has a value; empty when nobody said."""
    told = [reasons[line.field] for line in lane.spec.lines if line.field in reasons]
    return told[0] if told else ""
