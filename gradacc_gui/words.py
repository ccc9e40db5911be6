"""Every sentence that the window makes from a code and its values, in one place. No Qt.

The trainer reports codes with values; people read sentences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, TypeAlias, assert_never

import msgspec

from gradacc_gui.codes import (
    ASKERS,
    COMMANDS,
    END_REASONS,
    FAILURES,
    METRICS,
    PHASES,
    READINGS,
    REFUSALS,
    SETTINGS,
    SKIPPED,
    TARGETS,
    WARNINGS,
)
from gradacc_gui.person import person
from trainer_backend.goals import Bound
from trainer_backend.kinds.task_warnings import worded
from trainer_backend.protocol import (
    AccumulationChanged,
    AlertRaised,
    AnswerGate,
    AnyCommand,
    ArtifactSaved,
    CheckpointSaved,
    CommandAccepted,
    CommandRefused,
    Fact,
    GateAnswered,
    MeasurementsLost,
    NonFiniteSeen,
    OutOfMemoryRecovered,
    Pause,
    Paused,
    PhaseEntered,
    Resume,
    Resumed,
    RollBack,
    RolledBack,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
    SaveCheckpoint,
    Scalar,
    SetAccumulation,
    SetLearningRate,
    SetMaxGradNorm,
    SetMicroBatchSize,
    SettingChanged,
    Slept,
    Stop,
    TargetJudged,
    Warned,
)
from trainer_backend.watching.alert_words import alert_sentence

Tone: TypeAlias = Literal["plain", "accent", "good", "warning", "bad"]


class LogLine(msgspec.Struct, frozen=True):
    """One line of the decision log."""

    text: str
    tone: Tone = "plain"
    by: str = ""
    """Who asked, when somebody did."""
    detail: str = ""
    """More, for the tool-tip."""


def tr(text: str) -> str:
    """`text`, marked as one that people read.

    It takes a literal template, which is filled afterwards: tr("Checkpoint at step {step:,}").format(step=7).
    So every sentence of the window can be listed from the source.
    """
    return text


# ------------------------------------------------------------------------- codes with values


def sentence(table: Mapping[str, str], code: str, values: Mapping[str, Scalar]) -> str:
    """The template of `code` filled with `values`; an unknown code is told with all it brings."""
    return worded(table, code, values, tr)


def phase(code: str) -> str:
    """What the trainer does now."""
    return tr(PHASES.get(code, code))


def skipped(code: str) -> str:
    """Why a window made no update."""
    return tr(SKIPPED.get(code, code))


def asker(name: str) -> str:
    """Who asked; whoever reads this is called "you", as when the command was sent."""
    return tr("you") if name == person() else tr(ASKERS.get(name, name))


def refusal(event: CommandRefused) -> str:
    """Why a command has no effect; a value out of its bounds brings the sentence that tells them."""
    if event.code == "out-of-range" and isinstance(message := event.values.get("message"), str):
        return message
    return sentence(REFUSALS, event.code, event.values)


def refused(event: CommandRefused) -> str:
    """What was refused and why: "Resume was refused: the run is not paused."."""
    what = tr(COMMANDS.get(event.command, "A command"))
    why = refusal(event).removesuffix(".")
    return tr("{what} was refused: {why}.").format(what=what, why=why)


def warning(event: Warned) -> str:
    """Something a person should know, as a sentence."""
    values = dict(event.values)
    if isinstance(metric := values.get("metric"), str):
        values["metric"] = tr(METRICS.get(metric, metric.replace("_", " ")))
    if isinstance(reason := values.get("reason"), str) and event.code in READINGS:
        values["reason"] = reason.replace("-", " ")
    if isinstance(command := values.get("command"), str):
        values["command"] = tr(COMMANDS.get(command, "A command"))
    if event.code in ("target-met", "target-missed"):
        values |= _target_words(values)
    return _upper(sentence(WARNINGS, event.code, values))


def _target_words(values: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """A target's quantity, what was reached and what was asked, with their unit."""
    quantity, bound, unit = TARGETS.get(str(values.get("key")), (str(values.get("key")), "", ""))
    reached, target, unknown = values.get("reached"), values.get("target"), tr("not measured")
    return {
        "quantity": tr(quantity),
        "bound": tr(bound),
        "target": f"{target:,.4g} {unit}".strip() if isinstance(target, int | float) else unknown,
        "reached": f"{reached:,.4g} {unit}".strip()
        if isinstance(reached, int | float)
        else tr("not measured"),
    }


def failure(event: RunFailed) -> str:
    """Why a run failed: the code's own sentence, else the trainer's."""
    if event.code in FAILURES:
        return _upper(sentence(FAILURES, event.code, {"reason": event.reason} | event.values))
    return event.reason or _upper(sentence(FAILURES, event.code, event.values))


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


# ------------------------------------------------------------------------------ facts and asks


