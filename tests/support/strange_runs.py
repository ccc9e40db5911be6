"""Run directories as no trainer leaves them: what strangers, broken disks and other programs lay there.

run = write_run(folder, PLAN); STRANGE["a named pipe as the lock"](run)
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from trainer_backend.journal import seal
from trainer_backend.run_directory import RunDirectory

DEEP: Final = "[" * 10_000 + "]" * 10_000
FAR: Final = 2**60


def _sql(*statements: str, values: tuple[Any, ...] = ()) -> Callable[[RunDirectory], None]:
    """Change the sealed journal with SQL; `values` are the last statement's."""

    def change(run: RunDirectory) -> None:
        seal(run.journal_path)
        with closing(sqlite3.connect(run.journal_path, isolation_level=None)) as connection:
            for statement in statements[:-1]:
                connection.execute(statement)
            connection.execute(statements[-1], values)

    return change


def _fact(body: Any, *, name: Any = "RunStarted") -> Callable[[RunDirectory], None]:
    return _sql("UPDATE facts SET body=? WHERE type=?", values=(body, name))


def _field(**fields: Any) -> Callable[[RunDirectory], None]:
    """Another value in what tells how the run began."""

    def change(run: RunDirectory) -> None:
        seal(run.journal_path)
        with closing(sqlite3.connect(run.journal_path)) as connection, connection:
            (body,) = connection.execute("SELECT body FROM facts WHERE type='RunStarted'").fetchone()
            new = json.dumps(json.loads(body) | fields)
            connection.execute("UPDATE facts SET body=? WHERE type='RunStarted'", (new,))

    return change


def _untyped(table: str) -> str:
    """SQL that makes a table anew without the types and the key of ours."""
    return f"CREATE TABLE other AS SELECT * FROM {table}"  # noqa: S608 - our own names


def _far(table: str) -> Callable[[RunDirectory], None]:
    """The newest row of a table gets a number that no run reaches."""
    newest = f"(SELECT max(seq) FROM {table})"  # noqa: S608 - our own names
    return _sql(f"UPDATE {table} SET seq=? WHERE seq={newest}", values=(FAR,))  # noqa: S608 - our own names


def _as_view(query: str) -> Callable[[RunDirectory], None]:
    return _sql("DROP TABLE facts", f"CREATE VIEW facts (seq, attempt, at, type, body) AS {query}")


def _instead(name: str, make: Callable[[Path], object]) -> Callable[[RunDirectory], None]:
    """Something else where one of the run's files lies."""

    def change(run: RunDirectory) -> None:
        seal(run.journal_path)
        path = run.path / name
        with suppress(FileNotFoundError):
            path.rename(run.path / "aside")
        make(path)

    return change


def _socket(path: Path) -> None:
    home = Path.cwd()
    os.chdir(path.parent)  # a socket's path may not be long
    try:
        with closing(socket.socket(socket.AF_UNIX)) as made:
            made.bind(path.name)
    finally:
        os.chdir(home)


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _content(name: str, content: bytes) -> Callable[[RunDirectory], None]:
    return _instead(name, lambda path: path.write_bytes(content))


_ENDLESS: Final = (
    "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM c) SELECT n, 1, 1.0, 'Paused', '{}' FROM c"
)

