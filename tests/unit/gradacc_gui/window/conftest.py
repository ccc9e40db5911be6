"""The application as the window sets it up."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QApplication

from gradacc_gui.theme import DARK, application_font, palette, style_sheet


@pytest.fixture
def styled(qapp: QApplication) -> QApplication:
    """Fusion with our style sheet, as shipped."""
    if not qapp.styleSheet():
        qapp.setStyle("Fusion")
        qapp.setFont(application_font())
        qapp.setPalette(palette(DARK))
        qapp.setStyleSheet(style_sheet(DARK))
    return qapp
