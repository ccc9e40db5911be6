"""The Live page's third view: reached by its word, told what happens, let go with its run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication, QPushButton
from pytestqt.qtbot import QtBot

from gradacc_gui.run.attachment import Attachment
from gradacc_gui.window.artifact_cards import Card
from gradacc_gui.window.live_page import LivePage
from gradacc_gui.window.main_window import SMALLEST
from gradacc_gui.window.pages import make_charts
from tests.support.fake_results import write_results
from tests.support.fake_runs import Plan


@pytest.fixture
def page(qtbot: QtBot, styled: QApplication) -> Iterator[LivePage]:
    """At the room that a window of 1280 × 720 leaves it."""
    made = LivePage(make_charts)
    qtbot.addWidget(made)
    made.resize(1196, 652)
    made.show()
    yield made
    made.shut_down()


@pytest.fixture
def attached(tmp_path: Path) -> Iterator[Attachment]:
    """A run with three evaluations."""
    run = Attachment(write_results(tmp_path, Plan(steps=130, end="finished")))
    yield run
    run.close()


def tick(page: LivePage, run: Attachment) -> None:
    """One beat of the window."""
    QApplication.processEvents()
    facts = run.tick()
    if facts:
        page.take(facts)
    page.tick(slow=True)


def is_made(page: LivePage) -> bool:
    """Whether the view has been wanted."""
    return page.results is not None


def test_results_are_one_press_away_and_are_made_only_then(
    qtbot: QtBot, page: LivePage, attached: Attachment
) -> None:
    """They show the newest evaluation; what belongs to charts is out of the way, and comes back."""
    page.set_run(attached)
    while not attached.store.caught_up:
        tick(page, attached)
    assert not is_made(page)
    page.tabs.button("results").click()

    def is_filled() -> bool:
        tick(page, attached)
        return not page.results.cards[0].is_waiting if page.results.cards else False

    qtbot.waitUntil(is_filled, timeout=20_000)
    assert page.stack.currentIndex() == page.stack.indexOf(page.results)
    assert page.results.step() == 120
    assert not page.follow.isVisible()
    assert not page.axis.isVisible()
    for card in page.results.findChildren(Card):
        left = card.mapTo(page.results.area, card.rect().topLeft()).x()
        assert left >= 0
        assert left + card.width() <= page.results.area.viewport().width()
    page.tabs.button("charts").click()
    tick(page, attached)
    assert page.stack.currentWidget() is page.charts
    assert page.axis.isVisible()


def test_a_run_that_is_over_offers_nothing_to_follow(page: LivePage, attached: Attachment) -> None:
    """After a zoom the button brings the whole run back; before, it would do nothing."""
    page.set_run(attached)
    page.show_tab("charts")
    while not attached.store.caught_up:
        tick(page, attached)
    tick(page, attached)
    assert not page.follow.isVisible()
    horizon = page.charts.horizon
    whole = (horizon.x0, horizon.x1)
    page.charts.cards[0].view.zoomed.emit(0.1, whole[0])
    tick(page, attached)
    assert page.follow.isVisible()
    assert page.follow.text() == "Show the whole run"
    page.follow.click()
    tick(page, attached)
    assert not page.follow.isVisible()
    assert (horizon.x0, horizon.x1) == whole


def test_the_toolbar_fits_the_smallest_window(qtbot: QtBot, page: LivePage, attached: Attachment) -> None:
    """With three views and a smoothing of two digits no word is cut: it takes two rows where one is short."""
    page.resize(SMALLEST[0] - 90, SMALLEST[1] - 68)
    page.set_run(attached)
    page.show_tab("charts")
    page.smoothing.setValue(60)
    while not attached.store.caught_up:
        tick(page, attached)
    tick(page, attached)
    for button in page.toolbar.findChildren(QPushButton):
        if not button.isVisible():
            continue
        assert button.width() >= button.minimumSizeHint().width(), button.text()
    assert page.smoothing_words.width() >= page.smoothing_words.sizeHint().width()
    below = page.smoothing.mapTo(page.toolbar, page.smoothing.rect().topLeft()).y()
    assert below > page.tabs.mapTo(page.toolbar, page.tabs.rect().bottomLeft()).y()


def test_letting_the_run_go_empties_the_results(qtbot: QtBot, page: LivePage, attached: Attachment) -> None:
    """And closing while a file is being read leaves no thread."""
    page.set_run(attached)
    page.show_tab("results")

    def has_cards() -> bool:
        tick(page, attached)
        return bool(page.results.cards)

    qtbot.waitUntil(has_cards, timeout=20_000)
    page.set_run(None)
    assert page.results.cards == []
    assert page.stack.currentWidget() is page.empty
