"""The check beside the form: filled message by message, verdict first, one action for each finding."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QEvent, QPoint, QPointF, Qt
from PySide6.QtGui import QImage
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLabel, QPushButton, QWidget
from pytestqt.qtbot import QtBot

from gradacc_gui.checking.check_view import CheckView
from gradacc_gui.checking.picture_tile import TileGrid
from gradacc_gui.checking.token_flow import TokenFlow
from trainer_backend.preflight.findings import (
    Amendment,
    CheckProgress,
    CheckReport,
    ClassShares,
    DataDecisions,
    Finding,
    FirstWindow,
    MicroBatchSeen,
    PictureRow,
    PictureValues,
    TokenRow,
    ValueShare,
)

ASKED = ("[run]\n", Path("/data"), "run", sys.executable)
ROW = TokenRow(
    source="/data/a.jsonl:7",
    texts=("<s>", "ask", "\n", "yes", "</s>"),
    weights=(0.0, 0.0, 0.0, 1.0, 1.0),
    ids=(1, 5, 6, 7, 2),
    special=(0, 4),
)
STOP = Finding(
    code="ids-beyond",
    state="stop",
    values={"place": "a:1", "token": "'<x>'", "highest": 9, "rows": 8, "count": 1},
    duration_s=0.9,
    change=Amendment(key="task.resize_embedding", value=True),
)
DOUBT = Finding(
    code="n-exceeds",
    state="doubtful",
    values={"effective": 64, "samples": 20},
    change=Amendment(key="accumulation.gradient_accumulation_steps", value=5),
)
RIGHT = Finding(code="lengths-fit", state="ok", values={"longest": 5, "allowed": 64})
MISSING = Finding(
    code="gradient-missing",
    state="stop",
    values={"count": 1, "all": 9, "first": "head.bias"},
    may_be_accepted=True,
)


def text_window(batches: int = 3) -> FirstWindow:
    """A step of text."""
    seen = MicroBatchSeen(rows=(ROW, ROW), samples=2, weights={"loss": 4.0}, padding_ratio=0.25)
    return FirstWindow(
        whole=True, micro_batches=(seen,) * batches, micro_batch_size=2, steps=batches, samples=30,
        records=20, denominators={"loss": 12.0}, unit="tokens", padding_ratio=0.25, longest=5,
        longest_allowed=64,
    )  # fmt: skip


@pytest.fixture
def view(qtbot: QtBot) -> Iterator[CheckView]:
    """A shown view that runs nothing by itself."""
    made = CheckView()
    qtbot.addWidget(made)
    made.resize(1150, 600)
    made.show()
    made._asked = ASKED
    made.state = "running"
    yield made
    made.close_down()


def texts(widget: QWidget) -> str:
    """All words shown in it."""
    return "\n".join(found.text() for found in widget.findChildren(QLabel) if found.isVisibleTo(widget))


def finish(view: CheckView, *findings: Finding) -> None:
    """The findings, then the report."""
    for finding in findings:
        view._hear(finding)
    view._finish(CheckReport(duration_s=14.2, findings=findings))
    settle()


def settle() -> None:
    """What was taken out is gone, what was put in is shown."""
    QApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
    QApplication.processEvents()


def button_called(view: QWidget, text: str) -> QPushButton:
    """The one button with these words."""
    (found,) = [made for made in view.findChildren(QPushButton) if made.text() == text]
    return found


def test_the_first_records_are_shown_before_the_whole_is_read(view: CheckView) -> None:
    """And it is said that these are not all."""
    view._hear(CheckProgress(code="reading-some"))
    assert "Reading the first records…" in texts(view)
    view._hear(FirstWindow(whole=False, looked_at=200, micro_batches=text_window(1).micro_batches))
    assert view.stack.currentWidget() is view.tokens
    assert "the first 200 records" in view.verdict.more.text()
    view._hear(CheckProgress(code="reading-data"))
    view._hear(text_window())
    assert "first 200" not in view.verdict.more.text()


def test_the_verdict_comes_first_with_its_figures(view: CheckView) -> None:
    """Problems before warnings; D, padding and the longest sample beside."""
    view._hear(text_window())
    finish(view, RIGHT, STOP, DOUBT)
    assert view.verdict.headline.text() == "1 problem to fix before starting"
    assert "Token ids" in view.verdict.more.text()
    shown = texts(view.verdict)
    assert [finding.code for finding in view._findings] == ["lengths-fit", "ids-beyond", "n-exceeds"]
    for words in ("1.50", "rows per record", "12", "25 %", "longest sample, of 64"):
        assert words in shown
    assert view.stops(ASKED) == [STOP]
    assert view.stops(("other", *ASKED[1:])) == []


def test_each_finding_has_its_cost_and_one_action(view: CheckView, qtbot: QtBot) -> None:
    """A press asks for the recipe's change."""
    finish(view, STOP, DOUBT, RIGHT)
    shown = texts(view.findings)
    assert "0.9 s" in shown
    assert "the longest has 5 of 64 tokens" in shown
    with qtbot.waitSignal(view.change_requested) as asked:
        button_called(view, "Add rows to the embedding").click()
    assert asked.args == ["task.resize_embedding", True]
    with qtbot.waitSignal(view.change_requested) as asked:
        button_called(view, "Use N = 5").click()
    assert asked.args == ["accumulation.gradient_accumulation_steps", 5]


