"""Many runs, and one very long one: what the commands cost in CPU time.

runs_10k_cpu_s: `gradacc runs` with 10,000 finished runs, each listed before; runs_10k_cold_cpu_s: none
listed before; named_10k_cpu_s: `gradacc show NAME` among them; list_10k_cpu_s: the window's list of them,
filled three times and painted. show_10m_cpu_s: `gradacc show` on a run of ten million events.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.support.fake_runs import Plan, new_run, write_run
from trainer_backend.journal import JournalWriter, seal
from trainer_backend.protocol import MicroBatchMeasured, RunFinished

SETTLED_S: Final = 3.0
_LIST: Final = """
from PySide6.QtWidgets import QApplication
from gradacc_gui.session.listing import list_runs
from gradacc_gui.window.runs_page import RunsPage
application = QApplication([])
page = RunsPage()
page.resize(1200, 700)
page.show()
for _ in range(3):
    page.set_runs(list_runs())
    page.grab()
assert page.model.rowCount() == {count}
"""


def cpu_s(command: list[str], home: Path) -> float:
    """CPU seconds of one process, user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "GRADACC_HOME": str(home), "QT_QPA_PLATFORM": "offscreen"}
    subprocess.run([sys.executable, *command], check=True, env=environment, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2)


def many_runs(home: Path, count: int) -> None:
    """Finished, sealed runs, made by copying one."""
    plan = Plan(name="many", steps=20, total_steps=20, checkpoint_every=0, evaluate_every=10, end="finished")
    first = write_run(home / "runs", plan)
    seal(first.journal_path)
    recipe = first.recipe_path.read_text("utf-8")
    for number in range(count - 1):
        folder = home / "runs" / f"many-20260101-{number:06d}-{number:04x}"
        folder.mkdir(mode=0o700)
        shutil.copyfile(first.journal_path, folder / "run.sqlite")
        (folder / "recipe.toml").write_text(recipe.replace('"many"', f'"number {number}"'), "utf-8")
        for name in ("inbox", "checkpoints"):
            (folder / name).mkdir()
    time.sleep(SETTLED_S)


def long_run(home: Path, events: int) -> str:
    """A finished run of so many events; gives its id."""
    run = new_run(home / "runs", Plan(name="long"))
    writer = JournalWriter(run.journal_path, attempt=1)
    samples = 0
    for number in range(events):
        samples += 8
        writer.put(
            MicroBatchMeasured(
                step=number // 4 + 1,
                index=number % 4,
                samples=8,
                tokens=0,
                weight=8.0,
                loss=2.0,
                gradient_norm=None,
                duration_s=0.01,
                samples_seen=samples,
                tokens_seen=0,
            )
        )
        if number % 50_000 == 0:
            writer.flush(60.0)  # its queue is bounded: what a slow disk cannot take is counted as lost
    writer.put(RunFinished(step=events // 4, samples_seen=samples, reason="max_optimizer_steps"))
    writer.close()
    seal(run.journal_path)
    return run.id


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=10_000_000)
    asked = parser.parse_args()
    gradacc = ["-m", "gradacc_gui"]
    result: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="gradacc-scale-") as folder:
        home = Path(folder)
        many_runs(home, asked.runs)
        result["runs_10k_cold_cpu_s"] = cpu_s([*gradacc, "runs"], home)
        result["runs_10k_cpu_s"] = cpu_s([*gradacc, "runs"], home)
        result["named_10k_cpu_s"] = cpu_s([*gradacc, "show", f"number {asked.runs // 2}"], home)
        result["list_10k_cpu_s"] = cpu_s(["-c", _LIST.format(count=asked.runs)], home)
        shutil.rmtree(home / "runs")
        name = long_run(home, asked.events)
        result["show_10m_cpu_s"] = cpu_s([*gradacc, "show", name], home)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
