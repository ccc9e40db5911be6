"""What the window remembers between two starts: recent recipes, interpreters, the draft."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from gradacc_gui.assets import asset
from gradacc_gui.recipe.draft import Kept
from gradacc_gui.remembered import Remembered
from trainer_backend.private_files import home, make_private

MOST_RECENT: Final = 10
MOST_ASIDE: Final = 20
"""Sets of edits that are kept while other recipes are open."""


class FormMemory(Remembered):
    """What the form remembers in the window's file, and the drafts beside it."""

    def _texts(self, key: str) -> list[str]:
        value = self._settings.value(key, [])
        if isinstance(value, str):  # Qt reads a list of one back as a text
            return [value]
        return [str(item) for item in value] if isinstance(value, list) else []

    def recent_recipes(self) -> list[Path]:
        """Recipes opened or saved before, the newest first; those that are gone are left out."""
        return [path for text in self._texts("form/recent") if (path := Path(text)).is_file()]

    def remember_recipe(self, path: Path) -> None:
        """Put a recipe first among the recent ones."""
        text = str(path.absolute())
        others = [other for other in self._texts("form/recent") if other != text]
        self._set("form/recent", [text, *others][:MOST_RECENT])

    def interpreters(self) -> list[str]:
        """Interpreters that were browsed for before."""
        return self._texts("form/interpreters")

    def remember_interpreter(self, path: str) -> None:
        """Put an interpreter first among those browsed for."""
        others = [other for other in self.interpreters() if other != path]
        self._set("form/interpreters", [path, *others][:MOST_RECENT])

    def last_interpreter(self) -> str:
        """The one used last; empty: none yet."""
        return str(self._settings.value("form/interpreter", ""))

    def use_interpreter(self, path: str) -> None:
        """The next start of the window begins with this one."""
        self._set("form/interpreter", path)

    def draft(self) -> Kept | None:
        """What was typed and not saved; None: nothing, or nothing that is understood."""
        try:
            return msgspec.json.decode(_path("draft").read_bytes(), type=Kept)
        except (OSError, msgspec.DecodeError):
            return None

    def keep_draft(self, kept: Kept | None) -> None:
        """Keep what is typed over a restart; None forgets it."""
        _write("draft", kept)

    def aside(self) -> list[Kept]:
        """Edits that made way for another recipe, the newest first."""
        try:
            found = msgspec.json.decode(_path("aside").read_bytes(), type=Kept | list[Kept])
        except (OSError, msgspec.DecodeError):
            return []
        return found if isinstance(found, list) else [found]  # an earlier version kept one

    def keep_aside(self, kept: Sequence[Kept]) -> None:
        """Keep these, the newest first, over a restart; beyond `MOST_ASIDE` the oldest go."""
        _write("aside", list(kept)[:MOST_ASIDE] or None)


def _path(name: str) -> Path:
    return home() / f"form-{name}.json"


def _write(name: str, content: object) -> None:
    """Write beside and rename, so that a crash leaves the former content; None removes it."""
    path = _path(name)
    try:
        if content is None:
            path.unlink(missing_ok=True)
            return
        make_private(home())
        beside = path.with_suffix(".part")
        beside.write_bytes(msgspec.json.encode(content))
        beside.replace(path)
    except OSError:
        # Keeping a draft is a courtesy; a full disk must not stop the person who types.
        return


def bundled_recipes() -> list[Path]:
    """The recipes that come with gradacc."""
    try:
        return sorted(asset("recipes").glob("*.toml"))
    except FileNotFoundError:
        return []


def is_bundled(path: Path | None) -> bool:
    """Whether a recipe belongs to the installation, which is not written to."""
    return path is not None and path.resolve() in [each.resolve() for each in bundled_recipes()]