def test_a_stop_that_may_be_meant_can_be_overruled(view: CheckView) -> None:
    """Only that one; the start is free then."""
    finish(view, MISSING)
    assert view.stops(ASKED) == [MISSING]
    button_called(view, "Start anyway").click()
    settle()
    assert view.stops(ASKED) == []
    assert view.verdict.headline.text() == "Ready to start"


def test_all_right_is_said_in_a_word(view: CheckView) -> None:
    """No warnings, nothing waits."""
    finish(view, RIGHT)
    assert (view.verdict.headline.text(), view.verdict.more.text()) == (
        "Ready to start",
        "All checks passed.",
    )
    assert "whole data set, 14.2 s" in texts(view.findings)


def test_what_was_not_tried_is_never_called_right(view: CheckView) -> None:
    """A model whose weights are elsewhere."""
    finish(view, RIGHT, Finding(code="model-waits", state="waits", values={"why": "no weights"}))
    assert view.verdict.headline.text() == "Ready to start, as far as it was checked"
    assert "no weights" in texts(view.findings)


def test_micro_batches_are_gone_through(view: CheckView) -> None:
    """By buttons; the ends are ends."""
    view._hear(text_window())
    tokens = view.tokens
    assert tokens.which.text() == "Micro-batch 1 of 3"
    assert tokens.hint.text() == "4 of D, 25% padding"
    assert not tokens.previous.isEnabled()
    tokens.next.click()
    tokens.next.click()
    assert tokens.which.text() == "Micro-batch 3 of 3"
    assert not tokens.next.isEnabled()
    assert "5 a.jsonl:7" in texts(tokens).replace("\n", " ")


def test_a_token_tells_its_id_place_and_weight(view: CheckView, qtbot: QtBot) -> None:
    """By a press, and by the arrow keys."""
    view._hear(text_window())
    flow = view.tokens.findChildren(TokenFlow)[0]
    flow = next(found for found in view.tokens._flows if found.row is ROW or found.row == ROW)
    qtbot.waitExposed(view)
    flow.setFocus()
    QTest.keyClick(flow, Qt.Key.Key_Right)
    assert "id 1   place 1 of 5   weight 0 of D = 12" in view.tokens.foot.text()
    place = flow._boxes[3].center()
    assert flow.piece_at(QPointF(place)) == 3
    at = QPoint(round(place.x()), round(place.y()))
    QTest.mouseClick(flow, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier, at)
    assert "'yes'" in view.tokens.foot.text()
    assert "weight 1 of D = 12" in view.tokens.foot.text()


def test_words_are_wrapped_whole(qtbot: QtBot) -> None:
    """A word of two tokens goes to the next line together, and no token lies outside."""
    parts = [" every", "where"] * 40
    flow = TokenFlow(TokenRow(source="", texts=tuple(parts), weights=(0.0,) * len(parts)), shortened=False)
    qtbot.addWidget(flow)
    height = flow.heightForWidth(300)
    for first, second in zip(flow._boxes[::2], flow._boxes[1::2], strict=True):
        assert first.top() == second.top()
        assert second.right() <= 300
    assert height == pytest.approx(flow._boxes[-1].bottom(), abs=3)
    assert flow.heightForWidth(900) < height


# ------------------------------------------------------------------------------------ pictures


def picture_window(folder: Path, count: int = 3) -> FirstWindow:
    """A step of pictures with masks, one value of which is not decided."""
    picture, mask = QImage(8, 8, QImage.Format.Format_RGB888), QImage(8, 8, QImage.Format.Format_Grayscale8)
    picture.fill(Qt.GlobalColor.darkGray)
    mask.fill(200)
    picture.save(str(folder / "p.png"))
    mask.save(str(folder / "m.png"))
    row = PictureRow(
        source="/data/scene.png", shape=(3, 8, 8), mean=(0.5, 0.5, 0.5), mask_shares={"0": 0.75, "200": 0.25},
        picture=str(folder / "p.png"), mask=str(folder / "m.png"),
    )  # fmt: skip
    seen = MicroBatchSeen(rows=(row, row), samples=2)
    return FirstWindow(
        whole=True, micro_batches=(seen,) * count, micro_batch_size=2, steps=count, records=9, unit="pixels"
    )


SHARES = ClassShares(
    what="pixels",
    files=9,
    classes=2,
    entries=(
        ValueShare(value=0, share=0.75, files=9),
        ValueShare(value=1, share=0.0, files=0),
        ValueShare(value=200, share=0.25, files=9, meaning="undecided"),
    ),
)


