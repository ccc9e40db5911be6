"""What the trainer warns of before a run, as a certificate's remarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trainer_backend.engine import inspect_loss, inspect_model
from trainer_backend.verify.reference import Reference
from trainer_backend.verify.report import Culprit, Remark

PROVEN: Final = frozenset({"loss-mean", "loss-weight-not-additive", "loss-not-additive"})
"""What an inspection can only suspect; the comparisons have proven or refuted it."""


def inspected(reference: Reference, culprits: Sequence[Culprit]) -> list[Remark]:
    """What inspection finds in the model and the loss, as far as no culprit says it better."""
    subject, precision = reference.subject, reference.precision
    # Hooks are looked for on the prototype, since copies lose them; a copy runs the loss.
    found = inspect_model(
        subject.prototype,
        micro_batch_size=subject.micro_batch_size,
        gradient_dtype=subject.gradient_dtype,
    )
    many = min(reference.total, subject.micro_batch_size)
    model = subject.model(precision)
    with subject.controlled(model, precision):
        found += inspect_loss(
            model,
            subject.loss,
            reference.parts((many,))[0],
            split_batch=subject.split,
            device=subject.place(precision),
        )
    said = PROVEN | {culprit.code for culprit in culprits}
    return [Remark(code=warned.code, values=warned.values) for warned in found if warned.code not in said]
