"""Trainers that are forked from a process which has imported everything, with `_calls.c` preloaded.

    with place() as folder:                   # a GRADACC_HOME of its own
        run = new_run(folder)
        end = train(run, Hit(kinds=Kind.CHANGES, at=17))      # killed before its 17th change of the disk
        end = train(run)                                      # goes on, undisturbed

The process that forks has run no torch operation and has one thread, so what it forks is as good as new.
"""

from __future__ import annotations

import enum
import errno
import gc
import importlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.support.trainers import make_run
from trainer_backend.run_directory import RunDirectory

HERE: Final = Path(__file__).parent
PATIENCE_S: Final = 180.0
"""A process that takes longer on a busy machine hangs."""
RECIPE: Final[dict[str, Any]] = {
    "run": {"max_samples": 46, "device": "cpu", "precision": "fp32", "seed": 3, "readings_every_s": 3600},
    "data": {"num_workers": 0, "shuffle": True},
    "accumulation": {"micro_batch_size": 2, "gradient_accumulation_steps": 3},
    "optimizer": {"name": "adamw", "learning_rate": 0.01, "ema_decay": 0.9, "max_grad_norm": 1.0},
    "schedule": {"kind": "cosine", "warmup_samples": 12},
    "checkpoint": {"every_samples": 12, "keep": 2},
    "evaluation": {"every_samples": 24},
}


class Kind(enum.IntFlag):
    """System calls, as `_calls.c` numbers them."""

    WRITE = 1
    SYNC = 2
    RENAME = 4
    MKDIR = 8
    OPEN_TO_WRITE = 16
    OTHER = 32
    """unlink, rmdir, truncate, chmod, link."""
    OPEN_TO_READ = 64
    CHANGES = 63
    """All that change something."""


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to a trainer: at which call, to how many in a row."""

    kinds: Kind = Kind.CHANGES
    at: int = 0
    """From 1; 0 is never: calls are only counted."""
    error: int = 0
    """What the call fails with (an errno); 0 kills the process before it."""
    count: int = 1
    """Calls in a row that are hit; 0 is all from then on."""

    def environment(self, under: Path) -> dict[str, str]:
        """What tells `_calls.c`."""
        return {
            "FAULTS_UNDER": str(under),
            "FAULTS_KINDS": str(int(self.kinds)),
            "FAULTS_AT": str(self.at),
            "FAULTS_FOR": str(self.count),
            "FAULTS_ERRNO": str(self.error),
        }

    def __str__(self) -> str:
        how = errno.errorcode[self.error] if self.error else "kill"
        return f"{how} at call {self.at} of {self.kinds!r} for {self.count}"


class End(msgspec.Struct, frozen=True, kw_only=True):
    """How a process ended."""

    code: int
    """Its exit code; negative: the signal."""
    hung: bool = False

    @property
    def was_killed(self) -> bool:
        """By `_calls.c`."""
        return self.code == -signal.SIGKILL and not self.hung


def library(folder: Path) -> Path:
    """Compile `_calls.c`; gives what is to be preloaded. Raises CalledProcessError."""
    target = folder / "calls.so"
    command = ["cc", "-O1", "-shared", "-fPIC", "-o", str(target), str(HERE / "_calls.c"), "-ldl"]
    subprocess.run(command, check=True)
    return target


def main_preloaded(module: str, main: Callable[[], None]) -> None:
    """Call `main` in a process that has `_calls.c` preloaded: this one, or a new one for it."""
    if "calls.so" in os.environ.get("LD_PRELOAD", ""):
        main()
        return
    with tempfile.TemporaryDirectory(prefix="gradacc-calls-") as folder:
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        settings = {"LD_PRELOAD": str(library(Path(folder))), **threads}
        command = [sys.executable, "-m", module, *sys.argv[1:]]
        sys.exit(subprocess.run(command, check=False, env=os.environ | settings).returncode)


def import_all() -> None:
    """What a trainer imports, so that its forks need not."""
    names = (
        "numpy.random", "torch", "torch._dynamo.utils", "trainer_backend.__main__",
        "trainer_backend.wholeness", "trainer_backend.trainer.training",
        "trainer_backend.trainer.streams",
    )  # fmt: skip
    for name in names:
        importlib.import_module(name)
    gc.freeze()


@contextmanager
def place() -> Iterator[Path]:
    """A folder for runs, which is GRADACC_HOME meanwhile; all of it goes."""
    with tempfile.TemporaryDirectory(prefix="gradacc-faults-") as name:
        os.environ["GRADACC_HOME"] = str(Path(name) / "home")
        yield Path(name)


def new_run(folder: Path, recipe: dict[str, Any] | None = None) -> RunDirectory:
    """A run of `_steered_task`, not yet started."""
    return make_run(folder / "source", recipe or RECIPE, module=HERE / "_steered_task.py")


def copy_of(run: RunDirectory, target: Path) -> RunDirectory:
    """The run as it lies there, at another place."""
    shutil.copytree(run.path, target, symlinks=True)
    return RunDirectory(target)


def train(run: RunDirectory, hit: Hit | None = None, *, asks: int = 0, trace: Path | None = None) -> End:
    """One attempt in a process of its own, with its output in trainer.log, as a launcher starts it."""
    settings = {"FAULTS_ASKS": str(asks), "FAULTS_SENT": str(sent_path(run))}
    if hit is not None or asks:
        settings |= (hit or Hit()).environment(run.path)
    if trace is not None:
        settings["FAULTS_TRACE"] = str(trace)

    def trainer() -> int:
        log = os.open(run.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        empty = os.open(os.devnull, os.O_RDONLY)
        for here, there in ((empty, 0), (log, 1), (log, 2)):
            os.dup2(here, there)
        os.chdir(run.path)
        os.environ.update(settings)
        main = importlib.import_module("trainer_backend.__main__").main
        importlib.import_module("trainer_backend.trainer.streams").forgive_prints()
        checkpoints: Any = importlib.import_module("trainer_backend.trainer.checkpoints")
        checkpoints.LAST_PATIENCE_S, checkpoints.FIRST_WAIT_S = 1.0, 0.05  # as long as a full disk stays full
        return int(main(["run", str(run.path)]))

    return forked(trainer)


def sent_path(run: RunDirectory) -> Path:
    """Beside a run: ids of the commands that were sent to it."""
    return run.path.with_name(f"{run.path.name}.sent")


def forked(call: Callable[[], int]) -> End:
    """Call in a fork of this process, and wait for its end."""
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        message = f"{threads} threads here: a fork would copy one of them and the locks of all."
        raise RuntimeError(message)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _leave(call)
    descriptor = os.pidfd_open(pid)
    try:
        ended, _, _ = select.select([descriptor], [], [], PATIENCE_S)
        if not ended:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(descriptor)
    return End(code=os.waitstatus_to_exitcode(status), hung=not ended)


def _leave(call: Callable[[], int]) -> None:
    """End this fork with the code that `call` gives; what it raises is printed, as an interpreter would."""
    code = 70
    try:
        code = call()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    except BaseException:  # noqa: BLE001 - a process of its own
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                code = code or 120
        os._exit(code)
