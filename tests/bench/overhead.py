"""The trainer as users get it against a hand-written loop: `python -m tests.bench.overhead [--processes 8]`.

Same model, data and N = 8, in one process and one thread each. The trainer is a whole one: its loop,
stream, engine, journal with its writer thread, inbox, readings at 2 Hz, micro-batch events all kept,
gradient norms of micro-batches in every 16th window. The other is the usual raw loop:

    for i, (x, y) in enumerate(DataLoader(...)):
        (cross_entropy(model(x), y) / 8).backward()
        every 8th: clip_grad_norm_, fused AdamW step, zero_grad

Both run in blocks of about a quarter of a second, so that what the journal's thread does for a block
falls into it; between two blocks of the trainer the raw loop runs twice, in random order. Where the
weights of a model come to lie in memory differs from process to process, and with it the speed of each
of the loops by some percent; so a size is measured in several fresh processes. A ratio is the median
over all blocks of trainer / mean of the two raw loops beside it, with its 95 % interval (bootstrap over
processes and the blocks in them); aa_ratio is raw / raw, and aa_interval says what a figure is worth here.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench.figures import interval

os.environ.setdefault("OMP_NUM_THREADS", "1")

STEPS = 8
BLOCK_S = 0.25
WARM_UP_BLOCKS = 4
SIZES = {"0.5ms": (64, 1, 24), "1ms": (256, 2, 24), "5ms": (512, 4, 48)}
"""Width, hidden layers and micro-batch size, by about what a micro-batch takes."""

TASK = """
import torch
from torch.nn import functional
from tests.bench.overhead import Samples, as_they_are, mlp
from trainer_backend.tasks import Datasets, LossTerm


class Task:
    def __init__(self, width, layers):
        self.width, self.layers = width, layers

    def model(self):
        return mlp(self.width, self.layers)

    def datasets(self):
        return Datasets(train=Samples(self.width))

    def collate(self, samples):
        return as_they_are(samples)

    def loss(self, model, batch):
        x, y = batch
        return LossTerm(functional.cross_entropy(model(x), y, reduction="sum"), len(y))
"""


def mlp(width: int, layers: int) -> Any:
    """Linear, GELU, LayerNorm, so many times, and ten classes."""
    from torch import nn

    hidden = [
        part for _ in range(layers) for part in (nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
    ]
    return nn.Sequential(*hidden, nn.Linear(width, 10))


def as_they_are(batch: Any) -> Any:
    """No collation: `Samples` gives whole micro-batches."""
    return batch


class Samples:
    """Vectors and classes in memory, read by whole micro-batches, by the trainer as by the raw loop."""

    uses_randomness = False

    def __init__(self, width: int) -> None:
        import torch

        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(4096, width, generator=generator)
        self.y = torch.randint(10, (4096,), generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.x[index], self.y[index]

    def __getitems__(self, indices: list[int]) -> tuple[Any, Any]:
        """One gather a tensor."""
        return self.x[indices], self.y[indices]


def raw_loop(width: int, layers: int, size: int) -> Iterator[None]:
    """The usual loop; each `next` is one optimizer step."""
    import torch
    from torch.nn import functional
    from torch.utils.data import DataLoader

    torch.manual_seed(0)
    model = mlp(width, layers)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    loader = DataLoader(Samples(width), batch_size=size, shuffle=True, drop_last=True, collate_fn=as_they_are)  # type: ignore[arg-type, var-annotated]
    index = 0
    while True:
        for x, y in loader:
            (functional.cross_entropy(model(x), y) / STEPS).backward()  # type: ignore[no-untyped-call]
            index += 1
            if index % STEPS == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                yield


class Blocks:
    """Stands at the trainer's window border: times blocks of its windows, and runs the raw loops between."""

    def __init__(self, width: int, layers: int, size: int, rounds: int) -> None:
        self._raw = [raw_loop(width, layers, size) for _ in range(2)]
        for loop in self._raw:
            self._run(loop, 20)
        self._many = max(1, round(BLOCK_S / (self._run(self._raw[0], 20) / 20)))
        self._left = -1
        self._started = 0.0
        self.rounds = rounds + WARM_UP_BLOCKS
        self.rows: list[tuple[float, float, float]] = []
        """Seconds of the trainer's block, of the raw loop's, and of the raw loop's other copy's."""

    @staticmethod
    def _run(loop: Iterator[None], many: int) -> float:
        started = time.perf_counter()
        for _ in range(many):
            next(loop)
        return time.perf_counter() - started

    def border(self) -> bool:
        """Called between two windows of the trainer; False when all rounds are done."""
        self._left -= 1
        if self._left > 0:
            return True
        now = time.perf_counter()
        if self._left == 0:
            order = [0, 1]
            random.shuffle(order)
            taken = {which: self._run(self._raw[which], self._many) for which in order}
            self.rows.append((now - self._started, taken[0], taken[1]))
        self._left = self._many
        self._started = time.perf_counter()
        return len(self.rows) < self.rounds

    def result(self) -> dict[str, Any]:
        """What one process saw: trainer / raw and raw / raw of each block."""
        rows = self.rows[WARM_UP_BLOCKS:]
        return {
            "ratios": [round(2 * ours / (raw + other), 5) for ours, raw, other in rows],
            "aa_ratios": [round(raw / other, 5) for _, raw, other in rows],
            "raw_micro_batch_ms": 1e3 * statistics.median([raw for _, raw, _ in rows]) / self._many / STEPS,
        }


