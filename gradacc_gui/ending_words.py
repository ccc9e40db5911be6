"""What is lost when a trainer is ended by force, for whoever is asked whether to. No Qt."""

from __future__ import annotations

from gradacc_gui.words import tr
from trainer_backend.run_facts import RunFacts


def ending_cost(so_now: RunFacts, newest_checkpoint: int | None) -> str:
    """Two sentences: what the trainer is doing, and what of the run is on the disk.

    `newest_checkpoint`: its optimizer step; None when there is none.
    """
    if so_now.phase == "saving":
        share = so_now.phase_done
        done = "" if share is None else f" ({share:.0%})"
        doing = tr("A checkpoint is being saved{done}; it would be lost.").format(done=done)
    else:
        doing = tr("It has not ended yet.")
    if newest_checkpoint is None:
        return f"{doing} {tr('This run has no checkpoint: everything it has trained is lost.')}"
    kept = tr("What was trained after step {step}, the newest checkpoint, is lost.")
    return f"{doing} {kept.format(step=f'{newest_checkpoint:,}')}"
