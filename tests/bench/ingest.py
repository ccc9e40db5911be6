"""How fast events become pictures: `python -m tests.bench.ingest [--seconds 60] [--rate 110000]`.

A process of its own writes a plausible run into a journal, at `rate` events a second; here a store
follows it and the grid of six charts repaints, as the window's timer does it. Painting is counted.

    events_per_s         events taken from the journal, applied and offered to the charts, a second
    tick_p999_ms         99.9th percentile of one tick: poll, apply, repaint
    six_charts_repaint_ms  all six charts fetched, decimated and painted anew, 1,400 points a line (median)
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.synchronize
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

TICK_S = 1 / 30
POLL_BUDGET_S = 0.005
DRAW_BUDGET_S = 0.008


def write(folder: str, rate: float, seconds: float, ready: multiprocessing.synchronize.Event) -> None:
    """Write a run's events at `rate` for `seconds`, in a process of its own."""
    from tests.support.fake_runs import Plan, events
    from trainer_backend.journal import JournalWriter
    from trainer_backend.run_directory import RunDirectory

    run = RunDirectory(Path(folder))
    plan = Plan(
        steps=10**9, total_steps=10**9, n=8, n_changes={1_000: 16, 20_000: 8}, evaluate_every=2_000,
        checkpoint_every=5_000, spike_steps=(500, 5_000), nan_steps=(800,), micro_batch_s=1e-5,
        readings_every_s=0.05,
    )  # fmt: skip
    made = (event for _, event in events(plan))
    batch = [next(made) for _ in range(200_000)]  # making them up takes longer than writing them
    writer = JournalWriter(run.journal_path, attempt=1)
    ready.set()
    began, sent = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        due = int((time.perf_counter() - began) * rate)
        for place in range(sent, due):
            writer.put(batch[place % len(batch)])
        sent = max(sent, due)
        time.sleep(0.002)
    writer.close(timeout_s=60)


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=110_000.0)
    asked = parser.parse_args()
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    folder = Path(tempfile.mkdtemp(prefix="gradacc-bench-"))
    try:
        result = {"six_charts_repaint_ms": round(repaint_ms(folder), 2)}
        result |= ingest(folder, asked.seconds, asked.rate)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(result))


def repaint_ms(folder: Path) -> float:
    """Milliseconds for all six charts at 1440 x 900, 1,400 optimizer steps, dots and labels and all."""
    from tests.bench.window import chart_window
    from tests.support.fake_runs import Plan, write_run

    plan = Plan(steps=1_400, n_changes={300: 8, 900: 16}, micro_batch_s=0.1, evaluate_every=100)
    with chart_window(write_run(folder, plan)) as (store, grid, app):
        while not store.caught_up or store.loading_history:
            store.poll(1.0)
        spent = []
        for turn in range(60):
            for card in grid.cards:
                card.seen = ()
            began = time.perf_counter()
            drawn = grid.tick(10.0)
            app.processEvents()
            spent.append((time.perf_counter() - began) * 1e3)
            assert drawn == len(grid.cards), f"turn {turn}: {drawn} charts drawn"
        return statistics.median(spent[10:])


def ingest(folder: Path, seconds: float, rate: float) -> dict[str, float]:
    """Follow a writer for `seconds`; what one tick takes, and how many events a second come through."""
    from tests.bench.window import chart_window
    from tests.support.fake_runs import Plan, new_run

    run = new_run(folder, Plan())
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    writer = context.Process(target=write, args=(str(run.path), rate, seconds, ready))
    writer.start()
    ready.wait(120)
    ticks_ms: list[float] = []
    drawn = 0
    with chart_window(run) as (store, grid, app):
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            tick_began = time.perf_counter()
            store.poll(POLL_BUDGET_S)
            drawn += grid.tick(DRAW_BUDGET_S)
            spent_s = time.perf_counter() - tick_began
            ticks_ms.append(spent_s * 1e3)
            app.processEvents()
            if store.caught_up:
                time.sleep(max(0.0, TICK_S - spent_s))
        took_s, taken = time.perf_counter() - began, store.last
    writer.join()
    ticks_ms.sort()
    return {
        "events_per_s": round(taken / took_s),
        "tick_p50_ms": round(statistics.median(ticks_ms), 2),
        "tick_p999_ms": round(ticks_ms[int(len(ticks_ms) * 0.999)], 2),
        "tick_worst_ms": round(ticks_ms[-1], 2),
        "charts_drawn_per_s": round(drawn / took_s, 1),
    }


if __name__ == "__main__":
    main()
