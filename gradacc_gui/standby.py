"""A trainer process that has loaded its libraries and waits for a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from PySide6.QtCore import QObject, QProcess, QProcessEnvironment


class TrainerProgram(msgspec.Struct, frozen=True):
    """What is run, and in which environment."""

    executable: str
    environment: dict[str, str]


def process_of(program: TrainerProgram, parent: QObject) -> QProcess:
    """A process of the trainer, not started."""
    process = QProcess(parent)
    environment = QProcessEnvironment()
    for key, value in program.environment.items():
        environment.insert(key, value)
    process.setProcessEnvironment(environment)
    return process


def start_trainer(process: QProcess, program: TrainerProgram, arguments: Sequence[str]) -> None:
    """Start it: `python -P -m trainer_backend` with these arguments."""
    process.start(program.executable, ["-P", "-m", "trainer_backend", *arguments])


class Standby(QObject):
    """One waiting process at most; whoever needs it takes it, else it is dropped."""

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self._process: QProcess | None = None
        self._program: TrainerProgram | None = None

    @property
    def is_there(self) -> bool:
        """Whether a process waits."""
        return self._process is not None

    def start(self, program: TrainerProgram, arguments: Sequence[str]) -> None:
        """Have one waiting; nothing where one waits already."""
        if self._process is not None:
            return
        self._program = program
        self._process = process_of(program, self)
        self._process.finished.connect(self._ended)
        start_trainer(self._process, program, arguments)

    def take(self, program: TrainerProgram) -> QProcess | None:
        """The waiting process, if it is of that very program; its owner is the caller from now on."""
        process = self._process
        if process is None or not _alike(self._program, program):
            self.drop()
            return None
        if process.state() != QProcess.ProcessState.Running:
            self.drop()
            return None
        process.finished.disconnect(self._ended)
        process.setParent(self.parent())
        self._process = None
        return process

    def drop(self) -> None:
        """End it: nobody will need it."""
        process, self._process = self._process, None
        if process is not None:
            process.finished.disconnect(self._ended)
            process.kill()
            process.waitForFinished(2000)  # a killed process ends within milliseconds
            process.deleteLater()

    def _ended(self) -> None:
        """It gave up waiting, or could not be started: the next start makes its own."""
        if self._process is not None:
            self._process.deleteLater()
            self._process = None


def _alike(one: TrainerProgram | None, other: TrainerProgram) -> bool:
    def told(environment: Mapping[str, str]) -> str:
        return environment.get("PYTHONPATH", "")

    return (
        one is not None
        and one.executable == other.executable
        and told(one.environment) == told(other.environment)
    )
