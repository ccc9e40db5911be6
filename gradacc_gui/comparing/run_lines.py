"""A chart with one line a group of runs, the least and the greatest of its repetitions behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from gradacc_gui.charts.card import ChartCard
from gradacc_gui.charts.lane import ViewSettings, traces_of
from gradacc_gui.charts.specs import Chart, CurveSpec, LaneSpec
from gradacc_gui.charts.ticks import Quantity
from gradacc_gui.comparing.compared_runs import RunGroup, uses_validation
from gradacc_gui.series import NO_TRACE, Trace
from gradacc_gui.store import View
from gradacc_gui.words import tr
from trainer_backend.protocol import (
    DeviceSampled,
    EvaluationMeasured,
    Event,
    HostSampled,
    OptimizerStepMeasured,
)

SERIES: Final = 5
"""Colours of a theme; from the sixth group on lines are dashed."""


class ComparedField(msgspec.Struct, frozen=True, kw_only=True):
    """A field of a measurement that is drawn for all groups."""

    key: str
    title: str
    unit: str
    kind: type[Event]
    field: str
    from_zero: bool = False
    can_log: bool = False
    quantity: Quantity = "number"


VALIDATION_LOSS: Final = ComparedField(
    key="loss", title="Validation loss", unit="", kind=EvaluationMeasured, field="loss", can_log=True
)
STEP_LOSS: Final = ComparedField(
    key="loss", title="Training loss", unit="", kind=OptimizerStepMeasured, field="loss", can_log=True
)
THROUGHPUT: Final = ComparedField(
    key="throughput", title="Throughput", unit="samples / s", kind=OptimizerStepMeasured,
    field="samples_per_s",
)  # fmt: skip
NORM: Final = ComparedField(
    key="gradient_norm", title="Gradient norm", unit="before clipping", kind=OptimizerStepMeasured,
    field="gradient_norm", from_zero=True, can_log=True,
)  # fmt: skip
RATE: Final = ComparedField(
    key="learning_rate", title="Learning rate", unit="", kind=OptimizerStepMeasured, field="learning_rate",
    from_zero=True,
)  # fmt: skip
MEMORY_GPU: Final = ComparedField(
    key="memory", title="Memory", unit="allocated", kind=DeviceSampled, field="torch_allocated_bytes",
    from_zero=True, quantity="bytes",
)  # fmt: skip
MEMORY_PROCESS: Final = ComparedField(
    key="memory", title="Memory", unit="of the process", kind=HostSampled, field="process_rss_bytes",
    from_zero=True, quantity="bytes",
)  # fmt: skip


def fields_for(groups: Sequence[RunGroup]) -> tuple[ComparedField, ...]:
    """Five charts: the validation loss where all runs have one, memory of the GPU where one was used."""
    gpu = any(
        device.kind != "cpu"
        for group in groups
        for run in group.runs
        if run.store.started is not None
        for device in run.store.started.devices
    )
    loss = VALIDATION_LOSS if uses_validation(groups) else STEP_LOSS
    return loss, THROUGHPUT, MEMORY_GPU if gpu else MEMORY_PROCESS, NORM, RATE


def chart_of(field: ComparedField, groups: Sequence[RunGroup]) -> Chart:
    """The field as a chart with a line a group."""
    lines = tuple(
        CurveSpec(
            kind=field.kind,
            field=field.field,
            name=group.label,
            colour=place % SERIES,
            dash=place // SERIES % 2 == 1,
            smoothed=field.key != "learning_rate",
            in_legend=False,  # the buttons above the charts name them, for all charts at once
            quantity=field.quantity,
        )
        for place, group in enumerate(groups)
    )
    lane = LaneSpec(lines=lines, from_zero=field.from_zero, quantity=field.quantity)
    return Chart(key=field.key, title=field.title, unit=field.unit, lanes=(lane,), can_log=field.can_log)


class RunLines(ChartCard):
    """One field over all groups."""

    def __init__(self, field: ComparedField, groups: Sequence[RunGroup]) -> None:
        super().__init__(chart_of(field, groups))
        self.field = field

    def key_of(self, groups: Sequence[RunGroup], settings: tuple[Any, ...]) -> tuple[Any, ...]:
        """What the picture depends on."""
        return (
            tuple(run.store.revision(self.field.kind) for group in groups for run in group.runs),
            settings, self.log.isChecked(), self.devicePixelRatioF(), self.view.size(),
            tuple(lane.zoomed_y for lane in self.view.lanes),
        )  # fmt: skip

    def show_groups(
        self, groups: Sequence[RunGroup], hidden: frozenset[int], view: View, smoothing: float
    ) -> None:
        """Fetch what `view` shows of each group that is not hidden, and draw it."""
        plot = self.view
        settings = ViewSettings(
            view=msgspec.structs.replace(view, width=plot.plot_width_px()), smoothing=smoothing,
            log=self.log.isChecked(),
        )  # fmt: skip
        self._apply_look()
        plot.axis, plot.x_range = view.axis, (view.x0, view.x1)
        plot.place_lanes()
        (lane,) = plot.lanes
        shown = []
        for place, (curve, group) in enumerate(zip(lane.curves, groups, strict=True)):
            trace, behind = NO_TRACE, None
            if place not in hidden:
                for run in group.runs:
                    run.store.look_at(settings.view)
                found = [traces_of(run.store, curve.line, settings) for run in group.runs]
                trace, behind = found[0] if len(found) == 1 else (joined([one for one, _ in found]), None)
            shown.append((curve, trace, behind))
        lane.show(shown, settings)
        plot.message = tr("None of these runs has it.") if lane.is_empty else ""
        plot.draw()


def joined(traces: Sequence[Trace]) -> Trace:
    """The mean of repetitions where all of them have values, their least and greatest beside it."""
    drawn = [(trace.x[known], trace.y[known]) for trace in traces if (known := np.isfinite(trace.y)).any()]
    if not drawn:
        return NO_TRACE
    first, last = max(x[0] for x, _ in drawn), min(x[-1] for x, _ in drawn)
    x = np.unique(np.concatenate([x for x, _ in drawn]))
    x = x[(x >= first) & (x <= last)]
    if not len(x):
        return NO_TRACE
    values = np.stack([np.interp(x, own_x, own_y) for own_x, own_y in drawn])
    return NO_TRACE._replace(x=x, y=values.mean(0), lo=values.min(0), hi=values.max(0))
