"""What a check amounts to, first and in one line, with the figures of the first optimizer step."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QHBoxLayout, QVBoxLayout, QWidget

from gradacc_gui.checking.findings_panel import DECISIONS
from gradacc_gui.theme import set_role, space
from gradacc_gui.widgets.parts import IconLabel, clear_widget, label
from gradacc_gui.words import tr
from trainer_backend.preflight.check_words import title
from trainer_backend.preflight.findings import ClassShares, Finding, FirstWindow, PictureRow


class VerdictBar(QFrame):
    """Icon, headline, one more line, up to four figures."""

    def __init__(self) -> None:
        super().__init__()
        set_role(self, "panel")
        self._row = QHBoxLayout(self)
        self._row.setContentsMargins(space(4), space(2), space(4), space(2))
        self._row.setSpacing(space(4))
        self._icon: QWidget | None = None
        self._figures: QWidget | None = None
        words = QVBoxLayout()
        words.setSpacing(2)
        self.headline = label("", "headline")
        self.more = label("", "", wrap=True)
        words.addWidget(self.headline)
        words.addWidget(self.more)
        self._row.addLayout(words, 1)

    def say(self, headline: str, more: str, tone: str, figures: Sequence[tuple[str, str]]) -> None:
        """`tone`: "ok", "warning", "bad", or "" while nothing is decided."""
        self.headline.setText(headline)
        set_role(self.headline, f"headline-{tone}" if tone else "headline")
        self.more.setText(more)
        self.more.setVisible(bool(more))
        self.setAccessibleName(f"{headline} {more}".strip())
        for old in (self._icon, self._figures):
            if old is not None:
                self._row.removeWidget(old)
                old.hide()
                old.deleteLater()
        name = {"ok": "check", "warning": "warning", "bad": "warning"}.get(tone, "info")
        self._icon = IconLabel(name, tone or "muted", 28)
        self._row.insertWidget(0, self._icon)
        self._figures = clear_widget()
        row = QHBoxLayout(self._figures)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(space(6))
        for value, name in figures:
            row.addWidget(_figure(value, name), 0, Qt.AlignmentFlag.AlignTop)
        self._row.addWidget(self._figures)


def _figure(value: str, name: str) -> QWidget:
    holder = clear_widget()
    column = QVBoxLayout(holder)
    column.setContentsMargins(0, 0, 0, 0)
    column.setSpacing(0)
    column.addWidget(label(value, "number"))
    column.addWidget(label(name, "help"))
    return holder


def verdict_words(findings: Sequence[Finding], accepted: frozenset[str]) -> tuple[str, str, str]:
    """Headline, the line below it, and the tone."""
    stops = [entry for entry in findings if entry.state == "stop" and entry.code not in accepted]
    doubts = sum(1 for entry in findings if entry.state == "doubtful")
    waits = sum(1 for entry in findings if entry.state == "waits")
    warned = (
        tr("1 warning, which does not prevent the start.")
        if doubts == 1
        else tr("{count} warnings, which do not prevent the start.").format(count=doubts)
    )
    if stops:
        decisions = all(entry.code in DECISIONS for entry in stops)
        words = _stops_words(len(stops), decisions=decisions)
        named = tr("{names}.").format(names=", ".join(title(entry, tr) for entry in stops))
        return words, f"{named} {warned}" if doubts else named, "warning" if decisions else "bad"
    if waits:
        more = tr("Checks that need the model could not be run.")
        return (
            tr("Ready to start, as far as it was checked"),
            f"{more} {warned}" if doubts else more,
            "warning",
        )
    if doubts:
        return tr("Ready to start"), warned, "warning"
    return tr("Ready to start"), tr("All checks passed."), "ok"


def _stops_words(count: int, *, decisions: bool) -> str:
    if decisions:
        return (
            tr("1 decision to make before starting")
            if count == 1
            else tr("{count} decisions to make before starting").format(count=count)
        )
    return (
        tr("1 problem to fix before starting")
        if count == 1
        else tr("{count} problems to fix before starting").format(count=count)
    )


def figures_of(window: FirstWindow, shares: ClassShares | None) -> list[tuple[str, str]]:
    """The figures of a first step, for text and for pictures."""
    found: list[tuple[str, str]] = []
    is_pictures = any(isinstance(row, PictureRow) for row in window.rows)
    if is_pictures:
        if window.records:
            found.append((f"{window.records:,}", _pictures_words(shares)))
        if window.height_width is not None:
            height, width = window.height_width
            found.append((f"{width:,} × {height:,}", tr("pixels each")))
        if window.samples:
            found.append((f"{window.samples:,}", tr("samples per epoch")))
    elif window.samples and window.records and window.records != window.samples:
        found.append((f"{window.samples / window.records:.2f}", tr("rows per record")))
    elif window.samples:
        found.append((f"{window.samples:,}", tr("samples per epoch")))
    if window.denominator is not None:
        what = tr("D, {unit} learnt in step 1").format(unit=window.unit)
        found.append((_short(window.denominator), what))
    if not is_pictures and window.padding_ratio is not None:
        found.append((f"{window.padding_ratio:.0%}".replace("%", " %"), tr("padding")))
    if window.longest and window.longest_allowed:
        words = tr("longest sample, of {allowed:,}").format(allowed=window.longest_allowed)
        found.append((f"{window.longest:,}", words))
    return found


def _pictures_words(shares: ClassShares | None) -> str:
    return tr("pictures with a mask") if shares is not None and shares.what == "pixels" else tr("pictures")


def _short(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.3g} M"
    return f"{value:,.0f}" if value == round(value) else f"{value:,.4g}"
