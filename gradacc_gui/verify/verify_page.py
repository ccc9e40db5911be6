"""The Verify page: a recipe, a button, progress, a certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, TypeAlias

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QHideEvent
from PySide6.QtWidgets import (
    QHBoxLayout,
    QLabel,
    QProgressBar,
    QScrollArea,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from gradacc_gui.theme import space
from gradacc_gui.verify.process import VerifyProcess
from gradacc_gui.verify.report_view import ReportView
from gradacc_gui.widgets.desktop import ask_where_to_save
from gradacc_gui.widgets.parts import ElidedLabel, IconLabel, Notice, Panel, button, label, put
from gradacc_gui.words import tr
from trainer_backend.errors import GradaccError
from trainer_backend.verify import sentences
from trainer_backend.verify.html import save
from trainer_backend.verify.report import VerifyProgress, VerifyReport

State: TypeAlias = Literal["empty", "ready", "running", "done", "failed"]
LINES_SHOWN: Final = 6


class VerifyPage(QWidget):
    """Give it a recipe with `set_recipe`; `run` makes its certificate beside whatever else goes on."""

    recipe_requested = Signal()
    """The person has no recipe here yet and asks for the form."""
    finished = Signal(object)
    """The `VerifyReport`."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("page")
        self.state: State = "empty"
        self.report: VerifyReport | None = None
        self._recipe: tuple[str, Path, str, str] | None = None
        self.process = VerifyProcess(self)
        self.process.progressed.connect(self._on_progress)
        self.process.finished.connect(self._on_finished)
        self.process.failed.connect(self._on_failed)
        self.process.cancelled.connect(self._on_cancelled)
        self._build()
        self._show("empty")

    # ---------------------------------------------------------------------------------- its surface

    def set_recipe(self, config_text: str, source_folder: Path, interpreter: str, name: str = "") -> None:
        """The recipe to verify: its text, where its paths start, and the Python that trains."""
        wanted = (config_text, Path(source_folder), interpreter, name)
        if wanted == self._recipe:
            return
        self.process.cancel()
        self._recipe = wanted
        self.report = None
        self.recipe_name.set_full_text(name)
        self._show("ready")

    def run(self) -> None:
        """Make the certificate; does nothing without a recipe or while one is made."""
        if self._recipe is None or self.process.is_running:
            return
        text, folder, interpreter, name = self._recipe
        self.report = None
        self._lines: list[str] = []
        self.bar.setRange(0, 0)
        put(self.doing, tr("Starting…"))
        put(self.lines, "")
        self._show("running")
        self.process.start(text, folder, interpreter, name=name)

    def cancel(self) -> None:
        """End it; the page goes back to the recipe."""
        self.process.cancel()

    def save_as(self, path: Path) -> None:
        """Save the certificate, JSON or a page by the name's end; a failure is said on the page."""
        if self.report is None:
            return
        try:
            save(self.report, path, tr)
        except GradaccError as error:
            self.trouble.say(str(error))
        else:
            self.saved.say(tr("Saved as {path}.").format(path=path))

    def close_down(self) -> None:
        """End what runs; for a window that closes."""
        self.process.close()

    # ------------------------------------------------------------------------------------- building

    def _build(self) -> None:
        column = QVBoxLayout(self)
        column.setContentsMargins(space(5), space(4), space(5), space(4))
        column.setSpacing(space(3))
        row = QHBoxLayout()
        row.setSpacing(space(2))
        row.addWidget(label(tr("Verify"), "page-title"))
        self.recipe_name = ElidedLabel("", "help")
        row.addWidget(self.recipe_name, 1)
        self.save_page = button(tr("Save as HTML…"), clicked=lambda: self._ask_and_save("html"))
        self.save_json = button(tr("Save as JSON…"), clicked=lambda: self._ask_and_save("json"))
        self.again = button(tr("Verify again"), role="primary", clicked=self.run)
        for made in (self.save_page, self.save_json, self.again):
            row.addWidget(made)
        column.addLayout(row)
        self.trouble = Notice("notice-bad")
        self.saved = Notice("notice")
        column.addWidget(self.trouble)
        column.addWidget(self.saved)
        self.stack = QStackedWidget()
        self.stack.setObjectName("page")
        column.addWidget(self.stack, 1)
        self._states: dict[State, QWidget] = {
            "empty": self._build_empty(),
            "ready": self._build_ready(),
            "running": self._build_running(),
            "done": self._build_done(),
            "failed": self._build_failed(),
        }
        for page in self._states.values():
            self.stack.addWidget(page)

    def _build_empty(self) -> QWidget:
        page, inner = _centred()
        inner.addWidget(IconLabel("verify", "muted", 40), 0, Qt.AlignmentFlag.AlignHCenter)
        inner.addWidget(_centre(label(tr("No recipe to verify yet"), "page-title")))
        text = tr(
            "Fill in the form on New run, or open a recipe. This page then checks that N micro-batches "
            "give the same gradient as one large batch."
        )
        inner.addWidget(_centre(label(text, "muted", wrap=True)))
        self.to_form = button(tr("Choose a recipe"), role="primary", clicked=self.recipe_requested.emit)
        inner.addWidget(self.to_form, 0, Qt.AlignmentFlag.AlignHCenter)
        return page

    def _build_ready(self) -> QWidget:
        page = QWidget()
        page.setObjectName("page")
        column = QVBoxLayout(page)
        column.setContentsMargins(0, 0, 0, 0)
        panel = Panel(tr("Is accumulation exact for your model?"))
        panel.setMaximumWidth(760)
        for text in (
            tr(
                "Samples of your data are run as one large batch and as N micro-batches, for several N: in"
                " equal parts, in ragged parts, as the last step of an epoch, with clipping, and repeated"
                " after a simulated out-of-memory. The gradients are compared in fp64 and in the run's own"
                " precision, with dropout switched off."
            ),
            tr(
                "The verdict is equal, equal to the stated per-micro-batch definition, or not equal. Where"
                " equality fails, the layers or loss terms that break it are named, with what you can do."
            ),
        ):
            panel.body.addWidget(label(text, "muted", wrap=True))
        row = QHBoxLayout()
        self.begin = button(tr("Verify"), role="primary", clicked=self.run)
        self.begin.setMinimumWidth(140)
        row.addWidget(self.begin)
        row.addWidget(label(tr("takes about a minute; runs can continue meanwhile"), "help"))
        row.addStretch(1)
        panel.body.addSpacing(space(2))
        panel.body.addLayout(row)
        column.addWidget(panel)
        column.addStretch(1)
        return page

    def _build_running(self) -> QWidget:
        page, inner = _centred()
        self.doing = _centre(label("", "page-title", wrap=True))
        self.bar = QProgressBar()
        self.bar.setTextVisible(False)
        self.bar.setFixedWidth(360)
        self.lines = _centre(label("", "help", wrap=True))
        self.lines.setMinimumHeight(18 * LINES_SHOWN)
        self.lines.setAlignment(Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignTop)
        self.stop = button(tr("Cancel"), clicked=self.cancel)
        inner.addWidget(self.doing)
        inner.addWidget(self.bar, 0, Qt.AlignmentFlag.AlignHCenter)
        inner.addWidget(self.lines)
        inner.addWidget(self.stop, 0, Qt.AlignmentFlag.AlignHCenter)
        return page

    def _build_done(self) -> QWidget:
        self.result_area = QScrollArea()
        self.result_area.setWidgetResizable(True)
        self.result_area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAsNeeded)
        return self.result_area

    def _build_failed(self) -> QWidget:
        page, inner = _centred(560)
        inner.addWidget(IconLabel("warning", "bad", 36), 0, Qt.AlignmentFlag.AlignHCenter)
        inner.addWidget(_centre(label(tr("The certificate could not be made"), "page-title")))
        self.why = _centre(label("", "", wrap=True))
        self.said = label("", "help", wrap=True)
        for text in (self.why, self.said):
            text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        inner.addWidget(self.why)
        inner.addWidget(self.said)
        self.retry = button(tr("Try again"), role="primary", clicked=self.run)
        inner.addWidget(self.retry, 0, Qt.AlignmentFlag.AlignHCenter)
        return page

    # --------------------------------------------------------------------------------------- states

    def _show(self, state: State) -> None:
        self.state = state
        self.stack.setCurrentWidget(self._states[state])
        for made in (self.save_page, self.save_json, self.again):
            made.setVisible(state == "done")
        self.trouble.hide()
        self.saved.hide()

    def _on_progress(self, entry: VerifyProgress) -> None:
        if entry.code == "comparing":
            self.bar.setRange(0, entry.of)
            self.bar.setValue(entry.done)
        text = sentences.progress(entry, tr)
        if self.doing.text() != tr("Starting…"):
            self._lines = [*self._lines[1 - LINES_SHOWN :], self.doing.text()]
        put(self.doing, text)
        put(self.lines, "\n".join(reversed(self._lines)))

    def _on_finished(self, report: VerifyReport) -> None:
        self.report = report
        view = ReportView(report)
        page = QWidget()
        page.setObjectName("page")
        column = QVBoxLayout(page)
        column.setContentsMargins(0, 0, 0, 0)
        column.addWidget(view)
        self.result_area.setWidget(page)  # deletes the one before
        self._show("done")
        self.again.setFocus()
        self.finished.emit(report)

    def _on_failed(self, sentence: str, said: str) -> None:
        put(self.why, sentence)
        put(self.said, said)
        self.said.setVisible(bool(said))
        self._show("failed")

    def _on_cancelled(self) -> None:
        if self.state == "running":
            self._show("ready")

    def _ask_and_save(self, ending: str) -> None:
        stem = (
            "certificate" if self.report is None or not self.report.recipe else Path(self.report.recipe).stem
        )
        start = Path.cwd() / f"{stem}-certificate.{ending}"
        ask_where_to_save(self, tr("Save the certificate"), start, self.save_as, f"*.{ending}")

    def hideEvent(self, event: QHideEvent) -> None:
        """Notices of what was saved are not kept for the next visit."""
        super().hideEvent(event)
        self.saved.hide()


def _centred(width: int = 480) -> tuple[QWidget, QVBoxLayout]:
    """A page with a column of this width in its middle."""
    page = QWidget()
    page.setObjectName("page")
    outer = QVBoxLayout(page)
    outer.setContentsMargins(0, 0, 0, 0)
    outer.addStretch(2)
    holder = QWidget()
    holder.setObjectName("clear")
    holder.setFixedWidth(width)
    inner = QVBoxLayout(holder)
    inner.setSpacing(space(3))
    inner.setContentsMargins(0, 0, 0, 0)
    row = QHBoxLayout()  # and no alignment: that would give wrapped words too little height
    row.addStretch(1)
    row.addWidget(holder)
    row.addStretch(1)
    outer.addLayout(row)
    outer.addStretch(3)
    return page, inner


def _centre(text: QLabel) -> QLabel:
    text.setAlignment(Qt.AlignmentFlag.AlignCenter)
    return text
