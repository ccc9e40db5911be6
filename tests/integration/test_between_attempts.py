"""What may have happened to a run's surroundings since its last attempt: another code, a read-only disk."""

from __future__ import annotations

import builtins
import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradacc_gui import cli
from tests.support.trainers import Trainer, events, make_probe, run_here, set_recipe
from trainer_backend.__main__ import main as trainer_main
from trainer_backend.protocol import OptimizerStepMeasured, RunFinished, Warned
from trainer_backend.run_directory import RunDirectory


def source_warnings(run: RunDirectory, attempt: int) -> list[Warned]:
    """What an attempt said of the entry's source."""
    return [warned for warned in events(run, Warned, attempt=attempt) if warned.code == "source-changed"]


def test_an_entry_whose_source_has_changed_is_said_and_the_new_code_is_used(tmp_path: Path) -> None:
    """Not where nothing changed; and a run that starts is told nothing."""
    run = make_probe(tmp_path, {"run": {"max_samples": 4}})
    (module,) = tmp_path.glob("probe_task_*.py")
    assert run_here(run) == 0
    set_recipe(run, **{"run.max_samples": 8})
    assert run_here(run) == 0
    assert source_warnings(run, 1) == source_warnings(run, 2) == []

    source = module.read_text("utf-8")
    assert "total = -model(batch).sum()" in source
    module.write_text(source.replace("total = -model(batch).sum()", "total = -3 * model(batch).sum()"))
    set_recipe(run, **{"run.max_samples": 12})
    with Trainer(run) as trainer:
        assert isinstance(trainer.end(), RunFinished)
    (warned,) = source_warnings(run, 3)
    assert warned.values == {"entry": f"{module.stem}:Task"}
    norms = [step.gradient_norm for step in events(run, OptimizerStepMeasured)]
    means = [sum(10.0**i for i in range(first, first + 4)) / 4 for first in (0, 4, 8)]
    assert norms == pytest.approx([means[0], means[1], 3 * means[2]], rel=1e-12)


def content(run: RunDirectory) -> dict[str, bytes]:
    """Every file of a run directory but those that SQLite makes to read."""
    files = [path for path in sorted(run.path.rglob("*")) if path.is_file()]
    return {str(path): path.read_bytes() for path in files if not path.name.endswith(("-wal", "-shm"))}


def read_only(monkeypatch: pytest.MonkeyPatch, run: RunDirectory) -> None:
    """From here on nothing in the run directory can be opened for writing, as on a disk mounted read-only.

    A test may run as root, whom no file's rights bind.
    """

    def refuse(path: Any) -> None:
        if Path(os.fsdecode(path)).absolute().is_relative_to(run.path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    def wrapped(shipped: Callable[..., Any], is_writing: Callable[..., bool]) -> Callable[..., Any]:
        def called(path: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(path, int) and is_writing(*args, **kwargs):
                refuse(path)
            return shipped(path, *args, **kwargs)

        return called

    def by_mode(mode: str = "r", *_: Any, **__: Any) -> bool:
        return mode.strip("bt") != "r"

    def by_flags(flags: int, *_: Any, **__: Any) -> bool:
        return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))

    monkeypatch.setattr(builtins, "open", wrapped(builtins.open, by_mode))
    monkeypatch.setattr(os, "open", wrapped(os.open, by_flags))
    monkeypatch.setattr(os, "mkdir", wrapped(os.mkdir, lambda *_, **__: True))


@pytest.mark.parametrize("ended", [True, False], ids=["resume", "start"])
def test_a_read_only_run_directory_is_a_sentence_and_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ended: bool
) -> None:
    """By `gradacc resume` and by the trainer itself, of a run with attempts and of one without."""
    run = make_probe(tmp_path, {"run": {"max_samples": 8}})
    if ended:
        set_recipe(run, **{"task.options.fail_at": 6})
        assert run_here(run) == 1
    before = content(run)
    with monkeypatch.context() as patch:
        read_only(patch, run)
        assert cli.main(["resume", run.id]) == 2
        said = capsys.readouterr().err
        assert f"{run.log_path} cannot be written: Read-only file system." in said
        assert trainer_main(["run", str(run.path)]) == 2
        assert f"{run.lock_path} cannot be written: Read-only file system" in capsys.readouterr().err
    assert content(run) == before
    assert not run.is_alive()


def test_a_journal_that_is_read_only_is_a_sentence_and_nothing_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder takes files, the journal in it takes none."""
    run = make_probe(tmp_path, {"run": {"max_samples": 4}})
    assert run_here(run) == 0
    set_recipe(run, **{"run.max_samples": 8})
    shipped = sqlite3.connect
    before = run.journal_path.read_bytes()

    def connect(path: Any, *args: Any, **kwargs: Any) -> sqlite3.Connection:
        if isinstance(path, Path):
            kwargs["uri"], path = True, f"{path.as_uri()}?mode=ro&immutable=1"
        connection: sqlite3.Connection = shipped(path, *args, **kwargs)
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", connect)
        assert trainer_main(["run", str(run.path)]) == 2
    said = capsys.readouterr().err
    assert f"The journal {run.journal_path} cannot be written: attempt to write a readonly database" in said
    assert "Check the folder's permissions" in said
    assert run.journal_path.read_bytes() == before
