"""Predicted against measured peak memory, on this machine's device, at sizes that no probe had.

One process a probe, as in the product. The error is over what the micro-batches take: peak - idle peak.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.bench.advisor._probed_tasks import written
from trainer_backend.planner.pairs import Lines
from trainer_backend.planner.plan_command import make_plan, probe_process
from trainer_backend.recipe import load_recipe

GIB: Final = 2**30
EFFECTIVE_BATCH: Final = 128
UNSEEN: Final = (24, 40, 56)
"""None of them divides the effective batch, so none is probed; each takes 1 GB and more."""
MODELS: Final = {
    "convolutional": ("Pictures", {"width": 48, "side": 96}),
    "transformer": ("Tokens", {"layers": 4, "width": 192, "length": 256}),
}
LIMIT_GIB: Final = 6.0


def measure() -> dict[str, Any]:
    """The largest error, and each, in shares."""
    errors: dict[str, dict[str, float]] = {}
    taken = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (entry, options) in MODELS.items():
            path = written(Path(folder), entry, EFFECTIVE_BATCH, **options)
            plan = make_plan(
                load_recipe(path), functools.partial(probe_process, str(path)),
                lambda _: None, memory_gib=LIMIT_GIB,
            )  # fmt: skip
            lines, errors[name] = Lines(plan.probes), {}
            probed = sorted(probe.size for probe in plan.probes)
            for size in UNSEEN:
                assert size not in probed
                probe = probe_process(str(path), size).probe
                real = probe.peak_bytes - probe.idle_bytes
                taken.append(real / 1e9)
                errors[name][str(size)] = round((lines.peak_bytes(size) - probe.peak_bytes) / real, 4)
            print(f"{name}: probed {probed}", errors[name], file=sys.stderr, flush=True)
    worst = max(abs(error) for by_size in errors.values() for error in by_size.values())
    return {
        "peak_memory_error": worst, "peak_memory_errors": errors,
        "least_memory_taken_gb": round(min(taken), 2),
    }  # fmt: skip
