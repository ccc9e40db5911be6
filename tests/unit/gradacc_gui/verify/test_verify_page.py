"""The Verify page: its states, and what it shows of a certificate."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from PySide6.QtWidgets import QLabel, QWidget
from pytestqt.qtbot import QtBot

from gradacc_gui.verify.report_view import Comparisons, ReportView
from gradacc_gui.verify.verify_page import VerifyPage
from gradacc_gui.widgets.drawings import ErrorScale
from gradacc_gui.widgets.small_table import SmallTable
from tests.support.reports import comparison, report
from trainer_backend.protocol import Scalar
from trainer_backend.published import Difference
from trainer_backend.verify import sentences
from trainer_backend.verify.report import Culprit, Remark, VerifyProgress, decode

RECIPE = """
[run]
device = "cpu"
max_optimizer_steps = 3

[task]
kind = "custom"
entry = "page_task:Task"

[accumulation]
micro_batch_size = 2
gradient_accumulation_steps = 2
"""


@pytest.fixture
def page(qtbot: QtBot) -> Iterator[VerifyPage]:
    """A shown page."""
    made = VerifyPage()
    qtbot.addWidget(made)
    made.resize(1200, 700)
    made.show()
    yield made
    made.close_down()


def texts(widget: QWidget) -> str:
    """All words shown in it."""
    return "\n".join(found.text() for found in widget.findChildren(QLabel) if found.isVisibleTo(widget))


def state_of(page: VerifyPage) -> str:
    """Asked anew each time."""
    return page.state


def test_without_a_recipe_it_says_what_to_do(page: VerifyPage, qtbot: QtBot) -> None:
    """And asks the window for the form."""
    assert state_of(page) == "empty"
    with qtbot.waitSignal(page.recipe_requested):
        page.to_form.click()
    page.run()
    assert state_of(page) == "empty"


def test_a_recipe_makes_it_ready_and_names_it(page: VerifyPage, tmp_path: Path) -> None:
    """Nothing starts by itself."""
    page.set_recipe(RECIPE, tmp_path, sys.executable, "words.toml")
    assert state_of(page) == "ready"
    assert page.recipe_name.full_text() == "words.toml"
    assert not page.process.is_running


def test_a_certificate_is_shown_in_words_and_numbers(page: VerifyPage) -> None:
    """Verdict, table, layers, facts."""
    page._on_finished(report())
    shown = texts(page.result_area)
    assert state_of(page) == "done"
    for words_shown in (
        "Equal",
        "ragged parts",
        "2.0e-16",
        "1.0e-12",
        "head.weight",
        "1,234",
        "As declared in the recipe.",
    ):
        assert words_shown in shown
    assert page.save_page.isVisible()


def test_culprits_stand_with_where_and_what_can_be_done(page: VerifyPage) -> None:
    """Each of them, and remarks beside."""
    culprit = Culprit(code="returns-mean", where=("main loss",))
    bad = report(
        verdict="not-equal",
        culprits=(culprit,),
        remarks=(Remark(code="weights-in-fp32"),),
        comparisons=(comparison(error=0.5, alpha=0.5, equals_large_batch=False),),
    )
    page._on_finished(bad)
    shown = texts(page.result_area)
    sentence, remedy = sentences.culprit(culprit)
    for expected in (sentence, remedy, "main loss", "Not equal", sentences.remark(bad.remarks[0])):
        assert expected in shown
    assert "and the recipe declares" in shown


@pytest.mark.parametrize("verdict", ["equal", "per-micro-batch", "not-equal"])
def test_every_verdict_has_its_look(qtbot: QtBot, verdict: str) -> None:
    """A role of its own in the style sheet."""
    view = ReportView(msgspec.structs.replace(report(), verdict=verdict))
    qtbot.addWidget(view)
    roles = {found.property("role") for found in view.findChildren(QLabel)}
    assert roles & {"verdict-ok", "verdict-warning", "verdict-bad"}


def test_what_was_published_is_shown_beside_only_where_something_was(qtbot: QtBot) -> None:
    """With where it was published, and what differs in another colour."""
    beside = Difference(
        path="optimizer.learning_rate", title="Learning rate", published="3e-4", here="0.001", same=False
    )
    plain = ReportView(report())
    view = ReportView(report(published_source="a paper", published=(beside,)))
    for shown in (plain, view):
        qtbot.addWidget(shown)

    assert plain.findChildren(SmallTable) == []
    (table,) = view.findChildren(SmallTable)
    assert "Learning rate" in texts(table)
    assert "3e-4" in texts(table)
    assert "0.001" in texts(table)
    assert "a paper" in texts(view)


def test_the_table_has_a_line_for_each_comparison(qtbot: QtBot) -> None:
    """And a scale in each line."""
    table = Comparisons(report())
    qtbot.addWidget(table)
    assert len(table.findChildren(ErrorScale)) == 3


@pytest.mark.parametrize(
    ("value", "share"),
    [(0.0, 0.0), (1e-17, 0.0), (1.0, 1.0), (1e9, 1.0), (float("inf"), 1.0), (float("nan"), 1.0)],
)
def test_the_scale_takes_any_number(qtbot: QtBot, value: float, share: float) -> None:
    """Zero, infinity and NaN lie on it too, and it paints."""
    scale = ErrorScale(value, 1e-12, "ok")
    qtbot.addWidget(scale)
    assert scale.share(value) == pytest.approx(share)
    assert not scale.grab().isNull()


def test_progress_moves_the_bar_and_keeps_the_last_lines(page: VerifyPage) -> None:
    """What is done now is large, what was done stands below."""
    page._lines = []
    page._show("running")
    for done in range(20):
        values: dict[str, Scalar] = {"steps": done + 2, "fold": "ragged", "precision": "fp64"}
        page._on_progress(VerifyProgress(code="comparing", done=done, of=20, values=values))
    assert (page.bar.value(), page.bar.maximum()) == (19, 20)
    assert "N = 21" in page.doing.text()
    assert len(page.lines.text().splitlines()) <= 6


def test_a_certificate_is_saved_from_the_page(page: VerifyPage, tmp_path: Path) -> None:
    """Said when saved, and when it cannot be."""
    page._on_finished(report())
    page.save_as(tmp_path / "c.json")
    assert decode((tmp_path / "c.json").read_bytes()) == report()
    assert page.saved.isVisible()
    page.save_as(tmp_path / "no" / "c.html")
    assert page.trouble.isVisible()
    assert "cannot be saved" in page.trouble.sentence.text()


def test_an_interpreter_that_cannot_be_used_is_a_sentence(
    page: VerifyPage, qtbot: QtBot, tmp_path: Path
) -> None:
    """Nothing was started."""
    page.set_recipe(RECIPE, tmp_path, str(tmp_path / "no-python"), "words.toml")
    with qtbot.waitSignal(page.process.failed, timeout=60_000):
        page.run()
    assert state_of(page) == "failed"
    assert "no-python" in page.why.text()


def test_another_recipe_takes_the_place_of_the_certificate(page: VerifyPage, tmp_path: Path) -> None:
    """What is shown is never of another recipe."""
    page.set_recipe(RECIPE, tmp_path, sys.executable, "a.toml")
    page._on_finished(report())
    page.set_recipe(RECIPE, tmp_path, sys.executable, "a.toml")
    assert state_of(page) == "done"
    page.set_recipe(RECIPE + "\n", tmp_path, sys.executable, "b.toml")
    assert state_of(page) == "ready"
    assert page.report is None


def test_everything_fits_at_1280_by_720(page: VerifyPage, qtbot: QtBot) -> None:
    """No sideways scrolling beside the navigation."""
    page.resize(1200, 660)
    page._on_finished(report(culprits=(Culprit(code="batch-norm", stated=True, where=("a" * 80,)),)))
    qtbot.waitExposed(page)
    assert page.result_area.horizontalScrollBar().maximum() == 0
