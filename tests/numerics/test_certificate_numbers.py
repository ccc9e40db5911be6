"""The certificate's numbers, each against one computed here from the task alone."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.certificates import LoopEngine, MadeTask, certificate, plain_task, word_task
from trainer_backend.tasks import LossTerm
from trainer_backend.verify.limits import Limits
from trainer_backend.verify.report import LIMITS, Comparison, VerifyReport

SAMPLES = 12
EXACT = 1e-11


def gradient(
    task: MadeTask, sizes: Sequence[int], *, how: str = "sum", dtype: torch.dtype = torch.float64,
    context: Any = None, backwards: bool = False,
) -> tuple[dict[str, torch.Tensor], float, float]:  # fmt: skip
    """Gradient in fp64, loss and D of the first samples in parts of these sizes; dropout off.

    "sum": the large batch's; "means": the mean of the parts' means, as many trainers have it.
    """
    model = task.model().eval().to(dtype)
    samples = task.samples[:SAMPLES][:: -1 if backwards else 1]
    gathered = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in model.named_parameters()}
    loss = weight = 0.0
    for size in sizes:
        batch, samples = cast(task.collate(samples[:size]), dtype), samples[size:]
        with context or contextlib.nullcontext():
            term = task.loss(model, batch)
        assert isinstance(term, LossTerm)
        gradients = torch.autograd.grad(term.total, list(model.parameters()))
        part = float(term.weight) * (len(sizes) if how == "means" else 1)
        for whole, one in zip(gathered.values(), gradients, strict=True):
            whole.add_(one.double() / (part if how == "means" else 1.0))
        loss += float(term.total.detach())
        weight += float(term.weight)
    if how == "sum":
        gathered = {name: one / weight for name, one in gathered.items()}
    return gathered, loss / weight, weight


def cast(batch: Any, dtype: torch.dtype) -> Any:
    """Floating tensors of a list or dict batch in `dtype`."""
    if isinstance(batch, dict):
        return {key: cast(value, dtype) for key, value in batch.items()}
    if isinstance(batch, list):
        return [cast(value, dtype) for value in batch]
    return batch.to(dtype) if batch.is_floating_point() else batch


def flat(gradients: dict[str, torch.Tensor]) -> torch.Tensor:
    """All of it as one vector."""
    return torch.cat([one.flatten() for one in gradients.values()])


def comparisons(report: VerifyReport, precision: str) -> list[Comparison]:
    """Those in one precision, of windows that are neither clipped nor split again."""
    plain = ("one", "equal", "ragged", "tail")
    return [one for one in report.comparisons if one.precision == precision and one.fold in plain]


class MeanOfMeans(LoopEngine):
    """Each micro-batch's own mean, divided by how many there are."""

    def objective(self, terms: Sequence[LossTerm], _weights: dict[str, float], many: int) -> torch.Tensor:
        """See the class."""
        return sum((term.total / term.weight for term in terms), torch.zeros(())) / many


class Stretched(LoopEngine):
    """The first tensor's gradient is 1 + `by` times what it should be."""

    by = 0.25

    def micro_batch(self, index: int, batch: Any, weights: dict[str, float], many: int) -> None:
        """See the class."""
        super().micro_batch(index, batch, weights, many)
        first = next(self.model.parameters())
        if index == many - 1 and first.grad is not None:
            first.grad *= 1 + self.by


@pytest.mark.parametrize("task", [plain_task(), word_task()], ids=["samples", "tokens"])
def test_loss_denominator_and_norm_are_the_large_batchs(task: MadeTask) -> None:
    """Of the report, and of every window that a right engine ran."""
    right, loss, weight = gradient(task, [SAMPLES])
    norm = float(flat(right).norm())
    report = certificate(task)
    assert report.verdict == "equal"
    assert (report.loss, report.gradient_norm) == pytest.approx((loss, norm), rel=EXACT)
    assert report.denominator == weight
    assert comparisons(report, "fp64")
    for one in comparisons(report, "fp64"):
        assert (one.loss, one.gradient_norm, one.denominator) == pytest.approx(
            (loss, norm, weight), rel=EXACT
        )
        assert (one.alpha, one.cosine) == pytest.approx((1.0, 1.0), rel=EXACT)


def test_error_alpha_and_cosine_of_a_wrong_engine_are_those_of_its_gradient() -> None:
    """A mean of means over ragged rows: its gradient is computed here too."""
    task = word_task()
    right = flat(gradient(task, [SAMPLES])[0])
    report = certificate(task, engine=MeanOfMeans)
    assert report.verdict == "not-equal"
    seen = 0
    for one in comparisons(report, "fp64"):
        wrong = flat(gradient(task, one.sizes, how="means")[0])
        product = float(wrong @ right)
        assert one.error == pytest.approx(float((wrong - right).norm() / right.norm()), rel=1e-9, abs=1e-13)
        assert one.alpha == pytest.approx(product / float(right.norm()) ** 2, rel=EXACT)
        assert one.cosine == pytest.approx(product / float(right.norm() * wrong.norm()), rel=EXACT)
        assert one.equals_large_batch == (one.fold == "one")
        seen += one.error > 1e-3
    assert seen >= 3


