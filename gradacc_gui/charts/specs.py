"""What the charts show: fields of measurements, their names, units and colours. Data only; no Qt."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from gradacc_gui.charts.ticks import Quantity
from trainer_backend.protocol import (
    DeviceSampled,
    EvaluationMeasured,
    Event,
    HostSampled,
    MicroBatchMeasured,
    NoiseScaleMeasured,
    OptimizerStepMeasured,
)

SKY, ORANGE, GREEN, PINK, VERMILION, MUTED = range(6)
"""Places in the theme's series, and the muted text colour behind them."""

GIB: Final = 2.0**30

Style: TypeAlias = Literal["line", "dots", "steps", "points"]


class CurveSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A field of a measurement as one curve: its name, unit, colour and dash."""

    kind: type[Event]
    field: str
    name: str
    colour: int
    style: Style = "line"
    dash: bool = False
    smoothed: bool = False
    """Whether the smoothing slider moves it."""
    unit: str = ""
    """Behind the value at the pointer."""
    in_legend: bool = True
    """Whether it is named above the plot; else only at the pointer."""
    quantity: Quantity = "number"


class LaneSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A plot with a scale of its own; a chart's lanes stand above one another on one x-axis."""

    lines: tuple[CurveSpec, ...]
    from_zero: bool = False
    quantity: Quantity = "number"
    greatest: float | None = None
    """Where the scale ends, when that is known: 100 for percent."""
    level_setting: str = ""
    """A setting drawn as a dotted level: optimizer.max_grad_norm."""
    target_setting: str = ""
    """What the run shall reach, drawn as a line with its value: targets.throughput."""
    target_unit: float = 1.0
    """What the recipe counts the target in, in the lane's own unit."""
    empty: str = ""
    """Why the lane alone has nothing to show, where no reading is to blame."""


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """A chart as a card: its title, its lanes and their scales."""

    key: str
    title: str
    unit: str
    lanes: tuple[LaneSpec, ...]
    can_log: bool = False
    """Whether its scale can be made logarithmic."""

    @property
    def lines(self) -> tuple[CurveSpec, ...]:
        """All lines of all lanes."""
        return tuple(line for lane in self.lanes for line in lane.lines)


def _device(field: str, name: str, colour: int, **more: object) -> CurveSpec:
    return CurveSpec(kind=DeviceSampled, field=field, name=name, colour=colour, **more)  # type: ignore[arg-type]


def _step(field: str, name: str, colour: int, **more: object) -> CurveSpec:
    return CurveSpec(kind=OptimizerStepMeasured, field=field, name=name, colour=colour, **more)  # type: ignore[arg-type]


def _noise(field: str, name: str, colour: int, **more: object) -> CurveSpec:
    return CurveSpec(
        kind=NoiseScaleMeasured,
        field=field,
        name=name,
        colour=colour,
        unit="samples",
        **more,  # type: ignore[arg-type]
    )


