"""An error on a logarithmic line with its limit: how far from the limit is seen at a glance."""

from __future__ import annotations

import math
from typing import Final

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QWidget

from gradacc_gui.theme import current_theme

LOWEST: Final = -17.0
"""Power of ten at the left end; smaller errors lie on it."""


class ErrorScale(QWidget):
    """A hairline from 1e-17 to 1, a tick at the limit, a dot at the error."""

    def __init__(self, error: float, limit: float, token: str) -> None:
        """`token` is the dot's colour in the theme, such as "ok" or "bad"."""
        super().__init__()
        self._error = error
        self._limit = limit
        self._token = token
        self.setMinimumWidth(80)
        self.setAccessibleName(f"{error:.1e} / {limit:.1e}")
        self.setToolTip(f"{error:.2e}  ≤  {limit:.2e}" if error <= limit else f"{error:.2e}  >  {limit:.2e}")

    def sizeHint(self) -> QSize:
        """Wide enough for seventeen powers of ten."""
        return QSize(110, 20)

    def share(self, value: float) -> float:
        """Where on the line a value lies, 0 … 1."""
        if math.isnan(value):
            return 1.0
        power = LOWEST if value <= 0 else min(max(math.log10(value), LOWEST), 0.0)
        return 1 - power / LOWEST

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Line, allowed part, limit, dot."""
        theme = current_theme()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        left, width, middle = 6.0, self.width() - 12.0, self.height() / 2
        limit = left + width * self.share(self._limit)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(theme.line))
        painter.drawRoundedRect(QRectF(left, middle - 1.5, width, 3), 1.5, 1.5)
        painter.setPen(QPen(QColor(theme.muted), 1.5))
        painter.drawLine(QPointF(limit, middle - 6), QPointF(limit, middle + 6))
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(getattr(theme, self._token)))
        painter.drawEllipse(QPointF(left + width * self.share(self._error), middle), 4.5, 4.5)
        painter.end()
