"""One attempt at a run, from its lock to its last fact. Imports torch only inside."""

from __future__ import annotations

import functools
import platform
import sqlite3
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from trainer_backend.errors import GradaccError, RankLostError, RunDirectoryError, UsageError, WindowLeft
from trainer_backend.inbox import Inbox
from trainer_backend.journal import JournalWriter
from trainer_backend.journal_mending import mend
from trainer_backend.journal_reader import JournalReader
from trainer_backend.kept_checks import keep_with_run
from trainer_backend.private_files import make_folder_in
from trainer_backend.protocol import (
    CommandAccepted,
    CommandRefused,
    OptimizerStepMeasured,
    PhaseEntered,
    RunEnded,
    RunFailed,
    Warned,
)
from trainer_backend.recipe import Recipe, entry_sha256
from trainer_backend.run_directory import RunDirectory
from trainer_backend.run_facts import RunFacts
from trainer_backend.torchrun import (
    RankPlace,
    announce,
    ended_before,
    failure_of_another,
    is_restart,
    tell_failure,
)
from trainer_backend.trainer import failures
from trainer_backend.trainer.lifecycle import Lifecycle, StopAskedError, print_line
from trainer_backend.trainer.no_journal import NoJournal
from trainer_backend.trainer.provenance import Commit
from trainer_backend.trainer.ranked_steering import RankedSteering
from trainer_backend.trainer.steering import Steering
from trainer_backend.watching.notifier import Notifier
from trainer_backend.wholeness import check_trainable

if TYPE_CHECKING:
    from trainer_backend.trainer.training import Training

DYING_S: Final = 20.0
"""How long rank 0 waits for the lock of the one before it, which its launcher is ending."""


class Before(msgspec.Struct, frozen=True):
    """What earlier attempts left in the journal."""

    facts: RunFacts
    step: int = 0
    """Where the run stood: its last optimizer step that was not gone behind."""
    answered: frozenset[str] = frozenset()
    """Ids of the commands that were accepted or refused."""


def run_attempt(
    run: RunDirectory,
    recipe: Recipe,
    *,
    replay: bool = True,
    from_step: int | None = None,
    stale: Sequence[str] | None = None,
    place: RankPlace | None = None,
) -> int:
    """Train in a run directory to the end, a stop or a failure; gives the exit code.

    `from_step`: go back to the checkpoint of this step, and on from there.
    `stale`: names of what lay in the inbox when this process was launched; None: what lies there now.
    `place`: this is rank 0 of several.
    Raises RunDirectoryError when another trainer is there, the directory is half copied, or the journal
    cannot be written.
    """
    if stale is None:
        stale = Inbox(run.inbox_path).names()
    with run.locked(wait_s=0.0 if place is None else DYING_S) as lock:
        _mend(run)
        check_trainable(run)
        _make_folders(run)
        before = _before(run)
        if place is not None:
            code = ended_before(run, place, before.facts)
            place = announce(place, run, code)
            if code is not None:
                return code
        if not before.facts.attempt:
            keep_with_run(recipe, run.path)
        life = Lifecycle(lock, grace_s=recipe.config.run.grace_s, is_ranked=place is not None)
        steering = life.steering = Steering(
            Inbox(run.inbox_path),
            life.put,
            stale=frozenset(stale) if before.facts.attempt else (),
            answered=before.answered,
            on_stop=life.stop_asked,
        )
        steering.remove_answered()
        life.writer = JournalWriter(
            run.journal_path,
            attempt=before.facts.attempt + 1,
            on_tick=life.tick,
            on_committed=steering.committed,
        )
        life.notifier = Notifier(
            recipe.config.notify, life.writer.put, run=str(run.path), name=recipe.config.run.name or run.id,
            host=platform.node(),
        )  # fmt: skip
        with life.signals():
            make = functools.partial(_training, run, recipe, life, steering, place)
            how = Resumption(replay=replay, from_step=None if is_restart(place) else from_step)
            try:
                ended, code = _lived(life, lambda: _train(recipe, life, before, how, make))
            except RankLostError as error:
                assert place is not None
                return _lost(run, place, life, error)
            life.end(ended)
        print_line(_last_words(run, ended))
        return code


def _lost(run: RunDirectory, place: RankPlace, life: Lifecycle, error: RankLostError) -> int:
    """Another rank's process ended: with a reason of its own, which ends the run, or without one."""
    told = failure_of_another(run, place)
    print_line(f"{run.id}: {error}")
    if told is not None:
        where = life.progress
        life.end(msgspec.structs.replace(told, step=where.step, samples_seen=where.samples_seen))
        return 1
    life.put(Warned(code="rank-lost", values={"step": life.progress.step, "generation": place.generation}))
    life.leave()
    return 1


def _mend(run: RunDirectory) -> None:
    """Put right what a kill left half done, before anything is read. Raises RunDirectoryError."""
    try:
        mend(run.journal_path)
    except sqlite3.Error as error:
        message = f"The journal {run.journal_path} cannot be read: {error}. It is damaged or half copied."
        raise RunDirectoryError(message) from error