def request(command: AnyCommand) -> str:  # noqa: C901, PLR0912 - one case a command
    """What a command asks for: "N = 8", "pause"."""
    match command:
        case SetAccumulation():
            return tr("N = {steps}").format(steps=command.steps)
        case SetMicroBatchSize():
            return tr("micro-batch = {size}").format(size=command.size)
        case SetLearningRate():
            return tr("learning rate = {value:.3g}").format(value=command.value)
        case SetMaxGradNorm(value=None):
            return tr("no clipping")
        case SetMaxGradNorm():
            return tr("clipping at {value:.3g}").format(value=command.value)
        case Pause():
            return tr("pause")
        case Resume():
            return tr("resume")
        case SaveCheckpoint():
            return tr("checkpoint")
        case RollBack(step=None, best=True):
            return tr("rollback to the best checkpoint")
        case RollBack(step=None):
            return tr("rollback to the last good checkpoint")
        case RollBack():
            return tr("rollback to step {step}").format(step=command.step)
        case AnswerGate(answer="continue"):
            return tr("continuing although a target was missed")
        case AnswerGate(answer="stop"):
            return tr("stop because a target was missed")
        case AnswerGate():
            return tr("rollback because a target was missed")
        case Stop(now=True):
            return tr("immediate stop")
        case Stop():
            return tr("stop")
        case _:
            assert_never(command)


def requested(command: AnyCommand) -> str:
    """That a command was sent: "Pause requested", "N = 8 requested"."""
    return _upper(tr("{request} requested").format(request=request(command)))


def setting(key: str) -> str:
    """A recipe key's name for people."""
    return tr(SETTINGS.get(key, key))


def line(event: Fact) -> LogLine | None:  # noqa: C901, PLR0912 - one case a fact
    """The decision log's line for a fact; None for facts that only answer or only tell a phase."""
    match event:
        case PhaseEntered() | CommandAccepted() | ArtifactSaved():
            return None
        case RunStarted():
            return _started(event)
        case CommandRefused():
            return LogLine(refused(event), "warning")
        case AccumulationChanged():
            text = tr("N {before} → {after} at step {step:,}")
            return LogLine(
                text.format(before=event.before, after=event.after, step=event.step)
                + _after_samples(event.samples_seen),
                "accent",
                asker(event.asked_by),
            )
        case SettingChanged():
            return _setting_changed(event)
        case Paused():
            return LogLine(tr("Paused after step {step:,}").format(step=event.step))
        case Resumed():
            return LogLine(tr("Resumed after step {step:,}").format(step=event.step))
        case CheckpointSaved():
            detail = tr("{path}, written in {duration_s:.1f} s").format(
                path=event.path, duration_s=event.duration_s
            )
            return LogLine(tr("Checkpoint at step {step:,}").format(step=event.step), detail=detail)
        case OutOfMemoryRecovered():
            return LogLine(out_of_memory(event), "warning")
        case NonFiniteSeen():
            return _non_finite(event)
        case RolledBack():
            return _rolled_back(event)
        case TargetJudged():
            return _target_judged(event)
        case GateAnswered():
            return _gate_answered(event)
        case AlertRaised():
            return LogLine(alert_sentence(event, tr), "warning")
        case Slept():
            text = tr("The machine slept for {time}; this time is not counted")
            return LogLine(text.format(time=_duration(event.duration_s)))
        case MeasurementsLost():
            lost = event.last - event.first + 1
            return LogLine(
                tr("{lost:,} measurements lost: the disk was full or too slow").format(lost=lost), "bad"
            )
        case Warned():
            return LogLine(warning(event), _tone_of(event))
        case RunFinished() | RunStopped() | RunFailed():
            return _ended(event)
        case _:
            assert_never(event)


def _parameters(count: int) -> str:
    """842 k, 12.3 M, 7.24 B, as models are named."""
    for limit, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= limit:
            return f"{count / limit:.3g}\u202f{unit}"
    return str(count)


def _duration(seconds: float) -> str:
    """40 s, 14 min, 2 h 11 min."""
    if seconds < 60:
        return tr("{seconds:.0f} s").format(seconds=seconds)
    hours, minutes = divmod(round(seconds / 60), 60)
    template = tr("{hours:,} h {minutes} min") if hours else tr("{minutes} min")
    return template.format(hours=hours, minutes=minutes)


def out_of_memory(event: OutOfMemoryRecovered) -> str:
    """An out-of-memory that the trainer survived."""
    text = tr(
        "Out of memory at step {step:,} ({phase}): micro-batch {b} → {b2}, N {n} → {n2}; "
        "the effective batch stays {effective:,} and no sample was lost"
    )
    return text.format(
        step=event.step,
        phase=tr(event.phase),
        b=event.micro_batch_size_before,
        b2=event.micro_batch_size,
        n=event.accumulation_steps_before,
        n2=event.accumulation_steps,
        effective=event.effective_batch,
    )


def _started(event: RunStarted) -> LogLine:
    detail = ", ".join(f"{name} {version}" for name, version in event.versions.items())
    if event.from_step:
        return LogLine(tr("Resumed from step {step:,}").format(step=event.from_step), "good", detail=detail)
    text = tr("Run started, {count} parameters").format(count=_parameters(event.parameters))
    return LogLine(text, "good", detail=detail)


