"""A certificate in widgets: verdict, culprits with remedies, the table, worst layers, how it was made."""

from __future__ import annotations

import math
from typing import Final

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QGridLayout, QHBoxLayout, QLabel, QVBoxLayout, QWidget

from gradacc_gui.theme import set_role, space
from gradacc_gui.widgets.drawings import ErrorScale
from gradacc_gui.widgets.parts import ElidedLabel, IconLabel, Panel, label, rule
from gradacc_gui.widgets.small_table import SmallTable, show_published
from gradacc_gui.words import tr
from trainer_backend.verify import sentences
from trainer_backend.verify.report import Comparison, Culprit, VerifyReport

TOKENS: Final = {"equal": "ok", "per-micro-batch": "warning", "not-equal": "bad"}
ICONS: Final = {"equal": "check", "per-micro-batch": "info", "not-equal": "warning"}
_LONGEST_SIZES: Final = 16
_SIDE: Final = 284
_TABLE: Final = 520
"""Names and values of a narrow table: farther apart, no eye would follow."""


class ReportView(QWidget):
    """Everything that a certificate says; built anew for each."""

    def __init__(self, report: VerifyReport) -> None:
        super().__init__()
        self.setObjectName("clear")
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(space(3))
        column.addWidget(VerdictPanel(report))
        row = QHBoxLayout()
        row.setSpacing(space(3))
        left, right = QVBoxLayout(), QVBoxLayout()
        for side in (left, right):
            side.setSpacing(space(3))
        if report.culprits:
            left.addWidget(Culprits(report))
        left.addWidget(Comparisons(report))
        if report.published:
            left.addWidget(Published(report))
        left.addStretch(1)
        right.addWidget(WorstLayers(report))
        right.addWidget(Provenance(report))
        if report.remarks:
            right.addWidget(Remarks(report))
        right.addStretch(1)
        holder = QWidget()
        holder.setObjectName("clear")
        holder.setFixedWidth(_SIDE)
        right.setContentsMargins(0, 0, 0, 0)
        holder.setLayout(right)
        row.addLayout(left, 1)
        row.addWidget(holder)
        column.addLayout(row, 1)


class VerdictPanel(QFrame):
    """The verdict, big and in words."""

    def __init__(self, report: VerifyReport) -> None:
        super().__init__()
        set_role(self, "panel")
        token = TOKENS[report.verdict]
        row = QHBoxLayout(self)
        row.setContentsMargins(space(4), space(4), space(4), space(4))
        row.setSpacing(space(4))
        row.addWidget(IconLabel(ICONS[report.verdict], token, 36), 0, Qt.AlignmentFlag.AlignTop)
        words_column = QVBoxLayout()
        words_column.setSpacing(space(1))
        self.headline = label(sentences.VERDICTS[report.verdict], f"verdict-{token}", wrap=True)
        self.meaning = label(sentences.meaning(report, tr), wrap=True)
        words_column.addWidget(self.headline)
        words_column.addWidget(self.meaning)
        declared = tr(sentences.VERDICTS[report.expected])
        self.declared = label(
            tr("As declared in the recipe.") if report.as_declared else sentences.headline(report, tr) + ".",
            "ok" if report.as_declared else "error",
            wrap=True,
        )
        self.declared.setToolTip(tr("accumulation.verdict: {declared}").format(declared=declared))
        words_column.addWidget(self.declared)
        row.addLayout(words_column, 1)
        for name, value in (
            (
                tr("largest error, {reference}").format(reference=report.reference),
                _worst(report, report.reference),
            ),
            (
                tr("largest error, {precision}").format(precision=report.precision),
                _worst(report, report.precision),
            ),
        ):
            row.addWidget(_figure(name, value), 0, Qt.AlignmentFlag.AlignTop)
        self.setAccessibleName(self.headline.text())


def _worst(report: VerifyReport, precision: str) -> str:
    errors = [entry.error for entry in report.comparisons if entry.precision == precision]
    return sentences.small(max(errors, key=lambda error: (math.isnan(error), error))) if errors else "–"


def _figure(name: str, value: str) -> QWidget:
    holder = QWidget()
    holder.setObjectName("clear")
    column = QVBoxLayout(holder)
    column.setContentsMargins(0, 0, 0, 0)
    column.setSpacing(0)
    column.addWidget(label(value, "number"))
    column.addWidget(label(name, "help"))
    return holder


class Culprits(Panel):
    """What breaks equality, where, and what can be done."""

    def __init__(self, report: VerifyReport) -> None:
        stated = report.verdict == "per-micro-batch"
        super().__init__(
            tr("Defined per micro-batch") if stated else tr("What breaks equivalence, and what to do")
        )
        for number, entry in enumerate(report.culprits):
            if number:
                self.body.addWidget(rule())
            self.body.addWidget(_culprit(entry))


def _culprit(entry: Culprit) -> QWidget:
    sentence, remedy = sentences.culprit(entry, tr)
    holder = QWidget()
    holder.setObjectName("clear")
    row = QHBoxLayout(holder)
    row.setContentsMargins(0, 0, 0, 0)
    row.setSpacing(space(3))
    token = "warning" if entry.stated else "bad"
    row.addWidget(IconLabel("info" if entry.stated else "warning", token, 18), 0, Qt.AlignmentFlag.AlignTop)
    column = QVBoxLayout()
    column.setSpacing(space(1))
    column.addWidget(label(sentence, "title", wrap=True))
    if entry.where and entry.code != "engine-fault":
        where = ElidedLabel(", ".join(entry.where), "help")
        column.addWidget(where)
    column.addWidget(label(remedy, "muted", wrap=True))
    row.addLayout(column, 1)
    return holder


