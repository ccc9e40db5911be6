"""The auditor tells each known fault of a loop by name, and calls a right loop right."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainer_backend.integrations.audit import (
    SENTENCES,
    AuditFinding,
    SeenMicroBatch,
    SeenWindow,
    judge,
    sentence,
)
from trainer_backend.integrations.auditor import Auditor

RAGGED = [3, 9, 14, 2, 7, 5, 1]
N = 3

Scale = Callable[[torch.Tensor, int, list[int], int], torch.Tensor]


def run_loop(
    scale: Scale, *, zero: bool = True, moves: str = "step", sizes: list[int] | None = None
) -> list[str]:
    """A loop over ragged micro-batches, N = 3 with a tail of one; gives the codes that are no praise.

    What the loop itself takes is measured in every one.
    """
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    given = sizes or RAGGED
    with Auditor(model, optimizer, schedule, steps=N) as audit:
        for begin in range(0, len(given), N):
            window = given[begin : begin + N]
            for size in window:
                mean = audit.loss((model(torch.ones(size, 2)) ** 2).mean(), size)
                scale(mean, size, window, N).backward()  # type: ignore[no-untyped-call]
                if moves == "micro-batch":
                    schedule.step()
            optimizer.step()
            if zero:
                optimizer.zero_grad()
            if moves == "step":
                schedule.step()
    assert audit.report()
    found = [finding.code for finding in audit.findings() if finding.level != "right"]
    found.remove("overhead")
    return found


def right(mean: torch.Tensor, size: int, window: list[int], steps: int) -> torch.Tensor:
    """The sum form."""
    del steps
    return mean * size / sum(window)


def by_micro_batches(mean: torch.Tensor, size: int, window: list[int], steps: int) -> torch.Tensor:
    """The mean of means."""
    del size, steps
    return mean / len(window)


def by_n(mean: torch.Tensor, size: int, window: list[int], steps: int) -> torch.Tensor:
    """The usual line, tail or not."""
    del size, window
    return mean / steps


def by_nothing(mean: torch.Tensor, size: int, window: list[int], steps: int) -> torch.Tensor:
    """Forgotten."""
    del size, window, steps
    return mean


def by_too_many(mean: torch.Tensor, size: int, window: list[int], steps: int) -> torch.Tensor:
    """Units are counted that have no loss."""
    return right(mean, size, window, steps) * 0.92


@pytest.mark.filterwarnings("ignore:Detected call of")  # one of the faults
@pytest.mark.parametrize(
    ("scale", "options", "codes"),
    [
        (right, {}, []),
        (by_micro_batches, {}, ["mean-of-means"]),
        (by_n, {"sizes": [4] * 7}, ["tail-divided-by-n"]),
        (by_nothing, {"sizes": [4] * 6}, ["not-divided"]),
        (by_too_many, {}, ["divisor-wrong", "tail-wrong"]),
        (right, {"zero": False}, ["stale-gradients"]),
        (right, {"moves": "micro-batch"}, ["schedule-per-micro-batch"]),
        (right, {"moves": "never"}, ["schedule-still"]),
    ],
)
def test_each_fault_is_told_by_name(scale: Scale, options: dict[str, Any], codes: list[str]) -> None:
    """And only that fault."""
    assert run_loop(scale, **options) == codes


def test_every_code_has_a_sentence_that_says_what_to_do() -> None:
    """Values of every code fit its sentence."""
    values: dict[str, Any] = {
        "steps": 4, "weight": 0.5, "units": 3, "ratio": 2.0, "micro_batches": 1, "windows": 2, "moves": 4,
        "times": 4.0, "count": 1, "microseconds": 100.0,
    }  # fmt: skip
    for code in SENTENCES:
        words = sentence(AuditFinding(code, "note", values))
        assert words.endswith((".", ")."))
        assert "{" not in words


def test_waits_for_the_device_are_counted() -> None:
    """item() in a micro-batch."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Auditor(model, optimizer, steps=1, count_syncs=True) as audit:
        for _ in range(3):
            loss = audit.loss((model(torch.ones(2, 2)) ** 2).mean(), 2)
            loss.backward()  # type: ignore[no-untyped-call]
            loss.item()
            loss.item()
            optimizer.step()
            optimizer.zero_grad()
    (finding,) = [entry for entry in audit.findings() if entry.code == "host-syncs"]
    assert finding.values["count"] == 2


def test_overhead_is_what_micro_batches_take_beside_their_own_forward_and_backward() -> None:
    """By the medians; what was measured in the run goes before what was timed apart."""

    def window(*pairs: tuple[float, float | None]) -> SeenWindow:
        entries = tuple(
            SeenMicroBatch(units=1, coefficient=1 / len(pairs), duration_s=duration, bare_s=bare)
            for duration, bare in pairs
        )
        return SeenWindow(micro_batches=entries, asked=len(pairs), stale=False, schedule_steps=None)

    measured = window((0.012, 0.010), (0.014, 0.010), (0.013, 0.010), (0.0, 0.010))
    (finding,) = [entry for entry in judge([measured], raw_micro_batch_s=1.0) if entry.code == "overhead"]
    assert finding.values == {"microseconds": pytest.approx(3000), "ratio": pytest.approx(1.3)}
    unknown = window((0.012, None), (0.014, None))
    assert "overhead" not in [entry.code for entry in judge([unknown])]
    (finding,) = [entry for entry in judge([unknown], raw_micro_batch_s=0.01) if entry.code == "overhead"]
    assert finding.values["ratio"] == pytest.approx(1.3)


def test_the_auditors_own_reads_are_no_waits_of_the_trainers() -> None:
    """A model that gives logits: labels are counted and coefficients read by the auditor, at no charge."""

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 3)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
            del labels
            return SimpleNamespace(logits=self.layer(x))

    model = Logits()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    labels = torch.tensor([0, 2])
    with Auditor(model, optimizer, steps=2, count_syncs=True) as audit:
        for _ in range(2):
            for _ in range(2):
                logits = model(torch.ones(2, 2), labels=labels).logits
                (torch.nn.functional.cross_entropy(logits, labels) / 2).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
    assert [entry.host_syncs for window in audit.windows for entry in window.micro_batches] == [0, 0, 0, 0]
    assert [window.weight for window in audit.windows] == [pytest.approx(1), pytest.approx(1)]
    assert all(entry.bare_s is not None for window in audit.windows for entry in window.micro_batches)


def test_an_audit_leaves_nothing_behind() -> None:
    """Hooks and wrapped methods are gone."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    step = schedule.step
    with Auditor(model, optimizer, schedule):
        assert schedule.step != step
    assert schedule.step == step
    assert not model._forward_hooks
    assert not optimizer._optimizer_step_pre_hooks
