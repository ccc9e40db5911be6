"""The runner: what it starts and when, how it ends, and that no kill loses or doubles an entry."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gradacc_gui.queueing import runner as module
from gradacc_gui.queueing import slots
from gradacc_gui.queueing.entries import Queue, QueueEntry
from gradacc_gui.queueing.runner import Runner, ensure_runner, is_at_work, leave_runners, reap_runners, serve
from gradacc_gui.queueing.waiting import look
from gradacc_gui.session import launch as launching
from gradacc_gui.session import runs as listing
from tests.support import stand_in
from tests.support.fake_runs import Plan, continue_run
from tests.support.trainers import ROOT
from tests.support.waiting import wait_for
from trainer_backend.inbox import send
from trainer_backend.protocol import Stop
from trainer_backend.recipe import read_document, save_recipe, set_value
from trainer_backend.run_directory import RunDirectory
from trainer_backend.trainer_lock import TrainerLock

ENDS = """
from tests.support.fake_runs import Plan, events
how = "HOW"
with run.locked():
    writer = JournalWriter(run.journal_path, attempt=1)
    for at, event in events(Plan(steps=2, checkpoint_every=0, end=how)):
        writer.put(event)
    writer.close()
    sys.exit(how == "failed")
"""
"""A trainer that ends after two steps, in the way of HOW."""


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], str]:
    """Choose what trainers do; gives their interpreter."""
    monkeypatch.setattr(module, "TICK_S", 0.02)
    monkeypatch.setattr(slots, "cuda_devices", lambda: ())

    def choose(body: str) -> str:
        return stand_in.install(monkeypatch, tmp_path, body).executable

    return choose


def add(python: str, *names: str) -> list[RunDirectory]:
    """New runs that wait."""
    runs = [stand_in.new_run(name) for name in names]
    for run in runs:
        Queue().add(run, python, asked_by="test")
    return runs


def outcomes() -> dict[str, str]:
    """How what left the queue ended, by the run's name."""
    return {RunDirectory(Path(one.run)).id.partition("-")[0]: one.outcome for one in Queue().done()}


def ended(body: str, how: str) -> str:
    """`body` that ends so."""
    return body.replace("HOW", how)


def test_runs_of_one_device_are_trained_one_after_the_other(python: Callable[[str], str]) -> None:
    """In their order; then the runner ends."""
    runs = add(python(ended(ENDS, "finished")), "a", "b", "c")
    serve(Queue())
    assert outcomes() == {"a": "finished", "b": "finished", "c": "finished"}
    done = [one.run for one in reversed(Queue().done())]
    assert done == [run.id for run in runs]
    assert not is_at_work(Queue())


def test_a_failed_run_does_not_stop_the_queue(python: Callable[[str], str]) -> None:
    """The next one starts."""
    add(python(ended(ENDS, "failed")), "a", "b")
    serve(Queue())
    assert outcomes() == {"a": "failed", "b": "failed"}


def test_a_failed_run_pauses_the_queue_where_that_is_chosen(python: Callable[[str], str]) -> None:
    """And it says why; what waits stays."""
    add(python(ended(ENDS, "failed")), "a", "b")
    Queue().change(pause_on_failure=True)
    serve(Queue())
    assert outcomes() == {"a": "failed"}
    assert Queue().settings().why_paused.endswith(": failed")
    assert look().waiting[0].waits_for == "waits: the queue is paused"
    Queue().change(paused=False)
    assert Queue().has_work()


def test_a_run_waits_for_a_device_that_a_run_outside_the_queue_has(python: Callable[[str], str]) -> None:
    """And the words say for which."""
    executable = python(ended(ENDS, "finished"))
    other = stand_in.new_run("other")
    add(executable, "a")
    with other.locked():
        runner = Runner(Queue())
        assert runner.tick()
        assert Queue().running() == []
        assert look().waiting[0].waits_for == "waits for CPU (other)"
    serve(Queue())
    assert outcomes() == {"a": "finished"}


