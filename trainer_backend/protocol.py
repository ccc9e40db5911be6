"""What the trainer and its readers say to each other: events out, commands in.

Events are frozen and hold numbers, short text and paths, never tensors. An event is either a
*measurement* (many, one table each in the journal, may be lost when the disk fails) or a *fact*
(few, never lost). Commands ask; facts answer. Units are part of a field's name.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

Scalar: TypeAlias = str | int | float | bool | None
"""What a reason's values may hold: words are made from them in the window, in its language."""


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Anything the journal holds: numbers and texts, so never part of a cycle of references."""


# ------------------------------------------------------------------------------- measurements


class MicroBatchMeasured(Event, frozen=True, kw_only=True):
    """One forward and backward of one micro-batch."""

    step: int
    """The window of micro-batches (optimizer step) this belongs to, from 1."""
    index: int
    """Place in the window, from 0."""
    samples: int
    tokens: int
    weight: float
    """Denominator this micro-batch brings (valid tokens, samples, or class weights)."""
    loss: float | None
    """Mean over its own weight; None when the weight is 0."""
    gradient_norm: float | None
    """L2 norm of the gradient of its own mean loss; None when not sampled."""
    duration_s: float
    samples_seen: int
    """Samples consumed by the run at this micro-batch's end."""
    tokens_seen: int
    rank: int = 0
    """Which rank ran it."""


class OptimizerStepMeasured(Event, frozen=True, kw_only=True):
    """One whole window of micro-batches, and the optimizer step that closed it."""

    step: int
    """Windows so far, from 1; a skipped window counts."""
    updates: int
    """Windows so far whose update was applied."""
    accumulation_steps: int
    """N that was asked for this window."""
    micro_batches: int
    """Micro-batches the window had: fewer than N at an epoch's end, more after a split."""
    micro_batch_size: int
    samples: int
    tokens: int
    weight: float
    """D: the window's denominator over all micro-batches and ranks."""
    loss: float | None
    """The window's loss: sum of weighted losses over D; None when D is 0."""
    gradient_norm: float | None
    """L2 norm of the window's mean gradient, before clipping."""
    learning_rate: float
    samples_seen: int
    tokens_seen: int
    duration_s: float
    data_wait_s: float
    """Part of `duration_s` that waited for the data loader."""
    samples_per_s: float
    tokens_per_s: float
    loss_scale: float | None
    """fp16 only."""
    skipped: str
    """Empty when the update was applied, else why not: empty | non-finite | loss-scale."""


class RankMeasured(Event, frozen=True, kw_only=True):
    """How one of several ranks did in one window. With one rank there is none."""

    step: int
    rank: int
    samples_seen: int
    """Samples consumed by the run at the window's end."""
    tokens_seen: int
    micro_batches: int
    """That this rank ran."""
    computed_s: float
    """From the window's start until its own micro-batches were through."""
    waited_s: float
    """From then until the gradients of all ranks were summed."""
    memory_bytes: int
    """The most that its process held: on the device, or resident in memory on a CPU."""
    memory_total_bytes: int | None


class DeviceSampled(Event, frozen=True, kw_only=True):
    """One reading of one accelerator. None is unknown, never 0; `Warned` has said why."""

    device: int
    """Index as the trainer's torch sees it."""
    memory_used_bytes: int | None
    memory_reserved_bytes: int | None
    memory_total_bytes: int | None
    process_memory_bytes: int | None
    """What the driver says this process holds."""
    torch_allocated_bytes: int | None
    torch_reserved_bytes: int | None
    torch_allocated_peak_bytes: int | None
    torch_reserved_peak_bytes: int | None
    utilization_percent: float | None
    temperature_celsius: float | None
    power_watts: float | None
    energy_joules: float | None
    """Since the run's attempt started."""
    slowed_by: int | None = None
    """NVML's reasons for lower clocks, as bits; None where they are not told."""


