"""Several ranks under gloo, on this machine's cores: `python -m tests.bench.ranks [--quick]`.

rel_error_fp64_w2, _w3          gradient over so many ranks against one process, an odd model, the worst
gradient_peak_over_own          memory of a window's gradients at its peak over that of the gradients
                                (96 MB of them), two ranks; the worst rank
control_vector_ms_512_w2_median one exchange of 512 numbers between two ranks
window_ratio_over_ddp           a window of ours over one of DistributedDataParallel, which sums under its
                                last micro-batch too; medians of pairs in turn, two ranks, the worse
one_device_ratio_to_before      a window on one device, with each micro-batch's draws seeded, over one
                                without; medians of pairs in turn
restart_after_kill_s_without_imports
                                from a rank's kill until the next generation trains, without its imports
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.bench.figures import peak_bytes
from tests.numerics import test_rank_probes as probes
from tests.support import fork_server
from tests.support.rank_groups import on_ranks
from tests.support.trainers import PATIENCE_S, RankedTrainers, make_probe
from trainer_backend.engine import Accumulator, LossTerm
from trainer_backend.engine.ranks import Ranks
from trainer_backend.protocol import CheckpointSaved, PhaseEntered, RunStarted

ROUNDS = 40
MEGABYTE = 2**20


def squares(model: nn.Module, x: torch.Tensor) -> LossTerm:
    """A loss that any model has."""
    return LossTerm(model(x).square().sum(), len(x))


class Large(nn.Module):
    """24 parameters of 4 MB; its forward and backward hold nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.zeros(MEGABYTE)) for _ in range(24)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A sum over all of them."""
        return torch.stack([part.sum() for part in self.parts]).sum() * x.sum()


def case_peak(rank: int, size: int) -> float:
    """The peak of two windows over what lies there before the first, over the gradients' own bytes."""
    group = Ranks(dist.group.WORLD, torch.device("cpu"))
    small = nn.Linear(1, 1)
    warm = Accumulator(small, torch.optim.SGD(small.parameters(), lr=0.0), squares, ranks=group)
    warm.window([torch.ones(1, 1)] * 2)  # what torch and gloo take once
    model = Large()
    accumulator = Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.0), _linear, ranks=group)
    batches = [torch.ones(1)] * 2
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed before is no part of what lies there
    before = _resident()
    Path("/proc/self/clear_refs").write_text("5", "ascii")  # the peak counts from here
    for _ in range(2):
        accumulator.window(batches)
    return (peak_bytes() - before) / (24 * 4 * MEGABYTE)


def _linear(model: nn.Module, x: torch.Tensor) -> LossTerm:
    return LossTerm(model(x), 1)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * 4096


def case_control(rank: int, size: int) -> float:
    """Milliseconds of one exchange, the median."""
    group = Ranks(dist.group.WORLD, torch.device("cpu"))
    numbers = [0.5] * 512
    times = []
    for _ in range(20 + 5 * ROUNDS):
        started = time.perf_counter()
        group.sum(numbers)
        times.append(time.perf_counter() - started)
    return statistics.median(times[20:]) * 1e3


def mlp() -> nn.Sequential:
    """Two million parameters."""
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(512, 512), nn.GELU())]
    return nn.Sequential(*layers)


def case_ddp(rank: int, size: int) -> float:
    """The median ratio of a window of ours to DDP's, four micro-batches on each rank."""
    batches = [torch.randn(32, 512) for _ in range(4)]
    ours, theirs = mlp(), mlp()
    group = Ranks(dist.group.WORLD, torch.device("cpu"))
    accumulator = Accumulator(
        ours, torch.optim.SGD(ours.parameters(), lr=1e-4), squares, ranks=group, gradient_norm_every=0,
        max_grad_norm=1.0,
    )  # fmt: skip
    wrapped = nn.parallel.DistributedDataParallel(theirs, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=1e-4)

    def ddp_window() -> None:
        optimizer.zero_grad()
        for batch in batches[:-1]:
            with wrapped.no_sync():
                _ddp_backward(wrapped, batch, len(batches))
        _ddp_backward(wrapped, batches[-1], len(batches))
        nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimizer.step()

    return paired(lambda: accumulator.window(batches), ddp_window, group)


