"""What a run's evaluations measured and made: numbers, pictures, texts, tables; one step at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

from PySide6.QtCore import QSize, Qt
from PySide6.QtWidgets import QGridLayout, QHBoxLayout, QScrollArea, QSlider, QVBoxLayout, QWidget

from gradacc_gui.run.attachment import Attachment
from gradacc_gui.run.evaluations import Evaluations, StepResults
from gradacc_gui.run.numbers import count, day_and_time
from gradacc_gui.session.background import Background
from gradacc_gui.theme import set_role, space
from gradacc_gui.widgets.artifact_files import Loaded, LoadedPicture, Unreadable, load
from gradacc_gui.widgets.flow import TwoParts
from gradacc_gui.widgets.parts import button, clear_widget, label, put
from gradacc_gui.widgets.picture_view import Enlarged
from gradacc_gui.window.artifact_cards import Card, key_of
from gradacc_gui.window.results_numbers import MeasuredPanel, PublishedComparison, nothing_yet
from gradacc_gui.words import tr
from trainer_backend.protocol import ArtifactSaved

Done: TypeAlias = Callable[[ArtifactSaved, Loaded], None]
CARD_PIXELS: Final = QSize(1600, 640)
"""A picture among others is decoded no larger."""
ENLARGED_PIXELS: Final = QSize(4096, 4096)
MOST_CARDS: Final = 48
MOST_PICTURES: Final = 12
"""Decoded pictures that stay in memory although they are scrolled away."""
WIDE: Final = 2.2
"""A picture of such a ratio of width to height gets a row of its own."""


class ResultsTab(QWidget):
    """The newest evaluation, or the one that the slider chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("clear")
        self._run: Attachment | None = None
        self._evaluations: Evaluations | None = None
        self._visible: list[StepResults] = []
        self._step: int | None = None
        self._background: Background | None = None
        self._wide = False
        self.cards: list[Card] = []
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(space(2))
        self.chooser = self._build_chooser()
        column.addWidget(self.chooser)
        self.area = QScrollArea()
        self.area.setWidgetResizable(True)
        self.area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.area.setWidget(self._build_page())
        column.addWidget(self.area, 1)

    def _build_chooser(self) -> QWidget:
        bar = TwoParts()
        self.title = label(role="title")
        self.place = label(role="help")
        self.slider = QSlider(Qt.Orientation.Horizontal)
        self.slider.setFixedWidth(200)
        self.slider.setPageStep(1)
        self.slider.setAccessibleName(tr("Evaluation"))
        self.slider.valueChanged.connect(self._choose)
        self.older = button(tr("Older"), clicked=lambda: self.slider.setValue(self.slider.value() - 1))
        self.newer = button(tr("Newer"), clicked=lambda: self.slider.setValue(self.slider.value() + 1))
        self.newest = button(tr("Follow newest"))
        self.newest.setCheckable(True)
        self.newest.setChecked(True)
        set_role(self.newest, "quiet")
        self.newest.toggled.connect(self._follow)
        bar.left.addWidget(self.title)
        bar.left.addWidget(self.place)
        for widget in (self.older, self.slider, self.newer, self.newest):
            bar.right.addWidget(widget)
        return bar

    def _build_page(self) -> QWidget:
        page = QWidget()
        page.setObjectName("page")
        column = QVBoxLayout(page)
        column.setContentsMargins(0, 0, space(2), 0)
        column.setSpacing(space(3))
        self.empty = clear_widget()
        words = QVBoxLayout(self.empty)
        words.setContentsMargins(space(3), space(8), space(3), space(8))
        self.empty_title = label(role="page-title")
        self.empty_words = label(role="muted", wrap=True)
        for text in (self.empty_title, self.empty_words):
            text.setAlignment(Qt.AlignmentFlag.AlignCenter)
            words.addWidget(text)
        column.addWidget(self.empty)
        numbers = QHBoxLayout()
        numbers.setSpacing(space(3))
        self.measured = MeasuredPanel()
        self.published = PublishedComparison()
        for panel in (self.measured, self.published):
            numbers.addWidget(panel, 1, Qt.AlignmentFlag.AlignTop)
        column.addLayout(numbers)
        self._grid = QGridLayout()
        self._grid.setSpacing(space(3))
        column.addLayout(self._grid)
        self.more = label(role="help", wrap=True)
        column.addWidget(self.more)
        column.addStretch(1)
        return page

    # -------------------------------------------------------------------------- which run

    def set_run(self, run: Attachment | None) -> None:
        """Show another run's evaluations, or none."""
        self._run = run
        self._evaluations = None if run is None else Evaluations(run.store)
        self._visible, self._step = [], None
        self.newest.setChecked(True)
        self._show()

    def shut_down(self) -> None:
        """Let the reading thread go; what it reads now is waited for."""
        self._run = self._evaluations = None
        if self._background is not None:
            self._background.close()
            self._background = None

    def tick(self) -> None:
        """Take what is new and read what is seen; called while the tab is in front."""
        if self._run is None or self._evaluations is None:
            return
        if self._evaluations.take():
            self._visible = self._evaluations.visible()
            self._show()
        elif not self._visible:
            self._say_empty()
        self._show_published()
        self._read_seen()

    # -------------------------------------------------------------------------- which step

    def step(self) -> int | None:
        """The step that is shown."""
        return self._step

    def _choose(self, place: int) -> None:
        if place < len(self._visible):
            self._step = self._visible[place].step
            self.newest.setChecked(place == len(self._visible) - 1)
            self._show()

    def _follow(self, on: bool) -> None:
        if on and self._visible and self._step != self._visible[-1].step:
            self._show()

    def _place(self) -> int:
        """Where the shown step stands among the visible; the nearest one before it when it is gone."""
        if self.newest.isChecked() or self._step is None:
            return len(self._visible) - 1
        earlier = [place for place, evaluation in enumerate(self._visible) if evaluation.step <= self._step]
        return earlier[-1] if earlier else 0

    # -------------------------------------------------------------------------- showing

    def _show(self) -> None:
        there = bool(self._visible)
        self.chooser.setVisible(there)
        self.empty.setVisible(not there)
        self.measured.setVisible(there)
        if not there:
            self._step = None
            self._show_cards(())
            self._say_empty()
            return
        place = self._place()
        shown = self._visible[place]
        self._step = shown.step
        self._show_place(place, shown)
        self.measured.show_evaluation(shown, self._visible[place - 1] if place else None)
        self._show_cards(shown.artifacts)

    def _show_place(self, place: int, shown: StepResults) -> None:
        total = len(self._visible)
        self.slider.blockSignals(True)
        self.slider.setRange(0, total - 1)
        self.slider.setValue(place)
        self.slider.blockSignals(False)
        for widget in (self.slider, self.older, self.newer):
            widget.setVisible(total > 1)
        self.older.setEnabled(place > 0)
        self.newer.setEnabled(place < total - 1)
        put(self.title, tr("Step {step}").format(step=count(shown.step)))
        words = tr("evaluation {place} of {total} · {at}")
        put(
            self.place,
            words.format(place=count(place + 1), total=count(total), at=day_and_time(shown.at)),
        )

    def _say_empty(self) -> None:
        title, words = nothing_yet(self._run)
        put(self.empty_title, title)
        put(self.empty_words, words)

    def _show_published(self) -> None:
        run = self._run
        assert run is not None
        shown = next((entry for entry in self._visible if entry.step == self._step), None)
        self.published.show_run(run, shown.measured if shown else None)

    def _show_cards(self, artifacts: tuple[ArtifactSaved, ...]) -> None:
        shown = artifacts[:MOST_CARDS]
        if [card.key for card in self.cards] == [key_of(artifact) for artifact in shown]:
            for card, artifact in zip(self.cards, shown, strict=True):
                card.set_artifact(artifact)  # keeps its old picture until the new one is read
        else:
            self._make_cards(shown)
        left_out = len(artifacts) - len(shown)
        text = tr("{count} more are in the artifacts folder of the run's directory.").format(
            count=count(left_out)
        )
        if self._visible and not artifacts:
            text = tr(
                "No samples from this evaluation. A custom task can produce them in artifacts(model, folder)."
            )
        put(self.more, text if left_out or (self._visible and not artifacts) else "")
        self.more.setVisible(bool(self.more.text()))

    def _make_cards(self, artifacts: tuple[ArtifactSaved, ...]) -> None:
        for card in self.cards:
            self._grid.removeWidget(card)
            card.hide()
            card.deleteLater()
        self.cards = [Card(artifact) for artifact in artifacts]
        self._wide = False
        for card in self.cards:
            card.enlarge_asked.connect(self._enlarge)
        self._lay_out()

    def _lay_out(self) -> None:
        """Pictures two abreast unless they are wide; texts and tables over the whole width."""
        for card in self.cards:
            self._grid.removeWidget(card)
        pictures = sum(card.artifact.kind == "image" for card in self.cards)
        abreast = 1 if self._wide or pictures < 2 else 2
        row = column = 0
        for card in self.cards:
            if card.artifact.kind == "image" and abreast > 1:
                self._grid.addWidget(card, row, column, Qt.AlignmentFlag.AlignTop)
                row, column = (row + 1, 0) if column else (row, 1)
                continue
            row, column = row + bool(column), 0
            self._grid.addWidget(card, row, 0, 1, 2)
            row += 1
        for place in range(2):
            self._grid.setColumnStretch(place, 1)

    # -------------------------------------------------------------------------- reading files

    def _read_seen(self) -> None:
        if self._background is not None:
            self._background.poll()
        seen = [card for card in self.cards if not card.visibleRegion().isEmpty()]
        if len(self.cards) > MOST_PICTURES:
            for card in self.cards:
                if card not in seen:
                    card.release()
        waiting = next((card for card in seen if card.is_waiting), None)
        if waiting is not None:
            self._read(waiting.artifact, CARD_PIXELS, self._fill)

    def _read(self, artifact: ArtifactSaved, largest: QSize, done: Done) -> None:
        """One file at a time, so that what a moved slider no longer wants is not read."""
        assert self._run is not None
        if self._background is None:
            self._background = Background()
        folder: Path = self._run.run.path
        self._background.submit(
            lambda: load(folder, artifact, largest),
            lambda loaded: done(artifact, loaded),
            lambda sentence: done(artifact, Unreadable(sentence=sentence)),
            only_one=f"{artifact.path} {largest.width()}" if largest == ENLARGED_PIXELS else "card",
        )

    def _fill(self, artifact: ArtifactSaved, loaded: Loaded) -> None:
        card = next((card for card in self.cards if card.artifact is artifact), None)
        if card is None:
            return
        card.show_loaded(loaded)
        if isinstance(loaded, LoadedPicture) and loaded.width > WIDE * loaded.height and not self._wide:
            self._wide = True
            self._lay_out()

    def _enlarge(self, artifact: ArtifactSaved) -> None:
        dialog = Enlarged(artifact.caption, self)
        self.enlarged = dialog
        closed: list[bool] = []
        dialog.finished.connect(lambda _result: closed.append(True))

        def show(_artifact: ArtifactSaved, loaded: Loaded) -> None:
            if closed:
                return
            match loaded:
                case LoadedPicture():
                    dialog.show_picture(loaded)
                case Unreadable(sentence=sentence):
                    dialog.say(sentence)

        self._read(artifact, ENLARGED_PIXELS, show)
        dialog.open()