LOSS: Final = Chart(
    key="loss",
    title="Loss",
    unit="",
    can_log=True,
    lanes=(
        LaneSpec(
            lines=(
                CurveSpec(
                    kind=MicroBatchMeasured, field="loss", name="micro-batch", colour=SKY, style="dots"
                ),
                _step("loss", "step", SKY, smoothed=True),
                CurveSpec(
                    kind=EvaluationMeasured, field="loss", name="validation", colour=ORANGE, style="points"
                ),
            ),
            target_setting="targets.validation_loss",
        ),
    ),
)
THROUGHPUT: Final = Chart(
    key="throughput",
    title="Throughput",
    unit="samples / s",
    lanes=(
        LaneSpec(
            lines=(_step("samples_per_s", "samples/s", GREEN, smoothed=True, unit="/s"),),
            from_zero=True,
            target_setting="targets.throughput",
        ),
    ),
)
GRADIENT_NORM: Final = Chart(
    key="gradient_norm",
    title="Gradients",
    unit="norm before clipping, noise scale",
    can_log=True,
    lanes=(
        LaneSpec(
            lines=(_step("gradient_norm", "norm", ORANGE, smoothed=True),),
            from_zero=True,
            level_setting="optimizer.max_grad_norm",
        ),
        LaneSpec(
            lines=(
                _noise("noise_scale_high", "interval, high", PINK, dash=True, in_legend=False),
                _noise("noise_scale_low", "interval, low", PINK, dash=True, in_legend=False),
                _noise("noise_scale", "noise", PINK),
                _noise("effective_batch", "batch", SKY, style="steps", quantity="count"),
            ),
            from_zero=True,
            empty="The noise scale needs windows of two or more measured micro-batches.",
        ),
    ),
)
LEARNING_RATE_AND_N: Final = Chart(
    key="learning_rate",
    title="Learning rate and N",
    unit="each on its own scale",
    lanes=(
        LaneSpec(lines=(_step("learning_rate", "learning rate", PINK),), from_zero=True),
        LaneSpec(
            lines=(_step("accumulation_steps", "N", SKY, style="steps", quantity="count"),),
            from_zero=True,
            quantity="count",
        ),
    ),
)
MEMORY_OF_GPU: Final = Chart(
    key="memory",
    title="Memory",
    unit="GiB",
    lanes=(
        LaneSpec(
            lines=(
                _device("torch_allocated_bytes", "allocated", SKY, quantity="bytes"),
                _device("torch_reserved_bytes", "reserved", GREEN, dash=True, quantity="bytes"),
                _device("process_memory_bytes", "process", ORANGE, quantity="bytes"),
                _device("memory_used_bytes", "device", PINK, quantity="bytes"),
            ),
            from_zero=True,
            quantity="bytes",
            target_setting="targets.peak_memory",
            target_unit=GIB,
        ),
    ),
)
MEMORY_OF_HOST: Final = Chart(
    key="memory",
    title="Memory",
    unit="GiB",
    lanes=tuple(
        LaneSpec(
            lines=(CurveSpec(kind=HostSampled, field=field, name=name, colour=colour, quantity="bytes"),),
            from_zero=True,
            quantity="bytes",
            target_setting="targets.peak_memory" if field == "process_rss_bytes" else "",
            target_unit=GIB,
        )
        for field, name, colour in (
            ("process_rss_bytes", "this process", ORANGE),
            ("host_memory_used_bytes", "whole machine", PINK),
        )
    ),
)
DEVICE_GPU: Final = Chart(
    key="device",
    title="Device",
    unit="",
    lanes=(
        LaneSpec(
            lines=(_device("utilization_percent", "utilization %", SKY, unit="%"),),
            from_zero=True,
            greatest=100.0,
        ),
        LaneSpec(lines=(_device("temperature_celsius", "temperature °C", VERMILION, unit="°C"),)),
        LaneSpec(lines=(_device("power_watts", "power W", ORANGE, unit="W"),), from_zero=True),
    ),
)
DEVICE_CPU: Final = Chart(
    key="device",
    title="CPU",
    unit="",
    lanes=(
        LaneSpec(
            lines=(
                CurveSpec(
                    kind=HostSampled, field="host_cpu_percent", name="whole machine %", colour=PINK, unit="%"
                ),
            ),
            from_zero=True,
            greatest=100.0,
        ),
        LaneSpec(
            lines=(
                CurveSpec(
                    kind=HostSampled, field="process_cpu_percent", name="this process % of a core",
                    colour=ORANGE, unit="%",
                ),
            ),
            from_zero=True,
        ),
    ),
)  # fmt: skip


def charts_for(*, gpu: bool) -> tuple[Chart, ...]:
    """The six charts, for a run on a GPU or on a CPU, in reading order."""
    return (
        LOSS,
        MEMORY_OF_GPU if gpu else MEMORY_OF_HOST,
        THROUGHPUT,
        GRADIENT_NORM,
        LEARNING_RATE_AND_N,
        DEVICE_GPU if gpu else DEVICE_CPU,
    )
