"""A run is a directory: where it lies, what lies in it, and whether it is alive.

    <GRADACC_HOME>/runs/<id>/   recipe.toml  run.sqlite  inbox/  trainer.lock  checkpoints/  trainer.log

Alive means locked: the trainer holds an OS lock on `trainer.lock` all its life. No process id is
trusted alone, for they are reused, and a copied directory names the original's process.
"""

from __future__ import annotations

import os
import re
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import platformdirs

from trainer_backend.errors import RunDirectoryError, UsageError

LOCK_BYTE: Final = 1 << 30
"""Far behind the process id that the file holds, so that readers may read it under Windows' mandatory locks."""


_held: set[Path] = set()
"""Lock files that this process holds; it must not open them a second time."""


def home() -> Path:
    """GRADACC_HOME, or the platform's folder for a user's data."""
    asked = os.environ.get("GRADACC_HOME")
    return (
        Path(asked).expanduser().absolute() if asked else Path(platformdirs.user_data_dir("gradacc", False))
    )


def runs_folder() -> Path:
    """Where runs lie."""
    return home() / "runs"


def make_private(path: Path) -> Path:
    """Make a folder (and its parents) that only its owner reads."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def _new_id(name: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "run"
    return f"{slug}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"


class RunDirectory:
    """One run's files. Making one touches nothing; `create` does."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.id = self.path.name
        self.recipe_path = self.path / "recipe.toml"
        self.journal_path = self.path / "run.sqlite"
        self.inbox_path = self.path / "inbox"
        self.lock_path = self.path / "trainer.lock"
        self.checkpoints_path = self.path / "checkpoints"
        self.log_path = self.path / "trainer.log"

    def __repr__(self) -> str:
        return f"RunDirectory({str(self.path)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunDirectory) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)

    @classmethod
    def create(cls, recipe_text: str, *, name: str, parent: Path | None = None) -> RunDirectory:
        """Make a new run's directory with its recipe. Raises RunDirectoryError."""
        folder = parent or runs_folder()
        try:
            make_private(folder)
            run = cls(folder / _new_id(name))
            run.path.mkdir(mode=0o700)
            run.inbox_path.mkdir(mode=0o700)
            run.checkpoints_path.mkdir(mode=0o700)
            with open(run.recipe_path, "w", encoding="utf-8", opener=private_opener) as file:
                file.write(recipe_text)
        except OSError as error:
            message = (
                f"No run can be made in {folder}: {error.strerror}. Set GRADACC_HOME to a writable folder."
            )
            raise RunDirectoryError(message) from error
        return run

    def check(self) -> None:
        """Raise RunDirectoryError unless this is a run's directory."""
        if not self.path.is_dir():
            message = f"There is no run directory at {self.path}."
            raise RunDirectoryError(message)
        if not self.recipe_path.is_file():
            message = f"{self.path} is not a run directory, or half copied: it has no recipe.toml."
            raise RunDirectoryError(message)

    def is_alive(self) -> bool:
        """Whether a trainer holds the lock now."""
        if self.lock_path in _held:
            return True
        try:
            file = open(self.lock_path, "r+b", buffering=0)  # noqa: SIM115 - closed below
        except OSError:  # no lock file, or a read-only copy: nobody here can train in it
            return False
        with file:
            try:
                _lock(file)
            except OSError:
                return True
            _unlock(file)
            return False

    def pid(self) -> int | None:
        """The process id that the trainer wrote; only meaningful while `is_alive`."""
        if self.lock_path in _held:
            return os.getpid()
        try:
            return int(self.lock_path.read_text("ascii").split()[0])
        except (OSError, ValueError, IndexError):
            return None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the trainer's lock. Raises RunDirectoryError when another trainer does."""
        if self.lock_path in _held:
            message = f"A trainer already runs in {self.path} (this process)."
            raise RunDirectoryError(message)
        try:
            file = open(self.lock_path, "a+b", buffering=0, opener=private_opener)  # noqa: SIM115
        except OSError as error:
            message = f"{self.lock_path} cannot be written: {error.strerror}. The run directory is read-only."
            raise RunDirectoryError(message) from error
        with file:
            try:
                _lock(file)
            except OSError as error:
                pid = file.seek(0) or file.read(32).decode("ascii", "replace").strip()
                message = f"A trainer already runs in {self.path} (process {pid}). Stop it first."
                raise RunDirectoryError(message) from error
            file.truncate(0)
            file.write(f"{os.getpid()}\n".encode("ascii"))
            _held.add(self.lock_path)
            try:
                yield
            finally:
                _held.discard(self.lock_path)
                _unlock(file)


def private_opener(path: str, flags: int) -> int:
    """For `open`: files that only their owner reads."""
    return os.open(path, flags, 0o600)


if sys.platform == "win32":
    import msvcrt

    def _lock(file: IO[bytes]) -> None:
        file.seek(LOCK_BYTE)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)

    def _unlock(file: IO[bytes]) -> None:
        file.seek(LOCK_BYTE)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    # lockf, not flock: loader workers made by fork would keep a flock after the trainer's death. A POSIX
    # lock is lost when *any* descriptor of the file closes in its process, hence `_held`.
    def _lock(file: IO[bytes]) -> None:
        fcntl.lockf(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(file: IO[bytes]) -> None:
        fcntl.lockf(file.fileno(), fcntl.LOCK_UN)


def all_runs() -> list[RunDirectory]:
    """Every run in the home, newest first by its recipe's time."""
    try:
        folders = [Path(entry.path) for entry in os.scandir(runs_folder()) if entry.is_dir()]
    except OSError:
        return []
    return sorted((RunDirectory(folder) for folder in folders), key=_age, reverse=True)


def _age(run: RunDirectory) -> float:
    try:
        return run.recipe_path.stat().st_mtime
    except OSError:
        return 0.0


def find_run(text: str) -> RunDirectory:
    """The run that `text` names: an id, a unique prefix of one, a name, or a directory. Raises UsageError."""
    if os.sep in text or "/" in text or text in (".", ".."):
        run = RunDirectory(Path(text).expanduser())
        run.check()
        return run
    runs = all_runs()
    exact = [run for run in runs if run.id == text]
    found = exact or [run for run in runs if run.id.startswith(text)] or _named(runs, text)
    if len(found) == 1:
        return found[0]
    if not found:
        if Path(text).is_dir():
            run = RunDirectory(Path(text))
            run.check()
            return run
        message = f"No run is called {text!r}. `gradacc runs` lists them."
        raise UsageError(message)
    names = ", ".join(run.id for run in found[:5])
    message = f"{text!r} may be any of {len(found)} runs ({names}). Give more of the id."
    raise UsageError(message)


def _named(runs: list[RunDirectory], name: str) -> list[RunDirectory]:
    from trainer_backend.recipe import name_in  # noqa: PLC0415 - recipe reads TOML; most look-ups need none

    return [run for run in runs if name_in(run.recipe_path) == name]
