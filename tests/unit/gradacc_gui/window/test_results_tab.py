"""The Results tab on made-up runs: which evaluation is shown, what of it, and what was published."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from gradacc_gui.run.attachment import Attachment
from gradacc_gui.theme import DARK, LIGHT, palette
from gradacc_gui.widgets.picture_view import PictureView
from gradacc_gui.window.artifact_cards import GridView, TextView, tint
from gradacc_gui.window.results_tab import MOST_CARDS, MOST_PICTURES, ResultsTab
from tests.support.fake_results import EACH, PUBLISHED, Made, picture, write_results
from tests.support.fake_runs import BackdatedWriter, Plan, continue_run, new_run, write_run
from trainer_backend.protocol import RolledBack
from trainer_backend.run_directory import RunDirectory

Show = Callable[[RunDirectory], ResultsTab]


@pytest.fixture
def show(qtbot: QtBot, styled: QApplication) -> Iterator[Show]:
    """A tab in front with a run; `tick` it as the window's timer would."""
    tab = ResultsTab()
    qtbot.addWidget(tab)
    tab.resize(860, 620)
    tab.show()
    runs: list[Attachment] = []

    def open_(run: RunDirectory) -> ResultsTab:
        runs.append(Attachment(run))
        if run.journal_path.is_file():
            qtbot.waitUntil(lambda: runs[-1].tick() == [] and runs[-1].store.caught_up, timeout=20_000)
        tab.set_run(runs[-1])
        tab.tick()
        return tab

    yield open_
    tab.shut_down()
    for run in runs:
        run.close()


def tick_until(qtbot: QtBot, tab: ResultsTab, is_there: Callable[[], bool]) -> None:
    """Tick as the window's timer does until `is_there`."""

    def ticked() -> bool:
        QApplication.processEvents()
        assert tab._run is not None
        tab._run.tick()
        tab.tick()
        return is_there()

    qtbot.waitUntil(ticked, timeout=20_000)


def settle(qtbot: QtBot, tab: ResultsTab) -> None:
    """Tick until every card that can be seen is filled."""

    def is_filled() -> bool:
        seen = [card for card in tab.cards if not card.visibleRegion().isEmpty()]
        return bool(seen) and not any(card.is_waiting for card in seen)

    tick_until(qtbot, tab, is_filled)


def test_the_newest_evaluation_is_shown_with_all_that_it_made(
    qtbot: QtBot, show: Show, tmp_path: Path
) -> None:
    """Numbers beside those before, pictures, a table and a text."""
    tab = show(write_results(tmp_path, Plan(steps=130, end="finished")))
    tab.resize(860, 1_400)
    settle(qtbot, tab)
    assert tab.title.text() == "Step 120"
    assert tab.place.text().startswith("evaluation 3 of 3 · ")
    rows = tab.measured.table.texts()
    assert [row[0] for row in rows] == ["Loss", "Accuracy", "Mean iou"]
    assert rows[1][1:] == ("0.8688", "0.8545")
    assert tab.measured.note.text() == "512 samples in 0.8 s"
    contents = [card.content for card in tab.cards]
    assert [type(content) for content in contents] == [PictureView, PictureView, GridView, TextView]
    assert isinstance(contents[3], TextView)
    assert contents[3].toPlainText().startswith("Once, after 120 steps")
    assert contents[3].isReadOnly()
    assert [card.caption.full_text() for card in tab.cards] == [made.caption for made in EACH]
    assert not tab.published.isVisible()


def test_the_slider_goes_back_and_the_newest_is_followed_again(
    qtbot: QtBot, show: Show, tmp_path: Path
) -> None:
    """Once somebody looks at an older one, a new one does not take it away."""
    run = write_results(tmp_path, Plan(steps=130))
    tab = show(run)
    settle(qtbot, tab)
    QTest.keyClick(tab.slider, Qt.Key.Key_Home)
    settle(qtbot, tab)
    assert tab.step() == 40
    assert not tab.newest.isChecked()
    assert not tab.older.isEnabled()
    write_results(tmp_path, Plan(steps=80, from_step=130, attempt=2), run=run)
    settle(qtbot, tab)
    assert tab.slider.maximum() == 4
    assert tab.step() == 40
    tab.newest.click()
    assert tab.step() == 200
    tab.older.click()
    assert tab.step() == 160
    tab.newer.click()
    assert tab.step() == 200
    assert tab.newest.isChecked()


def test_cards_stay_while_the_slider_moves(qtbot: QtBot, show: Show, tmp_path: Path) -> None:
    """The same files of another step take their places, so that nothing flickers; their content follows."""
    tab = show(write_results(tmp_path, Plan(steps=130), [EACH[3]]))
    settle(qtbot, tab)
    (card,) = tab.cards
    tab.older.click()
    assert tab.cards == [card]
    assert isinstance(card.content, TextView)
    assert "after 120" in card.content.toPlainText()
    settle(qtbot, tab)
    assert "after 80" in card.content.toPlainText()


