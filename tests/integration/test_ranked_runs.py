"""Runs on several ranks, as a launcher starts them: the same samples in the same windows, one journal."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.integration.test_windows import digits, micro_batches
from tests.support import fork_server
from tests.support.trainers import RankedTrainers, events, make_probe, run_here, run_ranks, set_recipe
from trainer_backend.protocol import (
    AccumulationChanged,
    CheckpointSaved,
    CommandAccepted,
    MicroBatchMeasured,
    NonFiniteSeen,
    OptimizerStepMeasured,
    OutOfMemoryRecovered,
    Pause,
    Paused,
    RankMeasured,
    Resume,
    RollBack,
    RolledBack,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
    SaveCheckpoint,
    SetAccumulation,
    Stop,
    Warned,
)

pytestmark = pytest.mark.skipif(not fork_server.IS_POSSIBLE, reason="ranks are forked on Linux only")

TWO_EPOCHS = {"run": {"epochs": 2}, "accumulation": {"effective_batch_size": 4}}
FOR_LONG = {"run": {"max_optimizer_steps": 100_000}}


@pytest.mark.parametrize(("ranks", "iterable", "workers"), [(3, True, 0), (5, False, 0), (2, False, 2)])
def test_windows_hold_the_same_samples_on_any_number_of_ranks(
    tmp_path: Path, ranks: int, iterable: bool, workers: int
) -> None:
    """11 micro-batches an epoch, M = 4, two epochs: windows 4, 4, 3 twice; a rank may have none."""
    run = make_probe(tmp_path, TWO_EPOCHS, {"data": {"num_workers": workers}}, length=11, iterable=iterable)
    assert run_ranks(run, ranks) == [0] * ranks
    assert micro_batches(run) == [4, 4, 3, 4, 4, 3]
    assert digits(run) == [1111, 1111_0000, 111_0000_0000] * 2
    rows = events(run, MicroBatchMeasured)
    assert [row.index for row in rows] == [*range(4), *range(4), *range(3)] * 2
    assert [row.rank for row in rows] == [row.index % ranks for row in rows]
    assert [row.samples_seen for row in rows] == list(range(1, 23))
    assert [round(row.gradient_norm or 0) for row in rows] == [10**place for place in range(11)] * 2
    [started] = events(run, RunStarted)
    assert (started.world_size, started.micro_batches, len(started.hosts)) == (ranks, 4, ranks)
    assert events(run, RunFinished)[0].samples_seen == 22
    measured = events(run, RankMeasured)
    assert [(fact.step, fact.rank) for fact in measured[:ranks]] == [(1, rank) for rank in range(ranks)]
    assert sum(fact.micro_batches for fact in measured[:ranks]) == 4


def test_commands_reach_all_ranks_at_one_border(tmp_path: Path) -> None:
    """N, pause, checkpoint, roll-back and stop: each answered once, obeyed by both, exact after it."""
    run = make_probe(tmp_path, FOR_LONG, {"accumulation": {"gradient_accumulation_steps": 2}})
    with RankedTrainers(run, 2) as trainers:
        trainers.wait_for_kind(OptimizerStepMeasured)
        answer = trainers.ask(SetAccumulation(steps=3))
        assert isinstance(answer, CommandAccepted)
        changed = trainers.wait_for_kind(AccumulationChanged)
        assert (changed.before, changed.after, changed.micro_batches) == (2, 3, 6)
        assert changed.step == answer.applies_at_step
        trainers.ask(Pause())
        paused = trainers.wait_for_kind(Paused)
        trainers.ask(SaveCheckpoint())
        saved = trainers.wait_for_kind(CheckpointSaved)
        assert saved.step == paused.step
        trainers.ask(Resume())
        trainers.wait_for_kind(OptimizerStepMeasured, lambda row: row.step > paused.step + 2)
        trainers.ask(RollBack())
        back = trainers.wait_for_kind(RolledBack)
        assert back.to_step == paused.step
        trainers.wait_for_kind(OptimizerStepMeasured, lambda row: row.step > paused.step + 4)
        trainers.ask(Stop())
        assert trainers.wait_all() == [0, 0]
    assert events(run, RunStopped)[0].reason == "stop"
    steps = events(run, OptimizerStepMeasured)
    assert {step.micro_batches for step in steps if step.step < changed.step and step.samples_seen % 12} == {
        4
    }
    assert {step.samples for step in steps} <= {2, 3, 4, 6}


def test_a_stop_now_leaves_the_window_on_all_ranks(tmp_path: Path) -> None:
    """Rank 0 leaves in the middle, the other with it; nothing of the window is kept."""
    run = make_probe(
        tmp_path, FOR_LONG, {"accumulation": {"gradient_accumulation_steps": 4}}, length=1000, at=6,
        command="stop-now", only_rank=0,
    )  # fmt: skip
    assert run_ranks(run, 2) == [0, 0]
    [stopped] = events(run, RunStopped)
    assert (stopped.step, stopped.samples_seen, stopped.reason) == (1, 8, "stop-now")


def test_an_error_on_one_rank_ends_the_run_with_its_sentence(tmp_path: Path) -> None:
    """Rank 1's loss raises: both end, rank 0 says whose error it was and where, the border is saved."""
    run = make_probe(tmp_path, FOR_LONG, fail_at=4, only_rank=1)
    assert run_ranks(run, 2) == [1, 1]
    [failed] = events(run, RunFailed)
    assert failed.reason.startswith("Rank 1: ValueError: the probe fails here (in ")
    assert "probe_task" in failed.where
    assert events(run, CheckpointSaved) == [] or failed.step == events(run, CheckpointSaved)[0].step


