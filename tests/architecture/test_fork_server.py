"""A forked trainer is what a new process would be, so that tests may start trainers the short way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import fork_server, leftovers
from tests.support.trainers import Trainer, make_probe
from trainer_backend.protocol import RunStarted

pytestmark = pytest.mark.skipif(not fork_server.IS_POSSIBLE, reason="trainers are forked on Linux alone")

TELL = """
import json, os, signal, sys, threading
from pathlib import Path
here = Path("/proc/self")
print(json.dumps({
    "argv": sys.argv,
    "main": [__name__, sys.modules["__main__"].__dict__ is globals()],
    "package": sys.modules["trainer_backend"].__file__,
    "folder": os.getcwd(),
    "variables": dict(os.environ),
    "path": sys.path,
    "flags": str(sys.flags),
    "streams": [sys.stdin.read(), sys.stdout.encoding, sys.stdout.isatty(), sys.stdout.write_through],
    "threads": [threading.active_count(), len(list((here / "task").iterdir()))],
    "signals": [str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP)],
    "files": sorted(file.name for file in (here / "fd").iterdir() if file.exists() and int(file.name) > 2),
    "leads": os.getsid(0) == os.getpid(),
    "children": (here / "task" / str(os.getpid()) / "children").read_text(),
}))
sys.stderr.write("told\\n")
raise SystemExit(int(sys.argv[1]))
"""


def command(*arguments: str) -> list[str]:
    """As a trainer is started."""
    return [*fork_server.HEAD, *arguments]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A place with a trainer_backend of its own, which tells what it sees."""
    package = tmp_path / "place" / "trainer_backend"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(TELL, "utf-8")
    more = {"PYTHONPATH": str(package.parent), "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1", "OWN": "é"}
    return dict(os.environ) | more | {"PYTHONFAULTHANDLER": "1"}


@pytest.mark.parametrize("detached", [False, True])
def test_a_forked_process_sees_what_a_new_one_sees(
    tmp_path: Path, env: dict[str, str], detached: bool
) -> None:
    """Arguments, folder, variables, path, flags, streams, signals, open files; and it ends with its code."""
    told: list[dict[str, Any]] = []
    for name in ("new", "forked"):
        with (tmp_path / name).open("ab") as log:
            process: subprocess.Popen[bytes] | fork_server.ForkedTrainer
            if name == "new":
                process = subprocess.Popen(
                    command("3", "four"), cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, stdout=log,
                    stderr=log, start_new_session=detached,
                )  # fmt: skip
            else:
                process = fork_server.start(
                    command("3", "four"), cwd=tmp_path, env=env, log=log, detached=detached
                )
        assert process.wait(60) == process.poll() == process.returncode == 3
        lines = (tmp_path / name).read_text("utf-8").splitlines()
        assert lines[1:] == ["told"]
        told.append(json.loads(lines[0]))
    assert told[1] == told[0]


def test_a_signal_is_told_as_popen_tells_it(tmp_path: Path) -> None:
    """It ends the trainer alone; the next one comes from the same server."""
    run = make_probe(tmp_path, {"run": {"max_samples": 10**9}}, length=1000, duration_s=0.005)
    with Trainer(run) as trainer:
        trainer.wait_for_kind(RunStarted)
        server = fork_server.server_pid()
        with pytest.raises(subprocess.TimeoutExpired):
            trainer.wait(0.01)
        trainer.process.send_signal(signal.SIGKILL)
        assert trainer.wait() == -signal.SIGKILL
    with Trainer(run) as trainer:
        trainer.wait_for_kind(RunStarted)
    assert fork_server.server_pid() == server


def test_a_forked_trainer_that_is_left_is_told_and_ended(tmp_path: Path, gradacc_home: Path) -> None:
    """It is the server's child, not the tests' own; a check that knew only its own would miss it."""
    run = make_probe(tmp_path, {"run": {"max_samples": 10**9}}, length=1000, duration_s=0.005)
    watch = leftovers.Watch(gradacc_home)
    trainer = Trainer(run)
    trainer.wait_for_kind(RunStarted)
    assert [what.split()[:2] for what in watch.left()] == [
        ["process", str(trainer.process.pid)],
        ["live", "run"],
    ]
    watch.clear()
    assert trainer.wait() == -signal.SIGKILL
    trainer.__exit__(None, None, None)
    assert watch.left() == []


def test_what_is_no_plain_trainer_is_not_forked(env: dict[str, str]) -> None:
    """Another interpreter, another program, variables that are read before torch is there."""
    assert fork_server.can_fork(command("run", "x"), env)
    assert not fork_server.can_fork(["/usr/bin/python3", *command("run", "x")[1:]], env)
    assert not fork_server.can_fork([sys.executable, "-m", "gradacc_gui"], env)
    assert not fork_server.can_fork(command("run", "x"), env | {"OMP_NUM_THREADS": "2"})
