"""A run is a directory: its place, its files, and whether it is alive.

    <GRADACC_HOME>/runs/<id>/   recipe.toml  run.sqlite  inbox/  trainer.lock  checkpoints/  trainer.log
    <GRADACC_HOME>/remote/<host>/<id>/   the same of another machine's run, without checkpoints: a mirror

Alive means locked: see `trainer_lock`.
"""

from __future__ import annotations

import functools
import os
import re
import time
import tomllib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from trainer_backend.errors import RunDirectoryError, UsageError
from trainer_backend.private_files import expanded, home, make_private, private_opener, sync
from trainer_backend.regular_files import LARGEST_TEXT_BYTES, is_folder, kind_of, read_regular, strange_file
from trainer_backend.trainer_lock import LockHolder, TrainerLock, is_locked, read_holder

if TYPE_CHECKING:
    from trainer_backend.config import RunConfig
    from trainer_backend.protocol import Scalar
    from trainer_backend.recipe import Recipe

_JOURNAL: Final = "run.sqlite"
ABOUT: Final = "about.toml"
"""What a person notes about a run: label, tags, note, star."""
_FILES: Final = (
    "recipe.toml", _JOURNAL, f"{_JOURNAL}-wal", f"{_JOURNAL}-shm", f"{_JOURNAL}-journal", "trainer.lock",
    "trainer.log",
)  # fmt: skip
"""What may lie in a run's directory as regular files only."""
_CHECKPOINT: Final = re.compile(r"^step-(\d{9,18})$")
_REPLACED: Final = re.compile(r"^\.step-(\d{9,18})\.old\.part$")


def runs_folder() -> Path:
    """The folder that holds all runs."""
    return home() / "runs"


def mirrors_folder() -> Path:
    """The folder that holds the mirrors of other machines' runs, one folder for each machine."""
    return home() / "remote"


class MirrorOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """Which run on which machine a mirror shows."""

    host: str
    """As ssh is told it."""
    run: str
    path: str = ""
    """The run's directory there."""

    @property
    def address(self) -> str:
        """What to type for it."""
        return f"{self.host}:{self.run}"


