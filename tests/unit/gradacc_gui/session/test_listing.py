"""A line of the list is kept beside what it was told from, and counts only while that is as it was."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gradacc_gui.session import listing
from gradacc_gui.session.listing import NAME, list_runs
from gradacc_gui.session.runs import RunSummary, delete_run, seal_ended, summarise
from tests.support.fake_runs import Plan, continue_run, write_run
from trainer_backend.journal import JournalReader, seal
from trainer_backend.run_directory import RunDirectory, runs_folder
from trainer_backend.run_facts import RunState

PLAN = Plan(steps=6, total_steps=6, checkpoint_every=0, evaluate_every=0, end="finished")
LONG_AGO_NS = 1_700_000_000 * 10**9


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The journals that were opened since."""
    paths: list[Path] = []
    make = JournalReader.__init__

    def count(
        reader: JournalReader, path: Path, *, immutable: bool = False, within_s: float = math.inf
    ) -> None:
        paths.append(path)
        make(reader, path, immutable=immutable, within_s=within_s)

    monkeypatch.setattr(JournalReader, "__init__", count)
    return paths


def settled(plan: Plan = PLAN) -> RunDirectory:
    """A run that ended long ago and is sealed."""
    run = write_run(runs_folder(), plan)
    assert seal(run.journal_path)
    age(run)
    return run


def age(run: RunDirectory) -> None:
    """Its files changed long ago."""
    for path in (run.recipe_path, run.journal_path):
        os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))


def test_an_ended_run_is_read_once(opened: list[Path]) -> None:
    """The second list equals the first, and opens no journal."""
    run = settled()
    first = list_runs()
    assert opened == [run.journal_path]
    assert (first[0].state, first[0].step, first[0].sealed) == (RunState.FINISHED, 6, True)

    opened.clear()
    assert list_runs() == first
    assert seal_ended(first) == []
    assert opened == []
    assert (run.path / NAME).stat().st_mode & 0o077 == 0


def test_a_loss_that_is_no_number_survives() -> None:
    """It is told as the journal has it."""
    settled(Plan(steps=2, total_steps=2, nan_steps=(2,), checkpoint_every=0, evaluate_every=0, end="failed"))
    losses = [list_runs()[0].loss for _ in range(2)]
    assert all(loss is not None and math.isnan(loss) for loss in losses)


def _lengthened(run: RunDirectory) -> None:
    text = run.recipe_path.read_text("utf-8")
    run.recipe_path.write_text(text.replace("max_optimizer_steps = 6", "max_optimizer_steps = 900"), "utf-8")


def _gone_on(run: RunDirectory) -> None:
    continue_run(
        run, Plan(attempt=2, from_step=6, steps=2, checkpoint_every=0, evaluate_every=0, end="stopped")
    )
    seal(run.journal_path)


def _spoilt(run: RunDirectory) -> None:
    (run.path / NAME).write_bytes(b"\xc1")


def _made_by_another(run: RunDirectory) -> None:
    content = (run.path / NAME).read_bytes()
    (run.path / NAME).write_bytes(content[:1] + b"\x63" + content[2:])  # 99 in the place of the format


def _piped(run: RunDirectory) -> None:
    (run.path / NAME).unlink()
    os.mkfifo(run.path / NAME)


def _touched(run: RunDirectory) -> None:
    os.utime(run.journal_path, ns=(LONG_AGO_NS, LONG_AGO_NS + 1))


@pytest.mark.parametrize("change", [_lengthened, _gone_on, _spoilt, _made_by_another, _piped, _touched])
def test_a_kept_line_is_not_trusted_once_anything_changed(
    change: Callable[[RunDirectory], None], opened: list[Path]
) -> None:
    """The run is read again, and what is told of it is so now."""
    run = settled()
    kept = list_runs()
    assert (run.path / NAME).is_file()
    change(run)
    opened.clear()

    (found,) = list_runs()

    assert opened == [run.journal_path]
    assert (found != kept[0]) == (change in (_lengthened, _gone_on))
    if change is _lengthened:
        assert found.can_resume
    if change is _gone_on:
        assert (found.state, found.attempt, found.step) == (RunState.STOPPED, 2, 8)


def test_nothing_is_kept_of_a_run_that_may_still_change() -> None:
    """It is live, its journal is not sealed, or its files changed a moment ago."""
    run = settled()
    with run.locked():
        os.utime(run.journal_path)
        list_runs()
        assert not (run.path / NAME).exists()
    just_written = write_run(runs_folder(), PLAN)
    list_runs()
    assert not (just_written.path / NAME).exists()


def test_a_live_run_is_never_told_from_a_kept_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new attempt holds the lock before it writes anything."""
    run = settled()
    assert list_runs()[0].state is RunState.FINISHED
    summarised: list[RunDirectory] = []
    told = summarise

    def noted(asked: RunDirectory) -> RunSummary:
        summarised.append(asked)
        return told(asked)

    monkeypatch.setattr(listing, "summarise", noted)
    with run.locked():
        list_runs()
    assert summarised == [run]


def test_a_run_whose_line_cannot_be_kept_is_listed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, or a folder that is for reading only."""
    run = settled()

    def refuse(path: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device", str(path), None, str(target))

    monkeypatch.setattr(Path, "replace", refuse)
    assert list_runs()[0].state is RunState.FINISHED
    assert sorted(path.name for path in run.path.iterdir()) == [
        "checkpoints",
        "inbox",
        "recipe.toml",
        "run.sqlite",
    ]


def test_a_kept_line_goes_with_its_run_and_counts_in_a_true_copy(opened: list[Path]) -> None:
    """A copy that keeps times and sizes is the same run in another place."""
    run = settled()
    list_runs()
    shutil.copytree(run.path, runs_folder() / "copy")
    opened.clear()
    assert {summary.run.id for summary in list_runs()} == {run.id, "copy"}
    assert opened == []

    delete_run(run)
    assert not run.path.exists()
