"""The queue with real trainers, a runner that is killed, and nobody watching."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from gradacc_gui.cli import main
from gradacc_gui.queueing.entries import Queue
from gradacc_gui.queueing.runner import is_at_work
from tests.support.trainers import records
from tests.support.waiting import wait_for
from trainer_backend.protocol import RunFailed, RunFinished, RunStarted
from trainer_backend.run_directory import find_run
from trainer_backend.trainer_lock import read_holder

RECIPE = """\
[run]
name = "{name}"
device = "cpu"
max_optimizer_steps = {steps}
[task]
context_length = 16
layers = 1
width = 16
heads = 2
[data]
path = "text"
[accumulation]
micro_batch_size = 2
gradient_accumulation_steps = 2
"""


@pytest.mark.timeout(180)
def test_two_recipes_and_a_bad_one_are_trained_in_turn_though_the_runner_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 of the runner while the first trains: the next command goes on; the bad one fails alone."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("some text to learn " * 4000)
    for name, steps in (("first", 400), ("second", 3), ("bad", 3)):
        (tmp_path / f"{name}.toml").write_text(RECIPE.format(name=name, steps=steps))
    assert main(["queue", "add", "first.toml", "bad.toml", "second.toml"]) == 0
    bad = find_run("bad")
    bad.recipe_path.write_text(bad.recipe_path.read_text().replace("max_optimizer_steps = 3", "epochs = 0"))
    first = find_run("first")
    wait_for(lambda: first.is_alive() and first.journal_path.is_file(), 60)
    holder = read_holder(Queue().lock_path)
    assert holder is not None
    runner = psutil.Process(holder.pid)
    runner.kill()
    runner.wait()
    wait_for(lambda: not is_at_work(Queue()))
    assert first.is_alive()

    assert main(["queue", "list"]) == 0

    wait_for(lambda: len(Queue().done()) == 3, 120)
    wait_for(lambda: not is_at_work(Queue()))
    psutil.wait_procs(psutil.Process().children(), timeout=30)
    assert {one.run.partition("-")[0]: one.outcome for one in Queue().done()} == {
        "first": "finished", "second": "finished", "bad": "refused",
    }  # fmt: skip
    told = {run: records(find_run(run)) for run in ("first", "second")}
    starts = {name: [r.at for r in rows if isinstance(r.event, RunStarted)] for name, rows in told.items()}
    assert [len(found) for found in starts.values()] == [1, 1]
    ends = {name: [r.at for r in rows if isinstance(r.event, RunFinished)] for name, rows in told.items()}
    assert ends["first"][0] < starts["second"][0]
    assert not any(isinstance(record.event, RunFailed) for rows in told.values() for record in rows)
