"""`gradacc run` and `gradacc resume`: start a detached trainer and follow its journal to the end."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from gradacc_gui.commands import far
from gradacc_gui.commands.live_commands import print_answer
from gradacc_gui.commands.looking import print_records
from gradacc_gui.commands.verify import ready_interpreter
from gradacc_gui.person import person
from gradacc_gui.session.awake import Awake
from gradacc_gui.session.following import POLL_S, Follower, ask, head
from gradacc_gui.session.launch import Died, Launch, new_run, start
from gradacc_gui.session.runs import delete_run, summarise
from gradacc_gui.session.stopping import Act, Ladder, Rung, perform
from trainer_backend.best_checkpoint import ranked
from trainer_backend.errors import GradaccError, RunDirectoryError, UsageError
from trainer_backend.journal import JournalReader
from trainer_backend.lost_history import begin_new_history
from trainer_backend.protocol import CommandAccepted, Resume, RunFailed, RunStarted
from trainer_backend.recipe import (
    Recipe,
    apply_settings,
    parse_document,
    read_document,
    recipe_from_document,
)
from trainer_backend.run_directory import RunDirectory, find_run
from trainer_backend.run_facts import RunState
from trainer_backend.wholeness import check_whole, has_checkpoints

if TYPE_CHECKING:
    from gradacc_gui.commands.progress import ProgressPrinter

SAYS: Final = {
    Act.ASK: "Stopping after the current optimizer step and a checkpoint. Press Ctrl-C again to stop now.",
    Act.ASK_NOW: "Stopping now; the unfinished step is repeated on resume. Press Ctrl-C again"
    " to terminate the trainer.",
    Act.TERMINATE: "Terminating the trainer. Press Ctrl-C again to end it by force.",
    Act.KILL: "Ending the trainer by force.",
}
SAVING: Final = (
    "A checkpoint is being saved{done}; Ctrl-C does not interrupt it. Press Ctrl-C again to end the trainer"
    " by force: what is not saved yet is lost."
)


def run(arguments: argparse.Namespace) -> int:
    """`gradacc run RECIPE`. Nothing is started and nothing written when anything is refused."""
    if arguments.on is not None:
        return far.run_on(arguments)
    recipe, path = recipe_of(arguments.recipe, arguments.set)
    interpreter = ready_interpreter(arguments)
    directory = new_run(recipe, path)
    code = _follow_start(directory, lambda: start(directory, interpreter), arguments)
    if code == UsageError.exit_code:
        _take_back(directory)
    return code


def recipe_of(name: str, settings: Sequence[str]) -> tuple[Recipe, Path | None]:
    """The recipe of a file, or of standard input (-), with `settings`; and its path. Raises UsageError."""
    if name == "-":
        path, where, folder = None, "standard input", Path.cwd()
        document = parse_document(sys.stdin.read(), where)
    else:
        path = Path(name)
        where, folder = name, path.absolute().parent
        document = read_document(path)
    apply_settings(document, settings)
    return recipe_from_document(document, folder=folder, where=where, settings=settings), path


def resume(arguments: argparse.Namespace) -> int:
    """`gradacc resume RUN`: ask a paused run to go on, or start a new attempt of one that ended early."""
    if arguments.on is not None:
        return far.resume_on(arguments.on, arguments.run, arguments)
    directory = find_run(arguments.run)
    if (origin := directory.mirrored()) is not None:
        return far.resume_on(origin.host, origin.run, arguments)
    directory.check()
    if arguments.from_best:
        arguments.from_step = _best_step(directory)
    if directory.is_alive() and arguments.from_step is not None:
        message = (
            f"{directory.id} is live. `gradacc rollback {directory.id} {arguments.from_step}` takes it back."
        )
        raise UsageError(message)
    if directory.is_alive():
        answer = ask(directory, Resume(asked_by=person()))
        print_answer(answer, as_json=arguments.json)
        return 0 if isinstance(answer.event, CommandAccepted) else 1
    if arguments.without_history:
        begin_new_history(directory)
    check_whole(directory)
    summary = summarise(directory)
    if summary.state is RunState.DAMAGED:
        raise RunDirectoryError(summary.reason)
    over = summary.state is RunState.FINISHED and not summary.lengthened
    if over and arguments.from_step is None:
        message = (
            f"{directory.id} has finished. To train further, raise the length in its recipe"
            f" ({directory.recipe_path}) and resume; to repeat it: gradacc run {directory.recipe_path}"
        )
        raise UsageError(message)
    step = arguments.from_step
    if step is not None:
        directory.check_checkpoint(step)
    interpreter = ready_interpreter(arguments)
    return _follow_start(directory, lambda: start(directory, interpreter, from_step=step), arguments)


def _best_step(run: RunDirectory) -> int:
    """The step of a run's best checkpoint. Raises UsageError when none was measured."""
    asked = run.recipe().config.checkpoint
    found = ranked(run.checkpoints_path, asked.metric, asked.mode)
    if not found:
        message = (
            f"{run.id} has no checkpoint at which {asked.metric} was measured. Set checkpoint.keep_best in"
            f" its recipe ({run.recipe_path}), or name a step: --from-step K."
        )
        raise UsageError(message)
    return found[0][0]


