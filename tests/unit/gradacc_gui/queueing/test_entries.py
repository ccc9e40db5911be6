"""The queue's files: their order, what lies there that is no entry, and what it takes to change them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradacc_gui.queueing.entries import GAP, Queue, QueueSettings
from tests.support import stand_in
from trainer_backend.errors import UsageError
from trainer_backend.run_directory import RunDirectory


def queued(*names: str) -> Queue:
    """A queue in which new runs of these names wait."""
    queue = Queue()
    for name in names:
        queue.add(stand_in.new_run(name), "python", asked_by="test")
    return queue


def order(queue: Queue) -> list[str]:
    """The names of what waits."""
    return [entry.directory.asked_name for entry in queue.waiting()]


def test_entries_wait_in_the_order_in_which_they_were_added() -> None:
    """A new one at the end, or first where that is asked for."""
    queue = queued("a", "b")
    queue.add(stand_in.new_run("c"), "python", asked_by="test", first=True)
    assert order(queue) == ["c", "a", "b"]
    assert queue.place_of(queue.waiting()[2].run) == 3


@pytest.mark.parametrize(
    ("place", "expected"),
    [(1, "cabd"), (2, "acbd"), (3, "abcd"), (4, "abdc"), (99, "abdc"), (-5, "cabd")],
)
def test_an_entry_moves_to_the_place_that_is_asked_for(place: int, expected: str) -> None:
    """Beyond the ends it is the first or the last."""
    queue = queued(*"abcd")
    queue.move(queue.waiting()[2].run, place)
    assert "".join(order(queue)) == expected


def test_there_is_always_room_between_two_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """When no number is left between two places, all are numbered anew."""
    monkeypatch.setattr("gradacc_gui.queueing.entries.GAP", 2)
    queue = queued(*"abcde")
    expected = list("abcde")
    for turn in range(40):
        index, place = turn % 5, (turn * 3) % 5
        queue.move(queue.waiting()[index].run, place + 1)
        expected.insert(place, expected.pop(index))
        assert order(queue) == expected
    assert GAP > 2


def test_a_run_waits_once() -> None:
    """Also where two windows added it at the same moment."""
    queue = queued("a")
    entry = queue.waiting()[0]
    with pytest.raises(UsageError, match="waits in the queue already, at place 1"):
        queue.add(entry.directory, "python", asked_by="test")
    (path,) = (queue.folder / "waiting").iterdir()
    (path.parent / f"{5 * GAP:018d}-{entry.run}.json").write_bytes(path.read_bytes())
    assert len(queue.waiting()) == 1
    assert queue.take(entry)
    assert queue.take(queue.waiting()[0])
    assert [one.run for one in queue.running()] == [entry.run]


def test_what_was_taken_meanwhile_is_neither_moved_nor_removed() -> None:
    """The window's list may be a second old."""
    queue = queued("a")
    entry = queue.waiting()[0]
    assert queue.take(entry)
    for act in (lambda: queue.move(entry.run, 1), lambda: queue.remove(entry.run)):
        with pytest.raises(UsageError, match="does not wait in the queue"):
            act()
    assert not queue.take(entry)


def test_what_is_no_entry_is_told_and_not_taken(tmp_path: Path) -> None:
    """Malformed, foreign fields, another run's name, a path that leads out, a pipe, a link, too large."""
    queue = queued("a")
    folder = queue.folder / "waiting"
    good = next(folder.iterdir()).read_bytes()
    (folder / f"{1:018d}-x.json").write_text("{")
    (folder / f"{2:018d}-x.json").write_bytes(good.replace(b'"python"', b'"command"'))
    (folder / f"{3:018d}-x.json").write_bytes(good)
    (folder / f"{4:018d}-...json").write_text('{"run": "..", "python": "p", "queued_at": 0}')
    (folder / f"{5:018d}-x.json").write_bytes(b"[" * 100_000)
    os.mkfifo(folder / f"{6:018d}-x.json")
    (tmp_path / "elsewhere").write_bytes(good)
    (folder / f"{7:018d}-x.json").symlink_to(tmp_path / "elsewhere")
    (folder / ".half.part").write_text("{")
    assert order(queue) == ["a"]
    bad = queue.unreadable()
    assert len(bad) == 7
    for one in bad:
        queue.set_aside(one)
    assert queue.unreadable() == []
    assert order(queue) == ["a"]


def test_an_entry_of_another_user_is_no_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the program that will be run."""
    queue = queued("a")
    monkeypatch.setattr("gradacc_gui.queueing.entries.os.geteuid", lambda: os.getuid() + 1)
    assert queue.waiting() == []
    assert "another user" in queue.unreadable()[0].reason


def test_only_runs_of_this_home_are_queued(tmp_path: Path) -> None:
    """An entry names a run, not a path."""
    run = RunDirectory.create("[run]\nepochs = 1\n", name="far", parent=tmp_path / "far")
    with pytest.raises(UsageError, match="Only runs that are stored there can be queued"):
        Queue().add(run, "python", asked_by="test")


def test_a_live_run_is_not_queued() -> None:
    """It runs already."""
    run = stand_in.new_run()
    with run.locked(), pytest.raises(UsageError, match="is running"):
        Queue().add(run, "python", asked_by="test")


def test_settings_that_cannot_be_read_are_those_of_the_beginning() -> None:
    """A slip in a file must not stop the queue."""
    queue = queued("a")
    assert queue.change(paused=True).paused
    assert queue.settings().paused
    (queue.folder / "settings.json").write_text('{"paused": "yes"}')
    assert queue.settings() == QueueSettings()


def test_a_paused_queue_has_no_work() -> None:
    """Unless something of it runs, which is looked after."""
    queue = queued("a")
    assert queue.has_work()
    queue.change(paused=True)
    assert not queue.has_work()
    assert queue.take(queue.waiting()[0])
    assert queue.has_work()


def test_the_list_of_what_is_done_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest stay."""
    monkeypatch.setattr("gradacc_gui.queueing.entries.KEPT_DONE", 3)
    queue = queued(*"abcde")
    for entry in queue.waiting():
        assert queue.take(entry)
        queue.finish(entry, "finished")
    assert [one.run.partition("-")[0] for one in queue.done()] == ["e", "d", "c"]
    assert queue.running() == []


def test_a_waiting_run_is_found_by_its_place_id_prefix_and_name() -> None:
    """An ambiguous prefix is refused."""
    queue = queued("alpha", "beta", "best")
    entries = queue.waiting()
    assert queue.find("2") == queue.find(entries[1].run) == queue.find("bet") == queue.find("beta")
    with pytest.raises(UsageError, match="may be any of 2 waiting runs"):
        queue.find("be")
    with pytest.raises(UsageError, match="No waiting run is called 'gamma'"):
        queue.find("gamma")


@settings(max_examples=20)
@given(moves=st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 6)), max_size=6))
def test_moves_do_what_a_list_does(
    moves: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Against the plain model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADACC_HOME", str(tmp_path_factory.mktemp("home")))
        queue, expected = queued(*"abcd"), list("abcd")
        for index, place in moves:
            queue.move(queue.waiting()[index].run, place)
            expected.insert(min(max(place, 1), 4) - 1, expected.pop(index))
        assert order(queue) == expected
