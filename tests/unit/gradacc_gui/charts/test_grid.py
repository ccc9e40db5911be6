"""The six charts in a real (offscreen) window: what is drawn, when, and what a person can do with it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QColor, QWheelEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gradacc_gui.charts import ChartGrid
from gradacc_gui.charts import grid as grid_module
from gradacc_gui.charts.card import ChartCard
from gradacc_gui.charts.overlay import nearest
from gradacc_gui.store import RunStore
from gradacc_gui.theme import DARK, LIGHT, palette
from tests.support.fake_runs import BackdatedWriter, Plan, continue_run, events, new_run, write_run
from trainer_backend.protocol import DeviceSampled, MicroBatchMeasured, OptimizerStepMeasured, Warned
from trainer_backend.run_directory import RunDirectory

NO_KEYS = Qt.KeyboardModifier.NoModifier
PLAN = Plan(steps=124, n_changes={62: 8}, spike_steps=(90,), nan_steps=(40,))


@pytest.fixture
def show(qtbot: QtBot) -> Iterator[Callable[[RunDirectory | None], ChartGrid]]:
    """Shows a run's charts, drawn once."""
    grids: list[ChartGrid] = []

    def show_run(run: RunDirectory | None) -> ChartGrid:
        grid = ChartGrid()
        grids.append(grid)
        qtbot.addWidget(grid)
        grid.resize(1_000, 800)
        if run is not None:
            grid.set_store(RunStore(run))
        grid.show()
        QApplication.processEvents()
        refresh(grid)
        return grid

    yield show_run
    for grid in grids:
        if grid.store is not None:
            grid.store.close()


def refresh(grid: ChartGrid) -> int:
    """Read everything, and draw all that changed."""
    store = grid.store
    while store is not None:
        store.poll(1.0)
        if (store.caught_up and not store.loading_history) or store.problem or store.attempt == 0:
            break
    return grid.tick(60.0)


def card(grid: ChartGrid, key: str) -> ChartCard:
    """A chart by its key."""
    return next(card for card in grid.cards if card.spec.key == key)


def curve(grid: ChartGrid, key: str, field: str, kind: type = OptimizerStepMeasured) -> Any:
    """A curve of a chart."""
    return next(
        curve
        for lane in card(grid, key).view.lanes
        for curve in lane.curves
        if (curve.line.kind, curve.line.field) == (kind, field)
    )


def feed(grid: ChartGrid, plan: Plan) -> None:
    """Append an attempt's events to the shown run."""
    assert grid.store is not None
    writer = BackdatedWriter(grid.store.run.journal_path, attempt=plan.attempt)
    for at, event in events(plan):
        writer.put_at(at, event)
    writer.close()


def turn_wheel(view: Any, steps: int, x: float, modifiers: Qt.KeyboardModifier = NO_KEYS) -> None:
    """A mouse wheel over a chart."""
    event = QWheelEvent(
        QPointF(x, 50), QPointF(x, 50), QPoint(), QPoint(0, 120 * steps), Qt.MouseButton.NoButton, modifiers,
        Qt.ScrollPhase.NoScrollPhase, False,
    )  # fmt: skip
    view.wheelEvent(event)


# -------------------------------------------------------------------------------- what is drawn


def test_all_six_charts_are_drawn_once_and_not_again(tmp_path: Path, show: Any) -> None:
    """A tick without news draws nothing."""
    grid = show(write_run(tmp_path, PLAN))
    assert refresh(grid) == 0
    assert all(not card.view.message for card in grid.cards)
    assert len(curve(grid, "loss", "loss").trace.x) == 124
    assert curve(grid, "loss", "loss").trace.nan_x.tolist() == [40.0]


def test_each_quantity_has_a_scale_of_its_own(tmp_path: Path, show: Any) -> None:
    """Learning rate and N; percent, degrees and watts."""
    grid = show(write_run(tmp_path, PLAN))
    rate, n = card(grid, "learning_rate").view.lanes
    assert rate.y_range[1] < 0.01
    assert 8 <= n.y_range[1] <= 16
    tops = [lane.y_range[1] for lane in card(grid, "device").view.lanes]
    assert 100 <= tops[0] < 150
    assert tops[2] > 180


def test_memory_has_its_four_lines_told_apart(tmp_path: Path, show: Any) -> None:
    """By colour and name."""
    grid = show(write_run(tmp_path, PLAN))
    lines = card(grid, "memory").spec.lines
    assert [line.name for line in lines] == ["allocated", "reserved", "process", "device"]
    assert len({line.colour for line in lines}) == 4
    assert card(grid, "memory").unit.text() == "GiB"


