"""Trainers forked from one process that has imported torch already: milliseconds in place of seconds.

    process = start([sys.executable, "-P", "-m", "trainer_backend", "run", path], cwd=..., env=..., log=...)
    process.poll(); process.send_signal(signal.SIGTERM); process.wait(60)      # as a Popen

The server is this file as a program. It has imported torch and nothing of ours, has run no torch operation
and has no second thread (it refuses to fork otherwise), so what it forks is as good as new: trainer_backend
is imported by the trainer itself, from the PYTHONPATH that it was given, and the interpreter ends as any
other does. Python's own `multiprocessing.forkserver` is no substitute: its children are workers of the
process that asked, with its `__main__`, without a command line, and end by `os._exit`.

A test of how a trainer is launched, of its interpreter or of signals starts a cold one. So does any test
outside Linux, where a fork after torch's import is not safe (macOS) or not there (Windows).
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

IS_POSSIBLE: Final = sys.platform == "linux"
HEAD: Final = (sys.executable, "-P", "-m", "trainer_backend")
"""How every trainer's command begins."""
READ_EARLY: Final = (
    "LD_", "MALLOC_", "MKL_", "OMP_", "OPENBLAS_", "PYTHONHASHSEED", "PYTHONMALLOC", "PYTHONWARNINGS",
    "TORCH_", "TORCHDYNAMO_",
)  # fmt: skip
"""Beginnings of variables that are read by the time torch is imported; in a fork the server's own hold."""
ENVIRONMENT: Final = dict(os.environ)
"""As the tests began; the server's own."""
IMPORTED: Final = ("numpy.random", "torch", "torch._dynamo.utils")
"""What every trainer imports that takes long; the last of them ours binds at import."""
REQUEST_BYTES: Final = 1 << 20
PATIENCE_S: Final = 60.0


# ---------------------------------------------------------------- in the process of the tests


class ForkedTrainer:
    """A trainer that the server forked; answers as a `subprocess.Popen` does."""

    def __init__(self, command: Sequence[str], pid: int, told: socket.socket) -> None:
        self.args = list(command)
        self.pid = pid
        self.returncode: int | None = None
        self._told = told

    def poll(self) -> int | None:
        """The exit code (negative: the signal), or None while it lives."""
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended; `subprocess.TimeoutExpired` when it lives longer."""
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, if it still lives."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def leave(self) -> None:
        """As a process that goes on by itself: the server reaps it."""

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self._told.settimeout(timeout)
            with suppress(BlockingIOError, TimeoutError):
                text = self._told.recv(64)
                self._told.close()
                if not text:
                    raise RuntimeError("The fork server has ended before its trainers.")
                self.returncode = int(text)
        return self.returncode

    def __del__(self) -> None:
        self._told.close()


class ForkServer:
    """The server's process, as the tests see it. Started by the first trainer that wants it."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                # The last word is for who looks for trainers by their command lines.
                [sys.executable, "-P", __file__, str(theirs.fileno()), "trainer_backend"],
                env=ENVIRONMENT | {"PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1", "PYTHONFAULTHANDLER": "1"},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C at the terminal is for the tests, and no trainer's
            )

    def fork(
        self, command: Sequence[str], *, cwd: Path, env: Mapping[str, str], log: IO[bytes], detached: bool
    ) -> ForkedTrainer:
        """Start a trainer."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = {"command": list(command), "cwd": str(cwd), "env": dict(env), "detached": detached}
        with theirs:
            socket.send_fds(self._ours, [json.dumps(request).encode()], [theirs.fileno(), log.fileno()])
        ours.settimeout(PATIENCE_S)
        answer = ours.recv(64)
        if not answer:
            ours.close()
            raise RuntimeError("The fork server has ended; what it said stands above.")
        return ForkedTrainer(command, int(answer), ours)

    def close(self) -> None:
        """End it; the trainers that it forked are ended by the tests that started them."""
        self._ours.close()
        self.process.wait(PATIENCE_S)


_server: ForkServer | None = None


def start(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], log: IO[bytes], detached: bool = False
) -> ForkedTrainer:
    """Fork a trainer: standard output and error go to `log`, standard input is empty."""
    global _server  # noqa: PLW0603 - one for all tests of this process
    if _server is None:
        _server = ForkServer()
    return _server.fork(command, cwd=cwd, env=env, log=log, detached=detached)


def can_fork(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether a trainer of this command is the same one when it is forked: this Python, this torch."""
    return (
        IS_POSSIBLE and tuple(command[: len(HEAD)]) == HEAD and _read_early(env) == _read_early(ENVIRONMENT)
    )


def _read_early(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(READ_EARLY)}


def server_pid() -> int | None:
    """The server's process, once there is one."""
    return None if _server is None else _server.process.pid


def close() -> None:
    """End the server, if it was started."""
    global _server  # noqa: PLW0603 - see `start`
    if _server is not None:
        _server.close()
        _server = None


# ---------------------------------------------------------------- in the server's process


def serve(asking: socket.socket) -> list[str] | None:
    """Fork as asked. Comes back in each trainer, with its command; in the server None, at the end."""
    living: dict[int, socket.socket] = {}
    woken, waking = socket.socketpair()
    for end in (woken, waking):
        end.setblocking(False)
    signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # so that it wakes
    with selectors.DefaultSelector() as selector:
        selector.register(asking, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if woken in ready:
                woken.recv(4096)
                _tell_ends(living)
            if asking not in ready:
                continue
            text, files, _, _ = socket.recv_fds(asking, REQUEST_BYTES, 2)
            if not text:
                return None
            if (pid := _fork()) == 0:
                for each in (asking, woken, waking, *living.values()):
                    each.close()
                return _become(json.loads(text), files)
            telling = socket.socket(fileno=files[0])
            os.close(files[1])
            living[pid] = telling
            telling.send(str(pid).encode())


def _fork() -> int:
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1 or threading.active_count() != 1:
        raise RuntimeError(f"{threads} threads here: a fork would copy one of them and the locks of all.")
    return os.fork()


def _tell_ends(living: dict[int, socket.socket]) -> None:
    while living:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with living.pop(pid) as telling, suppress(OSError):  # whoever asked may be gone
            telling.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(request: dict[str, Any], files: list[int]) -> list[str]:
    """Make this fork what a new process would be; gives its command."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if request["detached"]:
        os.setsid()
    os.dup2(files[1], 1)
    os.dup2(files[1], 2)
    for file in files:
        os.close(file)
    os.chdir(request["cwd"])
    env: dict[str, str] = request["env"]
    os.environ.clear()
    os.environ.update(env)
    known = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[:0] = known
    # A new process draws a seed of its own; Python's generator has renewed its own at the fork.
    importlib.import_module("numpy.random").seed()
    return list(request["command"])


def main() -> None:
    """The server: import, fork, and in each fork be the trainer."""
    asking = socket.socket(fileno=int(sys.argv[1]))
    own = {folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder}
    sys.path[:] = [folder for folder in sys.path if folder not in own]
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # what lies there is shared with all forks, and is not walked by their collections
    command = serve(asking)
    if command is None:
        return
    sys.argv = ["trainer_backend", *command[len(HEAD) :]]
    runpy.run_module("trainer_backend", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
