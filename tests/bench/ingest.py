"""How fast events become pictures: `python -m tests.bench.ingest [--seconds 60] [--rate 110000]`.

A process of its own writes a plausible run into a journal, at `rate` events a second; here the shipped
window shows it, on its own timer, as it comes. Painting is counted.

    events_per_s         events taken from the journal, applied and offered to the charts, a second
    tick_p999_ms         99.9th percentile of one turn of the event loop that had a beat of the window:
                         poll, apply, header, panels, charts, and whatever Qt paints after it
    six_charts_repaint_ms  all six charts fetched, decimated and painted anew, 1,400 points a line (median)
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import multiprocessing.synchronize
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

WARM_UP_S = 3.0
"""After the first event: charts made, first paints, caches."""


def write(folder: str, rate: float, seconds: float, ready: multiprocessing.synchronize.Event) -> None:
    """Write a run's events at `rate` for `seconds`, in a process of its own."""
    from trainer_backend.journal import JournalWriter
    from trainer_backend.run_directory import RunDirectory

    run = RunDirectory(Path(folder))
    flood = events_without_end()
    with run.locked():
        writer = JournalWriter(run.journal_path, attempt=1)
        writer.put(next(flood))  # makes the first ones up before the clock starts
        ready.set()
        began, sent = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            due = int((time.perf_counter() - began) * rate)
            for event in itertools.islice(flood, max(0, due - sent)):
                writer.put(event)
            sent = max(sent, due)
            time.sleep(0.002)
        writer.close(timeout_s=60)


def events_without_end() -> Iterator[Any]:
    """A run that goes on and on: what was made up once comes again, with steps and samples counted on."""
    from tests.support.fake_runs import Plan, events
    from trainer_backend.protocol import MEASUREMENTS, OptimizerStepMeasured

    plan = Plan(
        steps=10**9, total_steps=10**9, n=8, n_changes={1_000: 16}, evaluate_every=2_000,
        checkpoint_every=5_000, spike_steps=(500, 2_500), nan_steps=(800, 2_200), micro_batch_s=1e-5,
        readings_every_s=0.05,
    )  # fmt: skip
    made: list[Any] = [event for _, event in itertools.islice(events(plan), 40_000)]
    ends = [place for place, event in enumerate(made) if type(event) is OptimizerStepMeasured]
    yield from made[: ends[-1] + 1]
    first, last = made[ends[1_500]], made[ends[-1]]
    again: list[Any] = [
        event for event in made[ends[1_500] + 1 : ends[-1] + 1] if isinstance(event, MEASUREMENTS)
    ]
    steps, samples, tokens = (
        getattr(last, name) - getattr(first, name) for name in ("step", "samples_seen", "tokens_seen")
    )
    for turn in itertools.count(1):
        for event in again:
            if hasattr(event, "step"):
                yield msgspec.structs.replace(
                    event, step=event.step + turn * steps,
                    samples_seen=event.samples_seen + turn * samples,
                    tokens_seen=event.tokens_seen + turn * tokens,
                )  # fmt: skip
            else:
                yield event


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=110_000.0)
    asked = parser.parse_args()
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    folder = Path(tempfile.mkdtemp(prefix="gradacc-bench-"))
    os.environ["GRADACC_HOME"] = str(folder)
    try:
        result = ingest(folder, asked.seconds, asked.rate)
        result["six_charts_repaint_ms"] = round(repaint_ms(folder), 2)
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
    """Follow a writer for `seconds`; what one beat takes, and how many events a second come through."""
    from tests.bench.window import main_window
    from tests.support.fake_runs import Plan, new_run

    run = new_run(folder, Plan())
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    writer = context.Process(target=write, args=(str(run.path), rate, seconds + WARM_UP_S, ready))
    writer.start()
    ready.wait(120)
    beats_ms: list[float] = []
    with main_window(run) as (window, app):
        assert window.run is not None
        store, grid = window.run.store, window.live.charts
        drawn = counted(grid)
        _beat(window, app, WARM_UP_S, [])
        began, before, drawn[0] = time.perf_counter(), store.last, 0
        _beat(window, app, seconds, beats_ms)
        took_s, taken = time.perf_counter() - began, store.last - before
    writer.join()
    beats_ms.sort()
    return {
        "events_per_s": round(taken / took_s),
        "tick_p50_ms": round(statistics.median(beats_ms), 2),
        "tick_p99_ms": round(beats_ms[int(len(beats_ms) * 0.99)], 2),
        "tick_p999_ms": round(beats_ms[int(len(beats_ms) * 0.999)], 2),
        "tick_worst_ms": round(beats_ms[-1], 2),
        "ticks": len(beats_ms),
        "charts_drawn_per_s": round(drawn[0] / took_s, 1),
    }


def _beat(window: Any, app: Any, seconds: float, beats_ms: list[float]) -> None:
    """Run the event loop; note how long each turn took that had a beat."""
    ends = time.perf_counter() + seconds
    while (began := time.perf_counter()) < ends:
        ticks = window._ticks
        app.processEvents()
        if window._ticks != ticks:
            beats_ms.append((time.perf_counter() - began) * 1e3)
        else:
            time.sleep(0.0005)


def counted(grid: Any) -> list[int]:
    """A count of charts drawn from now on."""
    count = [0]
    tick = grid.tick

    def tick_and_count(*budget: float) -> int:
        drawn: int = tick(*budget)
        count[0] += drawn
        return drawn

    grid.tick = tick_and_count
    return count


if __name__ == "__main__":
    main()
