"""A command of the trainer beside the window, with an outcome. Nothing here waits in the GUI thread."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

import msgspec
import tomlkit
from PySide6.QtCore import QObject, QProcess, QTimer, Signal

from gradacc_gui.session.background import Background
from gradacc_gui.session.interpreter import Interpreter, installs, probe, trainer_environment
from gradacc_gui.standby import Standby, TrainerProgram, process_of, start_trainer
from gradacc_gui.words import tr
from trainer_backend.errors import GradaccError
from trainer_backend.recipe import parse_document

TICK_MS: Final = 40
LINES_KEPT: Final = 12


class PreparedJob(msgspec.Struct, frozen=True):
    """What a start needs; found out by a thread, for the probe waits."""

    executable: str
    environment: dict[str, str]
    folder: str
    """A folder of its own, with the recipe in it."""


class SideJob(QObject):
    """One process at a time: `start`, then one outcome of the subclass's, or `failed`, or `cancelled`."""

    failed = Signal(str, str)
    """A sentence, and the last lines that the process printed."""
    cancelled = Signal()
    keeps_folder: ClassVar[bool] = False
    """Whether what the process wrote beside its recipe is shown, and stays until the next start."""
    reads_lines: ClassVar[bool] = False
    """Whether it stays and is told more by `tell`."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._background: Background | None = None
        self._warming: Background | None = None
        self._process: QProcess | None = None
        self._folder = ""
        self._generation = 0
        """Raised by each start and each cancel, so that what comes late is known as late."""
        self._started = 0
        self._rest = b""
        self._errors: list[str] = []
        self._standby = Standby(self)
        self._timer = QTimer(self)
        self._timer.setInterval(TICK_MS)
        self._timer.timeout.connect(self._poll)

    # ------------------------------------------------------------------ what a subclass says

    def arguments(self, recipe: Path) -> Sequence[str]:
        """What comes behind `python -m trainer_backend`."""
        raise NotImplementedError

    def take(self, line: bytes) -> None:
        """One line of its output. Raises msgspec.MsgspecError for a line that is none of ours."""
        raise NotImplementedError

    def ended(self) -> bool:
        """Tell what came out; False where nothing did."""
        raise NotImplementedError

    def forget(self) -> None:
        """A new start: what an earlier one gave is not its own."""
        raise NotImplementedError

    # --------------------------------------------------------------------------- its surface

    @property
    def is_running(self) -> bool:
        """Whether it is under way, or about to be."""
        return self._process is not None or self._background is not None

    def start(
        self,
        config_text: str,
        source_folder: Path,
        interpreter: str,
        *,
        name: str = "",
        known: Interpreter | None = None,
    ) -> None:
        """Begin; does nothing while one is under way. `known`: what a probe found already."""
        if self.is_running:
            return
        self._errors, self._rest = [], b""
        self.forget()
        self._clear_folder()
        self._generation += 1
        generation = self._started = self._generation

        def ready(prepared: PreparedJob) -> None:
            if generation != self._generation:
                shutil.rmtree(prepared.folder, ignore_errors=True)
            else:
                self._launch(prepared)

        def refused(sentence: str) -> None:
            if generation == self._generation:
                self.failed.emit(sentence, "")

        self._background = Background()
        self._background.submit(
            lambda: prepare(config_text, source_folder, known or interpreter, name or "recipe"),
            ready,
            refused,
        )
        self._timer.start()

    def warm(self, known: Interpreter, arguments: Sequence[str]) -> None:
        """Have a process loaded and waiting for the next start; `arguments` make it wait."""
        if self.is_running or self._standby.is_there or self._warming is not None:
            return
        self._warming = Background()
        self._warming.submit(
            lambda: TrainerProgram(known.executable, trainer_environment(known)),
            lambda program: self._standby.start(program, arguments),
            lambda _sentence: None,  # the start itself will say what is wrong
        )
        self._timer.start()

    def cool(self) -> None:
        """Let go of a process that waits."""
        self._standby.drop()

    def cancel(self) -> None:
        """End it at once. What it was doing is lost, and nothing is left behind."""
        if not self.is_running:
            return
        self._generation += 1
        if self._process is not None:
            self._process.kill()  # `cancelled` comes when it has ended
        else:
            self.cancelled.emit()

    def close(self) -> None:
        """Cancel without a word; for a window that closes."""
        self.blockSignals(True)
        self._generation += 1
        process, self._process = self._process, None
        if process is not None:
            process.finished.disconnect()
            process.kill()
            process.waitForFinished(2000)  # a killed process ends within milliseconds
            process.deleteLater()
        for background in (self._background, self._warming):
            if background is not None:
                background.close()
        self._background = self._warming = None
        self._timer.stop()
        self._standby.drop()
        self._clear_folder()

    # ------------------------------------------------------------------------------ on the way

    def _poll(self) -> None:
        self._background = _polled(self._background)
        self._warming = _polled(self._warming)
        if self._background is None and self._warming is None:
            self._timer.stop()

    def _launch(self, prepared: PreparedJob) -> None:
        self._folder = prepared.folder
        recipe = next(Path(prepared.folder).glob("*.toml"))
        program = TrainerProgram(prepared.executable, prepared.environment)
        ready = self._standby.take(program)
        process = ready or process_of(program, self)
        process.readyReadStandardOutput.connect(self._read_lines)
        process.readyReadStandardError.connect(self._read_errors)
        process.errorOccurred.connect(self._on_error)
        process.finished.connect(self._on_finished)
        self._process = process
        if ready is None:
            if not self.reads_lines:
                process.setStandardInputFile(QProcess.nullDevice())
            start_trainer(process, program, self.arguments(recipe))
        else:
            process.write(f"{recipe}\n".encode())
            process.closeWriteChannel()
            self._read_errors()

    def tell(self, line: bytes) -> None:
        """Write a line to a process that reads lines."""
        assert self.reads_lines
        assert self._process is not None
        self._process.write(line + b"\n")

    def _read_lines(self) -> None:
        assert self._process is not None
        data = self._rest + bytes(self._process.readAllStandardOutput().data())
        *lines, self._rest = data.split(b"\n")
        if self._started != self._generation:
            return
        for line in lines:
            try:
                self.take(line)
            except msgspec.MsgspecError:  # no line of ours
                self._keep(line.decode("utf-8", "replace"))

    def _read_errors(self) -> None:
        assert self._process is not None
        for line in (
            bytes(self._process.readAllStandardError().data()).decode("utf-8", "replace").splitlines()
        ):
            self._keep(line)

    def _keep(self, line: str) -> None:
        if line.strip():
            self._errors = [*self._errors[1 - LINES_KEPT :], line]

    def _on_error(self, error: QProcess.ProcessError) -> None:
        if error != QProcess.ProcessError.FailedToStart or self._process is None:
            return  # an end by a signal comes as `finished` too
        why = self._process.errorString()
        self._end()
        self._clear_folder()
        self.failed.emit(tr("The trainer's Python cannot be started: {why}.").format(why=why), "")

    def _on_finished(self, code: int, status: QProcess.ExitStatus) -> None:
        assert self._process is not None
        self._read_lines()
        self._read_errors()
        wanted = self._started == self._generation
        self._end()
        if not wanted or not self.keeps_folder:
            self._clear_folder()
        if not wanted:
            self.cancelled.emit()
        elif not self.ended():
            how = (
                tr("The process was stopped by the system (by a signal, or out of memory).")
                if status == QProcess.ExitStatus.CrashExit
                else tr("The process ended with exit code {code} and no result.").format(code=code)
            )
            self.failed.emit(self.sentence() or how, "\n".join(self._errors))

    def sentence(self) -> str:
        """Why it failed, in its own words; empty where it said nothing."""
        return ""

    def _end(self) -> None:
        if self._process is not None:
            self._process.deleteLater()
            self._process = None

    def _clear_folder(self) -> None:
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""


def _polled(background: Background | None) -> Background | None:
    """Hand back what is done; None once nothing is under way."""
    if background is None:
        return None
    background.poll()
    if background.is_busy:
        return background
    background.close()
    return None


def prepare(config_text: str, source_folder: Path, interpreter: str | Interpreter, name: str) -> PreparedJob:
    """Probe the interpreter and lay the recipe down. Waits: for a thread. Raises GradaccError."""
    found = (interpreter if isinstance(interpreter, Interpreter) else probe(interpreter)).check()
    waiting = installs(found)
    if waiting:
        names = ", ".join(step.need.package for step in waiting)
        message = (
            f"{found.executable} lacks {names}. Start a run with it once: gradacc then offers to add them."
        )
        raise GradaccError(message)
    document = parse_document(config_text)
    source = tomlkit.table()
    source["folder"] = str(source_folder)
    document["source"] = source
    environment = trainer_environment(found)
    folder = tempfile.mkdtemp(prefix="gradacc-side-")
    path = Path(folder, f"{Path(name).stem or 'recipe'}.toml")
    path.write_text(tomlkit.dumps(document), encoding="utf-8", newline="\n")
    return PreparedJob(found.executable, environment, folder)
