"""The certificate finds what an engine does wrong, and says what it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.certificates import (
    LoopEngine,
    MadeTask,
    certificate,
    codes,
    cross_entropy,
    mlp,
    plain_task,
    two_terms,
    vectors,
    word_task,
)
from trainer_backend.tasks import LossTerm
from trainer_backend.verify import sentences
from trainer_backend.verify.culprits import engine_fault

Weights = dict[str, float]


def gradients(model: nn.Module) -> list[torch.Tensor]:
    """Those that there are."""
    return [value.grad for value in model.parameters() if value.grad is not None]


class MeanOfMeans(LoopEngine):
    """Each micro-batch's own mean, divided by how many there are."""

    def objective(self, terms: Sequence[LossTerm], _weights: Weights, many: int) -> torch.Tensor:
        """See the class."""
        return sum((term.total / term.weight for term in terms), torch.zeros(())) / many


class DividesTailByN(LoopEngine):
    """The usual loss / N, also where an epoch ends with fewer micro-batches."""

    def objective(self, terms: Sequence[LossTerm], weights: Weights, many: int) -> torch.Tensor:
        """See the class."""
        return super().objective(terms, weights, many) * many / self.steps


class NeverDivides(LoopEngine):
    """Gradients of means are added and stay a sum."""

    def objective(self, terms: Sequence[LossTerm], weights: Weights, many: int) -> torch.Tensor:
        """See the class."""
        return super().objective(terms, weights, many) * many


class DoublesAuxiliary(LoopEngine):
    """Adds the second term once more."""

    def objective(self, terms: Sequence[LossTerm], weights: Weights, many: int) -> torch.Tensor:
        """See the class."""
        extra = sum((term.total / weights[term.name] for term in terms[1:]), torch.zeros(()))
        return super().objective(terms, weights, many) + extra


class OneDenominatorForAll(LoopEngine):
    """Divides every term by the first one's weight."""

    def objective(self, terms: Sequence[LossTerm], weights: Weights, _many: int) -> torch.Tensor:
        """See the class."""
        first = weights[terms[0].name]
        return sum((term.total / first for term in terms), torch.zeros(()))


class DropsLastTerm(LoopEngine):
    """Forgets the last term."""

    def objective(self, terms: Sequence[LossTerm], weights: Weights, many: int) -> torch.Tensor:
        """See the class."""
        return super().objective(terms[:1], weights, many)


class NeverEmpties(LoopEngine):
    """The gradient of one window stays for the next."""

    def empty(self) -> None:
        """See the class."""


class EmptiesHalf(LoopEngine):
    """Biases keep the gradient of the window before."""

    def empty(self) -> None:
        """See the class."""
        for value in self.model.parameters():
            if value.dim() > 1:
                value.grad = None


class EmptiesEachMicroBatch(LoopEngine):
    """zero_grad in the loop: only the last micro-batch is left."""

    def micro_batch(self, index: int, batch: Any, weights: Weights, many: int) -> None:
        """See the class."""
        self.optimizer.zero_grad()
        super().micro_batch(index, batch, weights, many)


class MissesLast(LoopEngine):
    """Steps before the last micro-batch's backward."""

    def micro_batch(self, index: int, batch: Any, weights: Weights, many: int) -> None:
        """See the class."""
        if index < many - 1 or many == 1:
            super().micro_batch(index, batch, weights, many)


class RunsOneTwice(LoopEngine):
    """The second micro-batch is run twice."""

    def micro_batch(self, index: int, batch: Any, weights: Weights, many: int) -> None:
        """See the class."""
        super().micro_batch(index, batch, weights, many)
        if index == 1:
            super().micro_batch(index, batch, weights, many)


class RepeatsFirstBatch(LoopEngine):
    """An iterator that is started anew each time: all micro-batches are the first."""

    kept: Any = None

    def micro_batch(self, index: int, batch: Any, weights: Weights, many: int) -> None:
        """See the class."""
        self.kept = batch if index == 0 else self.kept
        super().micro_batch(index, self.kept, weights, many)


class ClipsEachMicroBatch(LoopEngine):
    """Clips what has gathered so far, behind each micro-batch."""

    def micro_batch(self, index: int, batch: Any, weights: Weights, many: int) -> None:
        """See the class."""
        super().micro_batch(index, batch, weights, many)
        self.clip()


class ClipsBeforeAveraging(LoopEngine):
    """Clips the sum, and divides then."""

    def objective(self, terms: Sequence[LossTerm], weights: Weights, many: int) -> torch.Tensor:
        """See the class."""
        self.many = many
        return super().objective(terms, weights, many) * many

    def clip(self) -> float:
        """See the class."""
        norm = super().clip()
        for gradient in gradients(self.model):
            gradient.div_(self.many)
        return norm / self.many


