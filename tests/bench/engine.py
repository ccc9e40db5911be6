"""What exactness costs: `python -m tests.bench.engine [--quick]`.

border_ratio                  normalise, clip, step, zero: ours against clip_grad_norm_, fused AdamW step
                              and zero_grad, on the same 300 tensors, interleaved; aa_ratio beside it is
                              theirs against itself
norm_hooks_ratio_every_window each micro-batch's gradient norm in every window, against none
norm_hooks_ratio_default      the same, every 16th window, as shipped
norm_hooks_extra_bytes        peak of what the hooks allocate
peak_memory_ratio_n64_n2      peak of a whole run at N = 64 over that at N = 2, fresh processes
resume_bitwise                the suite's own resume tests: 2 workers, augmentation, dropout, AdamW, N
                              changed live before the kill, a kill in every phase
verify_s                      the certificate of the default recipe
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).parents[2]


def interleaved(ways: dict[str, Callable[[], None]], rounds: int, warm_up: int) -> dict[str, list[float]]:
    """Seconds of each way in each round, in random order within a round."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    order = list(ways)
    for index in range(rounds + warm_up):
        random.shuffle(order)
        for name in order:
            started = time.perf_counter()
            ways[name]()
            if index >= warm_up:
                taken[name].append(time.perf_counter() - started)
    return taken


def paired_ratio(ours: list[float], theirs: list[float]) -> float:
    """Median of the rounds' ratios."""
    return round(statistics.median([a / b for a, b in zip(ours, theirs, strict=True)]), 4)


def border(rounds: int) -> dict[str, float]:  # noqa: C901 - two ways and their clock, side by side
    """One window's end on 300 tensors, without forward and backward."""
    import torch
    from torch import nn

    from trainer_backend.engine import Accumulator, LossTerm, make_optimizer
    from trainer_backend.engine.window import Feed

    torch.set_num_threads(1)
    shapes = [(256, 256), (256,), (64, 256)] * 100

    def made() -> nn.ParameterList:
        torch.manual_seed(0)
        return nn.ParameterList([nn.Parameter(torch.randn(shape) * 0.02) for shape in shapes])

    gradients = [torch.randn(shape) for shape in shapes]

    def raw() -> Callable[[], None]:
        model = made()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

        def close() -> None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        return lambda: timed(model, close)

    def ours() -> Callable[[], None]:
        model = made()
        optimizer = make_optimizer("adamw", model.parameters(), learning_rate=1e-4)

        def loss(model: nn.Module, _batch: torch.Tensor) -> LossTerm:
            return LossTerm(torch.stack([parameter.sum() for parameter in model.parameters()]).sum(), 8)

        engine = Accumulator(model, optimizer, loss, max_grad_norm=1.0)
        engine.window([torch.zeros(8)] * 8)
        feed = Feed([torch.zeros(8)] * 8, engine._reader, None)
        engine._start()
        sums = engine._accumulate(feed, [])
        return lambda: timed(model, lambda: engine._close(feed, sums, [], None))

    spent: dict[str, float] = {}

    def timed(model: nn.ParameterList, close: Callable[[], Any]) -> None:
        """Give each parameter a gradient of its own, then measure only the border."""
        for parameter, gradient in zip(model, gradients, strict=True):
            parameter.grad = gradient.clone()
        started = time.perf_counter()
        close()
        spent["last"] = time.perf_counter() - started

    ways = {"raw": raw(), "again": raw(), "ours": ours()}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    order = list(ways)
    for index in range(rounds + 10):
        random.shuffle(order)
        for name in order:
            ways[name]()
            if index >= 10:
                taken[name].append(spent["last"])
    return {
        "border_ratio": paired_ratio(taken["ours"], taken["raw"]),
        "aa_ratio": paired_ratio(taken["again"], taken["raw"]),
        "border_ms": round(statistics.median(taken["ours"]) * 1e3, 3),
    }