def test_a_cpu_run_charts_process_and_machine(tmp_path: Path, show: Any) -> None:
    """And says in a sentence why there is no GPU."""
    grid = show(write_run(tmp_path, Plan(steps=30, gpu=False)))
    assert [line.name for line in card(grid, "memory").spec.lines] == ["this process", "whole machine"]
    assert card(grid, "device").title.text() == "CPU"
    assert "driver" in card(grid, "device").unit.text()
    assert not card(grid, "device").view.message


def test_a_change_of_n_is_marked_on_every_chart_above_the_data(tmp_path: Path, show: Any) -> None:
    """The label's strip holds no curve."""
    grid = show(write_run(tmp_path, PLAN))
    for shown in grid.cards:
        assert [mark.text for mark in shown.view.changes] == ["N 4 → 8"]
        first = shown.view.lanes[0]
        highest = max(extent[1] for c in first.curves if (extent := c.trace.extent()) is not None)
        assert first.y_px(highest) >= first.rect.top() >= 16


def test_the_mark_of_n_stands_at_the_first_step_with_it(tmp_path: Path, show: Any) -> None:
    """As its words and the decision log say."""
    grid = show(write_run(tmp_path, Plan(steps=30, n_changes={13: 8})))
    (change,) = card(grid, "loss").view.changes
    assert (change.x, change.tip) == (13, "from step 13")


def test_a_legend_with_room_cuts_no_name(tmp_path: Path, show: Any) -> None:
    """Not by a pixel: wider than it needs to be, it looks the same."""
    grid = show(write_run(tmp_path, PLAN))
    for each in grid.cards:
        legend = each.legend
        widths = []
        for extra in (0, 40):
            legend.resize(legend.whole_width() + extra, 18)
            image = legend.grab().toImage().copy(extra, 0, legend.whole_width(), 18)
            widths.append(image)
        assert widths[0] == widths[1], each.spec.key