class NeverClips(LoopEngine):
    """Forgets max_grad_norm."""

    def clip(self) -> float:
        """See the class."""
        self.max_grad_norm = None
        return super().clip()


class HalfBuffers(LoopEngine):
    """Gathers gradients in bf16."""

    def micro_batch(self, index: int, batch: Any, weights: Weights, many: int) -> None:
        """See the class."""
        super().micro_batch(index, batch, weights, many)
        for gradient in gradients(self.model):
            gradient.copy_(gradient.bfloat16())


class HalfTerm(LoopEngine):
    """Scales the second term in half precision."""

    def objective(self, terms: Sequence[LossTerm], weights: Weights, _many: int) -> torch.Tensor:
        """See the class."""
        first, second = terms
        tenth = torch.tensor(0.1).half().to(second.total)  # 0.09998
        return first.total / weights[first.name] + second.total * tenth * 10 / weights[second.name]


class StepsEachMicroBatch(LoopEngine):
    """An optimizer step behind each micro-batch."""

    def micro_batch(self, index: int, batch: Any, weights: Weights, many: int) -> None:
        """See the class."""
        super().micro_batch(index, batch, weights, many)
        if index < many - 1:
            self.optimizer.step()
            self.optimizer.zero_grad()


class ForgetsOneLayer(LoopEngine):
    """The last bias never reaches the optimizer with a gradient."""

    def border(self, _weights: Weights, _many: int) -> None:
        """See the class."""
        list(self.model.parameters())[-1].grad = None


class AddsNoise(LoopEngine):
    """A gradient that no micro-batch explains."""

    def border(self, _weights: Weights, _many: int) -> None:
        """See the class."""
        for gradient in gradients(self.model):
            gradient.add_(0.1 * gradient.norm() * torch.sin(torch.arange(gradient.numel())).view_as(gradient))


class ReplaysOntoWhatIsThere(LoopEngine):
    """After out of memory the replay adds to what the failed try left."""

    def forget(self) -> None:
        """See the class."""


class SchedulesByCount(LoopEngine):
    """step % N over a counter that never restarts: windows start where the last one's count says."""

    seen = 0

    def micro_batch(self, index: int, batch: Any, weights: Weights, many: int) -> None:
        """See the class."""
        super().micro_batch(index, batch, weights, many)
        self.seen += 1
        if self.seen % self.steps == 0 and index < many - 1:
            self.optimizer.step()
            self.optimizer.zero_grad()


class ReportsLastLoss(LoopEngine):
    """The gradient is right; the loss reported is N times too small."""

    def result(self, totals: Weights, weights: Weights, norm: float, samples: int) -> Any:
        """See the class."""
        given = super().result(totals, weights, norm, samples)
        given.loss /= self.steps + 1
        return given


class ReportsSumNorm(LoopEngine):
    """The gradient is right; its norm is reported times N."""

    def clip(self) -> float:
        """See the class."""
        return super().clip() * (self.steps + 1)


class CountsBatches(LoopEngine):
    """Counts micro-batches where samples are meant."""

    def result(self, totals: Weights, weights: Weights, norm: float, samples: int) -> Any:
        """See the class."""
        return super().result(totals, weights, norm, samples - 1)


class LeavesGradients(LoopEngine):
    """A border that forgets to empty `.grad`, and a start that does it instead."""

    def attempt(self, listed: list[Any]) -> Any:
        """See the class."""
        self.optimizer.zero_grad()
        return super().attempt(listed)

    def empty(self) -> None:
        """See the class."""


BROKEN = [
    (MeanOfMeans, "engine-weights"),
    (DividesTailByN, "engine-scale"),
    (NeverDivides, "engine-scale"),
    (DoublesAuxiliary, "engine-term"),
    (OneDenominatorForAll, "engine-term"),
    (DropsLastTerm, "engine-term"),
    (NeverEmpties, "engine-stale"),
    (EmptiesEachMicroBatch, "engine-missing"),
    (MissesLast, "engine-missing"),
    (RunsOneTwice, "engine-repeated"),
    (ClipsEachMicroBatch, "engine-clip"),
    (ClipsBeforeAveraging, "engine-clip"),
    (NeverClips, "engine-clip"),
    (HalfBuffers, "engine-rounding"),
    (HalfTerm, "engine-term"),
    (StepsEachMicroBatch, "engine-updates"),
    (SchedulesByCount, "engine-updates"),
    (ForgetsOneLayer, "engine-layers"),
    (AddsNoise, "engine-gradient"),
    (ReportsLastLoss, "engine-numbers"),
    (ReportsSumNorm, "engine-numbers"),
    (CountsBatches, "engine-numbers"),
    (LeavesGradients, "engine-numbers"),
]


