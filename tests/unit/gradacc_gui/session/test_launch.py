"""A trainer is started so that nothing of ours can end it, and so that its death is noticed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from gradacc_gui.session.interpreter import InterpreterError
from gradacc_gui.session.launch import Died, Launch, crash_place, last_lines, start, tail
from gradacc_gui.session.runs import summarise
from gradacc_gui.session.stopping import Act, perform
from tests.support import stand_in
from tests.support.trainers import ROOT
from tests.support.waiting import wait_for
from trainer_backend.errors import RunDirectoryError
from trainer_backend.run_facts import RunState


def died(launch: Launch) -> Died:
    """How it ended, once it has."""
    wait_for(lambda: launch.poll() is not None)
    found = launch.poll()
    assert found is not None
    return found


def test_a_trainer_is_detached_and_stops_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own session, no standard input, output to trainer.log; then a clean end."""
    run = stand_in.new_run()
    launch = start(run, stand_in.install(monkeypatch, tmp_path, stand_in.OBEDIENT))
    wait_for(run.is_alive)
    process = psutil.Process(launch.pid)
    assert os.getsid(launch.pid) == launch.pid
    assert Path(f"/proc/{launch.pid}/fd/0").resolve() == Path(os.devnull) or sys.platform != "linux"
    assert "-P" in process.cmdline()
    wait_for(lambda: "ready" in run.log_path.read_text())
    assert launch.poll() is None

    perform(Act.ASK, run, asked_by="test")

    assert died(launch).clean
    assert not run.is_alive()
    assert summarise(run).state is RunState.STOPPED


def test_a_trainer_outlives_a_killed_starter(tmp_path: Path) -> None:
    """kill -9 of whoever started it: it goes on, and answers to others."""
    run = stand_in.new_run()
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "import pytest\n"
        "from tests.support import stand_in\n"
        "from gradacc_gui.session.launch import start\n"
        "from trainer_backend.run_directory import RunDirectory\n"
        "run = RunDirectory(Path(sys.argv[1]))\n"
        "with pytest.MonkeyPatch.context() as patch:\n"
        "    launch = start(run, stand_in.install(patch, Path(sys.argv[2]), stand_in.OBEDIENT))\n"
        "    print(launch.pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", code, str(run.path), str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert starter.stdout is not None
    starter.stdout.readline()
    wait_for(lambda: "ready" in run.log_path.read_text())
    os.killpg(starter.pid, signal.SIGKILL)  # its whole group, as a closing terminal does
    starter.wait()
    starter.stdout.close()
    assert run.is_alive()

    perform(Act.ASK, run, asked_by="test")

    wait_for(lambda: not run.is_alive())
    assert summarise(run).state is RunState.STOPPED


@pytest.mark.parametrize(
    ("body", "code", "told"),
    [
        (
            "import no_such_module_anywhere",
            1,
            "ModuleNotFoundError: No module named 'no_such_module_anywhere'",
        ),
        ("raise SystemExit(3)", 3, "exit code 3"),
        ("import faulthandler; faulthandler._sigsegv()", -signal.SIGSEGV, "SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, "SIGKILL"),
    ],
)
def test_a_trainer_that_dies_at_once_is_noticed_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, code: int, told: str
) -> None:
    """Nobody waits for it, and what it printed is at hand."""
    run = stand_in.new_run()

    found = died(start(run, stand_in.install(monkeypatch, tmp_path, body)))

    assert found.exit_code == code
    assert not found.clean
    assert told in found.sentence()
    if len(found.last_lines) > 1:  # else whoever did not start it waits some seconds for its lock
        assert summarise(run).state is RunState.INTERRUPTED


def test_a_segmentation_fault_tells_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's fault handler is on, so trainer.log has the lines."""
    run = stand_in.new_run()
    found = died(
        start(run, stand_in.install(monkeypatch, tmp_path, "import faulthandler; faulthandler._sigsegv()"))
    )

    assert any("Segmentation fault" in line for line in found.last_lines)
    assert any("__main__.py" in line for line in found.last_lines)
    assert re.search(
        r'ended by SIGSEGV. It crashed in File ".*__main__.py", line \d+ in <module>', found.sentence()
    )
    assert not [line for line in found.last_lines if line.startswith("Extension modules")]
    assert summarise(run).reason.startswith('File "')


