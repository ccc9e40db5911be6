"""The command line with real trainers: started, followed, steered, stopped, left alone, resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gradacc_gui.session.runs import summarise
from tests.support.trainers import ROOT, events, records
from tests.support.waiting import wait_for
from trainer_backend.protocol import (
    AccumulationChanged,
    OptimizerStepMeasured,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
)
from trainer_backend.run_directory import RunDirectory, all_runs, find_run
from trainer_backend.run_facts import RunState

RECIPE = """\
[run]
name = "cli"
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
gradient_accumulation_steps = 4
"""
ENDLESS = 1_000_000


class Gradacc:
    """Starts `gradacc` as a person's shell would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start it and go on."""
        process = subprocess.Popen(
            [sys.executable, "-m", "gradacc_gui", *arguments],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        self.processes.append(process)
        return process

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Run it to its end; gives exit code, output and errors."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=100)
        return process.returncode, out, err

    def close(self) -> None:
        """End what still runs."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


@pytest.fixture
def gradacc(tmp_path: Path) -> Iterator[Gradacc]:
    """The command, in a folder with a recipe and its text."""
    (tmp_path / "text").mkdir()
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / "text" / name).write_text("all that glitters is not gold. " * 300)
    (tmp_path / "short.toml").write_text(RECIPE.format(steps=3))
    (tmp_path / "long.toml").write_text(RECIPE.format(steps=ENDLESS))
    found = Gradacc(tmp_path)
    yield found
    found.close()


def the_run() -> RunDirectory:
    """The only one there is."""
    wait_for(lambda: len(all_runs()) == 1)
    return all_runs()[0]


def stepping(run: RunDirectory) -> None:
    """Wait until it trains."""
    wait_for(lambda: run.journal_path.is_file() and summarise(run).step >= 2, timeout_s=90)


def assert_windows(run: RunDirectory, wanted: Callable[[int], int]) -> None:
    """Every window has the N that is wanted for its step, but for an epoch's last, which is shorter."""
    (started,) = events(run, RunStarted)
    assert started.samples_per_epoch
    for step in events(run, OptimizerStepMeasured):
        assert step.accumulation_steps == wanted(step.step)
        if step.samples_seen % started.samples_per_epoch:
            assert step.micro_batches == wanted(step.step)


def test_a_run_is_followed_to_its_end_as_json(gradacc: Gradacc) -> None:
    """Every event of the journal, one a line, in order; exit code 0."""
    code, out, err = gradacc("run", "short.toml", "--json")

    assert (code, err) == (0, "")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    steps = [line for line in lines if line["type"] == "OptimizerStepMeasured"]
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert [line["micro_batches"] for line in steps] == [4, 4, 4]
    assert lines[-1]["type"] == "RunFinished"
    assert summarise(the_run()).state is RunState.FINISHED


def test_a_run_for_people_ends_with_words(gradacc: Gradacc) -> None:
    """Settings of the command line hold, and a pipe gets lines, not a bar."""
    code, out, _ = gradacc(
        "run", "long.toml", "--set", "run.max_optimizer_steps=", "--set", "run.max_samples=16"
    )

    assert code == 0
    assert "Run started" in out
    assert "Finished at step 2" in out
    assert "\x1b" not in out


def test_ctrl_c_asks_for_a_stop_and_waits(gradacc: Gradacc) -> None:
    """The window of micro-batches is finished and saved; exit code 0."""
    process = gradacc.start("run", "long.toml")
    run = the_run()
    stepping(run)

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)

    assert process.returncode == 0
    assert "Stopping after the current optimizer step" in err
    assert "Stopped after step" in out
    (ended,) = events(run, RunStopped)
    assert ended.reason == "stop"
    assert_windows(run, lambda _step: 4)


def test_a_termination_during_the_start_is_not_lost(gradacc: Gradacc) -> None:
    """Asked after the launch and before the lock, the stop is meant for this attempt."""
    process = gradacc.start("run", "long.toml")
    run = the_run()
    wait_for(run.log_path.exists)

    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=90)

    assert process.returncode == 0
    assert summarise(run).state is RunState.STOPPED