@pytest.mark.parametrize(("engine", "code"), BROKEN, ids=[engine.__name__ for engine, _ in BROKEN])
def test_a_broken_engine_is_found_and_named(engine: type[LoopEngine], code: str) -> None:
    """Each fault gives the verdict not-equal, and its own name."""
    report = certificate(word_task(two_terms), engine=engine, samples=8)
    assert report.verdict == "not-equal"
    assert code in codes(report)
    assert not report.as_declared


def test_a_user_is_told_that_a_broken_engine_is_no_fault_of_theirs() -> None:
    """One culprit, with what to report; which line of the engine is wrong is these tests' business."""
    report = certificate(word_task(two_terms), engine=MeanOfMeans, samples=8, diagnose=engine_fault)
    assert report.verdict == "not-equal"
    (found,) = report.culprits
    assert found.code == "engine-fault"
    assert found.values["precision"] == "fp64"
    sentence, remedy = sentences.culprit(found)
    assert "gradacc's engine" in sentence
    assert "report it" in remedy


def test_a_user_is_told_which_of_the_numbers_beside_the_gradient_is_wrong() -> None:
    """In words, in the sentence itself."""
    report = certificate(word_task(two_terms), engine=ReportsSumNorm, samples=8, diagnose=engine_fault)
    (found,) = report.culprits
    assert found.where == ("gradient-norm",)
    assert sentences.culprit(found)[0].endswith("(the reported gradient norm)")


@pytest.mark.parametrize("engine", [EmptiesHalf, RepeatsFirstBatch, MeanOfMeans, ReplaysOntoWhatIsThere])
def test_more_faults_are_never_called_equal(engine: type[LoopEngine]) -> None:
    """Whatever it is called, a wrong gradient is not equal; here with samples of equal weight too."""
    report = certificate(plain_task(), engine=engine, samples=8)
    assert report.verdict == "not-equal"
    assert any(code.startswith("engine-") for code in codes(report))


def test_the_ordinary_loop_in_sum_form_is_equal() -> None:
    """The frame that the broken engines share is itself right, so that each is found for its own fault."""
    report = certificate(word_task(two_terms), engine=LoopEngine)
    assert report.verdict == "equal"
    assert not report.culprits


def test_a_mean_of_means_over_samples_shows_only_where_parts_are_ragged() -> None:
    """With one sample a weight, equal parts hide it; the ragged cut does not."""
    report = certificate(plain_task(), engine=MeanOfMeans, samples=8)
    held = {entry.fold: entry.holds for entry in report.comparisons if entry.precision == "fp64"}
    assert held["equal"]
    assert not held["ragged"]


def test_the_faults_say_which_micro_batch_and_how_often() -> None:
    """The second one entered twice: that is what is read."""
    report = certificate(word_task(two_terms), engine=RunsOneTwice, samples=8, steps=(4,))
    found = next(culprit for culprit in report.culprits if culprit.code == "engine-repeated")
    assert found.where == ("micro-batch 1",)
    assert found.values["factors"] == "1, 2, 1, 1"


def test_a_stale_gradient_is_told_with_its_factor() -> None:
    """All of the window before has leaked, once."""
    report = certificate(word_task(two_terms), engine=NeverEmpties, samples=8)
    found = next(culprit for culprit in report.culprits if culprit.code == "engine-stale")
    assert found.values["factor"] == pytest.approx(1.0)


def test_a_doubled_term_is_named_with_its_factor() -> None:
    """The term's name, and that it enters twice."""
    report = certificate(word_task(two_terms), engine=DoublesAuxiliary, samples=8)
    found = next(culprit for culprit in report.culprits if culprit.code == "engine-term")
    assert found.where == ("penalty",)
    assert found.values["factors"] == "2"


def test_an_engine_that_cannot_recover_from_out_of_memory_is_told_so() -> None:
    """The simulated failure comes through: that window was not done."""

    class Dies(LoopEngine):
        def window(self, batches: Any) -> Any:
            return self.attempt(list(batches))

    report = certificate(MadeTask(mlp, cross_entropy, vectors()), engine=Dies, samples=8)
    assert report.verdict == "not-equal"
    assert "engine-skipped" in codes(report)


def test_an_engine_fault_in_the_runs_own_precision_alone_is_found() -> None:
    """Right in fp64, and rounded to bf16 in the fp32 run: fp32's limit finds it."""

    class RoundsFp32(LoopEngine):
        def border(self, _weights: Weights, _many: int) -> None:
            for gradient in gradients(self.model):
                if gradient.dtype == torch.float32:
                    gradient.copy_(gradient.bfloat16())

    report = certificate(plain_task(), engine=RoundsFp32, samples=8)
    assert report.verdict == "not-equal"
    assert "engine-rounding" in codes(report)
    assert all(entry.holds for entry in report.comparisons if entry.precision == "fp64")
