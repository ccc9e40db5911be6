"""From the end of a micro-batch to the pixel: `python -m tests.bench.latency [--seconds 60]`.

A real trainer runs the demo recipe in a process of its own; here the shipped window shows the run,
with its own timer. A micro-batch's end is the instant its event has (the trainer puts it as soon as the
backward is through); it is shown when the repaint of the loss chart that holds it has returned.

    p50_ms, p99_ms      of that time, over all micro-batches shown
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

WARM_UP_S = 5.0
"""After the first point: imports, first paints and caches are over."""
START_S = 120.0


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    asked = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="gradacc-bench-"))
    os.environ |= {
        "GRADACC_HOME": str(home),
        "OMP_NUM_THREADS": "1",
    }
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    try:
        waits_ms = sorted(measure(asked.seconds))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    result = {
        "p50_ms": round(statistics.median(waits_ms), 1),
        "p99_ms": round(waits_ms[int(len(waits_ms) * 0.99)], 1),
        "worst_ms": round(waits_ms[-1], 1),
        "micro_batches": len(waits_ms),
    }
    print(json.dumps(result))


def measure(seconds: float) -> list[float]:
    """Milliseconds from end to repaint, for every micro-batch shown within `seconds`."""
    from tests.bench.window import main_window
    from tests.support.trainers import ROOT, Trainer, make_run
    from trainer_backend.recipe import load_recipe

    recipe = load_recipe(ROOT / "assets" / "recipes" / "stdlib-gpt.toml").document.unwrap()
    run = make_run(Path(os.environ["GRADACC_HOME"]) / "recipe", recipe)
    with Trainer(run), main_window(run) as (window, app):
        watch = Watch(window)
        deadline = time.monotonic() + START_S
        while not watch.waits_ms and time.monotonic() < deadline:
            app.processEvents()
            time.sleep(0.001)
        ends = time.monotonic() + WARM_UP_S + seconds
        counts_from = time.time() + WARM_UP_S
        watch.waits_ms.clear()
        while time.monotonic() < ends:
            app.processEvents()
            time.sleep(0.0005)
        return [wait_ms for at, wait_ms in watch.waits_ms if at >= counts_from]


class Watch:
    """Notes when each micro-batch was first on the screen."""

    def __init__(self, window: Any) -> None:
        self.waits_ms: list[tuple[float, float]] = []
        """When it ended, and how long it took to be shown."""
        self._shown = 0.0
        charts = window.live.charts
        loss = next(card for card in charts.cards if card.spec.key == "loss")
        draw = loss.view.draw

        def draw_and_note() -> None:
            draw()
            self._note(charts.store)

        loss.view.draw = draw_and_note

    def _note(self, store: Any) -> None:
        from trainer_backend.protocol import MicroBatchMeasured

        now = time.time()
        track = store.track(MicroBatchMeasured)
        seqs, ends = track.tail("seq", 2_000), track.tail("at", 2_000)
        for seq, at in zip(seqs.tolist(), ends.tolist(), strict=True):
            if seq > self._shown:
                self._shown = seq
                self.waits_ms.append((at, (now - at) * 1e3))


if __name__ == "__main__":
    main()
