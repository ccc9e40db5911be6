"""The files of `assets/`: beside the packages in a checkout, inside the package in a wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).resolve().parent
_ROOTS: Final = (_HERE.parent / "assets", _HERE / "assets")
"""The checkout's own folder first, so that an edited icon shows without an installation."""


def asset(name: str) -> Path:
    """The path of `assets/<name>`; raises FileNotFoundError naming it when the installation lacks it."""
    for root in _ROOTS:
        if (root / name).exists():
            return root / name
    message = f"assets/{name} is missing from this installation of gradacc."
    raise FileNotFoundError(message)
