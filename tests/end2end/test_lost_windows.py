"""Windows that are killed and windows that are frozen: the run knows nothing of it, and nothing is missed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytestqt.qtbot import QtBot

from gradacc_gui.store.past import CHARTED
from gradacc_gui.window.main_window import MainWindow
from tests.end2end.hand import Hand
from tests.support.trainers import Trainer, events, make_probe, records
from tests.support.window_process import WindowProcess
from trainer_backend.protocol import (
    AccumulationChanged,
    AnyEvent,
    CommandAccepted,
    MicroBatchMeasured,
    Pause,
    Paused,
    RunStarted,
)
from trainer_backend.run_directory import RunDirectory

LONG = {"run": {"max_optimizer_steps": 100_000}, "accumulation": {"gradient_accumulation_steps": 400}}
FROZEN_S = 3.0


def live_run(folder: Path, *tables: dict[str, Any]) -> RunDirectory:
    """Micro-batches of 10 ms."""
    return make_probe(folder, *tables, length=10_000_000, duration_s=0.01)


def _begins_a_window(event: AnyEvent) -> bool:
    return isinstance(event, MicroBatchMeasured) and event.index < 100


def numbers_in(window: MainWindow) -> list[int]:
    """The seq of every fact and of every charted measurement in a window's store."""
    assert window.run is not None
    store = window.run.store
    rows = [number for kind in CHARTED for number in store.track(kind).tail("seq", 1_000_000).tolist()]
    return sorted([int(number) for number in rows] + [fact.seq for fact in store.facts])


def test_a_killed_window_leaves_the_run_its_wish_and_a_later_window_everything(
    qtbot: QtBot, make_window: Callable[[], MainWindow], tmp_path: Path
) -> None:
    """N 400 → 3 is asked and accepted, the border is yet to come; kill -9; the border comes all the same."""
    run = live_run(tmp_path, LONG)
    with Trainer(run) as trainer:
        trainer.wait_for_kind(MicroBatchMeasured)
        with WindowProcess() as window:
            window.wait_for("state", lambda state: state == "running")
            begun = len(trainer.seen)
            trainer.wait_for(lambda _: any(_begins_a_window(event) for event in trainer.seen[begun:]))
            window.ask("n 3")
            trainer.wait_for_kind(CommandAccepted)
            window.kill()
        assert events(run, AccumulationChanged) == [], "the wish was still pending"

        changed = trainer.wait_for_kind(AccumulationChanged)
        assert (changed.before, changed.after) == (400, 3)
        hand = Hand(qtbot, make_window())
        hand.window.open_run(run)
        hand.wait_for_n("3")
        hand.wait_for_steps(3)
        assert trainer.process.poll() is None
        hand.click("pause")
        hand.wait_for_state("paused")
        told = records(run)
        hand.wait(lambda: numbers_in(hand.window)[-1:] >= [told[-1].seq])
        shown = numbers_in(hand.window)
    assert shown == list(range(1, len(shown) + 1))
    assert len(events(run, RunStarted)) == 1
    sizes = Counter(micro.step for micro in events(run, MicroBatchMeasured))
    assert [sizes[step] for step in range(1, changed.step + 1)] == [400] * (changed.step - 1) + [3]


def test_a_frozen_window_holds_up_nothing_and_misses_nothing(tmp_path: Path) -> None:
    """SIGSTOP for seconds, through a change of N; after SIGCONT each event is there, once."""
    run = live_run(tmp_path, LONG, {"accumulation": {"gradient_accumulation_steps": 8}})
    with Trainer(run) as trainer, WindowProcess() as window:
        window.wait_for("numbers", lambda numbers: len(numbers) > 50)
        window.ask("n 5")
        window.freeze()
        before = records(run)[-1].seq
        trainer.wait_for_kind(AccumulationChanged)
        time.sleep(FROZEN_S)
        meanwhile = records(run)[-1].seq - before
        assert meanwhile > 50, "the trainer trains on"
        window.thaw()
        window.wait_for("answer", lambda line: line.startswith("N = 5 since step"))
        trainer.ask(Pause())
        trainer.wait_for_kind(Paused)
        last = records(run)[-1].seq
        shown = window.wait_for("numbers", lambda numbers: numbers[-1] >= last)
    assert shown == list(range(1, len(shown) + 1))