def test_the_cpu_takes_as_many_runs_as_are_allowed(python: Callable[[str], str]) -> None:
    """One by default."""
    runs = add(python(stand_in.OBEDIENT), "a", "b", "c")
    Queue().change(cpu_runs=2)
    runner = Runner(Queue())
    runner.tick()
    wait_for(lambda: all(run.is_alive() for run in runs[:2]))
    runner.tick()
    assert [entry.run for entry in Queue().waiting()] == [runs[2].id]
    for run in runs[:2]:
        launching_stop(run)
    wait_for(lambda: runner.tick() and len(Queue().done()) == 2)
    wait_for(runs[2].is_alive)
    launching_stop(runs[2])
    wait_for(lambda: not runner.tick())
    assert set(outcomes().values()) == {"stopped"}


def launching_stop(run: RunDirectory) -> None:
    """Ask a stand-in to end, once it listens."""
    wait_for(lambda: "ready" in run.log_path.read_text())
    send(run.inbox_path, Stop())


def test_a_gpu_is_chosen_that_is_free(python: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """auto takes the first free one, and the recipe says so; a GPU that is kept free is left out."""
    started: list[tuple[str, str | None]] = []
    monkeypatch.setattr(slots, "cuda_devices", lambda: ("cuda:0", "cuda:1", "cuda:2"))
    monkeypatch.setattr(
        module, "start", lambda run, _python, device=None: started.append((run.asked_name, device))
    )
    monkeypatch.setattr(Runner, "_started_ones", lambda _self, _entry: [])
    executable = python(ended(ENDS, "finished"))
    add(executable, "a", "b")
    Queue().change(kept_free=("cuda:0",))
    has: list[tuple[str, ...]] = [("cuda:2",)]
    monkeypatch.setattr(
        slots, "taken", lambda: [slots.TakenDevices(RunDirectory(Path("x")), "x", one) for one in has]
    )
    runner = Runner(Queue())
    runner._start_what_can()
    assert started[0] == ("a", "cuda:1")
    has.append(("cuda:1",))
    started.clear()
    runner._start_what_can()
    assert started == []


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda run: run.recipe_path.unlink(), "recipe.toml"),
        (lambda run: run.recipe_path.write_text("[run\n"), "recipe.toml"),
        (lambda run: run.recipe_path.write_text("[run]\nepochs = 0\n"), "run.epochs"),
        (lambda run: __import__("shutil").rmtree(run.path), "was deleted"),
    ],
)
def test_what_cannot_be_started_is_skipped_with_its_reason(
    python: Callable[[str], str], spoil: Callable[[RunDirectory], None], reason: str
) -> None:
    """Its recipe vanished or is malformed, its folder was deleted; the others go on."""
    runs = add(python(ended(ENDS, "finished")), "a", "b")
    spoil(runs[0])
    assert "will be skipped" in look().waiting[0].waits_for
    serve(Queue())
    assert outcomes() == {"a": "refused", "b": "finished"}
    told = {one.run: one.reason for one in Queue().done()}[runs[0].id]
    assert reason in told


def test_an_interpreter_that_vanished_is_a_reason_too(python: Callable[[str], str]) -> None:
    """It was there when the run was queued."""
    python(ended(ENDS, "finished"))
    add("/nowhere/python", "a")
    serve(Queue())
    assert outcomes() == {"a": "refused"}
    assert "/nowhere/python cannot be started" in Queue().done()[0].reason


