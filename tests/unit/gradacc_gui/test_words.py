"""Every code that the program emits has its sentence, in one place."""

from __future__ import annotations

import ast
import re
import string
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

import trainer_backend
from gradacc_gui import codes, words
from trainer_backend.goals import QUANTITIES
from trainer_backend.protocol import (
    FACTS,
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

BACKEND = Path(trainer_backend.__file__).parent
PLACES = {
    "_Refusal": codes.REFUSALS,
    "_refuse": codes.REFUSALS,
    "CommandRefused": codes.REFUSALS,
    "Refused": codes.REFUSALS,
    "Warned": codes.WARNINGS,
    "_warn": codes.WARNINGS,
    "warn": codes.WARNINGS,
    "NonFiniteError": codes.OWN_SENTENCE,
    "Failure": codes.OWN_SENTENCE | set(codes.FAILURES),
    "RunFailed": codes.OWN_SENTENCE | set(codes.FAILURES),
}
"""Calls that bring a code, and the table that words it."""
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+|stale|superseded|malformed")


def emitted() -> Iterator[tuple[str, str, str]]:
    """(place, call, code) for each literal code in the trainer's source."""
    for path in sorted(BACKEND.rglob("*.py")):
        if "verify" in path.parts:
            continue  # a certificate has remarks of its own, which its report words
        tree = ast.parse(path.read_text("utf-8"))
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in PLACES:
                named = [word.value for word in node.keywords if word.arg == "code"]
                for value in named or node.args[:2]:
                    for text in texts_of(value, tree):
                        if named or CODE.fullmatch(text):
                            yield f"{path.name}:{node.lineno}", name, text


def texts_of(value: ast.expr, tree: ast.Module) -> Iterator[str]:
    """The texts that an expression may be: a literal, either branch, or what its name was ever given."""
    match value:
        case ast.Constant(value=str(text)) if text:
            yield text
        case ast.IfExp(body=body, orelse=orelse):
            yield from texts_of(body, tree)
            yield from texts_of(orelse, tree)
        case ast.Name(id=name):
            for node in ast.walk(tree):
                if (
                    isinstance(node, ast.Assign)
                    and any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
                    and not isinstance(node.value, ast.Name)
                ):
                    yield from texts_of(node.value, tree)


def test_every_literal_code_of_the_trainer_is_worded() -> None:
    """A new code without a sentence fails here, with its place."""
    found = list(emitted())
    assert len(found) > 20
    missing = [(place, code) for place, name, code in found if code not in PLACES[name]]
    assert missing == []


def test_codes_without_a_hyphen_or_behind_a_choice_are_found() -> None:
    """These three were emitted without a sentence, and nobody saw it."""
    assert {"target-not-measured", "metric-not-measured", "recompiled"} <= {code for _, _, code in emitted()}


def test_every_target_of_a_recipe_has_words() -> None:
    """What it is about, its bound and its unit."""
    assert set(codes.TARGETS) == {f"targets.{key}" for key in QUANTITIES}


@pytest.mark.parametrize(
    ("verdict", "key", "bound", "target", "reached", "text"),
    [
        ("met", "targets.step_time", "at-most", 0.5, 0.3125,
         "Target met: median step time 0.3125 s (at most 0.5 s)"),
        ("missed", "targets.throughput", "at-least", 2000, 1500.0,
         "Target missed: median throughput 1,500 samples/s (at least 2,000 samples/s)"),
        ("missed", "targets.cost", "at-most", 1.5, None,
         "Target missed: energy not measured (at most 1.5 kWh)"),
        ("met", "targets.metric.f1", "at-least", 0.9, 0.91, "Target met: f1 0.91 (at least 0.9)"),
        ("met", "targets.metric.loss", "at-most", 2, 1.5, "Target met: loss 1.5 (at most 2)"),
    ],
)  # fmt: skip
def test_a_target_is_told_with_its_figures(
    verdict: Any, key: str, bound: Any, target: float, reached: float | None, text: str
) -> None:
    """A target that is met is good news, not a warning."""
    event = TargetJudged(
        step=1, samples_seen=4, key=key, bound=bound, target=target, reached=reached, verdict=verdict,
        act="warn", is_final=True,
    )  # fmt: skip
    line = words.line(event)
    assert line is not None
    assert line.text == text
    assert line.tone == ("good" if verdict == "met" else "warning")
    assert words.line(msgspec.structs.replace(event, is_final=False)) is None
    assert words.line(msgspec.structs.replace(event, is_final=False, acted=True)) is not None


def test_verdicts_of_older_journals_are_still_worded() -> None:
    """They were warnings."""
    values: dict[str, Scalar] = {"key": "targets.step_time", "target": 0.5, "reached": 0.25}
    line = words.line(Warned(code="target-met", values=values))
    assert line is not None
    assert line.text == "Target met: median step time 0.25 s (at most 0.5 s)"
    assert line.tone == "good"


def test_every_code_that_is_chosen_at_run_time_is_worded() -> None:
    """Codes that come from tables and functions instead of literals."""
    from trainer_backend.readings.nvml import BINDING_MISSING, OPENING

    chosen = {*OPENING.values(), BINDING_MISSING, "replay-ended", "replay-declined"}
    chosen |= {"loss-mean", "loss-weight-not-additive", "loss-not-additive"}
    chosen |= {"batch-norm", "batch-norm-of-one"}
    assert chosen <= set(codes.WARNINGS)


def test_every_phase_has_words() -> None:
    """The literal type names them all."""
    phases = get_args(get_type_hints(PhaseEntered)["phase"])
    assert set(phases) == set(codes.PHASES)


def test_readings_are_warnings() -> None:
    """What stands beside the readings is worded like the rest."""
    assert set(codes.WARNINGS) >= codes.READINGS


@pytest.mark.parametrize("table", ["REFUSALS", "WARNINGS", "FAILURES", "SKIPPED", "END_REASONS"])
def test_a_value_that_is_missing_never_breaks_a_sentence(table: str) -> None:
    """A newer trainer may bring other values."""
    for code, template in getattr(codes, table).items():
        text = words.sentence(getattr(codes, table), code, {})
        assert text
        names = [name for _, name, _, _ in string.Formatter().parse(template) if name]
        assert text.count("?") >= len(names)


def test_an_unknown_code_is_told_with_all_it_brings() -> None:
    """Better clumsy words than none."""
    assert words.sentence({}, "new-thing", {"step": 3}) == "new thing (step = 3)"
    assert words.warning(Warned(code="disk-nearly-full", values={})) == "Disk nearly full"


def test_values_are_readable_numbers() -> None:
    """Thousands marked, floats short."""
    text = words.sentence({"x": "{a} and {b}"}, "x", {"a": 1_000_000, "b": 0.123456789})
    assert text == "1,000,000 and 0.1235"


def test_a_metric_is_named_in_words() -> None:
    """power, not power_watts; the reason without dashes."""
    warned = Warned(
        code="metric-not-supported", values={"metric": "process_memory", "reason": "pid-namespace"}
    )
    assert "memory of this process (pid namespace)" in words.warning(warned)


STARTED = RunStarted(
    name="r",
    pid=1,
    host="h",
    versions={"python": "3.11", "torch": "2.14"},
    commit="",
    devices=(),
    precision="fp32",
    parameters=840_000,
    micro_batch_size=8,
    accumulation_steps=4,
    world_size=1,
    horizon_samples=None,
    max_samples=None,
    max_optimizer_steps=10,
    samples_per_epoch=None,
    loss_unit="token",
    gradient_norm_every=0,
    from_step=0,
    from_samples=0,
    from_tokens=0,
)
SPIKE = (
    "Loss spike at step 1,200: 7.25, usually 2 (8.5 standard deviations). Look at the samples of this "
    "step, or clip the gradient norm."
)
LINES: list[tuple[Fact, str | None]] = [
    (PhaseEntered(phase="training"), None),
    (CommandAccepted(command_id="a", applies_at_step=3), None),
    (ArtifactSaved(step=1, kind="text", path="p", caption="c"), None),
    (
        AlertRaised(
            code="loss-spike",
            step=1200,
            since_step=1200,
            samples_seen=9,
            value=7.25,
            usual=2.0,
            values={"deviations": 8.5},
        ),
        SPIKE,
    ),
    (STARTED, "Run started, 840\u202fk parameters"),
    (
        CommandRefused(command_id="a", code="stale"),
        "A command was refused: it was left over from before this attempt started.",
    ),
    (
        CommandRefused(command_id="a", code="not-paused", command="Resume"),
        "Resume was refused: the run is not paused.",
    ),
    (
        AccumulationChanged(command_id="a", step=62, before=4, after=8, asked_by="schedule", asked_at=0.0),
        "N 4 → 8 at step 62",
    ),
    (
        AccumulationChanged(
            command_id="a", step=62, before=4, after=8, asked_by="ada", asked_at=0.0, samples_seen=1952
        ),
        "N 4 → 8 at step 62, after 1,952 samples",
    ),
    (
        SettingChanged(
            command_id="a",
            step=62,
            key="optimizer.learning_rate",
            before=1e-3,
            after=2e-3,
            asked_by="ada",
            asked_at=0.0,
            samples_seen=1952,
        ),
        "Learning rate 0.001 → 0.002 at step 62, after 1,952 samples",
    ),
    (Paused(command_id=None, step=5, samples_seen=1), "Paused after step 5"),
    (Resumed(command_id=None, step=5, samples_seen=1), "Resumed after step 5"),
    (
        Slept(duration_s=7_860.0),
        "The machine slept for 2 h 11 min; this time is not counted",
    ),
    (
        CheckpointSaved(command_id=None, step=1000, samples_seen=1, path="c", size_bytes=1, duration_s=0.1),
        "Checkpoint at step 1,000",
    ),
    (
        OutOfMemoryRecovered(
            step=9,
            phase="backward",
            micro_batch_size_before=8,
            micro_batch_size=4,
            accumulation_steps_before=4,
            accumulation_steps=8,
            effective_batch=32,
            device="cpu",
        ),
        "Out of memory at step 9 (backward): micro-batch 8 → 4, N 4 → 8; "  # noqa: ISC004 - one sentence
        "the effective batch stays 32 and no sample was lost",
    ),
    (
        NonFiniteSeen(
            step=9,
            index=1,
            quantity="loss",
            value=float("nan"),
            policy="skip",
            sample_indices=(3, 4),
            in_a_row=1,
        ),
        "Loss is NaN at step 9, micro-batch 2: update skipped",
    ),
    (
        RolledBack(command_id=None, from_step=90, to_step=50, to_samples=1, to_tokens=1),
        "Rolled back from step 90 to 50",
    ),
    (
        RolledBack(
            command_id=None, from_step=90, to_step=50, to_samples=1, to_tokens=1, samples_left_out=1280
        ),
        "Rolled back from step 90 to 50, leaving out 1,280 samples",
    ),
    (
        TargetJudged(
            step=9,
            samples_seen=1,
            key="targets.throughput",
            bound="at-least",
            target=90,
            reached=83.1,
            verdict="missed",
            act="pause",
            acted=True,
        ),
        "Target missed: median throughput 83.1 samples/s (at least 90 samples/s)",
    ),
    (
        GateAnswered(
            command_id="x",
            step=9,
            key="targets.throughput",
            answer="continue",
            reason="a slow disk",
            asked_by="me",
            asked_at=0.0,
        ),
        "Continued although the target was missed: median throughput",
    ),
    (MeasurementsLost(first=5, last=9), "5 measurements lost: the disk was full or too slow"),
    (Warned(code="no-chat-template"), "The tokenizer has no chat template; a plain one is used."),
    (RunFinished(step=10, samples_seen=1, reason="epochs"), "Finished at step 10"),
    (RunStopped(step=10, samples_seen=1, reason="stop"), "Stopped after step 10"),
    (RunFailed(step=10, samples_seen=1, reason="It broke."), "Failed at step 10: It broke."),
]


@pytest.mark.parametrize(("fact", "text"), LINES, ids=lambda value: type(value).__name__)
def test_a_facts_line_in_the_decision_log(fact: Fact, text: str | None) -> None:
    """Facts become lines; answers and phases do not."""
    line = words.line(fact)
    assert (line.text if line else None) == text


def test_no_fact_is_forgotten_here() -> None:
    """Each kind of fact has a line above."""
    assert {type(fact).__name__ for fact, _ in LINES} == set(FACTS)


REQUESTS: list[tuple[AnyCommand, str]] = [
    (SetAccumulation(steps=8), "N = 8"),
    (SetMicroBatchSize(size=4), "micro-batch = 4"),
    (SetLearningRate(value=1e-3), "learning rate = 0.001"),
    (SetMaxGradNorm(value=1.0), "clipping at 1"),
    (SetMaxGradNorm(value=None), "no clipping"),
    (Pause(), "pause"),
    (Resume(), "resume"),
    (SaveCheckpoint(), "checkpoint"),
    (RollBack(), "rollback to the last good checkpoint"),
    (RollBack(step=7), "rollback to step 7"),
    (RollBack(best=True), "rollback to the best checkpoint"),
    (AnswerGate(answer="continue"), "continuing although a target was missed"),
    (AnswerGate(answer="stop"), "stop because a target was missed"),
    (AnswerGate(answer="roll-back"), "rollback because a target was missed"),
    (Stop(), "stop"),
    (Stop(now=True), "immediate stop"),
]


@pytest.mark.parametrize(("command", "text"), REQUESTS, ids=lambda value: type(value).__name__)
def test_a_command_in_words(command: AnyCommand, text: str) -> None:
    """What stands before "requested", "from step 5" and "was refused"."""
    assert words.request(command) == text
    assert {type(each) for each, _ in REQUESTS} == set(get_args(AnyCommand))


def test_words_need_no_qt() -> None:
    """A command line can use them."""
    import subprocess

    code = "import sys, gradacc_gui.words; print([m for m in sys.modules if m.startswith('PySide6')])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=BACKEND.parent
    )
    assert done.stdout.strip() == "[]"


def test_who_reads_is_called_you(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the event as in the command; anybody else by name."""
    monkeypatch.setattr("gradacc_gui.words.person", lambda: "ada")
    assert words.asker("ada") == "you"
    assert words.asker("grace") == "grace"
    assert words.asker("schedule") != "you"


def test_what_was_asked_reads_as_a_sentence() -> None:
    """The same words for each kind of command."""
    assert words.requested(Pause()) == "Pause requested"
    assert words.requested(Resume()) == "Resume requested"
    assert words.requested(Stop(now=True)) == "Immediate stop requested"