class HostSampled(Event, frozen=True, kw_only=True):
    """One reading of the machine and of the trainer's process (with its loader workers)."""

    process_rss_bytes: int | None
    workers_rss_bytes: int | None
    host_memory_used_bytes: int | None
    host_memory_total_bytes: int | None
    process_cpu_percent: float | None
    """100 is one whole core."""
    host_cpu_percent: float | None


class EvaluationMeasured(Event, frozen=True, kw_only=True):
    """One pass over (part of) the validation data."""

    step: int
    samples_seen: int
    tokens_seen: int
    loss: float | None
    metrics: dict[str, float]
    samples: int
    duration_s: float


class NoiseScaleMeasured(Event, frozen=True, kw_only=True):
    """The gradient noise of one window, and the noise scale smoothed over the windows so far.

    In samples of the effective batch; the formulas are in `noise_scale`.
    """

    step: int
    samples_seen: int
    tokens_seen: int
    micro_batches: int
    """Gradients that were compared."""
    effective_batch: int
    """Samples in this window."""
    trace: float
    """This window's tr(Sigma), of one sample's gradient."""
    squared_gradient: float
    """This window's |G|^2; may be negative."""
    windows: int
    """Measured windows behind the smoothed numbers."""
    noise_scale: float | None
    """None while the mean of |G|^2 is not above 0."""
    noise_scale_low: float | None
    """Lower end of the 95 % interval; None while nothing can be said."""
    noise_scale_high: float | None
    """Its upper end; None where there is none: the noise scale is at least the lower end."""


Measurement: TypeAlias = (
    MicroBatchMeasured
    | OptimizerStepMeasured
    | RankMeasured
    | DeviceSampled
    | HostSampled
    | EvaluationMeasured
    | NoiseScaleMeasured
)

# -------------------------------------------------------------------------------------- facts


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """An accelerator (or the CPU) that a run uses."""

    index: int
    kind: Literal["cpu", "cuda", "mps"]
    name: str
    uuid: str = ""
    memory_total_bytes: int | None = None


class PhaseEntered(Event, frozen=True, kw_only=True):
    """What the trainer does now, for people who wait."""

    phase: Literal[
        "importing-torch",
        "reading-data",
        "building-model",
        "restoring-checkpoint",
        "compiling",
        "training",
        "evaluating",
        "saving",
    ]
    done_ratio: float | None = None
    """Of a save that takes long: the share of its bytes that are written."""


class RunStarted(Event, frozen=True, kw_only=True):
    """An attempt is ready to train. It supersedes earlier attempts' rows after `from_step`."""

    name: str
    pid: int
    host: str
    versions: dict[str, str]
    """python, torch, gradacc, and what the task's kind adds."""
    commit: str
    """Of the source folder's git checkout, "-dirty" appended; empty when there is none."""
    devices: tuple[Device, ...]
    precision: Literal["fp32", "bf16", "fp16"]
    parameters: int
    micro_batch_size: int
    accumulation_steps: int
    world_size: int
    horizon_samples: int | None
    """Where the schedule ends, in samples; fixed for the whole run."""
    max_samples: int | None
    max_optimizer_steps: int | None
    samples_per_epoch: int | None
    loss_unit: str
    """What the weight counts: "token" or "sample"."""
    gradient_norm_every: int
    """Micro-batch gradient norms are sampled in every so-many-th window; 0 is never."""
    from_step: int
    """0, or the step of the checkpoint that this attempt goes on from."""
    from_samples: int
    from_tokens: int
    settings: dict[str, Scalar] | None = None
    """Everything in force for the first window, by the recipe's keys; None in older journals."""
    micro_batches: int | None = None
    """M: of the first window, over all ranks; None in older journals, where it is N."""
    launcher: str = ""
    """Tells the launcher of several ranks from others; empty for one process."""
    generation: int = 0
    """How often that launcher had started its ranks anew."""
    hosts: tuple[str, ...] = ()
    """Of several ranks: where each runs."""