def _follow_start(run: RunDirectory, begin: Callable[[], Launch], arguments: argparse.Namespace) -> int:
    follower = Follower(run, after=head(run))  # behind what earlier attempts said
    if arguments.detach:
        begin().leave()
        print(json.dumps({"id": run.id, "path": str(run.path)}) if arguments.json else run.id)
        return 0
    awake = Awake()
    watch = _Watch(run, follower, as_json=arguments.json)
    try:
        with watch.signals():  # before the start: a signal meanwhile is a wish too
            launch = begin()
            try:
                if not arguments.json:
                    print(f"{run.id}: {run.path}", file=sys.stderr)
                if arguments.keep_awake:
                    awake.hold()
                return watch.until_it_ends(launch)
            finally:
                launch.leave()
    finally:
        follower.close()
        if problem := awake.problem():
            print(problem, file=sys.stderr)
        awake.release()


class _Watch:
    """Follows one attempt; turns signals into wishes."""

    def __init__(self, run: RunDirectory, follower: Follower, *, as_json: bool) -> None:
        self._run = run
        self._follower = follower
        self._as_json = as_json
        self._ladder = Ladder()
        self._signals: list[int] = []
        self._has_asked = False
        """Whether it was said what ending by force would cost."""
        self._progress: ProgressPrinter | None = None

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Inside, Ctrl-C and SIGTERM are wishes, acted on once the trainer has been started."""
        old = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def until_it_ends(self, launch: Launch) -> int:
        """Follow the run; gives the command's exit code."""
        if not self._as_json:
            from gradacc_gui.commands.progress import ProgressPrinter  # noqa: PLC0415 - rich, for people alone

            self._progress = ProgressPrinter(self._run)
        try:
            return self._watch(launch)
        finally:
            if self._progress is not None:
                self._progress.close()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._signals.append(number)  # acted on in the loop: files are not written in a signal handler

    def _watch(self, launch: Launch) -> int:
        while True:
            while self._signals:
                self._climb(self._signals.pop(0))
            died = launch.poll()  # before the read, so that nothing it wrote is missed
            found = self._follower.poll()
            if found:
                if self._progress is None:
                    print_records(found.records(), as_json=True)
                else:
                    self._progress.show(found)
                continue
            if died is not None:
                return self._outcome(died)
            time.sleep(POLL_S)

    def _climb(self, number: int) -> None:
        """A person's Ctrl-C may go up to the end by force; SIGTERM, which programs send, only asks."""
        now, rung = time.monotonic(), self._ladder.rung
        if number == signal.SIGTERM or rung is Rung.RUNNING:
            self._ladder, act = self._ladder.ask(now, at_once=rung is not Rung.RUNNING)
        elif rung is Rung.TERMINATED and not self._has_asked and self._follower.facts.phase == "saving":
            self._has_asked = True
            done = self._follower.facts.phase_done
            print(SAVING.format(done="" if done is None else f" ({done:.0%})"), file=sys.stderr)
            return
        else:
            self._ladder, act = self._ladder.climb(now)
        if act is not None:
            print(SAYS[act], file=sys.stderr)
            self._perform(act)

    def _perform(self, act: Act) -> None:
        try:
            perform(act, self._run, asked_by=person())
        except GradaccError as error:
            print(error, file=sys.stderr)

    def _outcome(self, died: Died) -> int:
        ended = self._follower.facts.ended
        refused = died.exit_code == UsageError.exit_code
        if isinstance(ended, RunFailed):
            if self._as_json:
                print(ended.reason, file=sys.stderr)
            return 2 if refused else 1
        if ended is not None:
            return 0
        for line in died.last_lines:
            print(line, file=sys.stderr)
        if refused:
            return 2
        print(f"{died.sentence()} See {self._run.log_path}. {_how_to_go_on(self._run)}", file=sys.stderr)
        return 1


def _how_to_go_on(run: RunDirectory) -> str:
    place = "continues from its last checkpoint" if has_checkpoints(run) else "starts again at step 1"
    return f"`gradacc resume {run.typed}` {place}."


def _take_back(run: RunDirectory) -> None:
    """A new run whose task, data or device was refused before it began leaves nothing behind."""
    if run.journal_path.is_file():
        reader = JournalReader(run.journal_path)
        try:
            if reader.newest_fact(RunStarted) is not None:
                return
        finally:
            reader.close()
    delete_run(run)
