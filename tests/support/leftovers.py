"""What a test left behind: threads, processes, live runs, top-level widgets, running timers.

Looks at Qt only where Qt is loaded already, so that a test without a window pays for none.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import psutil

from tests.support import fork_server

HELPERS_OF_PYTHON = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""Processes that Python keeps until its own end once they were needed; `fork_server` is ours."""

_started_timers: weakref.WeakSet[Any] = weakref.WeakSet()


class Watch:
    """Remembers what there was before a test, and tells what is there besides afterwards."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._threads = set(threading.enumerate())
        self._children = {child.pid for child in _children()}
        self._widgets = {id(widget) for widget in _top_level_widgets()}
        self._timers = {id(timer) for timer in _active_timers()}
        _watch_timers()

    def left(self) -> list[str]:
        """A sentence part for each thing that is there now and was not there before."""
        _delete_what_is_to_be_deleted()
        if self._new_widgets() or self._new_timers() or self._new_children():
            gc.collect()  # a cycle of the test's own may still hold them
            _delete_what_is_to_be_deleted()
        return [
            *(f"thread {thread.name!r}" for thread in self._new_threads()),
            *(f"process {_describe(child)}" for child in self._new_children()),
            *(f"live run {run.name!r}" for run in self._live_runs()),
            *(f"top-level widget {widget!r}" for widget in self._new_widgets()),
            *(f"running timer {timer!r}" for timer in self._new_timers()),
        ]

    def clear(self) -> None:
        """End what can be ended, so that only the test that left it fails."""
        for run in self._live_runs():
            _kill_trainer(run)
        for child in self._new_children():
            child.kill()
        psutil.wait_procs(self._new_children(), timeout=5)
        for timer in self._new_timers():
            timer.stop()
        for widget in self._new_widgets():
            widget.close()
            widget.deleteLater()
        _delete_what_is_to_be_deleted()

    def _new_threads(self) -> list[threading.Thread]:
        # Dummies stand for threads that others started (Qt's); Python lists those for ever.
        return [
            thread
            for thread in threading.enumerate()
            if thread not in self._threads
            and thread.is_alive()
            and not isinstance(thread, threading._DummyThread)
        ]

    def _new_children(self) -> list[psutil.Process]:
        return [
            child
            for child in _children()
            if child.pid not in self._children
            and not any(helper in _describe(child) for helper in HELPERS_OF_PYTHON)
        ]

    def _live_runs(self) -> list[Path]:
        runs = self._home / "runs"
        if not runs.is_dir():
            return []
        from trainer_backend.run_directory import RunDirectory

        return [path for path in runs.iterdir() if RunDirectory(path).is_alive()]

    def _new_widgets(self) -> list[Any]:
        return [widget for widget in _top_level_widgets() if id(widget) not in self._widgets]

    def _new_timers(self) -> list[Any]:
        return [timer for timer in _active_timers() if id(timer) not in self._timers]


def _children() -> list[psutil.Process]:
    """This process's own, without the fork server, and the trainers that the server forked for it."""
    server = fork_server.server_pid()
    own = [child for child in _children_of(psutil.Process().pid) if child.pid != server]
    return own if server is None else own + _children_of(server)


def _children_of(pid: int) -> list[psutil.Process]:
    try:
        return [child for child in psutil.Process(pid).children() if child.is_running()]
    except psutil.NoSuchProcess:
        return []


def _describe(process: psutil.Process) -> str:
    try:
        command = " ".join(" ".join(process.cmdline()).split())
        return f"{process.pid} ({process.status()}: {command[:200]})"
    except psutil.NoSuchProcess:
        return f"{process.pid} (just ended)"


def _kill_trainer(run: Path) -> None:
    from trainer_backend.run_directory import RunDirectory

    pid = RunDirectory(run).pid()
    if pid is not None and pid != psutil.Process().pid and psutil.pid_exists(pid):
        psutil.Process(pid).kill()


def _application() -> Any:
    widgets = sys.modules.get("PySide6.QtWidgets")
    return None if widgets is None else widgets.QApplication.instance()


def _top_level_widgets() -> list[Any]:
    application = _application()
    return [] if application is None else list(application.topLevelWidgets())


def _delete_what_is_to_be_deleted() -> None:
    application = _application()
    if application is not None:
        core = sys.modules["PySide6.QtCore"]
        application.sendPostedEvents(None, core.QEvent.Type.DeferredDelete.value)


def _active_timers() -> list[Any]:
    if not _started_timers:
        return []
    from shiboken6 import isValid

    return [timer for timer in list(_started_timers) if isValid(timer) and timer.isActive()]


def _watch_timers() -> None:
    """Make QTimer.start remember its timer: Qt has no list of them."""
    core = sys.modules.get("PySide6.QtCore")
    if core is None or hasattr(core.QTimer.start, "watched"):
        return
    start = core.QTimer.start

    def remembered_start(self: Any, *args: Any) -> None:
        _started_timers.add(self)
        start(self, *args)

    remembered_start.watched = True  # type: ignore[attr-defined]  # a mark on a function
    core.QTimer.start = remembered_start
