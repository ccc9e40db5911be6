"""The lid is closed: trainer and window stand still for a while, and go on as if nothing had been."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from pytestqt.qtbot import QtBot

from gradacc_gui.derive import headline
from gradacc_gui.window.main_window import MainWindow
from tests.end2end.hand import Hand
from tests.support.trainers import Trainer, events, make_probe
from trainer_backend.protocol import OptimizerStepMeasured, Pause, Paused, RunStarted, Warned

ASLEEP_S = 4.0
MAX_STEPS = 5_000


def test_a_sleep_of_seconds_shakes_neither_speed_nor_time_left_and_is_no_failure(
    qtbot: QtBot, make_window: Callable[[], MainWindow], tmp_path: Path
) -> None:
    """One window of micro-batches is slow; the speed is that of the others, no sample is lost or repeated."""
    run = make_probe(
        tmp_path, {"run": {"max_optimizer_steps": MAX_STEPS}}, length=10_000_000, duration_s=0.01
    )
    with Trainer(run) as trainer:
        hand = Hand(qtbot, make_window())
        hand.window.open_run(run)
        hand.wait_for_state("running")
        hand.wait_for_steps(12)
        assert hand.window.run is not None
        store = hand.window.run.store
        before = headline(store, time.time())
        trainer.process.send_signal(signal.SIGSTOP)
        time.sleep(ASLEEP_S)
        assert run.is_alive()
        trainer.process.send_signal(signal.SIGCONT)
        hand.wait_for_steps(3)

        after = headline(store, time.time())
        assert hand.window.run.state == "running"
        assert before.speed is not None
        assert after.speed is not None
        assert after.left_s is not None
        slowest = min(step.samples / step.duration_s for step in events(run, OptimizerStepMeasured))
        assert slowest < 4 / ASLEEP_S
        assert after.speed.samples_per_s > 10 * slowest, "one slow window is not the speed"
        assert after.left_s < 4 * MAX_STEPS / (10 * slowest)
        assert after.progress.last_step == MAX_STEPS

        trainer.ask(Pause())
        trainer.wait_for_kind(Paused)
        hand.wait_for_state("paused")
        hand.has_missed_nothing(run)
    steps = events(run, OptimizerStepMeasured)
    assert [step.step for step in steps] == list(range(1, len(steps) + 1))
    assert [step.samples_seen for step in steps] == [4 * step.step for step in steps]
    assert len(events(run, RunStarted)) == 1
    assert [warned.code for warned in events(run, Warned) if not warned.code.startswith("nvml")] == []