def test_a_mask_value_is_decided_where_its_evidence_is(view: CheckView, qtbot: QtBot, tmp_path: Path) -> None:
    """The class that never occurs is proposed; what is written is shown before."""
    view._hear(picture_window(tmp_path))
    view._hear(SHARES)
    assert view.stack.currentWidget() is view.pictures
    decision = view.classes.decision
    assert decision is not None
    assert "What does 200 mean?" in texts(decision)
    assert "25.0 % of all pixels, in 9 of 9 masks" in texts(decision)
    assert decision.writes.text() == "writes data.mask_values = { 200 = 1 } into the recipe"
    with qtbot.waitSignal(view.change_requested) as asked:
        decision.apply.click()
    assert asked.args == ["data.mask_values", {"200": 1}]
    decision.ignore.setChecked(True)
    assert decision.writes.text() == "writes task.ignore_value = 200 into the recipe"
    assert decision.apply.text() == "Ignore 200"


def test_masks_are_drawn_over_their_pictures(view: CheckView, tmp_path: Path) -> None:
    """Stronger, weaker, alone or not at all."""
    view._hear(SHARES)
    view._hear(picture_window(tmp_path))
    tile = view.pictures.tiles[0]
    tile.set_side(120)
    looks = []
    for mode in ("picture", "both", "mask"):
        view.pictures.mode.button(mode).click()
        looks.append(tile.grab().toImage())
    assert looks[0] != looks[1] != looks[2]
    view.pictures.mode.button("both").click()
    view.pictures.opacity.setValue(90)
    assert tile.grab().toImage() != looks[1]
    assert "value 200: 25.0%" in tile.toolTip()


def test_tiles_fill_rows_and_micro_batches_stay_together(view: CheckView, tmp_path: Path) -> None:
    """No tile lies outside or over another one."""
    view._hear(picture_window(tmp_path, count=5))
    (grid,) = view.pictures.findChildren(TileGrid)
    for width in (260, 700, 1200):
        grid.resize(width, grid.heightForWidth(width))
        places = [tile.geometry() for tile in view.pictures.tiles]
        assert all(place.right() <= width and place.bottom() <= grid.height() for place in places)
        assert not any(one.intersects(other) for at, one in enumerate(places) for other in places[at + 1 :])
        assert all(one.top() == two.top() for one, two in zip(places[::2], places[1::2], strict=True))


def test_a_range_is_proposed_beside_its_histogram(view: CheckView, qtbot: QtBot) -> None:
    """Twelve bits in sixteen."""
    view._hear(
        PictureValues(pictures=200, kind="uint16", low=0, high=4090, counts=(1, 5, 2), proposed=(0, 4095))
    )
    assert "hold 12 bits" in texts(view.values)
    assert not view.values.histogram.grab().isNull()
    with qtbot.waitSignal(view.change_requested) as asked:
        view.values.use.click()
    assert asked.args == ["data.value_range", [0.0, 4095.0]]


# ----------------------------------------------------------------------------------- the process


def test_what_was_decided_while_reading_is_said(view: CheckView) -> None:
    """Each once."""
    assert not view.said.isVisibleTo(view)
    view._hear(DataDecisions(sentences=("a", "b", "a")))
    assert view.said_words.text() == "a\n\nb"


def test_a_changed_recipe_is_not_the_one_that_was_checked(view: CheckView) -> None:
    """It says so, and lets it be checked again."""
    finish(view, RIGHT)
    view.show_current(ASKED)
    assert view.stale.isHidden()
    view.show_current(("[task]\n", *ASKED[1:]))
    assert view.stale.isVisibleTo(view)
    assert view.is_about(ASKED)
    assert not view.is_about(("[task]\n", *ASKED[1:]))


def test_a_recipe_with_a_fault_is_not_checked(view: CheckView) -> None:
    """The field is named."""
    view.refuse("Fix the form first: 0 is too small.")
    assert view.verdict.more.text() == "Fix the form first: 0 is too small."
    assert not view.process.is_running


def test_an_interpreter_that_cannot_be_used_is_a_sentence(
    view: CheckView, qtbot: QtBot, tmp_path: Path
) -> None:
    """Nothing was started."""
    view.state = "empty"
    with qtbot.waitSignal(view.process.failed, timeout=60_000):
        view.check(("[run]\n", tmp_path, "run", str(tmp_path / "no-python")))
    assert view.verdict.headline.text() == "The recipe could not be checked"
    assert "no-python" in view.verdict.more.text()


def test_everything_fits_at_1280_by_720(view: CheckView, qtbot: QtBot, tmp_path: Path) -> None:
    """No sideways scrolling; what is long is scrolled down to."""
    view.resize(1150, 590)
    view._hear(text_window())
    view._hear(SHARES)
    finish(view, STOP, DOUBT, RIGHT, RIGHT)
    qtbot.waitExposed(view)
    assert view.side.horizontalScrollBar().maximum() == 0
    assert view.tokens.area.horizontalScrollBar().maximum() == 0
    assert view.minimumSizeHint().width() <= 1150
