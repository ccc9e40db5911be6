"""What every test gets: a home of its own, and a check that it leaves nothing behind.

Neither Qt nor torch is imported here: what looks after widgets and timers acts only in a process
that has Qt already.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

# Before anything imports Qt or torch: no display is needed, and numbers do not depend on the cores.
os.environ["QT_QPA_PLATFORM"] = "offscreen"
os.environ["OMP_NUM_THREADS"] = "1"
for _name in ("QT_SCALE_FACTOR", "QT_STYLE_OVERRIDE", "PYTEST_QT_API", "CUDA_VISIBLE_DEVICES"):
    os.environ.pop(_name, None)

import pytest  # noqa: E402 - after the environment is set

from tests.support import fork_server, leftovers  # noqa: E402 - likewise

GRACE_S = 3.0
"""How long something that is on its way out may take; only a test that leaks waits so long."""
MOST_PROCESSES = 4
"""Each has torch and Qt, and a process that trainers are forked from."""


@pytest.fixture(autouse=True)
def gradacc_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs, settings and overlays of this test lie in a folder of its own."""
    home = tmp_path / "gradacc-home"
    monkeypatch.setenv("GRADACC_HOME", str(home))
    return home


@pytest.fixture(autouse=True)
def nothing_left_behind(gradacc_home: Path) -> Iterator[None]:
    """Fail a test that leaves a thread, a process, a live run, a top-level widget or a running timer."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    watch = leftovers.Watch(gradacc_home)
    yield
    left = watch.left()
    deadline = time.monotonic() + GRACE_S
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = watch.left()
    if left:
        watch.clear()
        pytest.fail("This test left behind: " + "; ".join(left))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """A process for each core, at most four.

    None besides this one where files or single tests are asked for, so that they can be looked into, and
    where what is left out is: it measures, or has the device for itself.
    """
    is_plain = config.option.markexpr.startswith("not ")
    if not is_plain or not all(Path(argument).is_dir() for argument in config.args):
        return 0
    return min(MOST_PROCESSES, os.cpu_count() or 1)


def pytest_unconfigure() -> None:
    """The process that trainers are forked from ends with the tests."""
    fork_server.close()
