"""The look: colours, spacing, type and icons, for dark and light.

One style sheet (`assets/themes/gradacc.qss`) is filled from a `Theme`'s tokens. Widgets say what they are
by the dynamic property `role`, set through `set_role`:

    QFrame        panel | notice | notice-warning | notice-bad
    QLabel        page-title | title | number | number-accent | number-bad |
                  help | muted | error | ok | warning | pending | answered | refused
    QPushButton   primary | quiet | link | segment, segment-first (checkable); QToolButton: nav | quiet
    QLineEdit, QSpinBox …   invalid

A widget that paints by itself reads `current_theme()` when it is built and again in `changeEvent`
when `QEvent.Type.PaletteChange` comes.
"""

from __future__ import annotations

import functools
from string import Template
from typing import Final, Literal, TypeAlias

import msgspec
from PySide6.QtCore import QByteArray, QEvent, QObject, QRectF, QSize, Qt, Signal, Slot
from PySide6.QtGui import QColor, QFont, QFontDatabase, QGuiApplication, QIcon, QPainter, QPalette, QPixmap
from PySide6.QtSvg import QSvgRenderer
from PySide6.QtWidgets import QApplication, QWidget

from gradacc_gui.assets import asset

STEP: Final = 4
"""Spacing comes in steps of 4 logical pixels: use `space(n)`."""
ThemeChoice: TypeAlias = Literal["system", "dark", "light"]


class Theme(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of one colour scheme, as "#rrggbb"."""

    name: Literal["dark", "light"]
    background: str
    panel: str
    raised: str
    line: str
    text: str
    muted: str
    accent: str
    on_accent: str
    """Text on a surface filled with the accent."""
    ok: str
    warning: str
    bad: str
    series: tuple[str, ...]
    """Sky, orange, green, pink, vermilion: safe for colour-blind eyes; the order is fixed."""

    @property
    def is_dark(self) -> bool:
        """Whether text is lighter than what it stands on."""
        return self.name == "dark"


DARK: Final = Theme(
    name="dark",
    background="#14161a",
    panel="#1b1e24",
    raised="#22262e",
    line="#2b303a",
    text="#e7e9ed",
    muted="#8a93a3",
    accent="#5aa2ff",
    on_accent="#0b1220",
    ok="#3fb98a",
    warning="#e6a23c",
    bad="#e5646a",
    series=("#56B4E9", "#E69F00", "#22b68a", "#CC79A7", "#E8703A"),
)
LIGHT: Final = Theme(
    name="light",
    background="#f4f5f7",
    panel="#ffffff",
    raised="#f0f2f5",
    line="#dde1e7",
    text="#1b1f26",
    muted="#68717f",
    accent="#1565d8",
    on_accent="#ffffff",
    ok="#12805c",
    warning="#a15c00",
    bad="#c2323a",
    series=("#0072B2", "#B87300", "#008060", "#A8507F", "#C24A00"),
)


def space(steps: int) -> int:
    """`steps` steps of the spacing scale, in logical pixels."""
    return STEP * steps


def mix(first: str, second: str, share: float) -> str:
    """`first` with `share` (0 … 1) of `second` mixed in, as "#rrggbb"."""
    one, two = QColor(first), QColor(second)
    pairs = ((one.red(), two.red()), (one.green(), two.green()), (one.blue(), two.blue()))
    return QColor(*(round(a + (b - a) * share) for a, b in pairs)).name()


def style_sheet(theme: Theme) -> str:
    """The application's one style sheet in `theme`'s colours."""
    text = Template(asset("themes/gradacc.qss").read_text(encoding="utf-8"))
    tokens = {
        key: value for key, value in msgspec.structs.asdict(theme).items() if isinstance(value, str)
    } | {
        "hover": mix(theme.raised, theme.text, 0.06),
        "pressed": mix(theme.raised, theme.text, 0.12),
        "accent_hover": mix(theme.accent, theme.text, 0.12),
        "accent_soft": mix(theme.panel, theme.accent, 0.14),
        "warning_soft": mix(theme.panel, theme.warning, 0.10),
        "bad_soft": mix(theme.panel, theme.bad, 0.10),
        "faint": mix(theme.muted, theme.panel, 0.45),
        "check_icon": _icon_file_url("check", theme),
        "down_icon": _icon_file_url("chevron-down", theme),
    }
    return text.substitute(tokens)


def _icon_file_url(name: str, theme: Theme) -> str:
    """A path for `image: url(…)`; there is a file for each colour scheme, as style sheets cannot tint."""
    return asset(f"icons/{name}-{theme.name}.svg").as_posix()


def palette(theme: Theme) -> QPalette:
    """What Fusion draws without the style sheet: dialogs, selections, tool-tips."""
    result = QPalette()
    role = QPalette.ColorRole
    colours = {
        role.Window: theme.background,
        role.WindowText: theme.text,
        role.Base: theme.raised,
        role.AlternateBase: theme.panel,
        role.Text: theme.text,
        role.Button: theme.raised,
        role.ButtonText: theme.text,
        role.BrightText: theme.bad,
        role.Highlight: theme.accent,
        role.HighlightedText: theme.on_accent,
        role.Link: theme.accent,
        role.ToolTipBase: theme.raised,
        role.ToolTipText: theme.text,
        role.PlaceholderText: theme.muted,
        role.Light: theme.raised,
        role.Mid: theme.line,
        role.Dark: theme.line,
    }
    for key, value in colours.items():
        result.setColor(key, QColor(value))
    for key in (role.WindowText, role.Text, role.ButtonText):
        result.setColor(QPalette.ColorGroup.Disabled, key, QColor(theme.muted))
    return result


def current_theme() -> Theme:
    """The theme that the running application shows."""
    return DARK if QApplication.palette().color(QPalette.ColorRole.Window).lightness() < 128 else LIGHT


class Themes(QObject):
    """Keeps the application in the chosen theme; "system" follows the desktop while it changes."""

    changed = Signal(object)
    """The new `Theme`, after it was applied."""

    def __init__(self, app: QApplication, choice: ThemeChoice = "system") -> None:
        super().__init__(app)
        self._app = app
        self._choice: ThemeChoice = choice
        self._worn: Theme | None = None
        app.styleHints().colorSchemeChanged.connect(self._follow)
        self._follow()

    @property
    def choice(self) -> ThemeChoice:
        """What the user asked for."""
        return self._choice

    @property
    def current(self) -> Theme:
        """The theme that is worn now."""
        assert self._worn is not None
        return self._worn

    def choose(self, choice: ThemeChoice) -> None:
        """Wear `choice` from now on."""
        self._choice = choice
        self._follow()

    @Slot()
    def _follow(self) -> None:
        dark_desktop = QGuiApplication.styleHints().colorScheme() == Qt.ColorScheme.Dark
        is_dark = dark_desktop if self._choice == "system" else self._choice == "dark"
        wanted = DARK if is_dark else LIGHT
        if wanted is self._worn:
            return
        self._worn = wanted
        self._app.setPalette(palette(wanted))
        self._app.setStyleSheet(style_sheet(wanted))
        self.changed.emit(wanted)


_BETTER_FACES: Final = ("Inter", "Cantarell", "Ubuntu", "Noto Sans", "Open Sans")


def _face() -> str:
    """The desktop's face; where there is no desktop (bare X, offscreen), the first better one installed."""
    asked = QFontDatabase.systemFont(QFontDatabase.SystemFont.GeneralFont).family()
    if asked.startswith(("DejaVu", "Sans", "Nimbus", "Bitstream")):
        installed = set(QFontDatabase.families())
        return next((face for face in _BETTER_FACES if face in installed), asked)
    return asked


def application_font(pixels: int = 13, *, bold: bool = False) -> QFont:
    """The system's own face with tabular figures, so that counting numbers do not dance."""
    font = QFont(_face())
    font.setPixelSize(pixels)
    font.setFeature(QFont.Tag("tnum"), 1)
    if bold:
        font.setWeight(QFont.Weight.DemiBold)
    return font


def mono_font(pixels: int = 12) -> QFont:
    """The system's fixed-width face, for logs."""
    font = QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont)
    font.setPixelSize(pixels)
    return font


