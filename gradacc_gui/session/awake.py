"""Keep the system from sleeping while a run is live: an option, and it fails softly.

The system is asked by a small child that ends with this process (Linux, macOS) or by a call (Windows),
so that nothing stays held when the window is killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Final

from gradacc_gui.session.interpreter import cleaned_environment

WHY: Final = "A training run is live"


class Awake:
    """Holds the system awake between `hold` and `release`. No call of it waits."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._held = False
        self._problem = ""

    def hold(self) -> None:
        """Ask the system to stay awake; `problem` says later whether it would not."""
        if self._held:
            return
        self._held, self._problem = True, ""
        if sys.platform == "win32":
            self._problem = _windows(awake=True)
            return
        command = _command()
        if command is None:
            self._problem = (
                "This system has no way for gradacc to keep it awake (systemd-inhibit is not installed)."
                " Turn sleep off in its own settings."
            )
            return
        try:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=cleaned_environment(),
                start_new_session=True,
            )
        except OSError as error:
            self._problem = f"The system cannot be kept awake: {error.strerror} ({command[0]})."
            return
        if self._child.stderr is not None:
            os.set_blocking(self._child.stderr.fileno(), False)

    def problem(self) -> str:
        """A sentence when the system may sleep although it was asked not to; else empty."""
        if self._child is not None and self._child.poll() is not None:
            said = (self._child.stderr.read() if self._child.stderr is not None else None) or b""
            lines = said.decode("utf-8", "replace").strip().splitlines()
            self._close_child()
            why = f": {lines[-1]}" if lines else ""
            self._problem = f"The system cannot be kept awake{why}. Turn sleep off in its own settings."
        return self._problem if self._held else ""

    def release(self) -> None:
        """Let the system sleep again."""
        if not self._held:
            return
        self._held = False
        if sys.platform == "win32":
            _windows(awake=False)
        self._close_child()

    def _close_child(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        if child.stdin is not None:
            child.stdin.close()
        if child.stderr is not None:
            child.stderr.close()
        if child.poll() is None:
            child.kill()
            child.wait()  # a killed child is gone at once


def _command() -> list[str] | None:
    if sys.platform == "darwin":
        return ["caffeinate", "-i", "-w", str(os.getpid())]
    inhibit, cat = shutil.which("systemd-inhibit"), shutil.which("cat")
    if inhibit is None or cat is None:
        return None
    # cat ends when its input closes, and that is when this process ends, however it does.
    options = ["--what=sleep:idle", "--who=gradacc", f"--why={WHY}", "--mode=block"]
    return [inhibit, *options, cat]


def _windows(*, awake: bool) -> str:
    import ctypes  # noqa: PLC0415 - Windows only

    continuous, system_required = 0x80000000, 0x00000001
    flags = continuous | (system_required if awake else 0)
    done = ctypes.windll.kernel32.SetThreadExecutionState(flags)  # type: ignore[attr-defined,unused-ignore]
    return "" if done else "Windows refused to stay awake. Turn sleep off in its settings."