@pytest.mark.parametrize("by", [0.25, -0.5])
def test_the_error_of_a_layer_is_over_its_own_norm(by: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """One tensor is stretched: it is named first with its own error and scale, the others with none."""
    monkeypatch.setattr(Stretched, "by", by)
    task = plain_task()
    right, _, _ = gradient(task, [SAMPLES])
    name, share = next((name, float(one.norm() / flat(right).norm())) for name, one in right.items())
    for one in comparisons(certificate(task, engine=Stretched), "fp64"):
        first, *others = one.worst_layers
        assert (first.name, first.holds) == (name, False)
        assert (first.error, first.alpha, first.cosine) == pytest.approx((abs(by), 1 + by, 1.0), rel=1e-9)
        assert all(other.error < 1e-12 and other.holds for other in others)
        assert one.error == pytest.approx(abs(by) * share, rel=1e-9)
        assert one.alpha == pytest.approx(1 + by * share**2, rel=EXACT)


@pytest.mark.parametrize("task", [plain_task(), word_task()], ids=["samples", "tokens"])
def test_the_floors_are_those_of_the_large_batch_alone(task: MadeTask) -> None:
    """bf16: one large batch against fp64, and the same samples in reversed order, without any engine."""
    right = flat(gradient(task, [SAMPLES])[0])

    def half(*, backwards: bool = False) -> torch.Tensor:
        context = torch.autocast("cpu", dtype=torch.bfloat16)
        return flat(
            gradient(task, [SAMPLES], dtype=torch.float32, context=context, backwards=backwards)[0]
        )  # fmt: skip

    one_fold = float((half() - right).norm() / right.norm())
    order = float((half(backwards=True) - half()).norm() / half().norm())
    report = certificate(task, precision="bf16")
    (floor,) = [one for one in report.floors if one.precision == "bf16"]
    assert one_fold > 1e-4
    assert (floor.one_fold_error, floor.order, floor.repeat) == pytest.approx(
        (one_fold, order, 0.0), rel=1e-6
    )
    for one in comparisons(report, "bf16"):
        assert one.limit == pytest.approx(max(LIMITS["bf16"], 1.5 * one_fold, 4 * order), rel=1e-6)


@pytest.mark.parametrize(
    ("grade", "one_fold", "floor", "limit"),
    [
        ("bf16", 0.04, 0.0, 0.06),
        ("bf16", 0.01, 0.0, 2e-2),
        ("fp32", 1e-4, 1e-6, 1.5e-4),
        ("fp32", 1e-7, 1e-5, 4e-5),
        ("fp64", 1e-15, 1e-16, 1e-12),
        ("fp64", 4e-12, 1e-16, 6e-12),
        ("bf16", 0.04, 0.5, 0.06),  # a floor above its cap is chance at work
        ("bf16", 3.0, 0.0, 2e-2),  # and a large batch that is all wrong allows nothing
    ],
)
def test_the_limit_is_the_precisions_or_one_and_a_half_of_the_one_folds(
    grade: str, one_fold: float, floor: float, limit: float
) -> None:
    """max(limit, 1.5 x error of the one-fold, 4 x floor)."""
    assert Limits(grade, one_fold, floor, {}).whole == pytest.approx(limit, rel=1e-12)


class Coarse(nn.Module):
    """A difference of two large numbers: in bf16 what is left is mostly rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4)
        self.two = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        large = self.one(x) + 40.0
        given: torch.Tensor = self.two(large - 40.0)
        return given


class Turned(LoopEngine):
    """Each gradient is 1 + `by` times what it should be."""

    by = 0.0

    def micro_batch(self, index: int, batch: Any, weights: dict[str, float], many: int) -> None:
        """See the class."""
        super().micro_batch(index, batch, weights, many)
        if index == many - 1:
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad *= 1 + self.by


def test_a_run_in_half_is_judged_by_what_its_own_large_batch_errs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the one-fold alone errs by more than the limit, as much and half more is allowed, and no more."""
    task = plain_task()
    task.make_model = Coarse
    report = certificate(task, precision="bf16")
    (floor,) = [one for one in report.floors if one.precision == "bf16"]
    limit = max(one.limit for one in comparisons(report, "bf16"))
    assert limit > 1.4 * floor.one_fold_error > LIMITS["bf16"]
    assert report.verdict == "equal"
    for by, holds in ((0.0, True), (0.5 * floor.one_fold_error, True), (2 * limit + 0.1, False)):
        monkeypatch.setattr(Turned, "by", by)
        seen = comparisons(certificate(task, precision="bf16", engine=Turned), "bf16")
        assert {one.error <= one.limit for one in seen} == {holds}
        assert {one.holds for one in seen} == {holds}
