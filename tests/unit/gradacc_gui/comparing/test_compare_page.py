"""The page of runs side by side: reads, draws, hides, names a baseline, gives its tables away."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtTest import QTest
from pytestqt.qtbot import QtBot

from gradacc_gui.charts.overlay import CurvePoint, with_differences
from gradacc_gui.comparing.compare_page import ComparePage
from gradacc_gui.comparing.run_lines import joined
from gradacc_gui.series import NO_TRACE
from gradacc_gui.theme import current_theme
from tests.support.fake_runs import Plan, write_run
from trainer_backend.run_directory import RunDirectory


@pytest.fixture
def runs(tmp_path: Path) -> list[RunDirectory]:
    """N = 4 twice, N = 8 and N = 16 once."""
    plans = [Plan(name=f"n{n}", n=n, seed=seed, steps=240 // n, end="finished") for n, seed in
             ((4, 1), (8, 1), (4, 2), (16, 1))]  # fmt: skip
    return [write_run(tmp_path, plan) for plan in plans]


@pytest.fixture
def page(qtbot: QtBot, runs: list[RunDirectory]) -> Iterator[ComparePage]:
    """The page with the runs, all read and drawn."""
    shown = ComparePage()
    qtbot.addWidget(shown)
    shown.resize(1200, 760)
    shown.show()
    shown.set_runs(runs)
    settle(shown)
    yield shown
    shown.leave()


def settle(page: ComparePage) -> None:
    """Tick until all is read and drawn."""
    for _ in range(120):
        page.tick()
        QGuiApplication.processEvents()


def test_runs_are_read_grouped_and_drawn_over_one_another(page: ComparePage) -> None:
    """One line a group in each chart; the repeated one has its least and greatest behind it."""
    assert [group.label for group in page.groups] == ["N = 4", "N = 8", "N = 16"]
    assert page.title.text() == "Compare 4 runs"
    assert page.note.text() == "N = 4 was repeated 2 times"
    for card in page.cards:
        (lane,) = card.view.lanes
        assert all(np.isfinite(curve.trace.y).any() for curve in lane.curves), card.field.key
        repeated_alike = card.field.key == "learning_rate"
        assert lane.curves[0].trace.spread().any() != repeated_alike, card.field.key
    assert [row[0].split("   ")[0] for row in page.results_table.texts()] == ["N = 4", "N = 8", "N = 16"]
    assert "other settings are the same" in page.differs_note.text()


def test_a_click_hides_a_group_and_a_double_click_makes_it_the_baseline(page: ComparePage) -> None:
    """In all charts at once; the tables follow."""
    legend = page.legend
    legend[1].click()
    settle(page)
    curves = page.cards[0].view.lanes[0].curves
    assert not len(curves[1].trace.x)
    assert len(curves[2].trace.x)
    legend[1].click()
    QTest.mouseDClick(legend[2], Qt.MouseButton.LeftButton)
    texts = page.results_table.texts()
    assert "(baseline)" in texts[2][0]
    assert "%" in texts[0][1]
    assert "%" not in texts[2][1]


def test_the_pointer_tells_all_values_and_their_differences(page: ComparePage) -> None:
    """The same place in every chart, values in the one under the pointer."""
    page._hover(page.cards[1], 120.0)
    overlays = [card.view.overlay for card in page.cards]
    assert all(overlay is not None and overlay.x == 120.0 for overlay in overlays)
    assert [overlay.with_box for overlay in overlays if overlay is not None] == [
        False,
        True,
        False,
        False,
        False,
    ]
    assert overlays[0] is not None
    assert overlays[0].baseline == "N = 4"
    assert overlays[0].heading == "120 samples"
    page._hover(None, None)
    assert all(card.view.overlay is None for card in page.cards)
    colour = current_theme().accent
    points = [CurvePoint(colour, "a", "2", 2.0), CurvePoint(colour, "b", "3", 3.0)]  # type: ignore[arg-type]
    assert [point.text for point in with_differences(points, "a")] == ["2", "3   +50.0 %"]
    assert with_differences(points, "none of them") == points


def test_axes_smoothing_and_zoom_hold_for_all_charts(page: ComparePage) -> None:
    """Steps end where the longest run does."""
    page.axis.button("steps").click()
    settle(page)
    assert all(card.view.x_range[1] == pytest.approx(60.24) for card in page.cards)
    page.smoothing.setValue(60)
    page.cards[0].view.zoomed.emit(0.5, 30.0)
    settle(page)
    assert len({card.view.x_range for card in page.cards}) == 1
    assert page.cards[0].view.x_range[1] < 60
    page.cards[0].view.reset.emit()
    settle(page)
    assert page.cards[0].view.x_range[1] == pytest.approx(60.24)


def test_both_tables_can_be_copied_and_saved(page: ComparePage, tmp_path: Path) -> None:
    """As CSV that any program reads; a place that cannot be written is told."""
    page.copy_button.click()
    assert "N = 16\tn16" in QGuiApplication.clipboard().text()
    page.save_tables(tmp_path / "out.csv")
    rows = list(csv.reader((tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()))
    assert rows[0][:2] == ["Run", "Name"]
    assert len(rows) == 9
    page.save_tables(tmp_path / "none" / "out.csv")
    assert "cannot be written" in page.problem.text()


def test_a_run_that_is_deleted_while_it_is_compared_keeps_what_was_read(
    page: ComparePage, runs: list[RunDirectory]
) -> None:
    """Nothing fails; its line stays until the page is left."""
    for path in sorted(runs[1].path.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    settle(page)
    assert len(page.cards[0].view.lanes[0].curves[1].trace.x)


def test_joined_repetitions_are_told_where_all_have_values() -> None:
    """Mean, least and greatest; a run that ends earlier ends the band."""
    x = np.arange(5.0)
    one, two = NO_TRACE._replace(x=x, y=x), NO_TRACE._replace(x=x[:3], y=x[:3] + 2)
    band = joined([one, two])
    assert band.x.tolist() == [0, 1, 2]
    assert band.y.tolist() == [1, 2, 3]
    assert band.lo.tolist() == [0, 1, 2]
    assert band.hi.tolist() == [2, 3, 4]
    assert joined([NO_TRACE, NO_TRACE]) is NO_TRACE
