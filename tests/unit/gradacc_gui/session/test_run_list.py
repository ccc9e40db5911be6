"""The list that a window keeps: shown at once from the last time, looked at in slices, kept up to date."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gradacc_gui.session import listing
from gradacc_gui.session.about_file import AboutRun, write_about
from gradacc_gui.session.listing import INDEX, RunList
from gradacc_gui.session.runs import RunSummary
from tests.support.fake_runs import Plan, write_run
from trainer_backend.journal import seal
from trainer_backend.private_files import home
from trainer_backend.run_directory import RunDirectory, runs_folder

LONG_AGO_NS = 1_700_000_000 * 10**9


def settled(name: str, place: int) -> RunDirectory:
    """A run that ended long ago and is sealed; a greater place is younger."""
    plan = Plan(name=name, steps=6, total_steps=6, checkpoint_every=0, evaluate_every=3, end="finished")
    run = write_run(runs_folder(), plan)
    assert seal(run.journal_path)
    for path in (run.recipe_path, run.journal_path):
        at = LONG_AGO_NS + place * 10**9
        os.utime(path, ns=(at, at))
    return run


@pytest.fixture
def runs() -> list[RunDirectory]:
    """Four runs, the oldest first."""
    return [settled(f"run{place}", place) for place in range(4)]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the runs that were read since."""
    ids: list[str] = []
    listed = listing._listed

    def noted(run: RunDirectory) -> tuple[RunSummary, listing._Kept | None]:
        ids.append(run.id)
        return listed(run)

    monkeypatch.setattr(listing, "_listed", noted)
    return ids


def names(found: RunList) -> list[str]:
    """In the list's order."""
    return [line.name for line in found.lines()]


def test_a_look_goes_in_slices_newest_first(runs: list[RunDirectory]) -> None:
    """A list of thousands shows its first screen before it is complete."""
    found, ticks = RunList(), iter(range(100))
    seen = []
    while not found.look(0.5, clock=lambda: float(next(ticks))):
        seen.append(names(found))
    assert seen[:2] == [["run3"], ["run3", "run2"]]
    assert names(found) == ["run3", "run2", "run1", "run0"]


def test_what_has_not_changed_is_not_read_again(runs: list[RunDirectory], read: list[str]) -> None:
    """Neither by this window nor by the next; the very same lines stay."""
    found = RunList()
    assert found.look(60.0)
    assert len(read) == 4
    lines = found.lines()
    read.clear()
    assert found.look(60.0)
    assert read == []
    assert all(new is old for new, old in zip(found.lines(), lines, strict=True))

    again = RunList()
    assert again.lines() == lines
    assert again.look(60.0)
    assert read == []
    line = again.lines()[0]
    assert (line.validation_loss is not None, line.settings["optimizer.max_grad_norm"]) == (True, 1.0)
    assert line.duration_s is not None
    assert line.duration_s > 0
    assert line.peak_memory_bytes is not None


def test_a_run_that_is_noted_removed_copied_or_started_is_looked_at(
    runs: list[RunDirectory], read: list[str]
) -> None:
    """And only that one."""
    found = RunList()
    found.look(60.0)
    read.clear()
    write_about(runs[1], AboutRun("renamed", starred=True))
    found.look(60.0)
    assert read == [runs[1].id]
    assert names(found) == ["run3", "run2", "renamed", "run0"]
    shutil.rmtree(runs[3].path)
    shutil.copytree(runs[0].path, runs[0].path.with_name("copy"))
    with runs[2].locked():
        read.clear()
        found.look(60.0)
        assert set(read) >= {"copy", runs[2].id}
        assert runs[0].id not in read
    assert {line.run.id for line in found.lines()} == {"copy", *(run.id for run in runs[:3])}


def test_the_index_is_a_cache(runs: list[RunDirectory]) -> None:
    """Deleted, damaged, of another version or told of runs that are gone: the list is right all the same."""
    found = RunList()
    found.look(60.0)
    lines = found.lines()
    index = home() / INDEX
    assert index.stat().st_mode & 0o077 == 0
    for spoil in (
        index.unlink,
        lambda: index.write_bytes(b"\xc1"),
        lambda: index.write_bytes(b"\x91\x93\xa1x"),
    ):
        spoil()
        again = RunList()
        assert again.lines() == []
        assert again.look(60.0)
        assert again.lines() == lines
    shutil.rmtree(runs[0].path)
    assert runs[0] not in [line.run for line in RunList().lines()]


def test_a_home_that_cannot_be_written_costs_only_the_index(
    runs: list[RunDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list is read anew the next time."""

    def refuse(_path: Path) -> Path:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(listing, "make_private", refuse)
    found = RunList()
    assert found.look(60.0)
    assert len(found.lines()) == 4
    assert not (home() / INDEX).exists()