def set_role(widget: QWidget, role: str) -> None:
    """Make the style sheet treat `widget` as `role`; may be called again on a shown widget."""
    if widget.property("role") == role:
        return
    widget.setProperty("role", role)
    if not widget.testAttribute(Qt.WidgetAttribute.WA_WState_Polished):
        return  # its first showing will read the role; doing it twice is half of a page's building time
    style = widget.style()
    style.unpolish(widget)
    style.polish(widget)
    # A frame takes its padding and border from the style only when it is told that the style changed.
    QApplication.sendEvent(widget, QEvent(QEvent.Type.StyleChange))
    widget.updateGeometry()


@functools.lru_cache(maxsize=256)
def icon(name: str, colour: str, pixels: int = 20, *, gap: int = 0) -> QIcon:
    """`assets/icons/<name>.svg` drawn in `colour`, sharp at scale factors 1, 2 and 3.

    gap: empty pixels at its right, before a word.
    """
    source = asset(f"icons/{name}.svg").read_text(encoding="utf-8").replace("currentColor", colour)
    renderer = QSvgRenderer(QByteArray(source.encode()))
    result = QIcon()
    for ratio in (1, 2, 3):
        pixmap = QPixmap(QSize(pixels + gap, pixels) * ratio)
        pixmap.fill(Qt.GlobalColor.transparent)
        painter = QPainter(pixmap)
        renderer.render(painter, QRectF(0, 0, pixels * ratio, pixels * ratio))
        painter.end()
        pixmap.setDevicePixelRatio(ratio)
        result.addPixmap(pixmap)
    return result