def test_out_of_memory_on_one_rank_splits_on_all(tmp_path: Path) -> None:
    """Rank 1 has room for one sample only: the same samples, in smaller micro-batches, on both."""
    sizes = {"accumulation": {"micro_batch_size": 2, "gradient_accumulation_steps": 2}}
    run = make_probe(tmp_path, {"run": {"max_samples": 12}}, sizes, length=12, largest=1, only_rank=1)
    assert run_ranks(run, 2) == [0, 0]
    [told] = events(run, OutOfMemoryRecovered)
    assert (told.micro_batch_size_before, told.micro_batch_size, told.effective_batch) == (2, 1, 8)
    assert told.device == "cpu (rank 1)"
    assert digits(run) == [1111_1111, 1111_0000_0000]
    [changed] = events(run, AccumulationChanged)
    assert (changed.after, changed.micro_batches) == (4, 8)


def test_a_nan_on_one_rank_is_told_with_its_place_in_the_window(tmp_path: Path) -> None:
    """Sample 4 is rank 1's second micro-batch, the window's fourth."""
    run = make_probe(
        tmp_path, {"run": {"max_samples": 8}},
        {"accumulation": {"effective_batch_size": 4, "non_finite": "drop"}},
        length=12, nan_at=4,
    )  # fmt: skip
    assert run_ranks(run, 2) == [0, 0]
    [seen] = events(run, NonFiniteSeen)
    assert (seen.index, seen.sample_indices) == (3, (3,))
    assert digits(run) == [round(111 / 3 * 4), 1111_0000]


@pytest.mark.parametrize("lost", [0, 1])
def test_a_killed_rank_ends_the_others_and_the_next_generation_goes_on(tmp_path: Path, lost: int) -> None:
    """No last fact is written; what the launcher starts next is another attempt, with the same windows."""
    run = make_probe(
        tmp_path, {"run": {"max_samples": 44}, "accumulation": {"effective_batch_size": 4},
                   "checkpoint": {"every_samples": 8}}, length=11, duration_s=0.02,
    )  # fmt: skip
    with RankedTrainers(run, 2) as trainers:
        trainers.wait_for_kind(CheckpointSaved)
        trainers.ranks[lost].kill()
        assert trainers.ranks[1 - lost].wait(30) == 1
    assert not events(run, RunFailed)
    assert len(events(run, Warned)) >= 1 - lost
    assert run_ranks(run, 2, generation=1) == [0, 0]
    assert events(run, RunFinished)[0].samples_seen == 44
    of_step = {
        step.step: round((step.gradient_norm or 0.0) * step.samples)
        for step in events(run, OptimizerStepMeasured)
    }
    assert list(of_step.values()) == [1111, 1111_0000, 111_0000_0000] * 4
    assert run_ranks(run, 2, generation=2) == [0, 0]
    assert len(events(run, RunStarted)) == 2, "a run that has finished is not begun again by its launcher"


def test_a_run_goes_on_with_other_ranks_and_keeps_its_windows(tmp_path: Path) -> None:
    """Two ranks, then one process, then three: M stays 4, and N is what it is on so many ranks."""
    run = make_probe(
        tmp_path, {"run": {"max_samples": 8}, "accumulation": {"effective_batch_size": 4}}, length=11
    )
    assert run_ranks(run, 2) == [0, 0]
    set_recipe(run, **{"run.max_samples": 15})
    assert run_here(run) == 0
    set_recipe(run, **{"run.max_samples": 22})
    assert run_ranks(run, 3) == [0, 0, 0]
    assert digits(run) == [1111, 1111_0000, 111_0000_0000] * 2
    assert [(fact.world_size, fact.micro_batches) for fact in events(run, RunStarted)] == [
        (2, 4),
        (1, 4),
        (3, 4),
    ]
    assert [fact.accumulation_steps for fact in events(run, RunStarted)] == [2, 4, 4]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_at_any_rank_stops_all_at_the_border(tmp_path: Path, rank: int) -> None:
    """Saved, told as a signal, and nothing of a window is lost."""
    run = make_probe(tmp_path, FOR_LONG, length=1000, duration_s=0.005)
    with RankedTrainers(run, 2) as trainers:
        trainers.wait_for_kind(OptimizerStepMeasured)
        trainers.ranks[rank].send_signal(signal.SIGTERM)
        assert trainers.wait_all() == [0, 0]
    [stopped] = events(run, RunStopped)
    assert stopped.reason == "signal"
    assert events(run, CheckpointSaved)[-1].step == stopped.step
    assert events(run, OptimizerStepMeasured)[-1].step == stopped.step


def test_ranks_of_one_machine_listen_on_the_loopback_only(tmp_path: Path) -> None:
    """And the run leaves no announcement behind."""
    import psutil

    run = make_probe(tmp_path, FOR_LONG, length=1000, duration_s=0.005)
    with RankedTrainers(run, 2) as trainers:
        trainers.wait_for_kind(OptimizerStepMeasured)
        listening = [
            each.laddr.ip
            for rank in trainers.ranks
            for each in psutil.Process(rank.pid).net_connections("inet")
            if each.status == psutil.CONN_LISTEN
        ]
        trainers.send(Stop())
        assert trainers.wait_all() == [0, 0]
    assert set(listening) <= {"127.0.0.1", "::1"}
    assert not list((run.path.parent.parent / "ranks").iterdir())
