"""Real trainers for tests: in a process of their own, or in the test's, on a run directory.

run = make_run(tmp_path, {"run": {"max_optimizer_steps": 5}, "task": {"kind": "custom", ...}})
with Trainer(run) as trainer:
trainer.wait_for(lambda event: isinstance(event, RunStarted))
trainer.ask(SetAccumulation(steps=3))          # the answering fact
run_here(run)                                       # the same without a process; gives the exit code
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import tomlkit

from tests.support import fork_server
from trainer_backend.inbox import send
from trainer_backend.journal_reader import JournalReader
from trainer_backend.protocol import (
    AnyCommand,
    AnyEvent,
    CommandAccepted,
    CommandRefused,
    Event,
    Record,
    RunFailed,
    RunFinished,
    RunStopped,
)
from trainer_backend.recipe import load_recipe, recipe_for_run
from trainer_backend.run_directory import RunDirectory

ROOT = Path(__file__).parent.parent.parent
ENDS = (RunFinished, RunStopped, RunFailed)
PATIENCE_S = 60.0
"""How long a busy machine may take; only a test that fails waits so long."""

E = TypeVar("E", bound=Event)
_counter = iter(range(1_000_000))


def merged(*tables: dict[str, Any]) -> dict[str, Any]:
    """Recipes laid over each other, table by table."""
    result: dict[str, Any] = {}
    for table in tables:
        for name, entries in table.items():
            result[name] = {**result.get(name, {}), **entries}
    return result


PROBE: dict[str, Any] = {
    "run": {"device": "cpu", "precision": "fp32", "gradient_norm_every": 1},
    "data": {"shuffle": False},
    "accumulation": {"micro_batch_size": 1, "gradient_accumulation_steps": 4},
    "optimizer": {"name": "sgd", "learning_rate": 1.0},
}
"""A recipe for the probe (`tests/support/probe_task.py`); lay a length of the run over it."""


def make_run(folder: Path, data: dict[str, Any], *, module: Path | None = None) -> RunDirectory:
    """A run directory for a recipe; `module` is copied beside it under a name of its own, as the task."""
    folder.mkdir(parents=True, exist_ok=True)
    if module is not None:
        # A name that no earlier test in this process has imported.
        name = f"{module.stem}_{os.getpid()}_{next(_counter)}"
        shutil.copy(module, folder / f"{name}.py")
        task = {"kind": "custom", "entry": f"{name}:Task"} | data.get("task", {})
        data = data | {"task": task}
    path = folder / "recipe.toml"
    path.write_text(tomlkit.dumps(data), encoding="utf-8")
    return RunDirectory.create(recipe_for_run(load_recipe(path), recipe_path=str(path)).text, name="test")


def make_probe(folder: Path, *tables: dict[str, Any], **options: Any) -> RunDirectory:
    """A run of the probe; `options` are the task's. Its commands go to its own inbox."""
    recipe = merged(PROBE, *tables)
    if "effective_batch_size" in recipe["accumulation"]:
        del recipe["accumulation"]["gradient_accumulation_steps"]
    run = make_run(folder, recipe, module=Path(__file__).parent / "probe_task.py")
    set_recipe(run, **{f"task.options.{key}": value for key, value in options.items()})
    set_recipe(run, **{"task.options.inbox": str(run.inbox_path)})
    return run


def set_recipe(run: RunDirectory, **values: Any) -> None:
    """Edit a run's recipe between attempts: `set_recipe(run, **{"run.max_samples": 48})`."""
    from trainer_backend.recipe import read_document, save_recipe, set_value

    document = read_document(run.recipe_path)
    for key, value in values.items():
        set_value(document, key, value)
    save_recipe(document, run.recipe_path)


def run_here(run: RunDirectory, *, replay: bool = True, from_step: int | None = None) -> int:
    """One attempt in this process, to its end; gives the exit code."""
    from trainer_backend.trainer.attempt import run_attempt

    return run_attempt(run, load_recipe(run.recipe_path), replay=replay, from_step=from_step)


def records(run: RunDirectory) -> list[Record]:
    """Everything in the journal."""
    reader = JournalReader(run.journal_path)
    try:
        return reader.read(0, 1_000_000).records()
    finally:
        reader.close()


def events(run: RunDirectory, kind: type[E], *, attempt: int | None = None) -> list[E]:
    """All events of one kind, in order."""
    return [
        record.event
        for record in records(run)
        if isinstance(record.event, kind) and attempt in (None, record.attempt)
    ]