class CommandAccepted(Event, frozen=True, kw_only=True):
    """A command will take effect at the start of window `applies_at_step`."""

    command_id: str
    applies_at_step: int
    command: str = ""
    """Its class, so that whoever did not send it knows what it was; empty in older journals."""
    asked: AnyCommand | None = None
    """The command itself: a kill before its effect must not lose it. None in older journals."""


class CommandRefused(Event, frozen=True, kw_only=True):
    """A command has no effect; `code` says why."""

    command_id: str
    code: str
    values: dict[str, Scalar] = {}
    command: str = ""
    """Its class; empty in older journals, and where the file was no command."""


class AccumulationChanged(Event, frozen=True, kw_only=True):
    """N is `after` from window `step` on."""

    command_id: str | None
    step: int
    before: int
    after: int
    asked_by: str
    """A person's or a program's name; "schedule", "out-of-memory", "replay" for the trainer's own."""
    asked_at: float
    samples_seen: int | None = None
    """Samples consumed before window `step`; None in older journals."""
    micro_batches: int | None = None
    """M: of the window, over all ranks; None in older journals, where it is N."""


class SettingChanged(Event, frozen=True, kw_only=True):
    """Another setting is `after` from window `step` on. `key` is the recipe's (optimizer.learning_rate)."""

    command_id: str | None
    step: int
    key: str
    before: Scalar
    after: Scalar
    asked_by: str
    asked_at: float
    samples_seen: int | None = None
    """Samples consumed before window `step`; None in older journals."""


class Paused(Event, frozen=True, kw_only=True):
    """Nothing runs until `Resumed`; the window before `step` + 1 is complete."""

    command_id: str | None
    step: int
    samples_seen: int


class Resumed(Event, frozen=True, kw_only=True):
    """A paused run continues."""

    command_id: str | None
    step: int
    samples_seen: int


class CheckpointSaved(Event, frozen=True, kw_only=True):
    """A checkpoint was written to disk and synced. `path` is relative to the run directory."""

    command_id: str | None
    step: int
    samples_seen: int
    path: str
    size_bytes: int
    duration_s: float
    kept_as: Literal["", "best", "before-change"] = ""
    """Why it was saved beside those that fall due; empty for these."""
    value: float | None = None
    """Of a best one: the metric by which it is."""


class OutOfMemoryRecovered(Event, frozen=True, kw_only=True):
    """A window ran out of memory and was replayed in smaller micro-batches; nothing was lost."""

    step: int
    phase: Literal["forward", "backward", "optimizer"]
    micro_batch_size_before: int
    micro_batch_size: int
    accumulation_steps_before: int
    accumulation_steps: int
    effective_batch: int
    device: str


class NonFiniteSeen(Event, frozen=True, kw_only=True):
    """A loss or gradient was NaN or infinite in window `step`."""

    step: int
    index: int | None
    """Micro-batch in the window; None when only the sum is known to be non-finite."""
    quantity: Literal["loss", "gradient"]
    value: float
    policy: Literal["skip", "drop", "halt"]
    sample_indices: tuple[int, ...]
    in_a_row: int


class RolledBack(Event, frozen=True, kw_only=True):
    """The run was taken back to an earlier checkpoint; rows after `to_step` are superseded."""

    command_id: str | None
    from_step: int
    to_step: int
    to_samples: int
    to_tokens: int
    settings: dict[str, Scalar] | None = None
    """Everything in force again, by the recipe's keys; None in older journals."""
    cause: str = ""
    """The target that was missed, where that is why; else empty."""
    samples_left_out: int = 0
    """Samples after the checkpoint that will not be trained on."""
    incident: str = ""
    """The file that tells all about it, relative to the run directory."""