def _new_id(name: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "run"
    return f"{slug}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"


def _new_folder(parent: Path, name: str) -> Path:
    """A folder of its own: ids of one second and name differ by four digits, which may be alike."""
    while True:
        folder = parent / _new_id(name)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder


class RunDirectory:
    """One run's files. Making one touches nothing; `create` does."""

    def __init__(self, path: Path) -> None:
        self.path = path if path.is_absolute() else path.absolute()
        self.id = self.path.name

    # Made when they are first wanted: a list of thousands of runs wants few of them.

    @functools.cached_property
    def recipe_path(self) -> Path:
        """What was asked for, as it can be run again."""
        return self.path / "recipe.toml"

    @functools.cached_property
    def journal_path(self) -> Path:
        """All events."""
        return self.path / _JOURNAL

    @functools.cached_property
    def inbox_path(self) -> Path:
        """Commands that wait."""
        return self.path / "inbox"

    @functools.cached_property
    def lock_path(self) -> Path:
        """Held by the trainer all its life."""
        return self.path / "trainer.lock"

    @functools.cached_property
    def checkpoints_path(self) -> Path:
        """The checkpoints' folder."""
        return self.path / "checkpoints"

    @functools.cached_property
    def log_path(self) -> Path:
        """What the trainer printed."""
        return self.path / "trainer.log"

    @functools.cached_property
    def origin_path(self) -> Path:
        """Whose mirror this is, where it is one."""
        return self.path / "mirror.json"

    def mirrored(self) -> MirrorOrigin | None:
        """The run on another machine that this directory mirrors; None for a run of this one."""
        if not self.path.is_relative_to(mirrors_folder().absolute()):
            return None
        try:
            return msgspec.json.decode(read_regular(self.origin_path, LARGEST_TEXT_BYTES), type=MirrorOrigin)
        except (OSError, msgspec.DecodeError):
            return None

    @property
    def typed(self) -> str:
        """What to type for it: its id, or its path where the id would not be found."""
        if (origin := self.mirrored()) is not None:
            return origin.address
        return self.id if self.path.parent == runs_folder().absolute() else str(self.path)

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
            run = cls(_new_folder(folder, name))
            run.inbox_path.mkdir(mode=0o700)
            run.checkpoints_path.mkdir(mode=0o700)
            with open(run.recipe_path, "w", encoding="utf-8", opener=private_opener) as file:
                file.write(recipe_text)
            for path in (run.recipe_path, run.path, folder):  # a power cut shall not leave a run without it
                sync(path)
        except OSError as error:
            message = (
                f"No run can be made in {folder}: {error.strerror}. Set GRADACC_HOME to a writable folder."
            )
            raise RunDirectoryError(message) from error
        return run

    def recipe(self) -> Recipe:
        """The run's recipe, checked; read again only when the file is another. Raises UsageError.

        To edit its document, copy it, as `recipe.with_settings` does.
        """
        return _recipe(self.recipe_path, _stamp(self.recipe_path))

    def config(self) -> RunConfig | None:
        """What the run is asked to be; None where its recipe cannot be read or is refused."""
        try:
            return self.recipe().config
        except UsageError:
            return None

    def recipe_value(self, key: str) -> Scalar:
        """What the recipe's text says for `a.b`, checked by nobody; None where it says nothing."""
        table, _, name = key.partition(".")
        section = _tables(self.recipe_path, _stamp(self.recipe_path)).get(table)
        value = section.get(name) if isinstance(section, dict) else None
        return value if isinstance(value, str | int | float | bool) else None

    @property
    def label(self) -> str:
        """What a person called the run since; empty where nobody did."""
        path = self.path / ABOUT
        label = _tables(path, _stamp(path)).get("label")
        return label if isinstance(label, str) else ""

    @property
    def asked_name(self) -> str:
        """What a person called the run, else the name that its recipe gives it; empty where it has none."""
        name = self.label or self.recipe_value("run.name")
        return name if isinstance(name, str) else ""

    def recipe_values(self) -> dict[str, Scalar]:
        """Every single value that the recipe's text says, by `a.b`, checked by nobody."""
        return {
            f"{table}.{key}": value
            for table, section in _tables(self.recipe_path, _stamp(self.recipe_path)).items()
            if isinstance(section, dict)
            for key, value in section.items()
            if isinstance(value, str | int | float | bool)
        }

    def check(self) -> None:
        """Raise RunDirectoryError unless this is a run's directory, with its files as regular ones."""
        there = self._entries()
        for name in _FILES:
            if name in there and not there[name].is_file(follow_symlinks=False):
                path = self.path / name
                raise RunDirectoryError(strange_file(path, kind_of(path.lstat().st_mode)))
        if "recipe.toml" not in there:
            message = f"{self.path} is not a run directory, or half copied: it has no recipe.toml."
            raise RunDirectoryError(message)
        if _JOURNAL not in there and not is_folder(self.inbox_path):
            # A project's folder may hold a recipe.toml of its own.
            message = f"{self.path} is not a run directory: it has neither a journal nor an inbox."
            raise RunDirectoryError(message)

    def _entries(self) -> dict[str, os.DirEntry[str]]:
        """What lies in the directory and is ours, by name. Raises RunDirectoryError."""
        try:
            with os.scandir(self.path) as entries:
                return {entry.name: entry for entry in entries if entry.name in _FILES}
        except (FileNotFoundError, NotADirectoryError):
            message = f"There is no run directory at {self.path}."
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            message = f"{self.path} cannot be read: {_why(error)}. Check the path and its permissions."
        raise RunDirectoryError(message)

    def check_checkpoint(self, step: int) -> None:
        """Raise UsageError unless a checkpoint of `step` lies here; reading it tells whether it is good."""
        steps = list(checkpoints_in(self.checkpoints_path))
        if step in steps or self.mirrored() is not None:  # those of a mirror lie on the other machine
            return
        others = f"Those of steps {', '.join(map(str, steps))} are there" if steps else "None is there"
        message = f"{self.id} has no checkpoint of step {step}. {others}."
        raise UsageError(message)

    def is_alive(self) -> bool:
        """Whether a trainer holds the lock now. Looking never gets in a trainer's way, nor another look's."""
        return is_locked(self.lock_path, self.path)

    def holder(self) -> LockHolder | None:
        """Whom the lock's file names; only meaningful while `is_alive`."""
        return read_holder(self.lock_path)

    def pid(self) -> int | None:
        """The process id that the trainer wrote; only meaningful while `is_alive`."""
        named = self.holder()
        return None if named is None else named.pid

    @contextmanager
    def locked(self, *, named: bool = True, wait_s: float = 0.0) -> Iterator[TrainerLock]:
        """Hold the trainer's lock. Raises RunDirectoryError when another trainer does, or none can be held.

        `wait_s`: how long another may take to let go.

        `named`: say in its file that this process holds it; not for who only looks after the files.
        """
        lock = _taken(TrainerLock(self.path, self.lock_path), wait_s)
        try:
            if named:
                lock.name()
            yield lock
        finally:
            lock.release()


def _taken(lock: TrainerLock, wait_s: float) -> TrainerLock:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return lock.take()
        except RunDirectoryError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(0.1)


Stamp: TypeAlias = tuple[int, int, int] | None
"""What tells one content of a file from another: inode, length, time; None where there is no file."""


def _stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


@functools.lru_cache(maxsize=16)
def _recipe(path: Path, _stamp: Stamp) -> Recipe:
    from trainer_backend.recipe import load_recipe  # noqa: PLC0415 - tomlkit; most look-ups need none

    return load_recipe(path)


@functools.lru_cache(maxsize=1024)
def _tables(path: Path, _stamp: Stamp) -> dict[str, Any]:
    try:
        return tomllib.loads(read_regular(path, LARGEST_TEXT_BYTES).decode("utf-8").removeprefix("\ufeff"))
    except (OSError, ValueError, RecursionError):  # lists can do without; who starts the run will say so
        return {}


def _why(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error)


def checkpoints_in(folder: Path) -> dict[int, Path]:
    """The checkpoints that lie in `folder`, by step, the newest last; none is opened.

    One that is being replaced by another of its step counts until that has its name: a kill may come between.
    """
    found: dict[int, Path] = {}
    replaced: dict[int, Path] = {}
    try:
        for entry in os.scandir(folder):
            if match := _CHECKPOINT.match(entry.name):
                found[int(match[1])] = Path(entry.path)
            elif match := _REPLACED.match(entry.name):
                replaced[int(match[1])] = Path(entry.path)
    except OSError:
        return {}
    return dict(sorted((replaced | found).items()))


def is_readable(path: Path) -> bool:
    """Whether this user may read a file, or look into a folder."""
    return os.access(path, os.R_OK | os.X_OK if path.is_dir() else os.R_OK)


def all_runs() -> list[RunDirectory]:
    """Every run in the home, newest first by its recipe's time."""
    try:
        with os.scandir(runs_folder()) as entries:
            folders = [entry.path for entry in entries if is_folder(entry)]
    except OSError:
        return []
    return [RunDirectory(Path(folder)) for folder in sorted(folders, key=_age, reverse=True)]


def all_mirrors() -> list[RunDirectory]:
    """Every mirror of another machine's run, newest first."""
    found = []
    with suppress(OSError):
        for host in os.scandir(mirrors_folder()):
            if is_folder(host):
                found += [
                    RunDirectory(Path(entry.path)) for entry in os.scandir(host.path) if is_folder(entry)
                ]
    mirrors = [run for run in found if run.mirrored() is not None]
    return sorted(mirrors, key=lambda run: _age(str(run.path)), reverse=True)


def _of_host(host: str) -> list[RunDirectory]:
    return [run for run in all_mirrors() if (origin := run.mirrored()) is not None and origin.host == host]


def _age(folder: str) -> float:
    try:
        return os.stat(f"{folder}{os.sep}recipe.toml").st_mtime  # noqa: PTH116 - for each of thousands
    except OSError:
        return 0.0


def find_run(text: str, *, live_first: bool = False) -> RunDirectory:
    """The run that `text` names: an id, a unique prefix of one, a name, or a directory. Raises UsageError.

    A mirror of another machine's run is named as HOST:RUN too; runs of this machine come first.

    `live_first`: for a command that only a live run takes; those that ended do not make a name ambiguous.
    """
    if not text.strip():
        message = "The run's name is blank. `gradacc runs` lists them."
        raise UsageError(message)
    if os.sep in text or "/" in text or text in (".", ".."):
        run = RunDirectory(expanded(text))
        run.check()
        return run
    host, colon, name = text.rpartition(":")
    found = _meant(name, _of_host(host), live_first=live_first) if colon and host and name else []
    found = (
        found
        or _meant(text, all_runs(), live_first=live_first)
        or _meant(text, all_mirrors(), live_first=live_first)
    )
    if len(found) == 1:
        return found[0]
    if not found:
        if is_folder(Path(text)):
            run = RunDirectory(Path(text))
            run.check()
            return run
        message = f"No run is called {text!r}. `gradacc runs` lists them."
        raise UsageError(message)
    names = ", ".join(run.id for run in found[:5])
    message = f"{text!r} may be any of {len(found)} runs ({names}). Give more of the id."
    raise UsageError(message)


def _meant(text: str, runs: list[RunDirectory], *, live_first: bool) -> list[RunDirectory]:
    """The runs that `text` may name."""
    exact = [run for run in runs if run.id == text]
    if exact:
        return exact
    begin_so = [run for run in runs if run.id.startswith(text)]
    if not live_first:
        return begin_so or _named(runs, text)
    meant = dict.fromkeys([*begin_so, *_named(runs, text)])
    return [run for run in meant if run.is_alive()] or begin_so or list(meant)


def _named(runs: list[RunDirectory], name: str) -> list[RunDirectory]:
    return [run for run in runs if _may_be_named(run, name) and run.asked_name == name]


def _may_be_named(run: RunDirectory, name: str) -> bool:
    """Whether the text of a run's recipe or notes can hold this name; parsing thousands takes seconds."""
    text = b""
    for path in (run.recipe_path, run.path / ABOUT):
        with suppress(OSError, ValueError):
            text += read_regular(path, LARGEST_TEXT_BYTES)
    return b"\\" in text or name.encode("utf-8", "surrogatepass") in text  # an escape may stand for any
