"""Where a run's numbers come from: versions, the source's commit, the machine. No torch."""

from __future__ import annotations

import platform
import subprocess
import sys
import threading
from pathlib import Path

import trainer_backend


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python, gradacc and these packages; one that is not installed is left out."""
    import importlib.metadata  # noqa: PLC0415 - it brings all of `email`, before the first fact

    found = {"python": platform.python_version(), "gradacc": trainer_backend.__version__}
    for package in packages:
        module = sys.modules.get(package)
        version = getattr(module, "__version__", None)
        if version is None:
            try:
                version = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                continue
        found[package] = str(version)
    return found


class Commit:
    """The commit of a folder's git checkout, asked for in the background: git may take seconds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found = ""
        self._thread = threading.Thread(target=self._ask, name="gradacc-commit", daemon=True)
        self._thread.start()

    def value(self, timeout_s: float = 2.0) -> str:
        """The commit, "-dirty" appended where files are changed; empty when there is none, or no answer."""
        self._thread.join(timeout_s)
        return self._found

    def _ask(self) -> None:
        head = self._git("rev-parse", "HEAD")
        if head:
            changed = self._git("status", "--porcelain", "--untracked-files=no")
            self._found = head + ("-dirty" if changed else "")

    def _git(self, *words: str) -> str:
        command = ["git", "-C", str(self._folder), *words]
        try:
            done = subprocess.run(  # noqa: PLW1510 - its exit code is looked at
                command, capture_output=True, text=True, timeout=5, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.SubprocessError):  # no git, or it hangs on a slow disk
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""