def _ddp_backward(model: nn.Module, batch: torch.Tensor, many: int) -> None:
    loss = model(batch).square().sum() / (len(batch) * many)
    loss.backward()
    loss.item()  # a loop that shows its loss


def paired(ours: Callable[[], object], theirs: Callable[[], object], group: Ranks | None) -> float:
    """The median of the ratios of neighbouring runs."""
    ratios = []
    for number in range(6 + ROUNDS):
        times = {}
        order = (ours, theirs) if number % 2 else (theirs, ours)
        for call in order:
            if group is not None:
                group.sum([0.0])  # all begin together
            started = time.perf_counter()
            call()
            times[call] = time.perf_counter() - started
        ratios.append(times[ours] / times[theirs])
    return statistics.median(ratios[6:])


def of_two(case: Callable[[int, int], float]) -> Callable[[int, int], float]:
    """A case that is measured on two ranks only."""
    return lambda rank, size: case(rank, size) if size == 2 else 0.0


CASES: dict[str, Callable[[int, int], Any]] = {
    "odd": probes.case_odd,
    "peak": of_two(case_peak),
    "control": of_two(case_control),
    "ddp": of_two(case_ddp),
}


def one_device() -> float:
    """What seeding each micro-batch costs a window of micro-batches of about a millisecond."""
    torch.set_num_threads(1)
    batches = [torch.randn(16, 512) for _ in range(4)]

    def windows(**options: Any) -> Callable[[], object]:
        model = mlp()
        made = Accumulator(model, torch.optim.SGD(model.parameters(), lr=1e-4), squares, **options)
        return lambda: made.window(batches)

    return paired(windows(seed_of_step=lambda step: step), windows(), None)


def restart_s(folder: Path) -> float:
    """From a rank's kill until the next generation trains, without the time of its imports."""
    fork_server.ENVIRONMENT["OMP_NUM_THREADS"] = "1"  # it forks only while it has one thread
    run = make_probe(
        folder, {"run": {"max_optimizer_steps": 100_000}, "checkpoint": {"every_samples": 8}}, length=1000
    )
    with RankedTrainers(run, 2) as trainers:
        trainers.wait_for_kind(CheckpointSaved)
        killed = time.perf_counter()
        trainers.ranks[1].kill()
        trainers.ranks[0].wait(PATIENCE_S)
        noticed_s = time.perf_counter() - killed
    with RankedTrainers(run, 2, generation=1) as trainers:
        trainers.wait_for_kind(RunStarted)
        trainers._read()
        at = {type(each.event): each.at for each in reversed(trainers._seen)}
        reading = next(
            each.at
            for each in trainers._seen
            if isinstance(each.event, PhaseEntered) and each.event.phase == "reading-data"
        )
    return noticed_s + at[RunStarted] - reading


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="without the restart of a run")
    asked = parser.parse_args()
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        found = on_ranks("tests.bench.ranks", CASES, (2, 3), Path(folder), patience_s=600)
        for size in (2, 3):
            errors = [error for rank in found["odd"][size] for error in rank]
            result[f"rel_error_fp64_w{size}"] = max(errors)
        result["gradient_peak_over_own"] = round(max(found["peak"][2]), 3)
        result["control_vector_ms_512_w2_median"] = round(found["control"][2][0], 3)
        result["window_ratio_over_ddp"] = round(max(found["ddp"][2]), 4)
        print(result, file=sys.stderr, flush=True)
        result["one_device_ratio_to_before"] = round(one_device(), 4)
        if not asked.quick and fork_server.IS_POSSIBLE:
            result["restart_after_kill_s_without_imports"] = round(restart_s(Path(folder, "run")), 2)
            fork_server.close()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