def test_what_a_roll_back_supersedes_is_hidden(qtbot: QtBot, show: Show, tmp_path: Path) -> None:
    """As the charts hide their rows: evaluations after the step it went back to."""
    run = write_results(tmp_path, Plan(steps=130))
    writer = BackdatedWriter(run.journal_path, attempt=1)
    back = RolledBack(command_id=None, from_step=130, to_step=100, to_samples=3_200, to_tokens=409_600)
    writer.put_at(1_780_000_100.0, back)
    writer.close()
    tab = show(run)
    assert tab.step() == 80
    assert tab.slider.maximum() == 1


def test_what_a_later_attempt_supersedes_is_hidden_and_made_anew(
    qtbot: QtBot, show: Show, tmp_path: Path
) -> None:
    """Resumed from step 100: the evaluation of step 120 goes, then the new attempt's own comes."""
    run = write_results(tmp_path, Plan(steps=130))
    tab = show(run)
    settle(qtbot, tab)
    assert tab.step() == 120
    continue_run(run, Plan(steps=5, from_step=100, attempt=2, evaluate_every=0))
    settle(qtbot, tab)
    assert tab.step() == 80
    write_results(tmp_path, Plan(steps=30, from_step=105, attempt=3), [EACH[3]], run=run)
    settle(qtbot, tab)
    assert tab.step() == 120
    assert len(tab.cards) == 1


def test_missing_and_broken_files_are_sentences_beside_the_others(
    qtbot: QtBot, show: Show, tmp_path: Path
) -> None:
    """One bad file takes nothing else away."""
    run = write_results(tmp_path, Plan(steps=50, end="finished"))
    folder = run.path / "artifacts/step-000000040"
    (folder / "overlay-00.png").write_bytes(b"nothing of the kind")
    (folder / "samples.txt").unlink()
    tab = show(run)
    tab.resize(860, 1_400)
    settle(qtbot, tab)
    broken, whole, table, gone = tab.cards
    assert broken.content is None
    assert broken.note.text().startswith("overlay-00.png cannot be shown: ")
    assert gone.note.text() == "samples.txt cannot be shown: the file no longer exists."
    assert isinstance(whole.content, PictureView)
    assert isinstance(table.content, GridView)


def test_a_pressed_picture_opens_large_and_pixel_by_pixel(qtbot: QtBot, show: Show, tmp_path: Path) -> None:
    """By key as by mouse."""
    tab = show(write_results(tmp_path, Plan(steps=50)))
    settle(qtbot, tab)
    view = tab.cards[0].content
    assert isinstance(view, PictureView)
    assert view.accessibleName() == "Enlarge scene 12: image, truth, prediction"
    QTest.keyClick(view, Qt.Key.Key_Space)
    dialog = tab.enlarged
    tick_until(qtbot, tab, lambda: dialog.note.text() != "")
    assert dialog.note.text() == "480 × 320 pixels"
    assert dialog.view.width() > 480
    dialog.actual.click()
    assert (dialog.view.width(), dialog.view.height()) == (480, 320)
    dialog.close()


def test_a_picture_that_is_gone_when_it_is_pressed_is_a_sentence(
    qtbot: QtBot, show: Show, tmp_path: Path
) -> None:
    """And a dialog that was closed before its picture came takes no harm."""
    run = write_results(tmp_path, Plan(steps=50))
    tab = show(run)
    settle(qtbot, tab)
    view = tab.cards[0].content
    assert isinstance(view, PictureView)
    view.click()
    tab.enlarged.close()
    (run.path / tab.cards[0].artifact.path).unlink()
    tick_until(qtbot, tab, lambda: tab._background is not None and not tab._background.is_busy)
    view.click()
    dialog = tab.enlarged
    tick_until(qtbot, tab, lambda: "cannot be shown" in dialog.view.text())
    dialog.close()


def test_wide_pictures_get_a_row_each(qtbot: QtBot, show: Show, tmp_path: Path) -> None:
    """Image, truth and prediction side by side would be too small two abreast."""
    run = write_results(tmp_path, Plan(steps=50), EACH[:2])
    for made in EACH[:2]:
        picture(40, 900, 300).save(str(run.path / "artifacts/step-000000040" / made.name))
    tab = show(run)
    settle(qtbot, tab)
    first, second = tab.cards
    tick_until(qtbot, tab, lambda: first.width() == second.width() == tab.measured.width())
    assert first.geometry().bottom() < second.geometry().top()
    assert isinstance(first.content, PictureView)
    assert abs(first.content.height() - first.content.width() / 3) < 2