class TargetJudged(Event, frozen=True, kw_only=True):
    """Whether a target of the recipe is met so far; told when that changes, and now and then between."""

    step: int
    samples_seen: int
    key: str
    """targets.step_time, or targets.metric.NAME."""
    bound: Literal["at-most", "at-least"]
    target: float
    reached: float | None
    """None when nothing was measured."""
    verdict: Literal["met", "missed", "unknown"]
    act: Literal["note", "warn", "pause", "stop", "roll-back"]
    """What a miss does."""
    measurements: int = 0
    """How many `reached` comes from."""
    expected: float | None = None
    """What a sum is expected to be at the run's end."""
    overridden: bool = False
    """A person went on although it was missed: nothing more is done about it."""
    is_final: bool = False
    """The run has finished; the verdict stands."""
    acted: bool = False
    """This verdict is a new miss, and what a miss does was done."""


class GateAnswered(Event, frozen=True, kw_only=True):
    """A run that a missed target had paused goes on, stops, or goes back."""

    command_id: str | None
    """None where nobody answered in time."""
    step: int
    key: str
    answer: Literal["continue", "stop", "roll-back"]
    reason: str
    """The person's own words; may be empty."""
    asked_by: str
    asked_at: float


class AlertRaised(Event, frozen=True, kw_only=True):
    """Something in the run is unlike before; worded from `code` and the numbers. Training goes on."""

    code: str
    """A key of `watching.alert_words.ALERTS`."""
    step: int
    """The window at whose end it was seen."""
    since_step: int
    """The first window that shows it, about."""
    samples_seen: int
    value: float | None
    """What was seen, in the quantity's own unit."""
    usual: float | None
    """What was usual before, or the limit."""
    values: dict[str, Scalar] = {}


class ArtifactSaved(Event, frozen=True, kw_only=True):
    """A picture or text that an evaluation made, for people to look at."""

    step: int
    kind: Literal["image", "text", "table"]
    path: str
    """Relative to the run directory."""
    caption: str


class Slept(Event, frozen=True, kw_only=True):
    """The machine was suspended, and nothing ran; recorded before anything that came after it."""

    duration_s: float


class MeasurementsLost(Event, frozen=True, kw_only=True):
    """Measurements `first` … `last` (sequence numbers) could not be kept while the disk failed."""

    first: int
    last: int


class Warned(Event, frozen=True, kw_only=True):
    """Something a person should know; the window makes a sentence of `code` and `values`."""

    code: str
    values: dict[str, Scalar] = {}


class RunFinished(Event, frozen=True, kw_only=True):
    """The attempt reached the run's end."""

    step: int
    samples_seen: int
    reason: str


class RunStopped(Event, frozen=True, kw_only=True):
    """The attempt ended early because it was asked to."""

    step: int
    samples_seen: int
    reason: str


class RunFailed(Event, frozen=True, kw_only=True):
    """The attempt ended on an error. `reason` is a sentence; `where` is the user's file:line."""

    step: int
    samples_seen: int
    reason: str
    code: str = "error"
    values: dict[str, Scalar] = {}
    where: str = ""
    traceback: str = ""


Fact: TypeAlias = (
    PhaseEntered
    | RunStarted
    | CommandAccepted
    | CommandRefused
    | AccumulationChanged
    | SettingChanged
    | Paused
    | Resumed
    | CheckpointSaved
    | OutOfMemoryRecovered
    | NonFiniteSeen
    | RolledBack
    | AlertRaised
    | TargetJudged
    | GateAnswered
    | ArtifactSaved
    | Slept
    | MeasurementsLost
    | Warned
    | RunFinished
    | RunStopped
    | RunFailed
)
RunEnded: TypeAlias = RunFinished | RunStopped | RunFailed
AnyEvent: TypeAlias = Measurement | Fact

MEASUREMENTS: Final[tuple[type[Event], ...]] = get_args(Measurement)
FACTS: Final[dict[str, type[Event]]] = {fact.__name__: fact for fact in get_args(Fact)}

# ----------------------------------------------------------------------------------- commands


def new_command_id() -> str:
    """A fresh id that sorts by the time it was made."""
    return f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}"