STRANGE: Final[dict[str, Callable[[RunDirectory], None]]] = {
    "a named pipe as the lock": _instead("trainer.lock", os.mkfifo),
    "a named pipe as the log": _instead("trainer.log", os.mkfifo),
    "a named pipe as the recipe": _instead("recipe.toml", os.mkfifo),
    "a named pipe as the journal": _instead("run.sqlite", os.mkfifo),
    "a named pipe as the write-ahead log": _instead("run.sqlite-wal", os.mkfifo),
    "a named pipe as the rollback journal": _instead("run.sqlite-journal", os.mkfifo),
    "a named pipe as the shared memory": _instead("run.sqlite-shm", os.mkfifo),
    "a socket as the lock": _instead("trainer.lock", _socket),
    "a socket as the journal": _instead("run.sqlite", _socket),
    "a folder as the recipe": _instead("recipe.toml", Path.mkdir),
    "a folder as the journal": _instead("run.sqlite", Path.mkdir),
    "a folder as the log": _instead("trainer.log", Path.mkdir),
    "a link as the recipe": _instead("recipe.toml", lambda path: path.symlink_to(path.parent / "aside")),
    "a link as the journal": _instead("run.sqlite", lambda path: path.symlink_to(path.parent / "aside")),
    "a link to nothing as the journal": _instead("run.sqlite", lambda path: path.symlink_to("/nowhere")),
    "a link to an endless device": _instead("recipe.toml", lambda path: path.symlink_to("/dev/zero")),
    "a link to itself": _instead("recipe.toml", _loop),
    "a link to itself as the lock": _instead("trainer.lock", _loop),
    "no recipe": lambda run: run.recipe_path.unlink(),
    "a database of another program": lambda run: _other_database(run.journal_path),
    "half a journal": lambda run: os.truncate(run.journal_path, 20_000),
    "no database": _content("run.sqlite", b"no database " * 500),
    "an empty write-ahead log of another": _content("run.sqlite", b"SQLite format 3\0" + bytes(500)),
    "a view without an end as facts": _as_view(_ENDLESS),
    "a view of nothing as facts": _as_view("SELECT 1, 1, 1.0, 'Paused', '{}'"),
    "a view as a measurement": _sql(
        "DROP TABLE OptimizerStepMeasured", "CREATE VIEW OptimizerStepMeasured AS SELECT * FROM HostSampled"
    ),
    "no facts": _sql("DROP TABLE facts"),
    "facts without their columns": _sql("DROP TABLE facts", "CREATE TABLE facts (seq INTEGER PRIMARY KEY)"),
    "no time": _sql("UPDATE facts SET at=NULL"),
    "text as a time": _sql("UPDATE facts SET at='noon'"),
    "a time after all calendars": _sql("UPDATE facts SET at=1e300"),
    "a time before all": _sql("UPDATE facts SET at=-1"),
    "text as an attempt": _sql("UPDATE facts SET attempt='first'"),
    "no step": _sql("UPDATE OptimizerStepMeasured SET step=NULL"),
    "text as a step": _sql("UPDATE OptimizerStepMeasured SET step='third'"),
    "a step of bytes": _sql("UPDATE OptimizerStepMeasured SET step=x'00ff'"),
    "a step far away": _sql("UPDATE OptimizerStepMeasured SET step=1e300"),
    "a negative step": _sql("UPDATE OptimizerStepMeasured SET step=-5"),
    "text as samples": _sql("UPDATE OptimizerStepMeasured SET samples_seen='many'"),
    "text as a loss": _sql("UPDATE OptimizerStepMeasured SET loss='low'"),
    "a fact's number far away": _far("facts"),
    "a measurement's number far away": _far("MicroBatchMeasured"),
    "text as a number": _sql(
        _untyped("facts"), "DROP TABLE facts", "ALTER TABLE other RENAME TO facts", "UPDATE facts SET seq='x'"
    ),
    "null as a fact": _fact("null"),
    "nothing as a fact": _fact(None),
    "bytes as a fact": _fact(b"\xff\xfe"),
    "a list as a fact": _fact("[1]"),
    "a number as a fact": _fact("1"),
    "a fact of ten thousand brackets": _fact(DEEP),
    "a fact of a number of many digits": _fact('{"step": ' + "9" * 5000 + "}"),
    "half a fact": _fact('{"name": "x'),
    "a fact without a kind": _sql("UPDATE facts SET type=NULL"),
    "N of nothing": _field(accumulation_steps=0),
    "a negative N": _field(accumulation_steps=-4),
    "a process of another world": _field(pid=2**70),
    "more samples than there are": _field(from_samples=2**62),
}  # fmt: skip
"""Each is to be one sentence, and hides no other run."""

HARMLESS: Final[dict[str, Callable[[RunDirectory], None]]] = {
    "a named pipe among its files": lambda run: os.mkfifo(run.path / "notes"),
    "an inbox with a pipe": lambda run: os.mkfifo(run.inbox_path / "1.json"),
    "a recipe that is no TOML": _content("recipe.toml", b"[[[["),
    "a recipe of ten thousand brackets": _content("recipe.toml", f"a = {DEEP}".encode()),
    "a recipe of a number of many digits": _content("recipe.toml", b"[run]\nname = " + b"9" * 5000),
    "a recipe that is no text": _content("recipe.toml", bytes(range(256))),
    "a recipe too large": _content("recipe.toml", b"#" * (2 << 20)),
    "a name of control characters": _field(name="\x1b[31mred\x07\n\r"),
    "an epoch without samples": _field(samples_per_epoch=0),
    "settings of another kind": _field(settings={"a": "b", "optimizer.learning_rate": "x"}),
    "a fact of another version": _fact("{}"),
}
"""The run is told as far as it can be."""


def _other_database(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE facts (a, b)")
        connection.execute("INSERT INTO facts VALUES (1, 2)")
