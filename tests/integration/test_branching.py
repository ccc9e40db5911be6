"""Branches from a real checkpoint: each over the same samples, and the run is left as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.trainers import events, make_probe, run_here
from trainer_backend.branching import branch_command
from trainer_backend.branching.branch_command import compare
from trainer_backend.errors import GradaccError, UsageError
from trainer_backend.protocol import OptimizerStepMeasured
from trainer_backend.run_directory import RunDirectory, checkpoints_in


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[RunDirectory]:
    """Branches train in this process, which has torch already; gives those that did."""
    found: list[RunDirectory] = []

    def here(run: RunDirectory) -> str:
        found.append(run)
        run_here(run)
        return ""

    monkeypatch.setattr(branch_command, "run_to_end", here)
    return found


def files_of(run: RunDirectory) -> dict[str, int]:
    """Every file below it, by size."""
    return {str(path): path.stat().st_size for path in sorted(run.path.rglob("*")) if path.is_file()}


def test_branches_go_on_from_the_checkpoint_over_the_same_samples(
    tmp_path: Path, tried: list[RunDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    """N 2 becomes 1, 2, 4, 8; the schedule of N and what was changed live have no say there."""
    rules = {"learning_rate_rule": "linear", "gradient_accumulation_steps": 2}
    run = make_probe(tmp_path, {"run": {"max_samples": 8}, "accumulation": rules}, length=200)
    assert run_here(run) == 0
    before = files_of(run)
    steps: list[list[tuple[int, float]]] = []
    trained = branch_command._trained

    def look(place: RunDirectory, *rest: Any) -> Any:
        end = trained(place, *rest)
        measured = [step for step in events(place, OptimizerStepMeasured) if step.samples_seen > 8]
        steps.append([(step.samples, step.learning_rate) for step in measured])
        return end

    monkeypatch.setattr(branch_command, "_trained", look)
    report = compare(run, samples=16, device=None)
    assert (report.from_step, report.from_samples, report.samples) == (4, 8, 16)
    assert [end.accumulation_steps for end in report.ends] == [1, 2, 4, 8]
    assert [end.samples for end in report.ends] == [16] * 4
    assert steps == [[(1, 0.5)] * 16, [(2, 1.0)] * 8, [(4, 2.0)] * 4, [(8, 4.0)] * 2]
    assert len(tried) == 4
    assert not any(place.path.exists() for place in tried)
    assert files_of(run) == before


def test_a_run_without_a_checkpoint_says_how_to_get_one(tmp_path: Path) -> None:
    """Nothing is started."""
    run = make_probe(tmp_path, {"run": {"max_samples": 8}})
    with pytest.raises(UsageError, match="Save one: gradacc checkpoint"):
        compare(run, samples=None, device=None)


def test_a_branch_that_fails_is_told_with_its_own_words(tmp_path: Path, tried: list[RunDirectory]) -> None:
    """And no comparison is made of the others."""
    run = make_probe(tmp_path, {"run": {"max_samples": 8}}, length=100, fail_at=9)
    assert run_here(run) == 0
    assert checkpoints_in(run.checkpoints_path)
    with pytest.raises(GradaccError, match="did not end well: "):
        compare(run, samples=32, device=None)
    assert len(tried) == 1
