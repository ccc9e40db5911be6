"""The look: both schemes readable, one style sheet, icons that follow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QApplication, QPushButton
from pytestqt.qtbot import QtBot

from gradacc_gui import theme as themes
from gradacc_gui.assets import asset
from gradacc_gui.theme import DARK, LIGHT, Theme, Themes


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2)."""

    def linear(part: float) -> float:
        return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4

    found = QColor(colour)
    return 0.2126 * linear(found.redF()) + 0.7152 * linear(found.greenF()) + 0.0722 * linear(found.blueF())


def contrast(one: str, other: str) -> float:
    """Contrast ratio (WCAG 2.2), 1 … 21."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", [DARK, LIGHT], ids=lambda theme: theme.name)
def test_words_can_be_read_on_every_surface(theme: Theme) -> None:
    """4.5 : 1 for words on panels, as for those on the accent; 3 : 1 for lines of a chart."""
    for word in (theme.text, theme.muted, theme.accent, theme.ok, theme.warning, theme.bad):
        assert contrast(word, theme.panel) >= 4.5, word
    assert contrast(theme.on_accent, theme.accent) >= 4.5
    for line in theme.series:
        assert contrast(line, theme.panel) >= 3.0, line


@pytest.mark.parametrize("theme", [DARK, LIGHT], ids=lambda theme: theme.name)
def test_the_style_sheet_is_filled_to_the_last_token(theme: Theme) -> None:
    """No $name is left, and no colour is written beside the tokens."""
    sheet = themes.style_sheet(theme)
    assert "$" not in sheet
    source = asset("themes/gradacc.qss").read_text("utf-8")
    assert re.findall(r"#[0-9a-fA-F]{6}\b", source) == []


def test_every_role_of_the_style_sheet_is_used_and_none_is_missing() -> None:
    """A role that nobody sets is dead; one that the sheet does not know does nothing."""
    sheet = asset("themes/gradacc.qss").read_text("utf-8")
    styled = set(re.findall(r'role="([\w-]+)"', sheet))
    source = "".join(path.read_text("utf-8") for path in Path(themes.__file__).parent.rglob("*.py"))
    # Some roles end in a tone: f"verdict-{tone}".
    unused = [
        role
        for role in styled
        if f'"{role}"' not in source and f'"{role.rpartition("-")[0]}-{{' not in source
    ]
    assert unused == []


def test_icons_are_drawn_in_the_colour_asked_for(qapp: QApplication) -> None:
    """And sharp at scale factors 1, 2 and 3."""
    drawn = themes.icon("stop", "#ff0000", 16)
    assert sorted(size.width() for size in drawn.availableSizes()) == [16, 32, 48]
    image = drawn.pixmap(16, 16).toImage()
    pixels = [image.pixelColor(x, y) for x in range(image.width()) for y in range(image.height())]
    assert {pixel.name() for pixel in pixels if pixel.alpha() > 100} == {"#ff0000"}


@pytest.mark.parametrize("path", sorted(asset("icons").glob("*.svg")), ids=lambda path: path.name)
def test_every_icon_file_can_be_drawn(path: Path, qapp: QApplication) -> None:
    """Something is to be seen in each."""
    image = themes.icon(path.stem, "#000000", 24).pixmap(24, 24).toImage()
    pixels = [image.pixelColor(x, y) for x in range(image.width()) for y in range(image.height())]
    assert any(pixel.alpha() > 0 for pixel in pixels)


def test_the_theme_follows_the_desktop_unless_one_is_chosen(qtbot: QtBot, qapp: QApplication) -> None:
    """A choice stays; "system" goes with the desktop."""
    kept = qapp.palette(), qapp.styleSheet()
    follower = Themes(qapp, "dark")
    worn: list[Theme] = []
    follower.changed.connect(worn.append)
    try:
        assert themes.current_theme() is DARK
        follower.choose("light")
        assert themes.current_theme() is LIGHT
        follower.choose("light")
        assert worn == [LIGHT]
        button = QPushButton("x")
        qtbot.addWidget(button)
        follower.choose("dark")
        assert button.palette().color(button.foregroundRole()).name() == DARK.text
    finally:
        follower.deleteLater()
        qapp.setPalette(kept[0])
        qapp.setStyleSheet(kept[1])


def test_numbers_do_not_dance(qapp: QApplication) -> None:
    """The application's font asks for tabular figures."""
    font = themes.application_font()
    assert font.featureValue(font.Tag("tnum")) == 1