def _make_folders(run: RunDirectory) -> None:
    """A copied directory may lack its empty folders. Raises RunDirectoryError."""
    for folder in (run.inbox_path, run.checkpoints_path):
        try:
            make_folder_in(run.path, folder.name)
        except OSError as error:
            message = (
                f"The folder {folder} cannot be made: {error.strerror}. Check the run directory's rights and"
                " free space."
            )
            raise RunDirectoryError(message) from error


class Resumption(msgspec.Struct, frozen=True, kw_only=True):
    """How a run goes on."""

    replay: bool
    from_step: int | None


def _before(run: RunDirectory) -> Before:
    """Read what earlier attempts recorded. Raises RunDirectoryError when the journal is damaged."""
    facts = RunFacts()
    if not run.journal_path.exists():
        return Before(facts)
    reader = JournalReader(run.journal_path)
    try:
        told = reader.facts()
        progress = facts.take_all(told).progress(reader.newest_record(OptimizerStepMeasured))
        answers = (record.event for record in told)
        answered = {fact.command_id for fact in answers if isinstance(fact, CommandAccepted | CommandRefused)}
        return Before(facts, 0 if progress is None else progress.step, frozenset(answered))
    finally:
        reader.close()


def _lived(life: Lifecycle, train: Callable[[], RunEnded]) -> tuple[RunEnded, int]:
    """Train; gives the attempt's last fact and the exit code. Raises RankLostError."""
    try:
        life.loading = True
        return train(), 0
    except RankLostError:
        raise
    except (StopAskedError, WindowLeft):
        return life.stopped(), 0
    except UsageError as error:
        return _failed(error, life), error.exit_code
    except BaseException as error:  # noqa: BLE001 - whatever ended the run is its last fact
        return _failed(error, life), 1
    finally:
        life.loading = False


def _failed(error: BaseException, life: Lifecycle) -> RunFailed:
    fact = failures.run_failed(
        error,
        step=life.progress.step,
        samples_seen=life.progress.samples_seen,
        checkpoint_step=life.checkpoint_step(until=_last_good_step(error)),
    )
    if not isinstance(error, GradaccError):
        failures.print_whole(error)
    return fact


def _last_good_step(error: BaseException) -> int | None:
    """The step before the first of the non-finite windows in a row; None when they are not what failed."""
    seen = getattr(error, "seen", ())
    return seen[0].step - seen[0].in_a_row if seen else None


def _train(
    recipe: Recipe,
    life: Lifecycle,
    before: Before,
    how: Resumption,
    make: Callable[[], Training],
) -> RunEnded:
    life.put(PhaseEntered(phase="importing-torch"))
    commit = Commit(recipe.folder)
    if before.facts.attempt and recipe.source.entry_sha256 not in ("", entry_sha256(recipe)):
        entry = getattr(recipe.config.task, "entry", "")
        life.put(Warned(code="source-changed", values={"entry": entry}))

    training = make()
    try:
        training.assemble()
        if how.from_step is not None:
            training.go_back(how.from_step, before.facts, stood_at=before.step)
        else:
            training.take_up(before.facts, replay=how.replay)
        return training.run(commit)
    finally:
        training.close()


def _training(
    run: RunDirectory, recipe: Recipe, life: Lifecycle, steering: Steering, place: RankPlace | None
) -> Training:
    """One process's, or rank 0's."""
    if place is None:
        from trainer_backend.trainer.training import Training  # noqa: PLC0415 - torch, seconds

        return Training(run, recipe, life, steering)
    from trainer_backend.trainer.ranked_training import RankedTraining  # noqa: PLC0415 - likewise

    return RankedTraining(run, recipe, life, place, RankedSteering(place, steering))


def follow(run: RunDirectory, recipe: Recipe, place: RankPlace, *, from_step: int | None = None) -> int:
    """Train as one of the ranks behind rank 0, which alone writes; gives the exit code."""
    life = Lifecycle(is_ranked=True)
    life.writer = NoJournal()
    steering = life.steering = RankedSteering(place, None)

    def train() -> RunEnded:
        from trainer_backend.trainer.ranked_training import RankedTraining  # noqa: PLC0415 - torch, seconds

        training = RankedTraining(run, recipe, life, place, steering)
        try:
            training.assemble()
            if from_step is None or is_restart(place):
                training.take_up(RunFacts(), replay=False)
            else:
                training.go_back(from_step, RunFacts(), stood_at=0)
            return training.run(Commit(recipe.folder))
        finally:
            training.close()

    with life.signals():
        try:
            ended, code = _lived(life, train)
        except RankLostError as error:
            print_line(f"Rank {place.rank}: {error}")
            return 1
    if isinstance(ended, RunFailed):
        tell_failure(run, place, ended)
    return code


def _last_words(run: RunDirectory, ended: RunEnded) -> str:
    kind = type(ended).__name__.removeprefix("Run").lower()
    return f"{run.id}: {kind} after step {ended.step} ({ended.samples_seen} samples): {ended.reason}"