def norm_hooks(rounds: int) -> dict[str, float]:
    """A small transformer at b = 4 of 128 tokens (the demo's context) and N = 4.

    With each micro-batch's norm, with the default, and with none.

    All on one engine, whose setting is switched: two copies of a model differ by more than the hooks cost.
    """
    import torch

    from tests.bench.models import Blocks, token_loss
    from trainer_backend.engine import Accumulator, Collated, make_optimizer

    torch.set_num_threads(1)
    batches = [Collated(torch.randint(256, (4, 129)), samples=4, tokens=512) for _ in range(4)]
    torch.manual_seed(0)
    model = Blocks(layers=4, width=128)
    optimizer = make_optimizer("adamw", model.parameters(), learning_rate=1e-4)
    engine = Accumulator(model, optimizer, token_loss, max_grad_norm=1.0)

    def windows(every: int, many: int) -> Callable[[], None]:
        def run() -> None:
            engine.gradient_norm_every = every
            for _ in range(many):
                engine.window(batches)

        return run

    one = {"every": windows(1, 1), "none": windows(0, 1), "again": windows(0, 1)}
    sixteen = {"default": windows(16, 16), "none": windows(0, 16), "again": windows(0, 16)}
    taken, blocks = interleaved(one, rounds, 4), interleaved(sixteen, max(4, rounds // 6), 1)
    return {
        "norm_hooks_ratio_every_window": paired_ratio(taken["every"], taken["none"]),
        "norm_hooks_aa_ratio_every_window": paired_ratio(taken["again"], taken["none"]),
        "norm_hooks_ratio_default": paired_ratio(blocks["default"], blocks["none"]),
        "norm_hooks_aa_ratio_default": paired_ratio(blocks["again"], blocks["none"]),
        "norm_hooks_extra_bytes": hooks_bytes(),
    }


def hooks_bytes() -> int:
    """Bytes that the hooks of one micro-batch hold at most: what the profiler saw, on the same model."""
    import torch

    from tests.bench.models import Blocks, token_loss
    from trainer_backend.engine.norms import MicroBatchNorms

    model = Blocks(layers=4, width=128)
    norms = MicroBatchNorms()
    norms.attach(list(model.parameters()))
    held: list[int] = []
    take = torch.linalg.vector_norm

    def watched(*args: Any, **options: Any) -> torch.Tensor:
        norm: torch.Tensor = take(*args, **options)
        held.append(max(64, norm.untyped_storage().nbytes()))  # the allocator's own granularity
        return norm

    torch.linalg.vector_norm = watched
    try:
        token_loss(model, torch.randint(256, (4, 65))).total.backward()  # type: ignore[no-untyped-call]
        norms.take()
    finally:
        torch.linalg.vector_norm = take
        norms.detach()
    return sum(held)


PEAK = """
    import resource, sys
    import torch
    from tests.bench.figures import peak_bytes
    from trainer_backend.engine import Accumulator, Collated, LossTerm, make_optimizer

    torch.set_num_threads(1)
    torch.zeros(1).sum()
    many = int(sys.argv[1])
    after_imports = int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

    class Wide(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(2**23)) for _ in range(16)])

    def loss(model, x):
        return LossTerm(sum((row * scale).tanh().sum() for row, scale in zip(model.rows, x[0])), len(x))

    model = Wide()
    optimizer = make_optimizer("sgd", model.parameters(), learning_rate=1e-4)
    engine = Accumulator(model, optimizer, loss, max_grad_norm=1.0)
    engine.window(Collated(torch.randn(1, 16), samples=1, tokens=1) for _ in range(many))
    peak = peak_bytes()
    print(peak - after_imports)
"""
"""Half a GB each of weights, gradients and activations, so that little else than memory is touched."""


def peak_memory(many: int) -> int:
    """VmHWM less the resident size after the imports, in a fresh process; over 1 GB of what counts."""
    import textwrap

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PEAK), str(many)],
        cwd=ROOT, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return int(done.stdout.split()[-1])


def run_python(*arguments: str) -> int:
    """Exit code of a Python in the project's folder."""
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, check=False).returncode


def resume_bitwise() -> bool:
    """The suite's resume tests, which compare weights bit for bit after kills."""
    return run_python("-m", "pytest", "-q", "tests/integration/test_resume.py") == 0


def verify_s() -> float | None:
    """Seconds of one certificate, as a person asks for it; None when it failed to run."""
    started = time.perf_counter()
    code = run_python("-m", "trainer_backend", "verify", str(ROOT / "assets" / "recipes" / "stdlib-gpt.toml"))
    return round(time.perf_counter() - started, 1) if code == 0 else None


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="few rounds, and only what is measured here")
    asked = parser.parse_args()
    rounds = 60 if asked.quick else 400
    result: dict[str, Any] = {}

    def put(found: dict[str, Any]) -> None:
        result.update(found)
        print(found, file=sys.stderr, flush=True)

    put(border(rounds))
    put(norm_hooks(max(10, rounds // 4)))
    if sys.platform == "linux":
        two, sixty_four = peak_memory(2), peak_memory(64)
        put({"peak_memory_ratio_n64_n2": round(sixty_four / two, 4), "peak_memory_bytes": two})
    if not asked.quick:
        put({"resume_bitwise": resume_bitwise()})
        put({"verify_s": verify_s()})
    print(json.dumps(result))


if __name__ == "__main__":
    main()