def test_files_that_are_no_entries_are_set_aside(
    python: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """And named in the runner's log."""
    add(python(ended(ENDS, "finished")), "a")
    (Queue().folder / "waiting" / "000-x.json").write_text("no entry")
    serve(Queue())
    assert outcomes() == {"a": "finished"}
    assert "000-x.json is no entry and was set aside" in capsys.readouterr().out
    assert (Queue().folder / "000-x.json.aside").exists()


def test_a_trainer_that_dies_at_once_is_a_failure(python: Callable[[str], str]) -> None:
    """It wrote no journal; its exit is known to who started it."""
    add(python("sys.exit('no torch today')"), "a")
    serve(Queue())
    assert outcomes() == {"a": "failed"}
    assert "no torch today" in Queue().done()[0].reason


def test_a_run_that_was_started_by_hand_meanwhile_is_not_started_again(
    python: Callable[[str], str],
) -> None:
    """It counts as started, and its end as the entry's."""
    (run,) = add(python("raise SystemExit('must not start')"), "a")
    continue_run(run, Plan(steps=2, checkpoint_every=0, end="finished"))
    serve(Queue())
    assert outcomes() == {"a": "finished"}


def test_a_run_that_a_reboot_interrupted_is_resumed(
    python: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was killed is not: somebody may have wanted that."""
    executable = python(ended(ENDS, "finished").replace("attempt=1", "attempt=2"))
    runs = add(executable, "a", "b")
    for run in runs:
        continue_run(run, Plan(steps=2, checkpoint_every=0))
        with run.locked():
            pass
    monkeypatch.setattr(
        module, "_went_down_with_the_machine", lambda entry: entry.run == runs[0].id and not resumed()
    )

    def resumed() -> bool:
        return "process" in (runs[0].log_path.read_text() if runs[0].log_path.exists() else "")

    serve(Queue())
    assert outcomes() == {"a": "finished", "b": "interrupted"}


def test_two_runners_never_work_at_once(python: Callable[[str], str]) -> None:
    """The second one ends at once and touches nothing."""
    add(python(ended(ENDS, "finished")), "a")
    queue = Queue()
    lock = TrainerLock(queue.folder, queue.lock_path).take()
    try:
        assert is_at_work(queue)
        assert not ensure_runner(queue)
        serve(queue)
        assert len(queue.waiting()) == 1
    finally:
        lock.release()


def test_what_is_added_while_the_runner_ends_is_not_left_behind(
    python: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Added after its last look and before it lets go of the lock, when others still see a runner."""
    executable = python(ended(ENDS, "finished"))
    add(executable, "a")
    release = TrainerLock.release
    late: list[RunDirectory] = []

    def add_late(lock: TrainerLock) -> None:
        if lock._path.name == "runner.lock" and not late:
            late.extend(add(executable, "b"))
            assert not ensure_runner()
        release(lock)

    monkeypatch.setattr(TrainerLock, "release", add_late)
    serve(Queue())
    assert outcomes() == {"a": "finished", "b": "finished"}


@pytest.fixture
def at_the_end() -> Iterator[None]:
    """Runners that a test started have ended."""
    yield
    wait_for(lambda: not is_at_work(Queue()) and not reap_runners())


@pytest.mark.usefixtures("at_the_end")
def test_runners_that_two_windows_start_do_each_entry_once() -> None:
    """Two real processes at the same moment; entries that end at once."""
    runs = add("/nowhere/python", *"abc")
    queue = Queue()
    command = [sys.executable, "-m", "gradacc_gui.queueing.runner"]
    both = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
        )
        for _ in range(2)
    ]
    said = "".join(process.communicate(timeout=60)[0] for process in both)
    assert said.count("refused") == 3
    assert queue.waiting() == queue.running() == []
    assert all(run.path.is_dir() for run in runs)


@pytest.mark.usefixtures("at_the_end")
def test_a_window_starts_a_runner_only_when_there_is_work() -> None:
    """And none while the queue is paused; the process is detached."""
    assert not ensure_runner()
    add("/nowhere/python", "a")
    Queue().change(paused=True)
    assert not ensure_runner()
    Queue().change(paused=False)
    assert ensure_runner()
    wait_for(lambda: bool(Queue().done()))
    assert os.getsid(module._runners[0].pid) == module._runners[0].pid
    assert "refused" in Queue().log_path.read_text()
    wait_for(lambda: not reap_runners())
    leave_runners()