def _setting_changed(event: SettingChanged) -> LogLine:
    def told(value: Scalar) -> str:
        if value is None:
            return tr("none")
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    text = tr("{name} {before} → {after} at step {step:,}").format(
        name=setting(event.key), before=told(event.before), after=told(event.after), step=event.step
    )
    return LogLine(text + _after_samples(event.samples_seen), "accent", asker(event.asked_by))


def _after_samples(samples_seen: int | None) -> str:
    """At which sample a change took effect; older journals do not say."""
    return "" if samples_seen is None else tr(", after {samples:,} samples").format(samples=samples_seen)


def _non_finite(event: NonFiniteSeen) -> LogLine:
    where = "" if event.index is None else tr(", micro-batch {index}").format(index=event.index + 1)
    policy = {"skip": tr("update skipped"), "drop": tr("replayed without it"), "halt": tr("halted")}[
        event.policy
    ]
    text = tr("{quantity} {value} at step {step:,}{where}: {policy}").format(
        quantity=_upper(tr(event.quantity)),
        value=tr("is NaN") if math.isnan(event.value) else tr("is infinite"),
        step=event.step,
        where=where,
        policy=policy,
    )
    detail = tr("samples {which}").format(which=", ".join(map(str, event.sample_indices[:20])))
    return LogLine(text, "bad", detail=detail if event.sample_indices else "")


def _rolled_back(event: RolledBack) -> LogLine:
    text = tr("Rolled back from step {from_step:,} to {to_step:,}").format(
        from_step=event.from_step, to_step=event.to_step
    )
    if event.samples_left_out:
        text += tr(", leaving out {count:,} samples").format(count=event.samples_left_out)
    details = [target_words(event.cause)[0]] if event.cause else []
    return LogLine(text, "warning", detail=", ".join((*details, *filter(None, (event.incident,)))))


def target_words(key: str) -> tuple[str, str]:
    """A target's quantity for people, and its unit."""
    if key in TARGETS:
        quantity, _, unit = TARGETS[key]
        return tr(quantity), unit
    name = key.removeprefix("targets.metric.")
    known = TARGETS.get(f"targets.{name}")
    return (tr(known[0]), known[2]) if known else (name, "")


def bound_words(key: str, bound: Bound, limit: float) -> str:
    """The bound of a target: "at most 12 GiB"."""
    word = tr("at most") if bound == "at-most" else tr("at least")
    return f"{word} {limit:,.4g} {target_words(key)[1]}".strip()


def _target_judged(event: TargetJudged) -> LogLine | None:
    """A new miss, and what stands at the end; what changes between is on the target's card."""
    if not (event.is_final or event.acted):
        return None
    quantity, unit = target_words(event.key)
    reached = tr("not measured") if event.reached is None else f"{event.reached:,.4g} {unit}".strip()
    template = tr("Target met: {what}") if event.verdict == "met" else tr("Target missed: {what}")
    text = template.format(what=f"{quantity} {reached} ({bound_words(event.key, event.bound, event.target)})")
    tone: Tone = "good" if event.verdict == "met" else "plain" if event.act == "note" else "warning"
    return LogLine(text, tone)


def _gate_answered(event: GateAnswered) -> LogLine:
    answers = {
        "continue": tr("Continued although the target was missed: {quantity}"),
        "stop": tr("Stopped because the target was missed: {quantity}"),
        "roll-back": tr("Rolled back because the target was missed: {quantity}"),
    }
    text = answers[event.answer].format(quantity=target_words(event.key)[0])
    detail = tr("reason: {reason}").format(reason=event.reason) if event.reason else ""
    return LogLine(text, "accent", asker(event.asked_by), detail=detail)


def end_reason(code: str) -> str:
    """Why an attempt ended, when it did not fail."""
    return tr(END_REASONS.get(code, code))


def _ended(event: RunFinished | RunStopped | RunFailed) -> LogLine:
    match event:
        case RunFinished():
            return LogLine(
                tr("Finished at step {step:,}").format(step=event.step),
                "good",
                detail=end_reason(event.reason),
            )
        case RunStopped():
            return LogLine(
                tr("Stopped after step {step:,}").format(step=event.step), detail=end_reason(event.reason)
            )
        case RunFailed():
            text = tr("Failed at step {step:,}: {why}").format(step=event.step, why=failure(event))
            return LogLine(text, "bad", detail=event.where)
        case _:
            assert_never(event)


def is_error(event: Warned) -> bool:
    """Whether a warning's own level says that the run is wrong as it stands."""
    return event.values.get("level") == "error"


def _tone_of(event: Warned) -> Tone:
    if is_about_readings(event):
        return "plain"
    if event.code == "target-met":
        return "good"
    return "bad" if is_error(event) else "warning"


def is_about_readings(event: Warned) -> bool:
    """Whether a warning says that some reading is not to be had."""
    return event.code in READINGS
