"""The learning rate below the fields that shape it."""

from __future__ import annotations

import pytest
from pytestqt.qtbot import QtBot

from gradacc_gui.form.schedule_picture import HEIGHT, SchedulePicture
from gradacc_gui.recipe.schedule_preview import SchedulePreview
from gradacc_gui.theme import current_theme


def test_the_line_runs_from_edge_to_edge_and_is_painted(qtbot: QtBot) -> None:
    """High is up; nothing to show is no empty space."""
    picture = SchedulePicture()
    qtbot.addWidget(picture)
    assert picture.isHidden()
    picture.show_preview(SchedulePreview((0.0, 1.0, 0.5), "Up and down"))
    picture.resize(202, 80)
    picture.show()
    qtbot.waitExposed(picture)
    points = picture.line.points()
    width = picture.line.width()
    assert [point.x() for point in points] == pytest.approx([0, width / 2, width])
    assert points[1].y() < points[2].y() < points[0].y() <= HEIGHT
    image = picture.line.grab().toImage()
    colours = {image.pixelColor(x, y).name() for x in range(image.width()) for y in range(image.height())}
    assert current_theme().accent in colours
    assert picture.accessibleDescription() == "Up and down"
    picture.show_preview(SchedulePreview((), "", warns=False))
    assert picture.isHidden()


def test_a_warning_looks_like_one(qtbot: QtBot) -> None:
    """By the role that the theme colours."""
    picture = SchedulePicture()
    qtbot.addWidget(picture)
    for warns, role in ((True, "warning"), (False, "help")):
        picture.show_preview(SchedulePreview((0.0, 1.0), "x", warns=warns))
        assert picture.words.property("role") == role


def test_the_effective_batch_stands_behind_the_line_as_stairs(qtbot: QtBot) -> None:
    """As high as its share of the largest."""
    picture = SchedulePicture()
    qtbot.addWidget(picture)
    picture.show_preview(SchedulePreview((1.0, 1.0), "x", (0.25, 1.0)))
    low, high = picture.line.steps()
    assert low.y() > high.y()
    picture.show_preview(SchedulePreview((1.0, 1.0), "x"))
    assert picture.line.steps() == []
