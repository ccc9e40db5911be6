"""Branches at other effective batches: which there are, and what is said of their ends."""

from __future__ import annotations

import pytest

from trainer_backend.branching.branches import (
    BranchEnd,
    BranchReport,
    branches_of,
    edit_for_branch,
    mean_of_last,
    samples_for_branches,
    table,
    verdict,
)
from trainer_backend.config import AccumulationSection
from trainer_backend.errors import UsageError
from trainer_backend.recipe import parse_document
from trainer_backend.settings import Settings

HERE = Settings(accumulation_steps=4, micro_batch_size=8, learning_rate=0.01, schedule_points=2)


def ended(factor: float, loss: float | None, error: float | None = None) -> BranchEnd:
    """The end of one branch of 32 samples a window."""
    return BranchEnd(
        factor=factor, effective_batch=int(32 * factor), accumulation_steps=int(4 * factor),
        learning_rate=0.01, optimizer_steps=int(32 / factor), samples=1024, loss=loss,
        loss_error=error, duration_s=1.0,
    )  # fmt: skip


def report(*ends: BranchEnd) -> BranchReport:
    """From step 100."""
    return BranchReport(from_step=100, from_samples=3200, samples=1024, measure="validation", ends=ends)


def test_there_is_a_branch_for_every_factor_that_whole_micro_batches_make() -> None:
    """Half of N = 1 is none; companions follow the recipe's rules."""
    rules = AccumulationSection(gradient_accumulation_steps=4, learning_rate_rule="sqrt")
    found = branches_of(HERE, rules)
    assert [branch.settings.accumulation_steps for branch in found] == [2, 4, 8, 16]
    assert [branch.settings.learning_rate for branch in found] == pytest.approx(
        [0.01 * 0.5**0.5, 0.01, 0.01 * 2**0.5, 0.02]
    )
    assert {branch.settings.schedule_points for branch in found} == {0}
    alone = Settings(accumulation_steps=1, micro_batch_size=8)
    assert [branch.factor for branch in branches_of(alone, rules)] == [1.0, 2.0, 4.0]


def test_all_branches_end_at_the_same_sample() -> None:
    """A multiple of the largest window; less than one of it is one."""
    assert samples_for_branches(HERE, None) == 1024
    assert samples_for_branches(HERE, 129) == 256
    assert samples_for_branches(HERE, 1) == 128
    with pytest.raises(UsageError, match="at least 128"):
        samples_for_branches(HERE, 0)


def test_a_branch_s_recipe_ends_where_it_shall_and_tells_nobody() -> None:
    """No webhook, no target, no schedule of N."""
    document = parse_document(
        "[run]\nepochs = 3\n[accumulation]\neffective_batch_size = 32\n"
        "schedule = [{from_sample = 9, steps = 2}]\n"
        '[notify]\nwebhook = "https://example.org"\n[targets]\nstep_time = 1.0\n'
    )
    (first, *_) = branches_of(HERE, AccumulationSection(gradient_accumulation_steps=4))
    edit_for_branch(document, first, until=4224, device="cpu")
    asked = document.unwrap()
    assert asked["run"] == {"max_samples": 4224, "device": "cpu"}
    assert asked["accumulation"] == {"gradient_accumulation_steps": 2, "micro_batch_size": 8}
    assert asked.keys() == {"run", "accumulation", "optimizer", "checkpoint"}


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (
            (ended(0.5, 1.0), ended(1, 1.0), ended(2, 1.001), ended(4, 1.2)),
            "effective batch of 64 loses nothing",
        ),
        ((ended(0.5, 0.9), ended(1, 1.0), ended(2, 1.2)), "effective batch of 16 learns more"),
        ((ended(0.5, 1.0), ended(1, 1.0), ended(2, 1.2)), "as good as half of it"),
        ((ended(1, 1.0, 0.05), ended(2, 1.05, 0.05)), "effective batch of 64 loses nothing"),
        ((ended(1, 1.0, 0.01), ended(2, 1.05, 0.01)), "as good as half of it"),
        ((ended(0.5, 1.0), ended(1, None)), "Nothing can be compared"),
    ],
)
def test_the_sentence_says_what_the_losses_say(ends: tuple[BranchEnd, ...], said: str) -> None:
    """Beyond the noise, or half a percent on the same validation data."""
    assert said in verdict(report(*ends))
    assert len(table(report(*ends))) == 1 + len(ends)


def test_the_last_quarter_of_the_samples_is_what_a_training_loss_is_taken_from() -> None:
    """By samples, so that windows of any size say the same."""
    losses = [(9.0, 8)] * 6 + [(2.0, 8), (4.0, 8)]
    mean, error = mean_of_last(losses)
    assert mean == 3.0
    assert error == pytest.approx(1.0)
    assert mean_of_last([]) == (None, None)
    assert mean_of_last([(2.0, 8)]) == (2.0, None)
