"""What the large batch's gradient is, how sure that is, and what the task's sums say of each partition."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import torch

from trainer_backend.engine.memory import free, is_out_of_memory
from trainer_backend.errors import GradaccError
from trainer_backend.verify.compare import Gradient, GradientDifference, added, compare
from trainer_backend.verify.limits import CANCELLED, CAPS, Limits, noise_of
from trainer_backend.verify.plain_pass import PlainPass, plain_pass
from trainer_backend.verify.report import ComputePrecision, Floor, Remark
from trainer_backend.verify.subject import Subject
from trainer_backend.verify.torch_modes import LossCall, Narrowings, running_module

COUNTED_ALIKE: Final = 1e-6
"""Denominators that differ by less were counted alike, and summed in fp32."""
HALF: Final = (torch.bfloat16, torch.float16)


class Reference:
    """The large batch in the best precision that runs, its floors, and its partitions."""

    def __init__(self, subject: Subject, total: int | None = None) -> None:
        self.subject = subject
        self.precision: ComputePrecision = "fp64"
        self.remarks: list[Remark] = []
        self.heard: list[LossCall] = []
        self.narrowed: dict[str, torch.dtype] = {}
        """Where fp64 was rounded to less, by module."""
        self.samples_partition = 0
        """All samples, where they do not fit as one batch: compared between partitions only."""
        self.weights_are_rounded = False
        subject.by_splitting = not subject.collates_the_same_twice()
        if subject.by_splitting:
            self.remarks.append(Remark(code="collate-draws-lots"))
        self.total = len(subject.samples) if total is None else total
        self.one = self._first_pass()
        self.gradient = self.one.gradient()
        self.norm = compare(self.gradient, self.gradient).norm
        self._partitions: dict[tuple[tuple[int, ...], bool], tuple[PlainPass, Gradient]] = {}
        self._limits: dict[str, tuple[Limits, Floor]] = {}

    # ---------------------------------------------------------------------------- the large batch

    def _first_pass(self) -> PlainPass:
        """The large batch; in fp32 where fp64 cannot run; of fewer samples where it does not fit."""
        while True:
            failure = self._try("fp64")
            if isinstance(failure, PlainPass):
                return failure
            if failure != "out of memory":
                return self._in_fp32(failure)
            if not self._halve():
                return self._in_fp32("fp64 does not fit")

    def _in_fp32(self, reason: str) -> PlainPass:
        self.precision = "fp32"
        self.remarks.append(Remark(code="fp64-cannot-run", values={"reason": reason}))
        while True:
            # Without fp64 there is nothing to fall back to: an error is the user's own, and passes.
            given = self._try("fp32", last=True)
            if isinstance(given, PlainPass):
                return given
            if not self._halve():
                raise GradaccError(
                    "Out of memory with 2 samples: no batch of two fits, so nothing can be compared. "
                    "Use a smaller model or shorter samples."
                )

    def _halve(self) -> bool:
        """Half as many samples."""
        if self.total // 2 < 2 * self.subject.smallest:
            return False
        self.total //= 2
        free(self.subject.device)
        return True

    def _try(self, precision: ComputePrecision, *, last: bool = False) -> PlainPass | str:
        try:
            return plain_pass(
                self.subject, self.parts((self.total,), precision), precision, heard=self.heard,
                around=self._listening if precision == "fp64" else None,
            )  # fmt: skip
        except GradaccError:
            raise
        except Exception as error:  # whatever a kernel or a quantised layer says to fp64, it means: not here
            if is_out_of_memory(error):
                return "out of memory"
            if last:
                raise
            return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"

    @contextlib.contextmanager
    def _listening(self, model: torch.nn.Module) -> Iterator[Any]:
        with running_module(model) as where, Narrowings(where) as narrowings:
            yield
        self.narrowed |= narrowings.seen

    def parts(
        self,
        sizes: Sequence[int],
        precision: ComputePrecision | None = None,
        *,
        order: Sequence[int] | None = None,
    ) -> list[Any]:
        """The samples in parts of these sizes."""
        return self.subject.parts(sizes, precision or self.precision, order=order)

    # --------------------------------------------------------------------------------- partitions

    def partition(self, sizes: tuple[int, ...], *, halved: bool = False) -> tuple[PlainPass, Gradient]:
        """The task's own sums over these micro-batches, and their gradient. The last few are kept.

        `halved`: each is split in two by the task itself, as after out of memory.
        """
        if sizes == (self.total,) and not halved:
            return self.one, self.gradient
        key = (sizes, halved)
        if key not in self._partitions:
            if len(self._partitions) > 3:
                self._partitions.pop(next(iter(self._partitions)))
            parts = self.parts(sizes)
            if halved:
                parts = [half for part in parts for half in self.subject.split(part, 2)]
            plain = plain_pass(self.subject, parts, self.precision)
            self._partitions[key] = (plain, plain.gradient())
        return self._partitions[key]

    def target(self, plain: PlainPass) -> Gradient:
        """The large batch's gradient, over the denominators as `plain` counted them.

        Those differ from the large batch's own where weights are summed in fp32: that is rounding.
        """
        if plain is self.one:
            return self.gradient
        return self._over_denominators_of(plain, self.one, self.gradient)

    def _over_denominators_of(self, plain: PlainPass, other: PlainPass, gradient: Gradient) -> Gradient:
        pairs = {term: (plain.denominator(term), other.denominator(term)) for term in other.terms}
        rounded = {
            term: own / theirs
            for term, (own, theirs) in pairs.items()
            if own != theirs and theirs > 0 and abs(own / theirs - 1) <= COUNTED_ALIKE
        }
        if not rounded:
            return gradient
        self.weights_are_rounded = True
        whole: dict[str, torch.Tensor | None] = dict.fromkeys(gradient)
        for term in other.terms:
            added(whole, other.term_gradient(term), 1.0 / rounded.get(term, 1.0))
        return whole

    @property
    def stated(self) -> set[str]:
        """Terms that belong to the micro-batch as a whole, as the task says."""
        return self.one.stated | (
            set(getattr(self.subject.task, "per_micro_batch", ())) & set(self.one.terms)
        )

    # ------------------------------------------------------------------------------------- floors

    @property
    def grade(self) -> str:
        """The precision whose limits hold for the reference."""
        if self.precision == "fp64":
            return "fp32" if self.narrowed else "fp64"
        return grade_of(self.subject, self.precision)

    def scale(self, plain: PlainPass | None = None) -> float:
        """What an error is held against at least: |G| that has nearly cancelled accuses nobody."""
        return CANCELLED * sum((plain or self.one).norms())

    def limits(self, precision: ComputePrecision) -> tuple[Limits, Floor]:
        """What is allowed in a precision; measured once."""
        if precision not in self._limits:
            self._limits[precision] = self._measure(precision)
        return self._limits[precision]

    def limits_over(self, sizes: tuple[int, ...], precision: ComputePrecision) -> Limits:
        """What is allowed over these micro-batches: as exact as the task's own sums over them.

        They may be worse conditioned than the large batch (BatchNorm over two samples), whatever runs them.
        """
        limits, _ = self.limits(precision)
        if precision == self.precision:
            return limits
        plain, definition = self.partition(sizes)
        own = plain_pass(self.subject, self.parts(sizes, precision), precision)
        rounding = compare(own.gradient(), definition, at_least=self.scale(plain))
        losses = (own.loss(), plain.loss())
        spread = abs(losses[0] - losses[1]) if losses[0] is not None and losses[1] is not None else 0.0
        noise = noise_of(rounding)
        return msgspec.structs.replace(
            limits,
            one_fold_error=max(limits.one_fold_error, rounding.error),
            noise={name: max(noise.get(name, 0.0), known) for name, known in limits.noise.items()}
            | {name: seen for name, seen in noise.items() if name not in limits.noise},
            loss_noise=max(limits.loss_noise, spread),
        )

    def _measure(self, precision: ComputePrecision) -> tuple[Limits, Floor]:
        subject, total = self.subject, self.total
        is_reference = precision == self.precision
        first = self.one if is_reference else self._again(precision, seed=0)
        one = self.gradient if is_reference else first.gradient()
        own = compare(one, self.gradient, at_least=self.scale())
        again = self._again(precision, seed=1)
        repeat = compare(again.gradient(), one, at_least=self.scale())
        losses = [self.one.loss(), first.loss(), again.loss()]
        reverse: GradientDifference | None = None
        if not subject.by_splitting:
            backwards = self._again(precision, seed=0, order=range(total - 1, -1, -1))
            forwards = self._over_denominators_of(backwards, first, one)
            reverse = compare(backwards.gradient(), forwards, at_least=self.scale())
            losses.append(backwards.loss())
        order = reverse.error if reverse is not None else 0.0
        seen = (own, repeat) if reverse is None else (own, repeat, reverse)
        grade = self.grade if is_reference else grade_of(subject, precision)
        rounding = [difference for difference in seen if difference.error <= max(CAPS[grade], own.error)]
        known = [loss for loss in losses if loss is not None]
        spread = max(known) - min(known) if known and max(repeat.error, order) <= CAPS[grade] else 0.0
        limits = Limits(grade, own.error, max(repeat.error, order), noise_of(*rounding), spread)
        floor = Floor(precision=precision, one_fold_error=own.error, repeat=repeat.error, order=order)
        return limits, floor

    def _again(
        self, precision: ComputePrecision, *, seed: int, order: Sequence[int] | None = None
    ) -> PlainPass:
        parts = self.parts((self.total,), precision, order=order)
        return plain_pass(self.subject, parts, precision, seed=seed)


def grade_of(subject: Subject, precision: ComputePrecision) -> str:
    """A model whose own weights are half is as exact as those, whatever runs around it."""
    if precision == "fp32" and any(value.dtype in HALF for value in subject.prototype.parameters()):
        return "bf16"
    return precision
