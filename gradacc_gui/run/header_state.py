"""What the header shows, as data; and how it is told from a run. No Qt."""

from __future__ import annotations

from typing import Final

import msgspec

from gradacc_gui.run.numbers import count
from gradacc_gui.words import tr
from trainer_backend.run_facts import RunState

STATE_WORDS: Final[dict[RunState | None, tuple[str, str]]] = {
    None: ("No run", "muted"),
    RunState.PENDING: ("Not started", "muted"),
    RunState.WAITING: ("Waiting", "accent"),
    RunState.LOADING: ("Loading", "accent"),
    RunState.RUNNING: ("Running", "ok"),
    RunState.PAUSING: ("Pausing", "warning"),
    RunState.PAUSED: ("Paused", "warning"),
    RunState.STOPPING: ("Stopping", "warning"),
    RunState.FINISHED: ("Finished", "ok"),
    RunState.STOPPED: ("Stopped", "muted"),
    RunState.FAILED: ("Failed", "bad"),
    RunState.INTERRUPTED: ("Interrupted", "warning"),
    RunState.DAMAGED: ("Damaged", "bad"),
}
"""A state's word, and the token of its colour; None: no run is shown."""


class HeaderState(msgspec.Struct, frozen=True, kw_only=True):
    """What the header shows. None is a dash."""

    name: str = ""
    detail: str = ""
    """Precision, optimizer, schedule, start."""
    state: RunState | None = None
    micro_batch_size: int | None = None
    accumulation_steps: int | None = None
    world_size: int | None = None
    step: int | None = None
    """The window that is open, or the last one of a run that ended."""
    last_step: int | None = None
    """Where the run will end, when that is known in steps."""
    window_cells: int = 0
    window_done: int = 0
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    elapsed_s: float | None = None
    doing: str = ""
    """What a running run does while no micro-batch moves: "Evaluating…"."""
    left: str = ""
    """Words for the time left: "2 h 11 min left"."""


def strip_words(state: HeaderState) -> str:
    """What the strip shows, in words: "micro-batch 5 of 8 in this step"."""
    if not state.window_cells or state.doing:
        return state.doing
    if state.state in (RunState.RUNNING, RunState.PAUSING, RunState.STOPPING):
        at = min(state.window_done + 1, state.window_cells)
        return tr("micro-batch {at} of {cells} in this step").format(
            at=count(at), cells=count(state.window_cells)
        )
    return tr("{done} of {cells} micro-batches").format(
        done=count(state.window_done), cells=count(state.window_cells)
    )