class Command(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """A command, put into a run's inbox. Every command is answered at once by exactly one fact."""

    id: str = msgspec.field(default_factory=new_command_id)
    asked_by: str = "someone"
    asked_at: float = msgspec.field(default_factory=time.time)


class SetAccumulation(Command, frozen=True, kw_only=True):
    """N micro-batches a window, from the next window on; companions only as asked here."""

    steps: int
    learning_rate_rule: Literal["none", "sqrt", "linear"] = "none"
    """Multiply the learning rate by 1, sqrt(kappa) or kappa, kappa = new / old effective batch."""
    scale_beta2: bool = False
    """beta2 ** kappa, which keeps Adam's half-life in samples."""
    scale_weight_decay: bool = False
    """weight_decay * kappa, which keeps the decay per sample."""
    scale_ema: bool = False
    """ema_decay ** kappa."""


class SetMicroBatchSize(Command, frozen=True, kw_only=True):
    """Samples a micro-batch; with `keep_effective_batch`, N follows so that b x N stays."""

    size: int
    keep_effective_batch: bool = True


class SetLearningRate(Command, frozen=True, kw_only=True):
    """A new peak learning rate; the schedule keeps its shape."""

    value: float


class SetMaxGradNorm(Command, frozen=True, kw_only=True):
    """A new clipping bound; None is no clipping."""

    value: float | None


class Pause(Command, frozen=True, kw_only=True):
    """Wait at the next window border."""


class Resume(Command, frozen=True, kw_only=True):
    """Go on after a pause."""


class SaveCheckpoint(Command, frozen=True, kw_only=True):
    """Save at the next window border."""


class RollBack(Command, frozen=True, kw_only=True):
    """Go back to the checkpoint of `step`; None is the last good one."""

    step: int | None = None
    best: bool = False
    """Without a step: the best checkpoint by `checkpoint.metric` instead of the newest."""
    skip_samples: bool = False
    """Leave out the samples that were trained on after it."""
    learning_rate_factor: float | None = None
    """Multiply the learning rate by this from there on."""


class AnswerGate(Command, frozen=True, kw_only=True):
    """What a run shall do that a missed target has paused."""

    answer: Literal["continue", "stop", "roll-back"]
    reason: str = ""
    """Why, in the person's own words; it is recorded."""


class Stop(Command, frozen=True, kw_only=True):
    """End the run: after this window and a checkpoint, or `now`, leaving the window to be replayed."""

    now: bool = False


AnyCommand: TypeAlias = (
    SetAccumulation
    | SetMicroBatchSize
    | SetLearningRate
    | SetMaxGradNorm
    | Pause
    | Resume
    | SaveCheckpoint
    | RollBack
    | AnswerGate
    | Stop
)

# ------------------------------------------------------------------------- records, as read


class Record(msgspec.Struct, frozen=True):
    """An event with its place in the journal."""

    seq: int
    """From 1, dense over all kinds of event."""
    attempt: int
    """From 1."""
    at: float
    """Seconds since the epoch."""
    event: AnyEvent


def plain(value: Any) -> Any:  # noqa: ANN401 - any field's value
    """`value` for JSON: non-finite floats become "NaN", "Infinity", "-Infinity"."""
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case Mapping():
            return {key: plain(entry) for key, entry in value.items()}
        case list() | tuple():
            return [plain(entry) for entry in value]
        case msgspec.Struct():
            return plain(msgspec.structs.asdict(value))
        case _:
            return value


def record_json(record: Record) -> bytes:
    """One line of `--json` output, without the newline."""
    head = {
        "type": type(record.event).__name__,
        "seq": record.seq,
        "attempt": record.attempt,
        "at": record.at,
    }
    data = head | plain(record.event)
    try:
        return msgspec.json.encode(data)
    except UnicodeEncodeError:  # a path may hold bytes that are no text
        return json.dumps(data).encode("ascii")