def test_a_closed_pipe_leaves_the_run_alone(gradacc: Gradacc) -> None:
    """`gradacc run … | head -1` ends; the trainer goes on and can be stopped by name."""
    process = gradacc.start("run", "long.toml", "--json")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    run = the_run()
    wait_for(lambda: process.poll() is not None, timeout_s=90)
    assert process.returncode == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""

    assert run.is_alive()
    stepping(run)
    assert gradacc("stop", "cli", "--now")[0] == 0
    wait_for(lambda: not run.is_alive())
    assert summarise(run).state is RunState.STOPPED


def test_a_hang_up_leaves_the_run_alone(gradacc: Gradacc) -> None:
    """The terminal is closed over it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup, and pass it on
    process = gradacc.start("run", "long.toml", start_new_session=True)
    signal.signal(signal.SIGHUP, before)
    run = the_run()
    stepping(run)
    os.killpg(process.pid, signal.SIGHUP)
    process.wait(30)

    seen = summarise(run).step
    wait_for(lambda: summarise(run).step > seen + 2)
    assert gradacc("stop", run.id)[0] == 0
    wait_for(lambda: not run.is_alive())


def test_a_detached_run_is_steered_paused_and_resumed(gradacc: Gradacc) -> None:
    """N 4 → 3 at the next border with windows counted; pause, go on, checkpoint, stop; then a new attempt."""
    code, out, err = gradacc("run", "long.toml", "--detach")
    assert (code, err) == (0, "")
    run = find_run(out.strip())
    stepping(run)

    code, out, _ = gradacc("set", "cli", "gradient_accumulation_steps", "3", "--json")
    assert code == 0
    applies_at = json.loads(out)["applies_at_step"]
    wait_for(lambda: summarise(run).step > applies_at)
    (change,) = events(run, AccumulationChanged)
    assert (change.step, change.before, change.after) == (applies_at, 4, 3)
    assert_windows(run, lambda step: 4 if step < applies_at else 3)

    assert gradacc("pause", "cli")[0] == 0
    wait_for(lambda: summarise(run).state is RunState.PAUSED)
    assert gradacc("resume", "cli")[0] == 0
    wait_for(lambda: summarise(run).state is RunState.RUNNING)
    assert gradacc("resume", "cli")[0] == 1  # it is not paused
    assert gradacc("checkpoint", "cli")[0] == 0
    assert gradacc("stop", "cli")[0] == 0
    wait_for(lambda: not run.is_alive())
    assert any(run.checkpoints_path.iterdir())
    at = summarise(run).step

    assert gradacc("resume", "cli", "--detach")[0] == 0
    wait_for(lambda: len(events(run, RunStarted)) == 2, timeout_s=90)
    assert events(run, RunStarted)[1].from_step == at
    assert gradacc("resume", "cli", "--detach")[0] == 1  # a second click: it is alive and not paused
    assert gradacc("stop", "cli", "--now")[0] == 0
    wait_for(lambda: not run.is_alive())
    assert [record.seq for record in records(run)] == list(range(1, len(records(run)) + 1))


def test_a_killed_trainer_is_told_with_exit_code_1(gradacc: Gradacc) -> None:
    """kill -9 of the trainer under `gradacc run`."""
    process = gradacc.start("run", "long.toml")
    run = the_run()
    stepping(run)
    pid = run.pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    _, err = process.communicate(timeout=30)

    assert process.returncode == 1
    assert "was ended by SIGKILL. See" in err  # it said nothing, and its heading is no last word
    assert f"`gradacc resume {run.id}` starts again at step 1." in err
    assert summarise(run).state is RunState.INTERRUPTED


def test_an_exception_in_the_user_s_code_fails_the_run_with_file_and_line(
    gradacc: Gradacc, tmp_path: Path
) -> None:
    """Exit code 1; the sentence names the error, the journal the line."""
    gradacc("new", "task", "mine.py")
    task = tmp_path / "mine.py"
    task.write_text(task.read_text().replace("points, labels = batch", 'raise KeyError("my slip")'))
    (line,) = [number for number, text in enumerate(task.read_text().splitlines(), 1) if "my slip" in text]

    code, out, _ = gradacc("run", "mine.toml")

    assert code == 1
    assert "my slip" in out
    (failed,) = events(the_run(), RunFailed)
    assert failed.where.endswith(f"mine.py:{line}")
    assert summarise(the_run()).state is RunState.FAILED


def test_the_template_of_a_task_trains_as_it_stands(gradacc: Gradacc) -> None:
    """`gradacc new task`, then `gradacc run`: the loss falls."""
    assert gradacc("new", "task", "my_task.py")[0] == 0

    code, out, err = gradacc("run", "my_task.toml", "--json", "--set", "run.epochs=2")

    assert (code, err) == (0, "")
    lines = [json.loads(line) for line in out.splitlines()]
    losses = [line["loss"] for line in lines if line["type"] == "OptimizerStepMeasured"]
    assert len(losses) == 2 * 4096 // 64
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])
    assert lines[-1]["type"] == "RunFinished"
    assert events(the_run(), RunFinished)


def test_an_import_error_in_the_user_s_module_is_told(gradacc: Gradacc, tmp_path: Path) -> None:
    """The module is there, what it imports is not."""
    gradacc("new", "task", "mine.py")
    (tmp_path / "mine.py").write_text("import no_such_library_anywhere\n")

    code, out, err = gradacc("run", "mine.toml")

    assert code == 1
    assert "no_such_library_anywhere" in out + err


REFUSED_BY_THE_TRAINER = {
    "task.entry=mine:Tusk": "mine has no Tusk",
    "task.entry=nowhere:Task": "there is no module nowhere",
    "task.options.lenght=4": "task.options do not fit mine:Task",
    "task.entry=mine:lossless": "has no model() and no loss()",
    "run.device=cuda:97": "run.device = cuda:97",
}


def test_what_only_the_trainer_can_refuse_is_bad_usage_too(gradacc: Gradacc, tmp_path: Path) -> None:
    """Exit code 2, a sentence, and no run that never was; the trainer's own exit code tells which it is."""
    gradacc("new", "task", "mine.py")
    with (tmp_path / "mine.py").open("a") as file:
        file.write("\n\ndef lossless(**_):\n    return type('Lossless', (), {'datasets': print})()\n")

    def refused(setting: str) -> tuple[int, str, str]:
        return gradacc("run", "mine.toml", "--set", setting)

    with ThreadPoolExecutor(2) as pool:  # each of them imports torch
        done = dict(zip(REFUSED_BY_THE_TRAINER, pool.map(refused, REFUSED_BY_THE_TRAINER), strict=True))

    for setting, told in REFUSED_BY_THE_TRAINER.items():
        code, out, err = done[setting]
        assert (code, "Traceback" in err) == (2, False), setting
        assert told in out + err
    assert all_runs() == []


def test_a_recipe_is_checked_and_the_run_keeps_its_check(gradacc: Gradacc, tmp_path: Path) -> None:
    """One object, exit code 0 or 2; the run that follows has the report beside its journal."""
    code, out, _ = gradacc("check", "short.toml", "--json")
    told = json.loads(out)
    assert (code, told["refused"]) == (0, None)
    assert {row["source"].partition(":")[0] for row in told["window"]} <= {"a.txt", "b.txt", "c.txt"}
    assert told["denominators"] == {"loss": 2 * 4 * 16}
    assert {entry["state"] for entry in told["checks"]} <= {"ok", "doubtful"}
    gradacc("run", "short.toml")
    assert json.loads((the_run().path / "check.json").read_text())["type"] == "CheckReport"
    (tmp_path / "short.toml").write_text(RECIPE.format(steps=3).replace('"text"', '"nowhere"'))
    code, out, _ = gradacc("check", "short.toml", "--json")
    assert code == 2
    assert "nowhere" in json.loads(out)["refused"]
