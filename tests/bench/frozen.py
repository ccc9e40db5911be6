"""What a frozen window costs the run: `python -m tests.bench.frozen [--rounds 5] [--seconds 20]`.

One real trainer runs the demo recipe all the while. In turns, in random order within each round, there is no
window at all, or a window shows the run and is stopped (SIGSTOP) for `seconds`.

    slowdown_ratio               milliseconds a micro-batch under a stopped window over those under none: the
                                 median of the rounds' ratios, each of medians
    events_missing_after_resume  micro-batches of the stopped stretch that the window lacks after SIGCONT
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SETTLE_S: Final = 2.0
PATIENCE_S: Final = 120.0

# Shows a run; a line on its input asks which micro-batches it has, by their numbers in the journal.
WINDOW = """
import json, os, sys, threading, time
from pathlib import Path
from gradacc_gui.app import make_application
from gradacc_gui.theme import Themes
from gradacc_gui.window.main_window import MainWindow
from gradacc_gui.remembered import Preferences
from trainer_backend.protocol import MicroBatchMeasured
from trainer_backend.run_directory import RunDirectory
app = make_application(["gradacc"])
preferences = Preferences()
preferences.keep_awake = False
window = MainWindow(Themes(app, "dark"), preferences)
window.resize(1440, 900)
window.show()
window.open_run(RunDirectory(Path(sys.argv[1])))
window.live.ensure_charts()
asked = []
def listen():
    for line in sys.stdin:
        asked.append(int(line))
    os._exit(0)
threading.Thread(target=listen, daemon=True).start()
def numbers():
    store = window.live.charts.store if window.live.charts is not None else None
    return [] if store is None else store.track(MicroBatchMeasured).tail("seq", 1_000_000).tolist()
while not numbers():
    app.processEvents()
    time.sleep(0.001)
print("shown", flush=True)
while True:
    app.processEvents()
    time.sleep(0.001)
    if asked and numbers() and numbers()[-1] >= asked[0]:
        asked.pop(0)
        print(json.dumps([int(number) for number in numbers()]), flush=True)
"""


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0)
    asked = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="gradacc-bench-"))
    os.environ |= {"GRADACC_HOME": str(home), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    try:
        result = measure(asked.rounds, asked.seconds)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    print(json.dumps(result))


def measure(rounds: int, seconds: float) -> dict[str, object]:
    """Both kinds of stretch in each round."""
    from tests.support.trainers import Trainer, make_run
    from trainer_backend.protocol import OptimizerStepMeasured
    from trainer_backend.recipe import load_recipe

    recipe = load_recipe(ROOT / "assets" / "recipes" / "stdlib-gpt.toml").document.unwrap()
    recipe["run"]["epochs"] = 1_000
    recipe["evaluation"] = {}
    run = make_run(Path(os.environ["GRADACC_HOME"]) / "recipe", recipe)
    ratios, missing = [], 0
    with Trainer(run) as trainer:
        trainer.wait_for_kind(OptimizerStepMeasured, lambda event: event.step >= 5, PATIENCE_S)
        for _ in range(rounds):
            spent: dict[str, float] = {}
            for kind in random.sample(["none", "frozen"], 2):
                if kind == "none":
                    spent[kind] = stretch(run.journal_path, seconds)[0]
                else:
                    spent[kind], lacking = frozen(run.path, seconds)
                    missing += lacking
            ratios.append(spent["frozen"] / spent["none"])
    return {
        "slowdown_ratio": round(statistics.median(ratios), 4),
        "events_missing_after_resume": missing,
        "ratios": [round(ratio, 4) for ratio in ratios],
        "seconds": seconds,
    }


def stretch(journal: Path, seconds: float) -> tuple[float, list[int]]:
    """Median seconds a micro-batch over a stretch of time, and the numbers of its micro-batches."""
    from trainer_backend.journal import JournalReader, columns
    from trainer_backend.protocol import MicroBatchMeasured

    time.sleep(SETTLE_S)
    reader = JournalReader(journal)
    first = reader.head()
    time.sleep(seconds)
    rows = reader.read_rows(MicroBatchMeasured, first + 1, reader.head())
    reader.close()
    place = columns(MicroBatchMeasured).index("duration_s")
    return statistics.median(row[place] for row in rows), [row[0] for row in rows]


def frozen(run: Path, seconds: float) -> tuple[float, int]:
    """A stretch under a stopped window, and how many of its micro-batches the window lacks afterwards."""
    window = subprocess.Popen(
        [sys.executable, "-c", WINDOW, str(run)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert window.stdin is not None
    assert window.stdout is not None
    try:
        window.stdout.readline()
        window.send_signal(signal.SIGSTOP)
        spent_s, numbers = stretch(run / "run.sqlite", seconds)
        window.send_signal(signal.SIGCONT)
        window.stdin.write(f"{numbers[-1]}\n")
        window.stdin.flush()
        seen = set(json.loads(window.stdout.readline()))
        return spent_s, len(set(numbers) - seen)
    finally:
        window.kill()
        window.wait()
        window.stdin.close()
        window.stdout.close()


if __name__ == "__main__":
    main()
