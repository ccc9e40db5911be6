"""Many runs and one very long one in the shipped window, offscreen: `python -m tests.bench.library`.

open_10k_runs_cold_first_screen_s, …_cold_complete_s   the Runs page without any index; until the first
                              screen of runs stands there, and until all of them do
open_10k_runs_warm_s          the same in another window that finds the index
search_10k_runs_ms_p99        from the query to the filtered, sorted table
tick_p99_ms_without_its_paint one tick of the window on that page, the list being looked at meanwhile
overlay_20_runs_open_s        from Compare to all charts, 100,000 micro-batches a run
overlay_20_runs_one_chart_p50_ms, overlay_20_runs_zoom_all_ms   one chart fetched and drawn; all of them
open_run_10m_whole_range_s    from the click to the whole range of ten million micro-batches in all charts
frame_flatness_10m_over_10k   one frame of all charts there over one of a run of 10,000
rss_mb_10m                    largest resident memory of that window, MB
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.bench.faults.scale import long_run, many_runs
from tests.bench.figures import peak_bytes

PATIENCE_S: Final = 300.0
QUERIES: Final = (
    "n=4", "lr<1e-3", "kind:causal-lm", "number 77", "is:starred", "tag:paper", "n>=2 batch>8",
    "val<3 -state:failed", "number", "step>10 state:finished", "zzz", "",
)  # fmt: skip
COMPARED: Final = 20


def main() -> None:
    """Each part in a process of its own; print one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--micro-batches", type=int, default=10_000_000)
    parser.add_argument("--compared-micro-batches", type=int, default=100_000)
    parser.add_argument("--part", choices=sorted(PARTS))
    parser.add_argument("--home", type=Path)
    asked = parser.parse_args()
    if asked.part is not None:
        print(json.dumps(PARTS[asked.part](asked.home)))
        return
    home = Path(tempfile.mkdtemp(prefix="gradacc-bench-"))
    try:
        print(json.dumps(measured(home, asked)))
    finally:
        shutil.rmtree(home, ignore_errors=True)


def measured(home: Path, asked: argparse.Namespace) -> dict[str, float]:
    """All figures."""
    many_runs(home / "many", asked.runs)
    found = part("cold", home / "many") | part("warm", home / "many")
    shutil.rmtree(home / "many")
    compared_runs(home / "compared", asked.compared_micro_batches)
    found |= part("overlay", home / "compared")
    shutil.rmtree(home / "compared")
    short, long = (
        charted(home / name, events) for name, events in (("short", 10_000), ("long", asked.micro_batches))
    )
    found["open_run_10m_whole_range_s"] = long["open_s"]
    found["frame_flatness_10m_over_10k"] = round(long["frame_ms"] / short["frame_ms"], 2)
    found["rss_mb_10m"] = long["rss_mb"]
    return found


def charted(home: Path, events: int) -> dict[str, float]:
    """A run of so many micro-batches, made, shown and removed."""
    long_run(home, events)
    own = part("charts", home)
    shutil.rmtree(home)
    return own


def part(name: str, home: Path) -> dict[str, float]:
    """One part's figures, from a fresh process."""
    command = [sys.executable, "-m", "tests.bench.library", "--part", name, "--home", str(home)]
    environment = {**os.environ, "GRADACC_HOME": str(home), "QT_QPA_PLATFORM": "offscreen"}
    done = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compared_runs(home: Path, micro_batches: int) -> None:
    """Runs that differ in their seed of shuffling alone are repetitions; these differ in weight decay."""
    from tests.support.fake_runs import Plan, write_run
    from trainer_backend.journal import seal

    steps = micro_batches // 8
    plan = Plan(name="compared", n=8, steps=steps, total_steps=steps, readings_every_s=5.0, end="finished")
    first = write_run(home / "runs", plan)
    seal(first.journal_path)
    recipe = first.recipe_path.read_text("utf-8")
    for number in range(1, COMPARED):
        folder = first.path.with_name(f"compared-{number:02}")
        shutil.copytree(first.path, folder)
        text = recipe.replace("[optimizer]", f"[optimizer]\nweight_decay = {number / 100}")
        (folder / "recipe.toml").write_text(text, "utf-8")


def opened() -> tuple[Any, Any]:
    """The window without a run, and its application."""
    from gradacc_gui.app import finish_start, make_application
    from gradacc_gui.remembered import Preferences
    from gradacc_gui.theme import Themes
    from gradacc_gui.window.main_window import MainWindow

    app = make_application(["gradacc"])
    preferences = Preferences()
    preferences.keep_awake = False
    window = MainWindow(Themes(app, "dark"), preferences)
    window.resize(1440, 900)
    window.show()
    finish_start(window)
    app.processEvents()
    return window, app