def test_a_legend_without_room_names_every_line(tmp_path: Path, show: Any) -> None:
    """A curve that is drawn is never left out: names are cut instead."""
    grid = show(write_run(tmp_path, PLAN))
    legend = card(grid, "loss").legend
    legend.resize(legend.whole_width() // 2, 18)
    image = legend.grab().toImage()
    hues = {image.pixelColor(x, y).name() for x in range(image.width()) for y in range(image.height())}
    assert QColor(grid.cards[0].view.theme.series[1]).name() in hues


@pytest.mark.parametrize(("width", "corner"), [(720, "GiB"), (1400, "")])
def test_a_unit_without_room_behind_its_title_stands_above_the_scale(
    tmp_path: Path, show: Any, width: int, corner: str
) -> None:
    """Numbers without their unit are not told."""
    grid = show(write_run(tmp_path, Plan(steps=60)))
    grid.resize(width, 660)
    QApplication.processEvents()
    refresh(grid)
    memory = card(grid, "memory")
    assert memory.unit.text() == "GiB"
    assert (memory.view.corner, memory.unit.isHidden()) == (corner, bool(corner))


def test_a_hundred_changes_of_n_are_drawn(tmp_path: Path, show: Any) -> None:
    """Labels thin out; nothing hangs."""
    changes = {step: 3 - step % 2 for step in range(2, 102)}
    grid = show(write_run(tmp_path, Plan(steps=110, n=2, n_changes=changes)))
    assert len(card(grid, "loss").view.changes) == 100


def test_a_log_axis_takes_zero_and_negatives(tmp_path: Path, show: Any) -> None:
    """Marked at the bottom, the rest drawn."""
    run = new_run(tmp_path, PLAN)
    writer = BackdatedWriter(run.journal_path, attempt=1)
    for at, event in events(Plan(steps=30)):
        if isinstance(event, OptimizerStepMeasured) and event.step in {5, 6}:
            event = msgspec.structs.replace(event, loss=0.0 if event.step == 5 else -1.0)  # noqa: PLW2901
        writer.put_at(at, event)
    writer.close()
    grid = show(run)
    card(grid, "loss").log.setChecked(True)
    refresh(grid)
    trace = curve(grid, "loss", "loss").trace
    assert trace.not_positive_x.tolist() == [5.0, 6.0]
    assert card(grid, "loss").view.lanes[0].log
    assert np.isfinite(trace.y).sum() == 28


def test_the_clip_level_is_drawn_from_the_recipe(tmp_path: Path, show: Any) -> None:
    """The gradient norm is before clipping; the line says where it is cut."""
    grid = show(write_run(tmp_path, PLAN))
    assert card(grid, "gradient_norm").view.lanes[0].levels == [(0.0, 1.0)]


def test_targets_are_drawn_where_what_they_are_about_is(tmp_path: Path, show: Any) -> None:
    """As a line at the recipe's value, in the chart's unit, on a linear and a logarithmic scale."""
    run = new_run(tmp_path, PLAN)
    with run.recipe_path.open("a", encoding="utf-8") as file:
        file.write("\n[targets]\nvalidation_loss = 2.5\nthroughput = 150.0\npeak_memory = 6.0\n")
    continue_run(run, PLAN)
    grid = show(run)
    lanes = {key: card(grid, key).view.lanes[0] for key in ("loss", "throughput", "memory", "gradient_norm")}
    targets = {key: lane.target for key, lane in lanes.items()}
    assert targets == {"loss": 2.5, "throughput": 150.0, "memory": 6.0 * 2**30, "gradient_norm": None}
    for log in (False, True):
        card(grid, "loss").log.setChecked(log)
        refresh(grid)
        lane, view = lanes["loss"], card(grid, "loss").view
        y = round(lane.y_px(np.log10(2.5) if log else 2.5))
        image = view.viewport().grab().toImage()
        row = [image.pixelColor(x, y) for x in range(int(lane.rect.left()), int(lane.rect.right()))]
        ok = QColor(view.theme.ok)
        near = [colour for colour in row if abs(colour.hslHue() - ok.hslHue()) < 12]
        assert len(near) > len(row) / 5


def test_smoothing_moves_the_line_and_keeps_the_rows_behind_it(tmp_path: Path, show: Any) -> None:
    """The spike stays in sight."""
    grid = show(write_run(tmp_path, PLAN))
    rough = np.nanstd(np.diff(curve(grid, "loss", "loss").trace.y[60:85]))
    grid.set_smoothing(0.9)
    assert refresh(grid) > 0
    assert np.nanstd(np.diff(curve(grid, "loss", "loss").trace.y[60:85])) < rough / 2
    assert card(grid, "loss").view.lanes[0].y_range[1] > 4.5


@pytest.mark.parametrize(("axis", "end"), [("steps", 124), ("samples", 5_984), ("tokens", 765_952)])
def test_the_x_axis_can_be_switched(tmp_path: Path, show: Any, axis: Any, end: float) -> None:
    """The last step lies where its samples or tokens are."""
    grid = show(write_run(tmp_path, PLAN))
    grid.set_x_axis(axis)
    refresh(grid)
    assert curve(grid, "loss", "loss").trace.x[-1] == end


# ------------------------------------------------------------------------------- empty states


def test_without_a_run_each_chart_says_so(show: Any) -> None:
    """A sentence, not an empty axis."""
    grid = show(None)
    assert {card.view.message for card in grid.cards} == {"No run is open."}


def test_while_there_is_no_data_each_chart_says_what_it_waits_for(tmp_path: Path, show: Any) -> None:
    """And shows it when it comes."""
    grid = show(new_run(tmp_path, PLAN))
    assert all(card.view.message for card in grid.cards)
    feed(grid, PLAN)
    refresh(grid)
    assert not any(card.view.message for card in grid.cards)


def test_a_metric_that_cannot_be_read_says_why_in_its_place(tmp_path: Path, show: Any) -> None:
    """The others go on."""
    run = new_run(tmp_path, PLAN)
    writer = BackdatedWriter(run.journal_path, attempt=1)
    reason = Warned(
        code="metric-not-supported", values={"device": 0, "metric": "power", "reason": "not-supported"}
    )
    for place, (at, event) in enumerate(events(PLAN)):
        if place == 5:
            writer.put_at(at, reason)
        if isinstance(event, DeviceSampled):
            event = msgspec.structs.replace(event, power_watts=None)  # noqa: PLW2901
        writer.put_at(at, event)
    writer.close()
    view = card(show(run), "device").view
    assert not view.lanes[0].is_empty
    assert view.lanes[2].is_empty
    assert view.lane_messages[2]


# ------------------------------------------------------------------------------ one timer draws


def test_charts_that_cannot_be_seen_cost_nothing(tmp_path: Path, show: Any) -> None:
    """Scrolled away: not drawn until they come into sight."""
    grid = show(write_run(tmp_path, PLAN))
    grid.resize(500, 320)
    QApplication.processEvents()
    assert grid.tick(60.0) < 6
    grid.hide()
    grid.set_smoothing(0.5)
    assert grid.tick(60.0) == 0


def test_a_budget_bounds_a_tick_and_the_rest_comes_next(tmp_path: Path, show: Any) -> None:
    """One that takes longer is fetched in one tick and painted in the next; without news all get drawn."""
    grid = show(write_run(tmp_path, PLAN))
    grid.reset()
    drawn = [(grid.tick(0.0), grid.is_half_drawn) for _ in range(13)]
    assert drawn == [(0, True), (1, False)] * 6 + [(0, False)]


def test_a_chart_that_is_half_drawn_is_finished_whatever_comes_between(
    tmp_path: Path, show: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal is caught up with in between, or another run is opened."""
    grid = show(write_run(tmp_path, PLAN))
    monkeypatch.setattr(grid_module, "CATCHING_UP_S", 0.0)
    for behind in (True, False):
        grid.reset()
        monkeypatch.setattr(grid.store, "caught_up", False)
        assert grid.tick(60.0) == 0
        assert grid.is_half_drawn
        painted = max(card.painted_at for card in grid.cards)
        monkeypatch.setattr(grid.store, "caught_up", not behind)
        assert grid.tick(60.0) == (1 if behind else 6)
        assert max(card.painted_at for card in grid.cards) > painted

    grid.reset()
    monkeypatch.setattr(grid.store, "caught_up", False)
    grid.tick(60.0)
    grid.set_store(grid.store)
    assert not grid.is_half_drawn


def test_the_loss_is_drawn_first(tmp_path: Path, show: Any) -> None:
    """It is what a person waits for: first of a new run, and three times as often when time is short."""
    grid = show(write_run(tmp_path, PLAN))
    grid.set_store(grid.store)
    grid.tick(0.0)
    grid.tick(0.0)
    assert [each.spec.key for each in grid.cards if each.seen] == ["loss"]


def test_no_chart_starves_when_ticks_are_slow(
    tmp_path: Path, show: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tick comes 40 ms after the one before and has time for one chart, and all charts change."""
    grid = show(write_run(tmp_path, PLAN))
    now = 1_000_000.0
    monkeypatch.setattr("gradacc_gui.charts.grid.time.perf_counter", lambda: now)
    paints = dict.fromkeys((each.spec.key for each in grid.cards), 0)
    for each in grid.cards:
        each.painted_at = now
    for _ in range(120):
        grid.reset()
        now += 0.04
        before = {each.spec.key: each.painted_at for each in grid.cards}
        grid.tick(0.0)  # fetches one
        grid.tick(0.0)  # paints it
        for each in grid.cards:
            paints[each.spec.key] += each.painted_at != before[each.spec.key]
    assert sum(paints.values()) >= 120
    others = [count for key, count in paints.items() if key != "loss"]
    assert min(others) >= 10
    assert max(others) - min(others) <= 2
    assert paints["loss"] > max(others)


def pixels(each: ChartCard) -> bytes:
    """What a chart shows on the screen, as bytes."""
    return bytes(each.view.viewport().grab().toImage().constBits())


def test_nothing_of_the_run_before_is_shown_for_another(tmp_path: Path, show: Any) -> None:
    """Before any chart of it had its turn: a sentence in each, no curve, no mark, no name of N."""
    first, second = tmp_path / "first", tmp_path / "second"
    grid = show(write_run(first, PLAN))
    other = RunStore(write_run(second, Plan(steps=30, end="")))
    drawn = [pixels(each) for each in grid.cards]
    assert grid.store is not None
    grid.store.close()
    grid.set_store(other)
    QApplication.processEvents()
    assert all(each.view.message == "Reading the run…" for each in grid.cards)
    assert all(not each.view.changes and each.view.overlay is None for each in grid.cards)
    assert len({pixels(each) for each in grid.cards} & set(drawn)) == 0
    grid.tick(0.0)
    grid.tick(0.0)
    assert all(each.view.message == "Reading the run…" for each in grid.cards if not each.seen)
    refresh(grid)
    assert len(curve(grid, "loss", "loss").trace.x) == 30


def test_a_run_whose_newest_facts_are_not_read_yet_is_not_called_ended(
    tmp_path: Path, show: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first part of a resumed run's journal ends with the end of an earlier attempt."""
    grid = show(write_run(tmp_path, Plan(steps=0, evaluate_every=0, readings_every_s=1e9, end="stopped")))
    grid.reset()
    refresh(grid)
    assert card(grid, "throughput").view.message == "The run ended before there was anything to show."
    monkeypatch.setattr(grid.store, "caught_up", False)
    assert grid.store is not None
    assert grid._waiting(grid.store, card(grid, "throughput")) == "Reading the run…"


def test_after_a_resume_no_chart_shows_what_the_dead_attempt_did_beyond_its_checkpoint(
    tmp_path: Path, show: Any
) -> None:
    """From the new attempt's first word on, before it trained a step; drawn at the next tick."""
    grid = show(write_run(tmp_path, Plan(steps=50, end="")))
    assert max(curve(grid, "loss", "loss").trace.x) == 50
    feed(grid, Plan(steps=0, from_step=20, attempt=2, began_at=PLAN.began_at + 1_000))
    refresh(grid)
    for each in grid.cards:
        for lane in each.view.lanes:
            for shown in lane.curves:
                assert not len(shown.trace.x) or max(shown.trace.x) <= 20.5, (each.spec.key, shown.line.field)


def test_charts_rest_between_two_draws_while_the_journal_has_more(
    tmp_path: Path, show: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading comes first then, or a flood of events would never be caught up with."""
    grid = show(write_run(tmp_path, PLAN))
    grid.reset()
    assert grid.tick(0.0) + grid.tick(0.0) == 1
    monkeypatch.setattr(grid_module, "CATCHING_UP_S", 3600.0)
    monkeypatch.setattr(grid.store, "caught_up", False)
    assert not grid.is_due()
    assert grid.tick(60.0) == 0
    monkeypatch.setattr(grid.store, "caught_up", True)
    assert grid.tick(60.0) > 0


def test_repainting_loses_no_reference_to_none(tmp_path: Path, show: Any) -> None:
    """Some builds of the bindings lose 156 a repaint and abort within seconds."""
    grid = show(write_run(tmp_path, PLAN))
    for _ in range(20):
        grid.reset()
        grid.tick(60.0)
    before = sys.getrefcount(None)
    for _ in range(100):
        grid.reset()
        assert grid.tick(60.0) == 6
    assert abs(sys.getrefcount(None) - before) < 200


def test_new_rows_are_drawn_at_the_next_tick(tmp_path: Path, show: Any) -> None:
    """Live: only what changed, with the zoom as it was."""
    run = write_run(tmp_path, Plan(steps=50, end=""))
    grid = show(run)
    grid.horizon.select(10, 20)
    refresh(grid)
    feed(grid, Plan(steps=50, from_step=50, attempt=2, began_at=PLAN.began_at + 1_000))
    assert refresh(grid) > 0
    assert (grid.horizon.x0, grid.horizon.x1) == (10, 20)
    grid.reset()
    refresh(grid)
    assert curve(grid, "loss", "loss").trace.x[-1] == 100


# --------------------------------------------------------------------------- what a person does


def test_the_wheel_zooms_all_charts_and_a_double_click_resets(
    tmp_path: Path, show: Any, qtbot: QtBot
) -> None:
    """About the pointer; following ends when the newest step is out of sight."""
    grid = show(write_run(tmp_path, PLAN))
    view = card(grid, "loss").view
    told: list[bool] = []
    grid.follow_changed.connect(told.append)
    for _ in range(8):
        turn_wheel(view, 1, 120)
    refresh(grid)
    ranges = {card.view.x_range for card in grid.cards}
    assert len(ranges) == 1
    low, high = ranges.pop()
    assert high - low < 40
    assert told == [False]
    QTest.mouseDClick(view.viewport(), Qt.MouseButton.LeftButton, NO_KEYS, QPoint(200, 80))
    assert grid.horizon.is_whole
    assert told[-1] is True


def test_dragging_selects_a_range(tmp_path: Path, show: Any) -> None:
    """From where the button went down to where it came up."""
    grid = show(write_run(tmp_path, PLAN))
    view = card(grid, "memory").view
    expected = (view.x_at(150), view.x_at(300))
    QTest.mousePress(view.viewport(), Qt.MouseButton.LeftButton, NO_KEYS, QPoint(150, 60))
    QTest.mouseMove(view.viewport(), QPoint(200, 60))
    QTest.mouseMove(view.viewport(), QPoint(300, 60))
    QTest.mouseRelease(view.viewport(), Qt.MouseButton.LeftButton, NO_KEYS, QPoint(300, 60))
    assert (grid.horizon.x0, grid.horizon.x1) == pytest.approx(expected)


def test_dragging_with_the_right_button_pans(tmp_path: Path, show: Any) -> None:
    """The place under the pointer comes along."""
    grid = show(write_run(tmp_path, PLAN))
    grid.horizon.select(40, 80)
    refresh(grid)
    view = card(grid, "loss").view
    under = view.x_at(200)
    QTest.mousePress(view.viewport(), Qt.MouseButton.RightButton, NO_KEYS, QPoint(200, 60))
    QTest.mouseMove(view.viewport(), QPoint(250, 60))
    QTest.mouseRelease(view.viewport(), Qt.MouseButton.RightButton, NO_KEYS, QPoint(250, 60))
    refresh(grid)
    assert view.x_at(250) == pytest.approx(under, abs=0.5)


def test_a_wheel_with_ctrl_zooms_one_scale_only(tmp_path: Path, show: Any) -> None:
    """And a reset gives it back."""
    grid = show(write_run(tmp_path, PLAN))
    view = card(grid, "throughput").view
    before = view.lanes[0].y_range
    turn_wheel(view, 3, 200, Qt.KeyboardModifier.ControlModifier)
    refresh(grid)
    assert view.lanes[0].y_range[1] < before[1]
    grid.reset()
    refresh(grid)
    assert view.lanes[0].y_range == before


def test_the_pointer_reads_every_line_at_its_place(tmp_path: Path, show: Any) -> None:
    """The hair line is on every chart, the box under the pointer; NaN is told by name."""
    grid = show(write_run(tmp_path, PLAN))
    view = card(grid, "memory").view
    view.hovered.emit(70.0)
    QApplication.processEvents()
    overlays = [card.view.overlay for card in grid.cards]
    assert all(overlay is not None and overlay.x == 70.0 for overlay in overlays)
    assert sum(overlay.with_box for overlay in overlays) == 1
    assert "step 70" in overlays[0].heading
    assert "N 8" in overlays[0].heading
    lane = view.lanes[0]
    values = [found[1] for c in lane.curves if (found := nearest(lane, c, 70.0)) is not None]
    assert len(values) == 4
    loss = card(grid, "loss").view.lanes[0]
    found = nearest(loss, curve(grid, "loss", "loss"), 40.0)
    assert found is not None
    assert np.isnan(found[1])
    view.hovered.emit(None)
    assert all(card.view.overlay is None for card in grid.cards)


def test_a_theme_can_be_switched_while_it_runs(tmp_path: Path, show: Any, qtbot: QtBot) -> None:
    """The next tick draws in the other colours."""
    app = QApplication.instance()
    assert isinstance(app, QApplication)
    before = app.palette()
    try:
        app.setPalette(palette(DARK))
        grid = show(write_run(tmp_path, PLAN))
        QApplication.processEvents()
        refresh(grid)
        dark = card(grid, "loss").view.grab().toImage().pixelColor(2, 2)
        app.setPalette(palette(LIGHT))
        qtbot.waitUntil(lambda: card(grid, "loss").view.theme is LIGHT)
        assert refresh(grid) == 6
        light = card(grid, "loss").view.grab().toImage().pixelColor(2, 2)
        assert (dark.name(), light.name()) == (DARK.panel, LIGHT.panel)
    finally:
        app.setPalette(before)


def test_the_micro_batches_of_the_open_window_show_at_once(tmp_path: Path, show: Any) -> None:
    """With N = 64 nobody waits for the step."""
    told = [pair for pair in events(Plan(steps=1, n=64)) if not isinstance(pair[1], OptimizerStepMeasured)]
    run = new_run(tmp_path, PLAN)
    writer = BackdatedWriter(run.journal_path, attempt=1)
    for at, event in told[:40]:
        writer.put_at(at, event)
    writer.close()
    grid = show(run)
    dots = curve(grid, "loss", "loss", MicroBatchMeasured)
    assert len(dots.trace.x) == sum(isinstance(event, MicroBatchMeasured) for _, event in told[:40]) > 5
    assert not card(grid, "loss").view.message