def measure(name: str, rounds: int, folder: Path) -> dict[str, Any]:
    """One size in one process, this one, with a whole trainer."""
    import torch

    from tests.support.trainers import make_run, run_here
    from trainer_backend.trainer.border import Border

    torch.set_num_threads(1)
    width, layers, size = SIZES[name]
    module = folder / "overhead_task.py"
    module.write_text(TASK, encoding="utf-8")
    recipe = {
        "run": {"device": "cpu", "precision": "fp32", "max_optimizer_steps": 10**6},
        "task": {"options": {"width": width, "layers": layers}},
        "accumulation": {"micro_batch_size": size, "gradient_accumulation_steps": STEPS},
        "optimizer": {
            "name": "adamw",
            "learning_rate": 1e-4,
            "betas": [0.9, 0.95],
            "weight_decay": 0.1,
            "max_grad_norm": 1.0,
        },
    }
    blocks = Blocks(width, layers, size, rounds)
    cross = Border.cross

    def watched(border: Border) -> None:
        if not blocks.border():
            border._steering.stop("stop")
        cross(border)

    setattr(Border, "cross", watched)  # noqa: B010 - for the while
    try:
        run_here(make_run(folder / name, recipe, module=module))
    finally:
        setattr(Border, "cross", cross)  # noqa: B010 - as it was
    return blocks.result()


def summary(name: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of one size over its processes."""
    ratios = [process["ratios"] for process in found]
    alike = [process["aa_ratios"] for process in found]
    return {
        f"ratio_{name}": round(statistics.median(itertools.chain(*ratios)), 4),
        f"interval_{name}": interval(ratios, 4),
        f"by_process_{name}": [round(statistics.median(process), 4) for process in ratios],
        f"aa_ratio_{name}": round(statistics.median(itertools.chain(*alike)), 4),
        f"aa_interval_{name}": interval(alike, 4),
        f"aa_by_process_{name}": [round(statistics.median(process), 4) for process in alike],
        f"raw_micro_batch_ms_{name}": round(
            statistics.median(process["raw_micro_batch_ms"] for process in found), 3
        ),
    }


def in_fresh_process(name: str, rounds: int) -> dict[str, Any]:
    """What `measure` finds in a process that has done nothing else."""
    command = [
        sys.executable,
        "-m",
        "tests.bench.overhead",
        "--here",
        "--only",
        name,
        "--rounds",
        str(rounds),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure all sizes, and print one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=8, help="fresh processes for each size")
    parser.add_argument("--rounds", type=int, default=30, help="blocks in each of them")
    parser.add_argument("--only", nargs="*", default=list(SIZES), choices=list(SIZES), metavar="SIZE")
    parser.add_argument("--here", action="store_true", help="one process, this one, and its blocks")
    asked = parser.parse_args()
    if asked.here:
        folder = Path(tempfile.mkdtemp(prefix="gradacc-bench-"))
        os.environ["GRADACC_HOME"] = str(folder / "home")
        try:
            print(json.dumps(measure(asked.only[0], asked.rounds, folder)))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in asked.only}
    for turn in range(asked.processes):  # one after another, so that a slow minute falls on all sizes
        for name in asked.only:
            found[name].append(in_fresh_process(name, asked.rounds))
            print(turn + 1, json.dumps(summary(name, found[name])), file=sys.stderr, flush=True)
    result: dict[str, Any] = {}
    for name in asked.only:
        result |= summary(name, found[name])
    result["aa_ratio"] = result[f"aa_ratio_{asked.only[-1]}"]
    print(json.dumps(result))


if __name__ == "__main__":
    main()