class Comparisons(Panel):
    """N by precision: error against limit."""

    HEADS: Final = ("N", "micro-batches", "cut", "precision", "error", "", "limit", "loss", "D", "")
    NUMERIC: Final = frozenset({0, 4, 6, 7, 8})

    def __init__(self, report: VerifyReport) -> None:
        super().__init__(
            tr("One large batch compared with N micro-batches"), tr("relative L2 of the gradient")
        )
        self.grid = QGridLayout()
        self.grid.setHorizontalSpacing(space(3))
        self.grid.setVerticalSpacing(space(1))
        self.grid.setColumnStretch(5, 1)
        for place, head in enumerate(self.HEADS):
            self.grid.addWidget(_cell(tr(head) if head else "", place in self.NUMERIC, "help"), 0, place)
        before = ""
        line = 1
        for entry in report.comparisons:
            if before and entry.precision != before:
                self.grid.addWidget(rule(), line, 0, 1, len(self.HEADS))
                line += 1
            before = entry.precision
            self._add(line, entry)
            line += 1
        self.body.addLayout(self.grid)

    def _add(self, line: int, entry: Comparison) -> None:
        colour = "bad" if not entry.holds else "ok" if entry.equals_large_batch else "warning"
        role = "error" if colour == "bad" else colour
        texts = (
            str(entry.steps), sentences.sizes(entry), tr(sentences.FOLDS[entry.fold]), entry.precision,
            sentences.small(entry.error), None, sentences.small(entry.limit), sentences.plain(entry.loss),
            sentences.plain(entry.denominator), sentences.holds(entry, tr),
        )  # fmt: skip
        for place, text in enumerate(texts):
            if text is None:
                self.grid.addWidget(ErrorScale(entry.error, entry.limit, colour), line, place)
                continue
            style = role if place == len(texts) - 1 else "muted" if place in (1, 2, 3, 6) else ""
            cell = _cell(text if place != 1 else _cut(text), place in self.NUMERIC, style)
            if place == 1:
                cell.setToolTip(", ".join(map(str, entry.sizes)))
            if place == 4:
                cell.setToolTip(
                    tr("α = {alpha}, cosine {cosine}; by the task's own definition {error}").format(
                        alpha=sentences.plain(entry.alpha), cosine=sentences.plain(entry.cosine),
                        error=sentences.small(entry.definition_error),
                    )
                )  # fmt: skip
            self.grid.addWidget(cell, line, place)


def _cut(sizes: str) -> str:
    """Long lists of sizes are in the tool-tip."""
    return sizes if len(sizes) <= _LONGEST_SIZES else sizes[: _LONGEST_SIZES - 2].rsplit(",", 1)[0] + ", …"


def _cell(text: str, numeric: bool, role: str) -> QLabel:
    made = label(text, role)
    side = Qt.AlignmentFlag.AlignRight if numeric else Qt.AlignmentFlag.AlignLeft
    made.setAlignment(side | Qt.AlignmentFlag.AlignVCenter)
    return made


class Published(Panel):
    """What the recipe says was published beside what it asks for; what differs stands out."""

    def __init__(self, report: VerifyReport) -> None:
        super().__init__(tr("Published settings, for comparison"), report.published_source)
        table = SmallTable(tr("Published settings, for comparison"))
        table.setMaximumWidth(_TABLE)
        show_published(table, report.published)
        self.body.addWidget(table)


class WorstLayers(Panel):
    """The tensors that differ most, of the comparison that says most."""

    def __init__(self, report: VerifyReport) -> None:
        entry = sentences.worst_comparison(report)
        hint = "" if entry is None else f"N = {entry.steps}, {entry.precision}"
        super().__init__(tr("Worst layers"), hint)
        for layer in () if entry is None else entry.worst_layers:
            row = QHBoxLayout()
            row.setSpacing(space(2))
            row.addWidget(ElidedLabel(layer.name, ""), 1)
            row.addWidget(label(sentences.small(layer.error), "muted" if layer.holds else "error"))
            self.body.addLayout(row)


class Provenance(Panel):
    """What was certified, with what."""

    def __init__(self, report: VerifyReport) -> None:
        super().__init__(tr("How it was checked"))
        for name, value in sentences.facts(report, tr):
            row = QHBoxLayout()
            row.setSpacing(space(3))
            row.addWidget(label(tr(name), "help"))
            row.addStretch(1)
            shown = ElidedLabel(value, "")
            shown.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
            row.addWidget(shown, 4)
            self.body.addLayout(row)
        self.body.addWidget(rule())
        for floor in report.floors:
            text = tr("Rounding floor ({precision}): same order {repeat}, reversed order {order}").format(
                precision=floor.precision,
                repeat=sentences.small(floor.repeat),
                order=sentences.small(floor.order),
            )
            self.body.addWidget(label(text, "help", wrap=True))


class Remarks(Panel):
    """How the certificate knows less than usual, or what else was seen."""

    def __init__(self, report: VerifyReport) -> None:
        super().__init__(tr("Remarks"))
        for entry in report.remarks:
            self.body.addWidget(label(sentences.remark(entry, tr), "muted", wrap=True))
