"""The ranks of a run, a row each: their times and memory, the slowest named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gradacc_gui.run.attachment import Attachment
from gradacc_gui.run.rank_figures import RankFigures, duration, figures_of, split_words
from gradacc_gui.window.live_page import LivePage
from gradacc_gui.window.pages import make_charts
from gradacc_gui.window.ranks_panel import MOST_ROWS, RanksPanel
from tests.support.fake_runs import Plan, write_run

FOUR = (0.6, 0.97, 0.62, 0.58)


@pytest.fixture
def attach(tmp_path: Path) -> Iterator[Callable[[Plan], Attachment]]:
    """Read a made-up run to its end."""
    opened: list[Attachment] = []

    def read(plan: Plan) -> Attachment:
        attachment = Attachment(write_run(tmp_path, plan))
        opened.append(attachment)
        while not attachment.store.caught_up:
            attachment.tick()
        return attachment

    yield read
    for attachment in opened:
        attachment.close()


def shown(attachment: Attachment) -> RankFigures:
    """The figures, which are there."""
    figures = figures_of(attachment.store)
    assert figures is not None
    return figures


def test_the_slowest_rank_is_named_with_what_the_others_wait(attach: Callable[[Plan], Attachment]) -> None:
    """Medians of the newest steps, memory of each, and the machine that it runs on."""
    figures = shown(attach(Plan(steps=40, n=7, micro_batch_s=0.1, ranks=FOUR, evaluate_every=0)))
    assert figures.slowest == 1
    assert figures.slowest_words.startswith("Slowest: rank 1. The others wait ")
    assert figures.slowest_words.endswith("(38 %) for it.")
    assert [row.host for row in figures.rows] == ["a", "a", "b", "b"]
    assert [row.micro_batches for row in figures.rows] == [2, 2, 2, 1]
    assert figures.rows[0].computed_s / figures.rows[1].computed_s == pytest.approx(0.6 / 0.97)
    assert figures.rows[3].memory_total_bytes == 12 * 1024**3
    assert figures.step == 40
    assert figures.split_words == "7 micro-batches on 4 ranks: 2, 2, 2, 1"


def test_ranks_that_keep_pace_are_not_named(attach: Callable[[Plan], Attachment]) -> None:
    """A few per cent are no rank's fault."""
    figures = shown(attach(Plan(steps=40, n=8, ranks=(0.96, 0.98, 0.97, 0.96), evaluate_every=0)))
    assert figures.slowest is None
    assert figures.slowest_words == ""
    assert figures.split_words == "8 micro-batches per step, 2 on each rank"


def test_one_process_has_no_ranks(attach: Callable[[Plan], Attachment]) -> None:
    """So nothing is shown of them."""
    assert figures_of(attach(Plan(steps=5)).store) is None


def test_times_and_shares_are_worded() -> None:
    """Three digits, in the unit that suits."""
    assert duration(1.5812) == "1.58 s"
    assert duration(0.01236) == "12.4 ms"
    assert split_words(3, 2) == "3 micro-batches on 2 ranks: 2, 1"


def test_the_panel_stands_above_the_charts_of_a_run_on_several_ranks(
    qtbot: QtBot, styled: QApplication, attach: Callable[[Plan], Attachment]
) -> None:
    """And goes with them, and with the run."""
    page = LivePage(make_charts)
    qtbot.addWidget(page)
    page.resize(1196, 652)
    page.show()
    attachment = attach(Plan(steps=40, n=7, micro_batch_s=0.1, ranks=FOUR, end="finished"))
    page.set_run(attachment)
    page.tick(slow=True)
    assert page.ranks.isVisible()
    first, slowest, *_ = page.ranks.texts()
    assert first[:2] == ("0", "a")
    assert slowest[:2] == ("1", "a, slowest")
    page.show_tab("log")
    assert not page.ranks.isVisible()
    page.show_tab("charts")
    assert page.ranks.isVisible()
    page.set_run(attach(Plan(steps=5, end="finished")))
    page.tick(slow=True)
    assert not page.ranks.isVisible()
    page.set_run(None)
    page.shut_down()


def test_more_ranks_than_fit_are_counted(
    qtbot: QtBot, styled: QApplication, attach: Callable[[Plan], Attachment]
) -> None:
    """The first are shown."""
    panel = RanksPanel()
    qtbot.addWidget(panel)
    figures = shown(attach(Plan(steps=3, n=24, ranks=(0.9,) * 20, evaluate_every=0)))
    panel.show_figures(figures)
    assert len(panel.texts()) == MOST_ROWS
    assert panel.more.text() == "and 4 more ranks"
    panel.show_figures(None)
    assert panel.isHidden()