def test_only_what_is_seen_is_read_and_what_is_scrolled_away_is_let_go(
    qtbot: QtBot, show: Show, tmp_path: Path
) -> None:
    """Sixty pictures: a few in memory at a time, the surplus named."""
    made = [Made("image", f"{place:02}.png", f"scene {place}") for place in range(60)]
    tab = show(write_results(tmp_path, Plan(steps=40), made))
    settle(qtbot, tab)
    assert len(tab.cards) == MOST_CARDS
    assert tab.more.text() == "12 more are in the artifacts folder of the run's directory."
    assert tab.cards[-1].is_waiting
    tab.area.ensureWidgetVisible(tab.cards[-1])
    settle(qtbot, tab)
    held = [isinstance(card.content, PictureView) and card.content.holds_picture for card in tab.cards]
    assert held[-1]
    assert not held[0]
    assert sum(held) <= MOST_PICTURES


def test_published_values_stand_beside_the_run_s_own(qtbot: QtBot, show: Show, tmp_path: Path) -> None:
    """As asked in its recipe, in force after changes, and as measured."""
    tab = show(write_results(tmp_path, Plan(steps=90, n_changes={70: 32}), extra=PUBLISHED))
    settle(qtbot, tab)
    assert tab.published.isVisible()
    assert tab.published.source.text() == "A. Author et al. 2023, table 4"
    assert tab.published.table.texts() == [
        ("Effective batch", "256", "256"),
        ("Learning rate", "0.0003", "0.001"),
        ("Clip gradient norm", "1", "1"),
        ("Accuracy", "0.91", "0.8545"),
    ]
    tab.older.click()
    tab.tick()
    assert tab.published.table.texts()[3] == ("Accuracy", "0.91", "0.8167")


def test_a_run_that_ended_before_its_first_evaluation_says_so(show: Show, tmp_path: Path) -> None:
    """And what was published is there from the start."""
    run = new_run(tmp_path, Plan())
    run.recipe_path.write_text(run.recipe_path.read_text("utf-8") + PUBLISHED, "utf-8")
    continue_run(run, Plan(steps=10, evaluate_every=0))
    tab = show(run)
    assert tab.empty_title.text() == "No evaluation was made"  # its trainer is gone
    assert not tab.chooser.isVisible()
    assert not tab.measured.isVisible()
    assert tab.published.table.texts()[0] == ("Effective batch", "256", "32")


@pytest.mark.parametrize(
    ("recipe", "title", "part"),
    [
        ("", "This run has no evaluation", "Set evaluation.every_samples"),
        ("\n[evaluation]\nevery_samples = 2_000\n", "No evaluation yet", "after 2,000 samples"),
        ("\n[targets]\nvalidation_loss = 2.0\n", "No evaluation yet", "once, at its end"),
    ],
)
def test_an_empty_tab_tells_why_it_is_empty(
    show: Show, tmp_path: Path, recipe: str, title: str, part: str
) -> None:
    """By what the recipe asks for."""
    run = new_run(tmp_path, Plan())
    run.recipe_path.write_text(run.recipe_path.read_text("utf-8") + recipe, "utf-8")
    tab = show(run)
    assert tab.empty.isVisible()
    assert tab.empty_title.text() == title
    assert part in tab.empty_words.text()


def test_an_evaluation_that_made_nothing_says_how_a_task_makes_something(show: Show, tmp_path: Path) -> None:
    """Its numbers are there all the same; an unreadable recipe takes nothing away."""
    run = write_run(tmp_path, Plan(steps=50))
    run.recipe_path.write_text("no TOML", "utf-8")
    tab = show(run)
    assert tab.step() == 40
    assert [row[0] for row in tab.measured.table.texts()] == ["Loss"]
    assert "artifacts(model, folder)" in tab.more.text()
    assert tab.cards == []


def test_another_run_takes_the_place_of_the_first(qtbot: QtBot, show: Show, tmp_path: Path) -> None:
    """Nothing of the first stays; no run at all is empty."""
    tab = show(write_results(tmp_path / "a", Plan(steps=50)))
    settle(qtbot, tab)
    show(write_results(tmp_path / "b", Plan(steps=90), [EACH[3]]))
    settle(qtbot, tab)
    assert tab.step() == 80
    assert len(tab.cards) == 1
    tab.set_run(None)
    tab.tick()
    assert tab.cards == []
    assert tab.empty_title.text() == "No evaluation yet"


def test_cells_are_tinted_in_the_worn_theme(
    qtbot: QtBot, show: Show, styled: QApplication, tmp_path: Path
) -> None:
    """The greatest value is painted in the tint's full strength, in dark and in light."""
    tab = show(write_results(tmp_path, Plan(steps=50), [EACH[2]]))
    settle(qtbot, tab)
    table = tab.cards[0].content
    assert isinstance(table, GridView)
    for theme in (LIGHT, DARK):
        styled.setPalette(palette(theme))
        QApplication.processEvents()
        corner = table.visualRect(table.grid.index(2, 3)).topLeft()
        colour = table.viewport().grab().toImage().pixelColor(corner.x() + 2, corner.y() + 2)
        assert colour.name() == tint(1.0)
