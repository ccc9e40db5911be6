"""What the window does for the runs page in the background: lists runs, keeps notes, deletes, puts back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

from gradacc_gui.queueing.waiting import QueueView, WaitingRun, look
from gradacc_gui.session.about_file import AboutRun, write_about
from gradacc_gui.session.background import Background
from gradacc_gui.session.listing import RunList
from gradacc_gui.session.runs import RunSummary, seal_ended
from gradacc_gui.session.trash import put_back, remove_for_good, to_trash, trashed
from gradacc_gui.window.runs_page import RunsPage
from gradacc_gui.window.trash_dialog import TrashDialog
from gradacc_gui.words import tr
from trainer_backend.errors import GradaccError
from trainer_backend.run_directory import RunDirectory
from trainer_backend.run_facts import RunState

SLICE_S: Final = 0.25
"""A look at thousands of runs is shown after each of these."""
REST: Final = 5
"""After a look the list rests at least so many times as long as that took."""

Listed = tuple[list[RunSummary], QueueView, bool]
"""What is known of all runs, the queue, and whether all of them were looked at."""


class RunsLibrary:
    """Keeps the runs page's list, and does what it asks for."""

    def __init__(
        self, page: RunsPage, background: Background, let_go: Callable[[list[RunDirectory]], None]
    ) -> None:
        self._page, self._background, self._let_go = page, background, let_go
        self._list: RunList | None = None
        self._began_at = 0.0
        self._rests_until = 0.0
        self._again = False
        self.trash: TrashDialog | None = None
        page.noted.connect(self._note)
        page.delete_requested.connect(self._delete)
        page.put_back_requested.connect(self._put_back)
        page.trash_requested.connect(self._open_trash)

    def refresh(self, *, soon: bool = True) -> None:
        """Look at all runs; not `soon`: only once the last look is long enough ago."""
        now = time.monotonic()
        if not soon and now < self._rests_until:
            return
        self._began_at = now
        if not self._look_on():
            self._again = True  # one is under way, and may have passed what is new

    def _look_on(self) -> bool:
        return self._background.submit(self._looked, self._show, self._page.say, only_one="list")

    def _looked(self) -> Listed:
        """In the background's thread, which alone touches the list."""
        if self._list is None:
            self._list = RunList()
            if known := self._list.lines():
                return known, look(), False
        done = self._list.look(SLICE_S)
        runs, view = self._list.lines(), look()
        if done:
            seal_ended(runs)
        return runs, view, done

    def _show(self, found: Listed) -> None:
        runs, view, done = found
        self._page.say("")
        self._page.set_runs(placed(runs, view), view)
        if not done or self._again:
            self._again = self._again and not done
            self._look_on()
            return
        now = time.monotonic()
        self._rests_until = now + REST * (now - self._began_at)

    # ------------------------------------------------------------------------------------- acting

    def _do(self, work: Callable[[], object], done: Callable[[object], None] | None = None) -> None:
        def finished(result: object) -> None:
            if done is not None:
                done(result)
            self.refresh()

        def failed(sentence: str) -> None:
            self.refresh()
            self._page.say(sentence)

        self._background.submit(work, finished, failed)

    def _note(self, notes: list[tuple[RunSummary, AboutRun]]) -> None:
        def work() -> None:
            for line, about in notes:
                write_about(line.run, about)
                if self._list is not None:
                    self._list.look_at(line.run)

        self._do(work)

    def _delete(self, runs: list[RunDirectory]) -> None:
        self._let_go(runs)

        def deleted(moved: object) -> None:
            done, sentence = _as_done(moved)
            if done:
                self._page.tell_deleted(done)
            self._say(sentence)

        self._do(lambda: _each(to_trash, runs), deleted)

    def _put_back(self, runs: list[RunDirectory]) -> None:
        self._do(lambda: _each(put_back, runs), self._said)

    def _open_trash(self) -> None:
        self.trash = TrashDialog(self._page)
        self.trash.put_back_requested.connect(self._put_back)
        self.trash.remove_requested.connect(lambda runs: self._do(lambda: _each(_removed, runs), self._said))
        self.trash.destroyed.connect(self._forget_trash)
        self.trash.open()
        self._show_trash()

    def _forget_trash(self) -> None:
        self.trash = None

    def _said(self, moved: object) -> None:
        self._say(_as_done(moved)[1])
        self._show_trash()

    def _show_trash(self) -> None:
        self._background.submit(trashed, self._fill_trash, self._page.say)

    def _fill_trash(self, runs: list[RunDirectory]) -> None:
        if self.trash is not None:
            self.trash.show_runs(runs)

    def _say(self, sentence: str) -> None:
        if sentence:
            self._page.say(sentence)


def _removed(run: RunDirectory) -> RunDirectory:
    remove_for_good(run)
    return run


def _each(
    act: Callable[[RunDirectory], RunDirectory], runs: list[RunDirectory]
) -> tuple[list[RunDirectory], str]:
    """Do it for each run; a failure stops none of the others. Gives those done, and why not all."""
    done, sentences = [], []
    for run in runs:
        try:
            done.append(act(run))
        except GradaccError as error:
            sentences.append(str(error))
    return done, " ".join(sentences[:3])


def _as_done(moved: object) -> tuple[list[RunDirectory], str]:
    assert isinstance(moved, tuple)
    done, sentence = moved
    return done, sentence


def placed(runs: list[RunSummary], view: QueueView) -> list[RunSummary]:
    """The list as the queue has it: what waits says for what."""
    places = {one.entry.run: one for one in view.waiting}
    return [_placed(summary, places) for summary in runs] if places else runs


def _placed(summary: RunSummary, places: dict[str, WaitingRun]) -> RunSummary:
    one = places.get(summary.run.id)
    if one is None or summary.state.is_alive:
        return summary
    reason = tr("place {place}, {waits}").format(place=one.place, waits=one.waits_for)
    return msgspec.structs.replace(summary, state=RunState.WAITING, reason=reason)
