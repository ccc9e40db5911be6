"""The search above the list of runs: what is typed, how many fit, and buttons for stars and tags."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtWidgets import QHBoxLayout, QLineEdit, QPushButton, QSizePolicy, QToolButton, QWidget

from gradacc_gui.run.numbers import count
from gradacc_gui.run.run_search import RunQuery, parse_query
from gradacc_gui.session.runs import RunSummary
from gradacc_gui.theme import space
from gradacc_gui.widgets.parts import label, put
from gradacc_gui.words import tr

MOST_BUTTONS: Final = 5
LONGEST_WORD: Final = 24
STARRED: Final = "is:starred"
EXAMPLE: Final = "n=8 lr<1e-3 kind:causal-lm tag:paper is:live"
SETTLE_MS: Final = 60
"""A list of thousands is filtered once the keys rest for so long."""


def tag_counts(lines: Sequence[RunSummary]) -> list[tuple[str, int]]:
    """Tags and how many runs have each, the most frequent first."""
    return Counter(tag for line in lines for tag in line.about.tags).most_common()


class RunsFilter(QWidget):
    """`changed` says that another search is wanted; `text` is remembered by the page."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("clear")
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(space(2))
        self.edit = QLineEdit()
        self.edit.setPlaceholderText(tr("Search, such as {example}").format(example=EXAMPLE))
        self.edit.setAccessibleName(tr("Search the runs"))
        self.edit.setToolTip(
            tr(
                "Words are looked for in names, tags, notes and settings. n=8, lr<1e-3, batch>=64, val<3, "
                "kind:causal-lm, model:qwen, tag:paper, state:failed, is:starred, is:live; "
                "-word leaves out. All terms must fit."
            )
        )
        self.edit.setClearButtonEnabled(True)
        for clear in self.edit.findChildren(QToolButton):
            clear.setAccessibleName(tr("Clear the search"))
            clear.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.edit.setMinimumWidth(260)
        self.edit.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.edit.setMaximumWidth(620)
        row.addWidget(self.edit, 2)
        self.count = label(role="help")
        row.addWidget(self.count)
        self._buttons = QHBoxLayout()
        self._buttons.setSpacing(space(1))
        row.addLayout(self._buttons)
        row.addStretch(1)
        self.problem = label(role="warning")
        row.addWidget(self.problem)
        self._shown: list[tuple[str, str, int]] = []
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setInterval(SETTLE_MS)
        self._timer.timeout.connect(self._settled)
        self.edit.textChanged.connect(lambda _text: self._timer.start())
        self.query = RunQuery()
        """What is searched for now."""

    def _settled(self) -> None:
        self.query = parse_query(self.edit.text())
        put(self.problem, self.query.problem)
        self.changed.emit()

    def set_text(self, text: str) -> None:
        """Search for this at once."""
        self.edit.setText(text)
        self._timer.stop()
        self._settled()

    def show_counts(self, found: int, lines: Sequence[RunSummary]) -> None:
        """How many fit, of how many; and the tags that there are."""
        put(
            self.count,
            tr("{found} of {all} runs").format(found=count(found), all=count(len(lines)))
            if self.edit.text().strip()
            else "",
        )
        starred = sum(line.about.starred for line in lines)
        wanted = [(tr("Starred"), STARRED, starred)] if starred else []
        wanted += [(tag, _term(tag), number) for tag, number in tag_counts(lines)[:MOST_BUTTONS]]
        if wanted != self._shown:
            self._shown = wanted
            self._show_buttons()
        self._mark_buttons()

    def _show_buttons(self) -> None:
        for old in self.buttons():
            self._buttons.removeWidget(old)
            old.hide()
            old.deleteLater()
        for word, term, number in self._shown:
            cut = word if len(word) <= LONGEST_WORD else word[: LONGEST_WORD - 1] + "…"
            made = QPushButton(f"{cut}  {count(number)}".replace("&", "&&"))
            made.setCheckable(True)
            made.setToolTip(word[:500])
            made.setAccessibleName(tr("Only runs with {word}").format(word=word[:100]))
            made.setProperty("term", term)
            made.clicked.connect(lambda _on=False, term=term: self._toggle(term))
            self._buttons.addWidget(made, 0, Qt.AlignmentFlag.AlignVCenter)

    def buttons(self) -> list[QPushButton]:
        """The buttons of stars and tags."""
        found = (self._buttons.itemAt(place) for place in range(self._buttons.count()))
        return [made for item in found if item and isinstance(made := item.widget(), QPushButton)]

    def _mark_buttons(self) -> None:
        terms = set(parse_query(self.edit.text()).terms)
        for made in self.buttons():
            made.setChecked(set(parse_query(made.property("term")).terms) <= terms)

    def _toggle(self, term: str) -> None:
        text = self.edit.text()
        without = text.replace(term, "")
        self.set_text(" ".join((without if term in text else f"{text} {term}").split()))


def _term(tag: str) -> str:
    """How a tag is searched for."""
    clean = tag.replace('"', "")
    return f'tag:"{clean}"' if " " in clean else f"tag:{clean}"