# ----------------------------------------------------------------------------- killed anywhere


class InstantTrainer:
    """Stands for a trainer's process: it has trained before anybody looks again."""

    returncode: int | None = None
    pid = 2**22 - 1

    def __init__(self, command: list[str], **_options: Any) -> None:
        run = RunDirectory(Path(command[command.index("run") + 1]))
        with (run.path / "starts").open("a") as file:
            file.write("started\n")
        continue_run(run, Plan(steps=1, evaluate_every=0, checkpoint_every=0, end="finished"))

    def poll(self) -> int:
        """It ended well."""
        self.returncode = 0
        return 0


OURS = (
    module.__file__,
    launching.__file__,
    str(Path(module.__file__).with_name("entries.py")),
)


def killed_at(line: int) -> bool:
    """A child that works on the queue and kills itself at its `line`-th line; False when it got through."""
    child = os.fork()
    if child == 0:
        count = 0

        def trace(frame: FrameType, event: str, _value: object) -> Any:
            nonlocal count
            if frame.f_code.co_filename not in OURS:
                return None
            if event == "line":
                count += 1
                if count == line:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        try:
            serve(Queue())
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.skipif(sys.platform == "win32", reason="kill -9 of a fork")
@pytest.mark.parametrize(
    "stride", [37, pytest.param(1, marks=[pytest.mark.campaign, pytest.mark.timeout(900)])]
)
def test_a_runner_that_is_killed_anywhere_neither_loses_nor_doubles_an_entry(
    stride: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Killed at a line of its own code (each one, in a campaign), then the next runner goes on."""
    interpreter = stand_in.install(monkeypatch, tmp_path, "")
    monkeypatch.setattr(module, "TICK_S", 0.0)
    monkeypatch.setattr(module, "probe", lambda _python: interpreter)
    monkeypatch.setattr(launching, "installs", lambda _interpreter: [])
    monkeypatch.setattr(launching, "trainer_environment", lambda _interpreter: {})
    monkeypatch.setattr(launching, "DetachedProcess", InstantTrainer)
    monkeypatch.setattr(listing, "STARTING_S", 0.0)
    line, lines = 5, 0
    while True:
        home = tmp_path / f"home-{line}"
        monkeypatch.setenv("GRADACC_HOME", str(home))
        runs = add(interpreter.executable, "a", "b")
        was_killed = killed_at(line)
        serve(Queue())
        assert [one.outcome for one in Queue().done()] == ["finished", "finished"], line
        assert [(run.path / "starts").read_text() for run in runs] == ["started\n"] * 2, line
        assert Queue().waiting() == Queue().running() == []
        lines += 1
        if not was_killed:
            break
        line += stride
    assert lines > 10


def test_an_entry_is_what_was_queued() -> None:
    """What a resumed run had in its journal and its log counts as no start."""
    run = stand_in.new_run("old")
    continue_run(run, Plan(steps=2, checkpoint_every=0, end="stopped"))
    run.log_path.write_text("--- an earlier start\n--- process 1 on here\n")
    entry = Queue().add(run, "python", asked_by="test")
    assert isinstance(entry, QueueEntry)
    assert not module._was_started(entry)
    continue_run(run, Plan(steps=1, attempt=2, checkpoint_every=0))
    assert module._was_started(entry)


def test_the_recipe_is_read_when_the_run_starts(python: Callable[[str], str]) -> None:
    """A device that is changed while it waits is the one that it waits for."""
    (run,) = add(python(ended(ENDS, "finished")), "a")
    document = read_document(run.recipe_path)
    set_value(document, "run.device", "cuda:3")
    save_recipe(document, run.recipe_path)
    assert look().waiting[0].waits_for == "starts next"
    Queue().change(kept_free=("cuda:3",))
    assert look().waiting[0].waits_for == "waits: the queue keeps GPU 3 free"
