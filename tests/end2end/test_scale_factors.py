"""Everything can be reached at 1280 x 720 logical pixels, whatever the scale, and in the smallest window."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gradacc_gui.window.main_window import SMALLEST
from tests.support.fake_runs import Plan, write_run
from tests.support.trainers import ROOT, environment

LOOK = """
import json, sys
from pathlib import Path
from PySide6.QtCore import QRect
from PySide6.QtWidgets import (
    QAbstractButton, QAbstractSlider, QAbstractSpinBox, QApplication, QComboBox, QLineEdit, QScrollArea,
    QScrollBar,
)
from gradacc_gui.theme import Themes, application_font
from gradacc_gui.window.main_window import MainWindow
from gradacc_gui.window.pages import PAGES
from gradacc_gui.remembered import Preferences
from trainer_backend.run_directory import RunDirectory

KINDS = (QAbstractButton, QAbstractSlider, QAbstractSpinBox, QComboBox, QLineEdit)
app = QApplication([])
app.setStyle("Fusion")
app.setFont(application_font())
preferences = Preferences()
preferences.says_that_runs_go_on = False
window = MainWindow(Themes(app, "dark"), preferences)
window.resize(*json.loads(sys.argv[2]))
window.show()

def settle():
    for _ in range(20):
        window.tick()
        app.processEvents()

def area_of(widget):
    parent = widget.parentWidget()
    while parent is not None and not isinstance(parent, QScrollArea):
        parent = parent.parentWidget()
    return parent

def faults(page):
    for widget in [widget for kind in KINDS for widget in window.findChildren(kind)]:
        inner = widget.objectName().startswith("qt_") or isinstance(widget, QScrollBar)
        if inner or not widget.isVisible():
            continue
        area = area_of(widget)
        while area is not None:  # what scrolls is brought into view, as by the Tab key
            area.ensureWidgetVisible(widget)
            area = area_of(area)
        place = QRect(widget.mapTo(window, widget.rect().topLeft()), widget.size())
        name = widget.text() if hasattr(widget, "text") else ""
        name = f"{page}: {type(widget).__name__} {name or widget.accessibleName()!r}"
        if not window.rect().contains(place):
            yield f"{name} outside: {place.getRect()}"
        area = area_of(widget)
        if area is not None and widget.width() <= area.viewport().width():
            left = widget.mapTo(area.viewport(), widget.rect().topLeft()).x()
            if left < 0 or left + widget.width() > area.viewport().width():
                yield f"{name} is cut by the area that scrolls"
        if widget.width() < widget.minimumSizeHint().width():
            yield f"{name} under its hint: {widget.width()} < {widget.minimumSizeHint().width()}"
        looked[0] += 1

looked, found = [0], []
window.open_run(RunDirectory(Path(sys.argv[1])))
settle()
for page, _, _ in PAGES:
    window.show_page(page)
    settle()
    found += list(faults(page))
for tab in ("results", "log"):
    window.show_page("live")
    window.live.show_tab(tab)
    settle()
    found += list(faults(tab))
size, ratio = (window.width(), window.height()), window.devicePixelRatioF()
window.close()
print(json.dumps({"size": size, "ratio": ratio, "looked": looked[0], "faults": found}))
"""


USUAL = (1280, 720)


@pytest.mark.parametrize(("factor", "size"), [(1, SMALLEST), (1, USUAL), (2, USUAL), (3, USUAL)])
def test_nothing_lies_outside_the_window_at_any_scale(
    tmp_path: Path, factor: int, size: tuple[int, int]
) -> None:
    """The real window with all its pages, in a process that the scale is given to."""
    run = write_run(tmp_path, Plan(steps=20))
    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(run.path), json.dumps(size)],
        cwd=ROOT,
        env=environment() | {"QT_QPA_PLATFORM": "offscreen", "QT_SCALE_FACTOR": str(factor)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["faults"] == []
    assert (seen["size"], seen["ratio"]) == (list(size), float(factor))
    assert seen["looked"] > 60
