"""How soon it is there: `python -m tests.bench.startup [--rounds 15]`.

    help_ratio      `gradacc --help` over `python -c pass` (medians of interleaved starts)
    window_ratio    the window's form, painted and answering, over an interpreter that imports
                    PySide6.QtWidgets and pyqtgraph and shows an empty plot, painted and answering
    first_point_s   from Start of the demo, in a home of its own, to the first point painted on the loss chart

The parent takes the times, from before the process is made to the line that it prints.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
POINT_PATIENCE_S: Final = 120

# Tells when a widget of some kind was painted and the event loop then answered; the same for both windows.
WATCH = """
import os
from PySide6.QtCore import QEvent, QObject, QTimer
class Watch(QObject):
    def __init__(self, is_it):
        super().__init__()
        self.is_it = is_it
        self.seen = False
    def eventFilter(self, watched, event):
        if not self.seen and event.type() == QEvent.Type.Paint and self.is_it(watched):
            self.seen = True
            QTimer.singleShot(0, self.tell)
        return False
    def tell(self):
        print("there", flush=True)
        os._exit(0)
"""

EMPTY_PLOT = (
    WATCH
    + """
from PySide6.QtWidgets import QApplication
import pyqtgraph
app = QApplication([])
plot = pyqtgraph.PlotWidget()
plot.resize(1440, 900)
watch = Watch(lambda widget: widget is plot.viewport())
app.installEventFilter(watch)
plot.show()
app.exec()
"""
)

FORM = (
    WATCH
    + """
from gradacc_gui import app as module
from gradacc_gui.cli import main
from PySide6.QtWidgets import QAbstractSpinBox, QApplication, QLineEdit
def is_a_field(widget):
    return (isinstance(widget, (QAbstractSpinBox, QLineEdit)) and widget.isEnabled()
            and type(widget.window()).__name__ == "MainWindow" and widget.window().page() == "new-run")
watch = Watch(is_a_field)
make = module.make_application
def make_watched(*arguments):
    app = make(*arguments)
    app.installEventFilter(watch)
    return app
module.make_application = make_watched
main([])
"""
)

FIRST_POINT = """
import os, sys, time
from gradacc_gui.app import make_application
from gradacc_gui.theme import Themes
from gradacc_gui.window.main_window import MainWindow
from gradacc_gui.remembered import Preferences
from gradacc_gui.session.stopping import Act, perform
app = make_application(["gradacc"])
preferences = Preferences()
preferences.keep_awake = False
window = MainWindow(Themes(app, "dark"), preferences)
window.resize(1440, 900)
window.show_page("new-run")
window.show()
window.live.ensure_charts()  # as the application does once its window is there
until = time.monotonic() + 1.0
while time.monotonic() < until:
    app.processEvents()
began = time.monotonic()
window.start_demo()
painted = []
watched = False
while not painted and time.monotonic() - began < float(sys.argv[1]):
    app.processEvents()
    charts = window.live.charts
    if charts is not None and not watched and charts.store is not None:
        watched = True
        loss = next(card for card in charts.cards if card.spec.key == "loss")
        draw = loss.view.draw
        def draw_and_look():
            draw()
            from trainer_backend.protocol import MicroBatchMeasured
            if len(charts.store.track(MicroBatchMeasured).tail("seq", 1)):
                painted.append(time.monotonic())
        loss.view.draw = draw_and_look
    time.sleep(0.001)
if window.run is not None:
    perform(Act.ASK_NOW, window.run.run, asked_by="benchmark")
    while window.run.run.is_alive():
        time.sleep(0.05)
print(painted[0] - began if painted else "never", flush=True)
os._exit(0)
"""


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    home = Path(tempfile.mkdtemp(prefix="gradacc-bench-"))
    os.environ |= {"GRADACC_HOME": str(home), "PYTHONPATH": str(ROOT)}
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    try:
        bare, told = paired([sys.executable, "-c", "pass"], [*gradacc(), "--help"], rounds)
        plot, form = paired([sys.executable, "-c", EMPTY_PLOT], [sys.executable, "-c", FORM], rounds)
        point_s = first_point_s()
    finally:
        shutil.rmtree(home, ignore_errors=True)
    result = {
        "help_ratio": round(told / bare, 2),
        "window_ratio": round(form / plot, 2),
        "first_point_s": round(point_s, 2),
        "help_ms": round(told * 1e3, 1),
        "window_ms": round(form * 1e3),
        "empty_plot_ms": round(plot * 1e3),
        "rounds": rounds,
    }
    print(json.dumps(result))


def gradacc() -> list[str]:
    """The console command where it is installed, else the module behind it."""
    script = shutil.which("gradacc", path=sysconfig.get_path("scripts"))
    return [script] if script else [sys.executable, "-m", "gradacc_gui"]


def paired(first: list[str], second: list[str], rounds: int) -> tuple[float, float]:
    """Median seconds of both, in random order within each round; the first round warms the disk's cache."""
    spent: tuple[list[float], list[float]] = ([], [])
    for round_ in range(rounds + 1):
        order = [0, 1]
        random.shuffle(order)
        for which in order:
            taken_s = seconds((first, second)[which])
            if round_:
                spent[which].append(taken_s)
    return statistics.median(spent[0]), statistics.median(spent[1])


def seconds(command: list[str]) -> float:
    """From the start to the end of a process, which ends as soon as it has what it is measured for."""
    began = time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    return time.perf_counter() - began


def first_point_s() -> float:
    """Seconds from Start to the first point, as the window itself takes them."""
    command = [sys.executable, "-c", FIRST_POINT, str(POINT_PATIENCE_S)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return float(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
