"""Each strange run directory is one sentence, in the list as at every other look, and hides no other run."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from gradacc_gui.cli import main
from gradacc_gui.session.launch import start
from gradacc_gui.session.listing import list_runs
from gradacc_gui.session.runs import RunSummary, examine, seal_ended, summarise
from gradacc_gui.store.run_store import RunStore
from tests.support.fake_runs import Plan, write_run
from tests.support.strange_runs import HARMLESS, STRANGE
from trainer_backend.errors import GradaccError
from trainer_backend.journal import JournalReader
from trainer_backend.run_directory import RunDirectory, runs_folder
from trainer_backend.run_facts import RunState

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="named pipes, sockets and links")
SMALL = Plan(steps=6, total_steps=6, checkpoint_every=0, evaluate_every=0, end="finished")


def written(name: str) -> RunDirectory:
    """A finished run in the test's home."""
    fields = {field: getattr(SMALL, field) for field in SMALL.__struct_fields__}
    return write_run(runs_folder(), Plan(**(fields | {"name": name})))


def is_sentence(text: str) -> bool:
    """One line that ends, without what only programs print."""
    return text.endswith(".") and "\n" not in text and "Traceback" not in text and "Error(" not in text


@pytest.mark.parametrize("change", STRANGE.values(), ids=STRANGE)
def test_a_strange_directory_is_a_sentence_and_the_other_runs_are_listed(
    change: Callable[[RunDirectory], None],
) -> None:
    """Nothing waits, nothing is raised; what cannot be read was foreseen."""
    whole, strange = written("whole"), written("strange")
    change(strange)

    listed = {summary.run: summary for summary in list_runs()}
    seal_ended(list(listed.values()))

    assert listed[whole].state is RunState.FINISHED
    assert listed[strange].state is RunState.DAMAGED
    assert is_sentence(listed[strange].reason)
    with pytest.raises(GradaccError):
        examine(strange)


@pytest.mark.parametrize("change", STRANGE.values(), ids=STRANGE)
def test_a_strange_directory_is_a_sentence_for_the_window_and_the_commands(
    change: Callable[[RunDirectory], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """The store that follows a run, and `gradacc show`."""
    strange = written("strange")
    change(strange)
    store = RunStore(strange)
    for _ in range(50):
        store.poll()
    store.close()

    assert main(["show", strange.id]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert is_sentence(told.err.strip())


@pytest.mark.parametrize("change", HARMLESS.values(), ids=HARMLESS)
def test_what_is_strange_and_harmless_keeps_a_run_readable(change: Callable[[RunDirectory], None]) -> None:
    """Its journal tells what it did."""
    run = written("odd")
    change(run)
    store = RunStore(run)
    for _ in range(50):
        store.poll()
    store.close()

    assert (store.problem, store.state) == ("", RunState.FINISHED)
    assert told(examine(run)) == (RunState.FINISHED, 6)


def told(summary: RunSummary) -> tuple[RunState, int]:
    """What a list shows of a run."""
    return summary.state, summary.step


def test_a_run_that_nobody_foresaw_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong while one is looked at is told of that one."""
    whole, strange = written("whole"), written("strange")
    facts = JournalReader.facts

    def break_one(reader: JournalReader, *kinds: type) -> object:
        if reader.path.parent == strange.path:
            raise ZeroDivisionError("division by zero")
        return facts(reader, *kinds)

    monkeypatch.setattr(JournalReader, "facts", break_one)
    listed = {summary.run: summary for summary in list_runs()}

    assert listed[whole].state is RunState.FINISHED
    assert "ZeroDivisionError: division by zero" in listed[strange].reason
    assert is_sentence(listed[strange].reason)


def test_a_journal_that_takes_too_long_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """However its time is spent: each run is read within a time."""
    run = written("slow")
    monkeypatch.setattr("gradacc_gui.session.runs.LONGEST_LOOK_S", -1.0)
    monkeypatch.setattr("trainer_backend.journal_reader.LOOK_EVERY", 1)

    assert "took too long to read" in summarise(run).reason


def test_a_named_pipe_stops_no_start() -> None:
    """It is refused before anything is opened for writing."""
    run = written("piped")
    STRANGE["a named pipe as the log"](run)
    with pytest.raises(GradaccError, match=r"trainer\.log is a named pipe"):
        start(run, None)  # type: ignore[arg-type]  # never asked for
