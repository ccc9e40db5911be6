"""A run's data as the window reads it: rows, history, facts and state. No Qt."""

from gradacc_gui.store.clock import AXES, AXIS_COLUMN, Axis, RunPosition, View
from gradacc_gui.store.markers import AttemptBegin, LostRange, NChange
from gradacc_gui.store.run_store import RunStore

__all__ = [
    "AXES",
    "AXIS_COLUMN",
    "AttemptBegin",
    "Axis",
    "LostRange",
    "NChange",
    "RunPosition",
    "RunStore",
    "View",
]
