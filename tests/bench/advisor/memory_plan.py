"""Predicted against measured peak memory, on this machine's CPU, at sizes that no probe had.

One process a probe, as in the product, and the planner chooses the sizes; only the times are left out. The
error is over what the micro-batches take, peak - idle peak, which is at least 1 GB at every unseen size.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.bench.advisor._probed_tasks import written
from trainer_backend.planner.pairs import Lines, Machine, Probe
from trainer_backend.planner.plan_command import make_plan
from trainer_backend.planner.plan_messages import ProbeDone
from trainer_backend.recipe import load_recipe

EFFECTIVE_BATCH: Final = 128
UNSEEN: Final = (56, 80, 112)
"""None of them divides the effective batch, so none is probed."""
LEAST_BYTES: Final = 1_000_000_000
MODELS: Final = {
    "convolutional": ("Pictures", {"width": 8, "side": 256}),
    "transformer": ("Tokens", {"layers": 6, "width": 64, "length": 768}),
}
LIMIT_GIB: Final = 8.0
ONE_PROBE: Final = """
import json, sys
from pathlib import Path
from trainer_backend.planner.probing import Prober
from trainer_backend.recipe import load_recipe
prober = Prober(load_recipe(Path(sys.argv[1])))
print(json.dumps([prober.idle_bytes, prober.peak(int(sys.argv[2]))]))
"""


def measure() -> dict[str, Any]:
    """The largest error, and each, in shares."""
    errors: dict[str, dict[str, float]] = {}
    taken: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (entry, options) in MODELS.items():
            path = written(Path(folder), entry, EFFECTIVE_BATCH, **options)
            errors[name] = errors_of(path, taken)
            print(name, errors[name], file=sys.stderr, flush=True)
    worst = max(abs(error) for by_size in errors.values() for error in by_size.values())
    return {
        "peak_memory_error": worst, "peak_memory_errors": errors,
        "least_memory_taken_gb": round(min(taken) / 1e9, 2),
    }  # fmt: skip


def errors_of(path: Path, taken: list[int]) -> dict[str, float]:
    """By unseen size: predicted less measured, over what its micro-batches took (added to `taken`)."""
    machine = Machine(device="cpu", name="", total_bytes=0, other_bytes=0, limit_bytes=0)

    def probe_done(size: int) -> ProbeDone:
        return ProbeDone(machine=machine, probe=probed(path, size), longest="", samples=None)

    plan = make_plan(load_recipe(path), probe_done, lambda _: None, memory_gib=LIMIT_GIB)
    lines, errors = Lines(plan.probes), {}
    for size in UNSEEN:
        assert not lines.is_measured(size)
        probe = probed(path, size)
        real = probe.peak_bytes - probe.idle_bytes
        assert real >= LEAST_BYTES, f"{size} take only {real:,} bytes"
        taken.append(real)
        errors[str(size)] = round((lines.peak_bytes(size) - probe.peak_bytes) / real, 4)
    print(f"probed {sorted(probe.size for probe in plan.probes)}", file=sys.stderr, flush=True)
    return errors


def probed(path: Path, size: int) -> Probe:
    """A size's memory, in a process of its own; its times are those of an ideal machine."""
    command = [sys.executable, "-c", ONE_PROBE, str(path), str(size)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    idle, peak = json.loads(done.stdout.splitlines()[-1])
    assert peak is not None, f"{size} ran out of memory"
    return Probe(
        size=size, fits=True, idle_bytes=idle, peak_bytes=peak, micro_s=1e-3 * (5 + size), step_s=1e-3
    )
