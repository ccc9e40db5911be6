"""The header and the window strip."""

from __future__ import annotations

import msgspec
import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QImage
from PySide6.QtWidgets import QApplication, QLabel
from pytestqt.qtbot import QtBot

from gradacc_gui.run.header_state import STATE_WORDS, HeaderState, strip_words
from gradacc_gui.theme import current_theme
from gradacc_gui.widgets.drawings import MOST_CELLS, MicroBatchStrip
from gradacc_gui.window.header import NARROW_PX, Figure, Header
from gradacc_gui.window.main_window import SMALLEST
from trainer_backend.run_facts import RunState

STATE = HeaderState(
    name="stdlib-gpt",
    detail="bf16 · AdamW",
    state=RunState.RUNNING,
    micro_batch_size=8,
    accumulation_steps=8,
    world_size=1,
    step=124,
    last_step=2000,
    window_cells=8,
    window_done=4,
    samples_per_s=218.0,
    tokens_per_s=27_900.0,
    elapsed_s=521.0,
    left="2 h 11 min left",
)


def value_labels(header: Header) -> list[QLabel]:
    """The labels that carry numbers, from left to right."""
    figures = (
        header.micro_batch,
        header.steps,
        header.world,
        header.effective,
        header.samples,
        header.tokens,
        header.time,
    )
    return [figure.value for figure in figures]


@pytest.fixture
def header(qtbot: QtBot, styled: QApplication) -> Header:
    """As wide as it is at 1280 pixels."""
    made = Header()
    qtbot.addWidget(made)
    made.resize(1196, 68)
    made.show()
    return made


def test_it_shows_the_equation_the_place_and_the_speed(header: Header) -> None:
    """8 × 8 × 1 = 64."""
    header.show_state(STATE)
    texts = [label.text() for label in value_labels(header)]
    assert texts == ["8", "8", "1", "64", "218", "27.9\u202fk", "0:08:41"]
    assert header.step.text() == "Step 124"
    assert header.last_step.text() == "of 2,000"
    assert header.strip.progress() == (4, 8)
    assert header.strip_words.text() == "micro-batch 5 of 8 in this step"
    assert header.time.unit.text() == "2 h 11 min left"
    assert header.pill.text() == "Running"


def test_without_a_run_there_are_dashes_and_no_zeros(header: Header) -> None:
    """Unknown is not 0."""
    header.show_state(HeaderState())
    assert {label.text() for label in value_labels(header)} == {"–"}
    assert header.name.full_text() == "No run is open"


def places(header: Header) -> list[int]:
    """Where each number begins."""
    QApplication.processEvents()
    return [label.mapTo(header, label.rect().topLeft()).x() for label in value_labels(header)]


def test_nothing_moves_while_a_run_is_live(header: Header) -> None:
    """Neither as micro-batches pass, nor as speeds, states and the time left change their widths."""
    states = [
        msgspec.structs.replace(
            STATE,
            window_cells=16,
            accumulation_steps=16,
            window_done=done,
            step=124,
            samples_per_s=speed,
            left=left,
            doing=doing,
        )
        for done, speed, left, doing in (
            (4, 218.0, "2 h 11 min left", ""),
            (15, 99.91, "40 s left", ""),
            (9, 1.0, "", ""),
            (0, 27_900.0, "1 h 59 min left", "Evaluating…"),
            (11, None, "22 h 22 min left", ""),
        )
    ]
    seen = []
    for state in states:
        header.show_state(state)
        seen.append(places(header))
    assert seen[1:] == seen[:1] * 4


def test_without_a_run_the_step_is_a_number_like_the_others(header: Header) -> None:
    """Its dash stands in their line; with a run its place in the step takes over."""
    header.show_state(HeaderState())
    QApplication.processEvents()
    tops = {
        figure.value.mapTo(header, figure.value.rect().topLeft()).y()
        for figure in (header.no_step, header.world, header.time)
    }
    assert len(tops) == 1
    assert header.place.isHidden()
    header.show_state(STATE)
    assert header.no_step.isHidden()
    assert header.place.isVisible()


