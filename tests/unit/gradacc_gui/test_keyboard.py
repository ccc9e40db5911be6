"""Everything can be reached and done without a pointer, and what can be done is told."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QKeySequence
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QAbstractScrollArea, QApplication, QScrollArea, QWidget
from pytestqt.qtbot import QtBot

from gradacc_gui.charts import ChartGrid
from gradacc_gui.form.new_run_page import FormPage
from gradacc_gui.store import RunStore
from gradacc_gui.window.pages import PAGES
from gradacc_gui.window.settings_page import SHORTCUTS
from tests.support.fake_runs import Plan, write_run

SOURCE = Path(__file__).resolve().parents[3] / "gradacc_gui"
KEYS = re.compile(r"(Ctrl|Shift|Alt)\+\S+|F\d+")


def stops(page: QWidget) -> list[QWidget]:
    """Where the tab key stops on a page, in its order."""
    found, widget = [], page.nextInFocusChain()
    while widget is not page and widget is not None:
        takes = widget.focusPolicy() & Qt.FocusPolicy.TabFocus and widget.focusProxy() is None
        if takes and widget.isVisible() and widget.window() is page.window():
            found.append(widget)
        widget = widget.nextInFocusChain()
    return found


@pytest.mark.parametrize("kind", ["language-model", "image-classification"])
def test_tab_reaches_every_field_before_start(page: FormPage, qtbot: QtBot, kind: str) -> None:
    """Also the fields of a kind of task that is chosen later."""
    page.resize(1280, 720)
    page.show()
    qtbot.waitExposed(page)
    page._kind_chosen(kind)
    order = stops(page)
    fields = [place for place, widget in enumerate(order) if page.fields.isAncestorOf(widget)]
    start = order.index(page.start_bar.start)
    assert len(fields) > 20
    assert fields[-1] < order.index(page.interpreter.box) < order.index(page.start_bar.verify) < start
    assert start == len(order) - 1


def test_no_stop_of_the_form_shows_nothing(page: FormPage, qtbot: QtBot) -> None:
    """An area that only scrolls has no mark for the focus, and scrolls with its fields."""
    page.show()
    qtbot.waitExposed(page)
    assert not [widget for widget in stops(page) if isinstance(widget, QScrollArea)]


@pytest.fixture
def grid(qtbot: QtBot, tmp_path: Path, styled: QApplication) -> Iterator[ChartGrid]:
    """The charts of a run, drawn."""
    made = ChartGrid()
    qtbot.addWidget(made)
    made.resize(1_000, 800)
    store = RunStore(write_run(tmp_path, Plan(steps=100, end="finished")))
    made.set_store(store)
    made.show()
    while not store.caught_up or store.loading_history:
        store.poll(1.0)
    made.tick(60.0)
    yield made
    store.close()


def test_tab_reaches_each_chart(grid: ChartGrid) -> None:
    """And not the area that holds them."""
    order = stops(grid)
    assert [widget for widget in order if widget in [card.view for card in grid.cards]] == [
        card.view for card in grid.cards
    ]
    assert not [widget for widget in order if type(widget) is QAbstractScrollArea or widget is grid._scroll]


def test_arrow_keys_zoom_and_pan_as_the_pointer_does(grid: ChartGrid) -> None:
    """All charts together; Ctrl zooms this chart's scale alone; Home shows the whole run again."""
    view, other = grid.cards[0].view, grid.cards[1].view
    whole = (grid.horizon.x0, grid.horizon.x1)
    QTest.keyClick(view, Qt.Key.Key_Up)
    zoomed = (grid.horizon.x0, grid.horizon.x1)
    assert zoomed[1] - zoomed[0] == pytest.approx(0.8 * (whole[1] - whole[0]))
    grid.tick(60.0)
    QTest.keyClick(view, Qt.Key.Key_Left)
    moved = (grid.horizon.x0, grid.horizon.x1)
    assert moved[0] == pytest.approx(zoomed[0] - 0.1 * (zoomed[1] - zoomed[0]))
    QTest.keyClick(view, Qt.Key.Key_Right)
    assert (grid.horizon.x0, grid.horizon.x1) == pytest.approx(zoomed)
    before = [lane.y_range for lane in other.lanes]
    QTest.keyClick(view, Qt.Key.Key_Up, Qt.KeyboardModifier.ControlModifier)
    grid.tick(60.0)
    assert all(lane.zoomed_y is not None for lane in view.lanes)
    assert [lane.y_range for lane in other.lanes] == before
    QTest.keyClick(view, Qt.Key.Key_Home)
    assert grid.horizon.is_whole
    assert all(lane.zoomed_y is None for lane in view.lanes)


def test_a_chart_with_the_focus_has_a_ring(grid: ChartGrid, qtbot: QtBot) -> None:
    """Laid over the picture: it needs no tick."""
    view = grid.cards[0].view
    grid.activateWindow()
    without = view.viewport().grab().toImage()
    view.setFocus(Qt.FocusReason.TabFocusReason)
    qtbot.waitUntil(view.hasFocus)
    assert view.viewport().grab().toImage() != without


def test_every_shortcut_of_the_window_is_in_the_list() -> None:
    """Read from the source: whatever a key is bound to there must be told on the Settings page."""
    bound = {keys for _page, _word, keys in PAGES}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name not in {"QKeySequence", "_shortcut", "setShortcut"}:
                continue
            for argument in node.args:
                if isinstance(argument, ast.Constant) and KEYS.fullmatch(str(argument.value)):
                    bound.add(str(argument.value))
                elif isinstance(argument, ast.Attribute) and "StandardKey" in ast.unparse(argument):
                    standard = getattr(QKeySequence.StandardKey, argument.attr)
                    bound.add(QKeySequence(standard).toString())
    copies = QKeySequence(QKeySequence.StandardKey.Copy).toString()  # everywhere, and in each menu
    assert bound - {copies} == {keys for keys, _ in SHORTCUTS}