def until(app: Any, condition: Callable[[], bool]) -> float:
    """Seconds until it holds, events being handled."""
    began = time.perf_counter()
    while not condition():
        if time.perf_counter() - began > PATIENCE_S:
            raise SystemExit("What is measured did not happen.")
        app.processEvents()
        time.sleep(0.0005)
    app.processEvents()
    return time.perf_counter() - began


def cold(home: Path) -> dict[str, float]:
    """No index, no kept lines."""
    count = len(list((home / "runs").iterdir()))
    window, app = opened()
    began = time.perf_counter()
    window.show_page("runs")
    rows = window.runs.model.rowCount
    until(app, lambda: rows() >= 20)
    first_s = time.perf_counter() - began
    until(app, lambda: rows() == count and not window.background.is_busy)
    complete_s = time.perf_counter() - began
    window.close()
    return {
        "open_10k_runs_cold_first_screen_s": round(first_s, 2),
        "open_10k_runs_cold_complete_s": round(complete_s, 1),
    }


def warm(home: Path) -> dict[str, float]:
    """With the index; then searches, and ticks while the list is looked at."""
    count = len(list((home / "runs").iterdir()))
    window, app = opened()
    window.timer.stop()
    ticks_ms: list[float] = []

    def tick() -> None:
        began = time.perf_counter()
        window.tick()
        ticks_ms.append((time.perf_counter() - began) * 1e3)

    began = time.perf_counter()
    window.show_page("runs")
    until(app, lambda: window.tick() or window.runs.model.rowCount() == count)
    warm_s = time.perf_counter() - began
    until(app, lambda: window.tick() or not window.background.is_busy)
    for _ in range(600):
        tick()
        app.processEvents()
        time.sleep(0.005)
    searches_ms = []
    for query in QUERIES * 20:
        began = time.perf_counter()
        window.runs.filter.set_text(query)
        searches_ms.append((time.perf_counter() - began) * 1e3)
        app.processEvents()
    window.close()
    return {
        "open_10k_runs_warm_s": round(warm_s, 2),
        "search_10k_runs_ms_p99": round(sorted(searches_ms)[int(len(searches_ms) * 0.99)], 1),
        "tick_p99_ms_without_its_paint": round(sorted(ticks_ms)[int(len(ticks_ms) * 0.99)], 1),
    }


def overlay(_home: Path) -> dict[str, float]:
    """The comparison."""
    from trainer_backend.run_directory import all_runs

    window, app = opened()
    window.timer.stop()
    window.pages.get("compare")  # its modules are imported once a session
    began = time.perf_counter()
    window.compare(all_runs())
    page = window.pages.get("compare")

    def is_drawn() -> bool:
        page.tick()
        read = all(run.store.caught_up and not run.store.is_behind for run in page._runs)
        curves = [curve for card in page.cards for curve in card.view.lanes[0].curves]
        return read and all(len(curve.trace.x) for curve in curves)

    until(app, is_drawn)
    open_s = time.perf_counter() - began
    charts_ms, zooms_ms = [], []
    for number in range(20):
        page.horizon.zoom(0.8 if number % 2 else 1.25, 400_000.0)
        all_began = time.perf_counter()
        for _ in page.cards:
            began = time.perf_counter()
            page._draw_next()
            charts_ms.append((time.perf_counter() - began) * 1e3)
        page.grab()
        zooms_ms.append((time.perf_counter() - all_began) * 1e3)
    window.close()
    return {
        "overlay_20_runs_open_s": round(open_s, 2),
        "overlay_20_runs_one_chart_p50_ms": round(statistics.median(charts_ms), 1),
        "overlay_20_runs_zoom_all_ms": round(statistics.median(zooms_ms), 1),
    }


def charts(_home: Path) -> dict[str, float]:
    """One run in all charts."""
    from trainer_backend.run_directory import all_runs

    window, app = opened()
    grid = window.live.charts
    began = time.perf_counter()
    window.open_run(all_runs()[0])

    def is_read() -> bool:
        store = window.run.store
        return bool(store.caught_up and not store.is_behind and not store.loading_history)

    until(app, is_read)
    grid.tick(60.0)  # whichever charts were not drawn meanwhile
    grid.grab()
    open_s = time.perf_counter() - began
    window.timer.stop()
    frames_ms = []
    for number in range(40):
        grid.horizon.zoom(0.9 if number % 2 else 1 / 0.9, grid.horizon.x1 / 2)
        began = time.perf_counter()
        grid.tick(60.0)
        grid.grab()
        frames_ms.append((time.perf_counter() - began) * 1e3)
    window.close()
    return {
        "open_s": round(open_s, 2),
        "frame_ms": round(statistics.median(frames_ms), 2),
        "rss_mb": round(peak_bytes() / 1e6, 1),
    }


PARTS: Final[dict[str, Callable[[Path], dict[str, float]]]] = {
    "cold": cold,
    "warm": warm,
    "overlay": overlay,
    "charts": charts,
}

if __name__ == "__main__":
    main()