class Trainer:
    """A trainer in a process of its own. As a context it is killed at the end, if it still lives.

    It is forked from a process that has torch already; one that is `cold`, or has variables of its own in
    `env`, is a new interpreter, as a person starts it.
    """

    def __init__(
        self, run: RunDirectory, *arguments: str, env: dict[str, str] | None = None, cold: bool = False
    ) -> None:
        self.run = run
        self._after = 0
        self._seen: list[Record] = []
        self._reader: JournalReader | None = None
        self._after = JournalReader(run.journal_path).head() if run.journal_path.exists() else 0
        command = [sys.executable, "-P", "-m", "trainer_backend", "run", str(run.path), *arguments]
        seen = environment() | (env or {})
        self.process: subprocess.Popen[bytes] | fork_server.ForkedTrainer
        with run.log_path.open("ab") as log:
            if not (cold or env) and fork_server.can_fork(command, seen):
                self.process = fork_server.start(command, cwd=run.path, env=seen, log=log)
            else:
                self.process = subprocess.Popen(
                    command, cwd=run.path, env=seen, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        if self._reader is not None:
            self._reader.close()

    @property
    def seen(self) -> list[AnyEvent]:
        """Events of this attempt so far."""
        self._read()
        return [record.event for record in self._seen]

    def _read(self) -> None:
        if self._reader is None:
            if not self.run.journal_path.exists():
                return
            self._reader = JournalReader(self.run.journal_path)
        found = self._reader.read(self._after)
        self._after = found.last
        self._seen += found.records()

    def wait_for(self, predicate: Callable[[AnyEvent], bool], timeout_s: float = PATIENCE_S) -> AnyEvent:
        """The first event of this attempt that `predicate` holds for; fails when none comes."""
        deadline = time.monotonic() + timeout_s
        while True:
            ended = self.process.poll() is not None
            for event in self.seen:
                if predicate(event):
                    return event
            if ended or time.monotonic() > deadline:
                what = f"ended with {self.process.returncode}" if ended else f"said nothing for {timeout_s} s"
                log = self.run.log_path.read_text("utf-8", "replace")[-4000:]
                last = "\n".join(map(str, self.seen[-5:]))
                raise AssertionError(f"The trainer {what}.\n{last}\n{log}")
            time.sleep(0.01)

    def wait_for_kind(
        self,
        kind: type[E],
        condition: Callable[[E], bool] = lambda _: True,
        timeout_s: float = PATIENCE_S,
    ) -> E:
        """The first event of one kind that `condition` holds for."""
        found = self.wait_for(lambda event: isinstance(event, kind) and condition(event), timeout_s)
        assert isinstance(found, kind)
        return found

    def send(self, command: AnyCommand) -> str:
        """Put a command into the inbox; gives its id."""
        return send(self.run.inbox_path, command)

    def ask(self, command: AnyCommand) -> CommandAccepted | CommandRefused:
        """Send a command, and wait for the fact that answers it."""
        sent = self.send(command)
        answer = self.wait_for(
            lambda event: isinstance(event, CommandAccepted | CommandRefused) and event.command_id == sent
        )
        assert isinstance(answer, CommandAccepted | CommandRefused)
        return answer

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for the process to end; gives its exit code."""
        return self.process.wait(timeout_s)

    def end(self, timeout_s: float = PATIENCE_S) -> RunFinished | RunStopped | RunFailed:
        """Wait for the attempt's last fact and for the process."""
        fact = self.wait_for(lambda event: isinstance(event, ENDS), timeout_s)
        self.wait(timeout_s)
        assert isinstance(fact, ENDS)
        return fact

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)


def environment() -> dict[str, str]:
    """What a trainer of a test sees: this checkout, one thread."""
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}


class RankedTrainers(Trainer):
    """Several ranks of one run, started as a launcher starts them; rank 0 is the `process`."""

    def __init__(self, run: RunDirectory, ranks: int, *, generation: int = 0) -> None:
        self.run = run
        self._seen: list[Record] = []
        self._reader: JournalReader | None = None
        self._after = JournalReader(run.journal_path).head() if run.journal_path.exists() else 0
        self.ranks = [self._start(rank, ranks, generation) for rank in range(ranks)]
        self.process = self.ranks[0]

    def _start(self, rank: int, ranks: int, generation: int) -> fork_server.ForkedTrainer:
        place = {
            "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks,
            "TORCHELASTIC_RESTART_COUNT": generation,
        }  # fmt: skip
        seen = environment() | {name: str(value) for name, value in place.items()}
        command = [*fork_server.HEAD, "run", str(self.run.path)]
        log_path = self.run.log_path if rank == 0 else self.run.path / f"rank-{rank}.log"
        with log_path.open("ab") as log:
            return fork_server.start(command, cwd=self.run.path, env=seen, log=log)

    def wait_all(self, timeout_s: float = PATIENCE_S) -> list[int]:
        """Each rank's exit code."""
        return [rank.wait(timeout_s) for rank in self.ranks]

    def kill(self) -> None:
        """kill -9 to all that live, and wait until they are gone."""
        for rank in self.ranks:
            rank.kill()
        self.wait_all()


def run_ranks(run: RunDirectory, ranks: int, *, generation: int = 0) -> list[int]:
    """One attempt on so many ranks, to its end; gives their exit codes."""
    with RankedTrainers(run, ranks, generation=generation) as trainers:
        return trainers.wait_all()