def test_the_place_of_a_crash_is_the_crashed_thread_s_own() -> None:
    """Other threads are listed too, before it or after it."""
    other = ["Thread 0x7f01 (most recent call first):", '  File "waits.py", line 1 in wait', ""]
    own = ["Current thread 0x7f02 (most recent call first):", '  File "crashes.py", line 3 in crash', ""]
    head = ["fine so far", "Fatal Python error: Segmentation fault", ""]
    assert crash_place([*head, *other, *own]) == 'File "crashes.py", line 3 in crash'
    assert crash_place([*head, *own, *other]) == 'File "crashes.py", line 3 in crash'
    assert crash_place([*head, own[0], "  <no Python frame>", *other]) == ""
    assert crash_place(own) == ""


def test_a_second_start_is_refused_while_the_first_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two clicks on Resume: the lock decides, and the second is told."""
    run = stand_in.new_run()
    interpreter = stand_in.install(monkeypatch, tmp_path, stand_in.OBEDIENT)
    first = start(run, interpreter)
    wait_for(lambda: "ready" in run.log_path.read_text())

    with pytest.raises(RunDirectoryError, match=f"already runs .*process {first.pid}"):
        start(run, interpreter)

    perform(Act.ASK, run, asked_by="test")
    assert died(first).clean


def test_of_two_trainers_started_at_the_same_time_one_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the lock there is time for two; the second ends by itself."""
    run = stand_in.new_run()
    interpreter = stand_in.install(monkeypatch, tmp_path, stand_in.OBEDIENT)
    both = [start(run, interpreter), start(run, interpreter)]
    wait_for(lambda: any(launch.poll() is not None for launch in both))

    (refused,) = [launch for launch in both if launch.poll() is not None]
    assert "already runs" in died(refused).sentence()
    assert run.is_alive()
    perform(Act.ASK, run, asked_by="test")
    assert [died(launch).clean for launch in both].count(True) == 1


def test_the_user_s_own_modules_do_not_hide_python_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue.py in the working folder would end the trainer at its first import."""
    run = stand_in.new_run()
    (run.path / "queue.py").write_text("raise SystemExit('hidden')")
    monkeypatch.setenv("PYTHONPATH", str(run.path))

    found = died(start(run, stand_in.install(monkeypatch, tmp_path, "import queue; print(queue.__file__)")))

    assert found.clean
    assert str(run.path) not in found.last_lines[-1]


def test_what_bends_another_python_is_not_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of this process's Python and Qt stay here."""
    for name in ("PYTHONHOME", "VIRTUAL_ENV", "QT_SCALE_FACTOR", "PYTHONSTARTUP"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("MY_OWN", "kept")
    run = stand_in.new_run()
    body = "for name in sorted(os.environ): print(name, os.environ[name])"

    lines = died(start(run, stand_in.install(monkeypatch, tmp_path, body)))

    log = run.log_path.read_text().splitlines()
    assert lines.clean
    assert "MY_OWN kept" in log
    assert {"PYTHONFAULTHANDLER 1", "PYTHONUNBUFFERED 1", "PYTHONUTF8 1"} <= set(log)
    assert f"PYTHONPATH {tmp_path / 'stand-in'}" in log
    assert not [line for line in log if line.endswith(" x")]


def test_much_output_blocks_no_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes to a file, not to a pipe that somebody has to empty; and little of it is read."""
    run = stand_in.new_run()
    body = "for line in range(40_000): print('x' * 50, line)"

    found = died(start(run, stand_in.install(monkeypatch, tmp_path, body)))

    assert found.clean
    assert run.log_path.stat().st_size > 2_000_000
    assert found.last_lines[-1].endswith("39999")
    assert len(found.last_lines) == 20


def test_only_the_lines_of_this_start_are_told(tmp_path: Path) -> None:
    """trainer.log has those of earlier attempts too."""
    log = tmp_path / "trainer.log"
    log.write_bytes(b"old\n")
    since = log.stat().st_size
    log.write_bytes(log.read_bytes() + b"new \xff\n")

    assert tail(log, since=since) == ("new \ufffd",)
    assert tail(tmp_path / "none.log") == ()


def test_an_interpreter_that_lacks_packages_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are installed only after the person was asked."""
    from msgspec.structs import replace

    run = stand_in.new_run()
    interpreter = replace(stand_in.install(monkeypatch, tmp_path, ""), packages={})

    with pytest.raises(
        InterpreterError, match="lacks msgspec, safetensors, psutil, nvidia-ml-py, tomlkit, numpy"
    ):
        start(run, interpreter)
    assert not run.log_path.exists()
    assert last_lines(run) == ()
