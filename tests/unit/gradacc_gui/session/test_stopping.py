"""The ladder from a request to a kill climbs only when it must, and ends only the run's own trainer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradacc_gui.session.launch import start
from gradacc_gui.session.stopping import Act, Ladder, Patience, Rung, holder, perform
from tests.support import stand_in
from tests.support.waiting import wait_for
from trainer_backend.errors import RunDirectoryError

PATIENCE = Patience(asked_s=10, asked_now_s=5, terminated_s=2)


def test_a_stop_that_works_needs_one_wish() -> None:
    """Asked once, then seen to be gone."""
    ladder, act = Ladder(patience=PATIENCE).ask(0)
    assert act is Act.ASK

    ladder, act = ladder.look(1, alive=True)
    assert act is None
    ladder, act = ladder.look(2, alive=False)

    assert (ladder.rung, act) == (Rung.ENDED, None)


def test_a_trainer_that_hangs_is_asked_again_then_terminated_then_killed() -> None:
    """Each rung after its own patience."""
    ladder, _ = Ladder(patience=PATIENCE).ask(0)
    acts = []
    for now in range(40):
        ladder, act = ladder.look(now, alive=True)
        if act is not None:
            acts.append((now, act))

    assert acts == [(10, Act.ASK_NOW), (15, Act.TERMINATE), (17, Act.KILL)]
    assert ladder.deadline() is None


def test_progress_keeps_the_ladder_where_it_is() -> None:
    """A long window or a large checkpoint is no hang."""
    ladder, _ = Ladder(patience=PATIENCE).ask(0)
    for now in range(0, 100, 9):
        ladder, act = ladder.progressed(now).look(now + 8.9, alive=True)
        assert act is None

    assert ladder.rung is Rung.ASKED


def test_progress_does_not_call_a_termination_back() -> None:
    """Once a signal is sent, only the end counts."""
    ladder, _ = Ladder(patience=PATIENCE, rung=Rung.ASKED_NOW).climb(0)
    assert ladder.rung is Rung.TERMINATED

    assert ladder.progressed(100) == ladder


def test_a_second_wish_may_be_stronger_and_never_weaker() -> None:
    """Stop, then stop now; not the other way round."""
    ladder, _ = Ladder().ask(0)
    assert ladder.ask(1) == (ladder, None)
    ladder, act = ladder.ask(2, at_once=True)
    assert act is Act.ASK_NOW

    assert ladder.ask(3) == (ladder, None)
    assert ladder.ask(3, at_once=True) == (ladder, None)


def test_a_person_who_will_not_wait_goes_up_rung_by_rung() -> None:
    """To the top, and no further."""
    ladder = Ladder()
    acts = []
    for now in range(6):
        ladder, act = ladder.climb(now)
        acts.append(act)

    assert acts == [Act.ASK_NOW, Act.TERMINATE, Act.KILL, None, None, None]


def test_nothing_that_happens_by_itself_shortens_a_save() -> None:
    """However long it takes, on whatever rung; when it is over the patience starts anew."""
    for rung in (Rung.ASKED, Rung.ASKED_NOW, Rung.TERMINATED):
        ladder = Ladder(patience=PATIENCE, rung=rung)
        for now in range(0, 10_000, 50):
            ladder, act = ladder.look(now, alive=True, saving=True)
            assert (ladder.rung, act) == (rung, None)
        ladder, act = ladder.look(now + 1, alive=True)
        assert act is None
        ladder, act = ladder.look(now + 11, alive=True)
        assert act is not None
        assert ladder.look(now + 11, alive=False, saving=True)[0].rung is Rung.ENDED


def test_a_person_who_was_asked_ends_it_by_force_at_once() -> None:
    """A disk that hangs never lets a save come to its end. Once is enough."""
    for rung in (Rung.ASKED, Rung.ASKED_NOW, Rung.TERMINATED):
        ladder, act = Ladder(rung=rung).end_by_force(1)
        assert (ladder.rung, act) == (Rung.KILLED, Act.KILL)
        assert ladder.end_by_force(2) == (ladder, None)


def test_nothing_happens_before_anybody_asked() -> None:
    """A run that ends by itself is no business of the ladder's."""
    assert Ladder().look(1e9, alive=False) == (Ladder(), None)


@given(
    st.lists(
        st.tuples(st.sampled_from(["ask", "now", "force", "look", "gone", "progress"]), st.floats(0, 30)),
        max_size=40,
    )
)
def test_the_ladder_never_goes_down_and_never_skips_a_wish_to_a_signal(
    steps: list[tuple[str, float]],
) -> None:
    """Whatever comes in whatever order: rungs only rise, and a signal comes only after a wish."""
    order = list(Rung)
    ladder, now, said = Ladder(patience=PATIENCE), 0.0, []
    for what, wait_s in steps:
        now += wait_s
        before = ladder.rung
        match what:
            case "ask" | "now":
                ladder, act = ladder.ask(now, at_once=what == "now")
            case "climb":
                ladder, act = ladder.climb(now)
            case "look" | "gone" | "saving":
                ladder, act = ladder.look(now, alive=what != "gone", saving=what == "saving")
            case _:
                ladder, act = ladder.progressed(now), None
        assert order.index(ladder.rung) >= order.index(before)
        said += [act] if act else []
    ranks = [list(Act).index(act) for act in said]
    assert ranks == sorted(set(ranks))
    assert not ({Act.TERMINATE, Act.KILL} & set(said)) or Act.ASK_NOW in said


def test_a_wish_is_put_into_the_inbox(tmp_path: Path) -> None:
    """And its id is told, so that its answer is known."""
    run = stand_in.new_run()

    command_id = perform(Act.ASK_NOW, run, asked_by="test")

    (file,) = run.inbox_path.iterdir()
    assert file.stem == command_id
    assert b'"now":true' in file.read_bytes()


def test_a_deaf_trainer_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a wish nor SIGTERM helps; the kill frees the lock, and the child is reaped."""
    run = stand_in.new_run()
    launch = start(run, stand_in.install(monkeypatch, tmp_path, stand_in.DEAF))
    wait_for(lambda: "ready" in run.log_path.read_text())
    assert holder(run).pid == launch.pid

    perform(Act.ASK, run, asked_by="test")
    perform(Act.TERMINATE, run, asked_by="test")
    assert run.is_alive()
    perform(Act.KILL, run, asked_by="test")

    wait_for(lambda: launch.poll() is not None)
    died = launch.poll()
    assert died is not None
    assert died.exit_code != 0
    assert not run.is_alive()


def test_no_process_is_ended_for_a_number_in_a_file(tmp_path: Path) -> None:
    """A run that nobody holds, but whose lock file names a living process (a copied directory)."""
    run = stand_in.new_run()
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        run.lock_path.write_text(f"{bystander.pid}\n")

        with pytest.raises(RunDirectoryError, match="cannot be ended from here"):
            perform(Act.KILL, run, asked_by="test")
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_process_that_is_no_trainer_is_not_ended_though_the_lock_is_held(tmp_path: Path) -> None:
    """The number in the file is another's: somebody wrote over it, or it is another machine's."""
    run = stand_in.new_run()
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        with run.locked():
            run.lock_path.write_text(f"{bystander.pid}\n")
            with pytest.raises(RunDirectoryError, match="cannot be ended from here"):
                perform(Act.TERMINATE, run, asked_by="test")
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