@pytest.mark.parametrize("width", [1196, SMALLEST[0] - 90])
def test_nothing_is_clipped_with_large_numbers(header: Header, width: int) -> None:
    """Every value label is as wide as its text; where there is little room, tokens/s is a tool-tip."""
    header.resize(width, 68)
    state = msgspec.structs.replace(
        STATE,
        name="a name that is much too long for any header of any window",
        micro_batch_size=1024,
        accumulation_steps=4096,
        step=123_456,
        last_step=1_000_000,
        elapsed_s=400_000.0,
    )
    header.show_state(state)
    QApplication.processEvents()
    shown = [label for label in value_labels(header) if label.isVisible()]
    assert (header.tokens.value in shown) == (width > NARROW_PX)
    assert ("27.9" in header.samples.toolTip()) == (width < NARROW_PX)
    for label in (*shown, *(figure.unit for figure in header.findChildren(Figure) if figure.isVisible())):
        assert label.mapTo(header, label.rect().topRight()).x() < width
        assert label.width() >= label.fontMetrics().horizontalAdvance(label.text()), label.text()
    for label in (header.step, header.last_step):
        assert label.width() >= label.fontMetrics().horizontalAdvance(label.text()), label.text()
    assert header.name.toolTip() == state.name


def test_a_fact_behind_the_name_is_whole_or_left_out(header: Header) -> None:
    """A beginning like "keep…" tells nothing; all of them are in the tool-tip."""
    facts = ["bf16", "AdamW", "cosine", "since 06:13", "keeps running if you close this window"]
    header.show_state(msgspec.structs.replace(STATE, detail=" · ".join(facts)))
    QApplication.processEvents()
    shown = header.detail.text().split(" · ")
    assert 1 <= len(shown) < len(facts)
    assert shown == facts[: len(shown)]
    assert header.detail.toolTip() == " · ".join(facts)


@pytest.mark.parametrize("state", list(STATE_WORDS))
def test_every_state_has_a_word_and_a_colour_of_the_theme(header: Header, state: str) -> None:
    """A state is never told by colour alone."""
    header.show_state(msgspec.convert({"state": state}, HeaderState))
    assert header.pill.accessibleName() == STATE_WORDS[state][0]  # type: ignore[index]  # a key of it
    assert hasattr(current_theme(), STATE_WORDS[state][1])  # type: ignore[index]  # likewise


def test_a_run_that_is_paused_counts_what_is_done(header: Header) -> None:
    """It never says: micro-batch 9 of 8."""
    paused = msgspec.structs.replace(STATE, state=RunState.PAUSED, window_done=8)
    assert strip_words(paused) == "8 of 8 micro-batches"
    running = msgspec.structs.replace(STATE, window_done=8)
    assert strip_words(running) == "micro-batch 8 of 8 in this step"


def colour_at(image: QImage, x: float) -> QColor:
    """The pixel in the middle of the strip."""
    return image.pixelColor(int(x), image.height() // 2)


def test_the_strip_fills_one_cell_for_each_micro_batch(qtbot: QtBot, styled: QApplication) -> None:
    """Done, running and empty cells have three colours."""
    strip = MicroBatchStrip()
    qtbot.addWidget(strip)
    strip.resize(200, 8)
    strip.set_progress(8, 4, running=True)
    image = strip.grab().toImage().convertToFormat(QImage.Format.Format_RGB32)
    theme = current_theme()
    colours = [colour_at(image, rect.center().x()).name() for rect in strip.cell_rects()]
    assert colours[:4] == [theme.accent] * 4
    assert colours[5:] == [theme.line] * 3
    assert colours[4] not in (theme.accent, theme.line)
    assert strip.accessibleDescription() == "4 of 8 micro-batches done"


def test_more_micro_batches_than_fit_are_one_bar(qtbot: QtBot, styled: QApplication) -> None:
    """33 and more: a share of one bar."""
    strip = MicroBatchStrip()
    qtbot.addWidget(strip)
    strip.resize(200, 8)
    strip.set_progress(MOST_CELLS + 1, 11, running=True)
    assert len(strip.cell_rects()) == 1
    strip.set_progress(MOST_CELLS, 11, running=True)
    assert len(strip.cell_rects()) == MOST_CELLS


def test_progress_beyond_the_window_is_cut(qtbot: QtBot, styled: QApplication) -> None:
    """A re-split window may have more micro-batches than N; never more cells filled than there are."""
    strip = MicroBatchStrip()
    qtbot.addWidget(strip)
    strip.set_progress(4, 9, running=True)
    assert strip.progress() == (4, 4)
    strip.setAttribute(Qt.WidgetAttribute.WA_DontShowOnScreen)
