"""Peak memory of one trainer in a fresh process: `python -m tests.bench.tasks.memory NAME RUN WINDOWS`."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]


def peak_bytes(name: str, run: Path, windows: int) -> int:
    """Measure a trainer on a run directory."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.tasks.memory", name, str(run), str(windows)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    return int(done.stdout.splitlines()[-1])


def peak_ratio(run: Callable[[], Path], windows: int) -> float:
    """The product's peak over that of the loop written by hand; both at once, as each has its own."""
    with ThreadPoolExecutor(2) as pool:
        ours, raw = pool.map(peak_bytes, ("ours", "raw"), (run(), run()), (windows, windows))
    return ours / raw


def main() -> None:
    """Train, and print the peak. In the main thread: allocators treat others differently."""
    import torch

    from tests.bench.tasks.turns import Over, Trainer

    torch.set_num_threads(1)
    name, run, windows = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    trainer: Trainer
    if name == "raw":  # nothing is imported that this trainer does not need
        from tests.bench.tasks.rivals import Raw

        trainer = Raw(run)
    else:
        from tests.bench.tasks.product import Product

        trainer = Product(run)
    left = windows + 1

    def border() -> None:
        nonlocal left
        left -= 1
        if not left:
            status = Path("/proc/self/status").read_text("ascii")
            found = re.search(r"VmHWM:\s+(\d+) kB", status)
            assert found is not None
            print(int(found[1]) * 1024, flush=True)
            raise Over

    with contextlib.suppress(Over):
        trainer.train(border)


if __name__ == "__main__":
    main()
