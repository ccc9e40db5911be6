"""A process that goes on after the one that started it."""

from __future__ import annotations

import subprocess


class DetachedProcess(subprocess.Popen[bytes]):
    """A child that may be left to go on. One that is dropped while it lives is else warned of."""

    is_left = False

    def leave(self) -> None:
        """Let go of it, for a process that ends before it."""
        self.is_left = True

    def __del__(self) -> None:
        """Nothing is owed to a child that was left: whoever comes next reaps it."""
        if not self.is_left:
            super().__del__()
