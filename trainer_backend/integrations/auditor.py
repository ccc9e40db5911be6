"""Measures what a trainer does in the user's own run, and says it in plain words.

    from trainer_backend.integrations.auditor import Auditor
    with Auditor.of(trainer) as audit:        # transformers' Trainer, Lightning's, or an Accelerator
        trainer.train()
    print(audit.report())

Of a loop of one's own: `Auditor(model, optimizer, scheduler, steps=N)`, and `audit.loss(loss, units)`
before each backward.

What a micro-batch takes beside its forward and backward is measured on a CPU. On a GPU it is not: the
host's clock sees work being launched there, not done, and waiting for it would change what is measured;
give `raw_micro_batch_s` then, a bare forward and backward timed apart.

The coefficient of a token is read from the gradient that arrives at the logits:
d total / d logit[target] = coefficient x (p[target] - 1), whatever the trainer did to the loss on the way.
"""

from __future__ import annotations

from typing import Any, Self

from trainer_backend.integrations.audit import AuditFinding, judge, report
from trainer_backend.integrations.auditing import audit_of
from trainer_backend.integrations.observing import WindowObserver


class Auditor(WindowObserver):
    """Judges the windows seen from `start` to `stop`. `steps` is N, or a function that gives it."""

    @classmethod
    def of(cls, trainer: Any, **options: Any) -> Self:  # noqa: ANN401 - any library's object
        """Audit a transformers Trainer, a Lightning Trainer, or an Accelerator (once it has prepared).

        `units`: how many units the loss of a micro-batch is a mean over, where logits and labels do not
        tell; by default its samples. Lightning hands it the batch, accelerate what the model's forward
        was given. Raises UsageError for what is unknown.
        """
        return audit_of(cls, trainer, **options)

    # ------------------------------------------------------------------------------ saying

    def findings(self) -> list[AuditFinding]:
        """What was found, faults first."""
        return judge(
            self.windows, auxiliary_ratio=self._auxiliary_ratio, raw_micro_batch_s=self.raw_micro_batch_s
        )

    def report(self) -> str:
        """What was found, in plain words."""
        return report(self.findings())
